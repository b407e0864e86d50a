"""Options of loaders: checked before torch does, and what a loader tells the pipes of its chain."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, default_convert, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from ..core import arguments as check
from ..core.arguments import converted, unknown_option
from ..core.batch_memory import BatchRows
from ..core.collating import LoaderCollate

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
    known = [
        "state_of_all_ranks",
        "list_once",
        "list_in_rank_0",
        "equalize",
        *signature(StatefulDataLoader.__init__).parameters,
    ]
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


def check_function(name: str, value: object) -> None:
    """Check an option that is a function, or ``None``."""
    example = "torch.utils.data.default_collate" if name == "collate_fn" else "one at the top level of a module"
    check.function_or_none(name, value, example=example)


class BatchOptions:
    """Options of a loader for the passes over its chain.

    Args:
        num_threads: for pipes that were given no number; ``None`` leaves them as they are.
        rows_of: number of samples in a batch that :func:`~..core.frameworks.collating.collate_samples` makes; ``None``
            if there are no such batches.
        pin_memory: whether batches are pinned.
    """

    def __init__(self, *, num_threads: int | None = None, rows_of: int | None = None, pin_memory: bool = False) -> None:
        self.num_threads, self.rows_of, self.pin_memory = num_threads, rows_of, pin_memory
        self._rows: BatchRows | None = None  # of this process, which uses the memory of freed batches again

    @classmethod
    def of(cls, loader: Any, *, num_threads: int | None = None, to_gpu: bool = False) -> BatchOptions:
        """The options of a loader.

        Args:
            loader: with its ``batch_size``, ``collate_fn`` (a :class:`LoaderCollate`) and ``pin_memory``.
            num_threads: that it gives to its pipes.
            to_gpu: whether it copies batches to a GPU.
        """
        rows_of = loader.batch_size if loader.collate_fn.takes_rows else None
        return cls(num_threads=num_threads, rows_of=rows_of, pin_memory=loader.pin_memory or to_gpu)

    def rows(self) -> BatchRows | None:
        """The rows of the batches of a pass that starts; ``None`` if its tensors have memory of their own."""
        if self.rows_of is None:
            return None
        if self._rows is None:
            is_pinned = self.pin_memory and torch.cuda.is_available()
            memory = "shared" if get_worker_info() is not None else "pinned" if is_pinned else "process"
            self._rows = BatchRows(self.rows_of, memory)  # type: ignore[arg-type]  # mypy joins the literals to str
        self._rows.restart()
        return self._rows

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_rows": None}
