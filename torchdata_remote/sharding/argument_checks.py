"""Check the arguments of ``shard_dataset`` before anything is read."""

from __future__ import annotations

from typing import Any

from ..core.arguments import check
from ..core.arguments.amounts import whole


def check_limits(
    max_shard_bytes: Any, max_shard_samples: Any, max_member_bytes: Any, num_workers: Any
) -> tuple[int, int, int, int]:
    """Return the limits as ints.

    Raises:
        TypeError, ValueError: for one that is not an int, or too small.
    """
    return (
        whole("max_shard_bytes", max_shard_bytes),
        whole("max_shard_samples", max_shard_samples),
        whole("max_member_bytes", max_member_bytes),
        whole("num_workers", num_workers, at_least=0),
    )


def check_functions(*, labels: Any, transform: Any, on_bad_member: Any, executor: Any) -> None:
    """Check what is called for files, samples and tasks.

    Raises:
        TypeError: for what cannot be called so.
    """
    if isinstance(labels, list | tuple | dict):
        raise check.marked(
            TypeError(
                "labels must be a function from path to class such as labels.parent_directory(), got a "
                f"{type(labels).__name__}. Classes are numbered in the order of their names."
            )
        )
    check.function_or_none("labels", labels, example="labels.parent_directory()")
    check.function_or_none("transform", transform, example="lambda sample: sample")
    check.function("on_bad_member", on_bad_member, example="tdr.skip_with_warning")
    if executor is not None and (isinstance(executor, type) or not hasattr(executor, "submit")):
        raise check.marked(
            TypeError(
                "executor must be a concurrent.futures.Executor such as ProcessPoolExecutor(4), got "
                f"{check.shown(executor)}."
            )
        )
