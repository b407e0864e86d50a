"""Check the arguments of ``shard_dataset`` before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import isfunction
from typing import Any

from ..core import arguments as check
from ..core.arguments import whole
from ..core.urls import join_url, redact, split_url
from ..errors import ShardWriteError
from ..fetch.listing.patterns import literal_url
from ..writing import ShardFolder

_LABELS = __name__.rpartition(".sharding.")[0] + ".labels."


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
    if isfunction(labels) and str(labels.__module__).startswith(_LABELS):
        name = f"labels.{labels.__name__}"
        raise check.marked(TypeError(f"labels must be a labeller, got the function {name} itself. Write {name}(...)."))
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


def require_dataset(source: object, *, has_options: bool) -> None:
    """Check a source that is no URL.

    Args:
        source: of ``shard_dataset``.
        has_options: whether options were passed that are for files and archives.

    Raises:
        TypeError: if it is no map-style dataset, or options do not apply to it.
    """
    if isinstance(source, Mapping) or not (hasattr(source, "__getitem__") and hasattr(source, "__len__")):
        advice = "For an iterable of samples use write_shards."
        if isinstance(source, Mapping):
            advice = "Pass one of its values, or list(source.values())."
        raise check.marked(
            TypeError(
                "expected a URL, a path or a map-style dataset with len() and [i], got "
                f"{check.a_kind(source)}. {advice}"
            )
        )
    if has_options:
        raise check.marked(
            TypeError(
                "labels=, pattern= and on_bad_member= are for files and archives; the items of a dataset hold its "
                "labels."
            )
        )


def require_apart(url: str, archives: Sequence[str], destination: ShardFolder) -> None:
    """Require that shards are neither listed as source, now or when the job is resumed, nor replace an archive."""
    source, folder = join_url(*split_url(literal_url(url))), destination.template.folder
    if folder.startswith(source if source.endswith("/") else source + "/"):
        shown = redact(folder)
        raise ShardWriteError(
            f"{shown} is inside the source, {redact(source)}. Write into a folder outside of it.", url=shown
        )
    for archive in archives:
        if destination.template.index(join_url(*split_url(archive))) is not None:
            shown = redact(archive)
            raise ShardWriteError(
                f"{shown} is part of the source, and a shard would get the same name. Write into another folder.",
                url=shown,
            )
