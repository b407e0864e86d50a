"""Check the options of ``stateful_loader`` before torch does, in the words of its documentation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, default_convert
from torchdata.stateful_dataloader import StatefulDataLoader

from ..core.arguments import check
from ..core.arguments.calls import unknown_option
from ..core.arguments.loader_options import check_start_method, converted
from ..core.frameworks.collating import LoaderCollate

_MAX_BATCH_SIZE = 10_000_000  # 80 MB for the list, and half a second


def require_chain(pipe: object) -> None:
    """Refuse what is not a chain of pipes.

    Raises:
        TypeError: names what reads such a thing instead.
    """
    if hasattr(pipe, "listings"):
        raise check.marked(TypeError("pipe must be a chain of pipes, got a Resumable. Pass it on as it is."))
    if isinstance(pipe, IterableDataset):
        return
    advice = "Begin a chain by tdr.stream_shards(url) or IterableWrapper([url]).list_remote()."
    if hasattr(pipe, "batches"):
        advice = "A map-style dataset is read by tdr.PrefetchingLoader, or by torch's DataLoader."
    elif isinstance(pipe, Dataset):
        advice = "A map-style dataset is read by torch's DataLoader."
    elif isinstance(pipe, DataLoader):
        advice = "Pass the chain itself, not a loader of it."
    elif callable(pipe):
        advice = "Pass what it returns: call it."
    elif hasattr(pipe, "__iter__") and not isinstance(pipe, str | bytes):
        advice = "Write IterableWrapper(items) to make a chain of it."
    shown = check.shown(pipe) if callable(pipe) else check.a_kind(pipe)
    raise check.marked(TypeError(f"pipe must be a chain of pipes, got {shown}. {advice}"))


def torchdata_options(dataset: object, options: dict[str, Any]) -> dict[str, Any]:
    """Check what ``StatefulLoader`` is built from, before torchdata does; return the options for it.

    Raises:
        TypeError: for a dataset that is no ``Resumable``, or an option that does not exist.
        ValueError: for a batch size that torchdata would spend minutes on, before the first sample.
    """
    if not hasattr(dataset, "listings"):
        shown = check.a_kind(dataset) if hasattr(dataset, "__iter__") else check.shown(dataset)
        raise check.marked(TypeError(f"dataset must be a Resumable, got {shown}. Build it by stateful_loader(pipe)."))
    known = ["state_of_all_ranks", "list_once", "list_in_rank_0", *signature(StatefulDataLoader.__init__).parameters]
    for name in options:
        if name not in known:
            raise unknown_option("StatefulLoader", name, [other for other in known if other != "self"])
    options = converted(options)
    batch_size = options.get("batch_size")
    if batch_size is not None and batch_size > _MAX_BATCH_SIZE:
        raise check.marked(
            ValueError(
                f"batch_size must be at most {_MAX_BATCH_SIZE:_}, got {batch_size:_}: for each batch torchdata makes a "
                "list of so many items, also where there are fewer samples. Pass the number of samples, or "
                "batch_size=None for single ones."
            )
        )
    # 1 is torch's default
    torchs = default_convert if options.get("batch_size", 1) is None else default_collate
    return {**options, "collate_fn": LoaderCollate(options.get("collate_fn") or torchs)}


@contextmanager
def without_warning_of_vitals() -> Iterator[None]:
    """Hide the warning of torch 2.13 about ``set_vital``, which torchdata's loader calls."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'set_vital' is deprecated")
        yield


def check_functions(*, context: Any, functions: dict[str, Any]) -> None:
    """Check the options that are neither numbers nor flags.

    Raises:
        TypeError, ValueError: for the first one that is wrong; says what to write.
    """
    for name, value in functions.items():
        check_function(name, value)
    check_start_method(context)


def check_function(name: str, value: object) -> None:
    """Check an option that is a function, or ``None``."""
    example = "torch.utils.data.default_collate" if name == "collate_fn" else "one at the top level of a module"
    check.function_or_none(name, value, example=example)
