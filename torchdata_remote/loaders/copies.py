"""Copy loaders and their datasets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.arguments.check import marked
from ..core.iter_datapipe import IterDataPipe
from .resumable import Resumable

_OPTIONS = (
    "batch_size",
    "num_workers",
    "drop_last",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "prefetch_factor",
    "persistent_workers",
    "state_of_all_ranks",
)


def twin_of(dataset: Resumable) -> Resumable:
    """Copy a dataset for another loader, with its kept listing: two loaders must not share one dataset's position."""
    twin = Resumable(dataset.pipe, num_streams=dataset.num_streams)
    if dataset.listings.kept is not None:
        twin.listings.keep(dataset.listings.kept)
    return twin


def dataset_of(pipe: IterDataPipe[Any] | Resumable, num_streams: int | None) -> Resumable:
    """Make the dataset of a loader, from its arguments.

    Raises:
        ValueError: for a number of streams beside a ``Resumable``, which has its own.
    """
    if not isinstance(pipe, Resumable):
        return Resumable(pipe, num_streams=num_streams)
    if num_streams is not None:
        raise marked(
            ValueError("num_streams belongs to the Resumable that was passed: Resumable(pipe, num_streams=2).")
        )
    has_loader = pipe.read_by_workers is None
    return twin_of(pipe) if has_loader else pipe


def reduced(loader: Any, state: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Make the result of ``StatefulLoader.__reduce__``: the generator inside torchdata's loader cannot be pickled.

    Args:
        loader: to copy. The copy starts workers of its own.
        state: with which the copy starts; ``None`` if the dataset has it.
    """
    options = {name: getattr(loader, name) for name in (*_OPTIONS, *loader.own_options)}
    if loader.num_workers > 0:
        options["multiprocessing_context"] = loader.multiprocessing_context.get_start_method()
    listings = loader.dataset.listings
    options.update(list_once=listings.once, list_in_rank_0=listings.in_rank_0)
    return _rebuilt, (type(loader), loader.dataset, options, state)


def _rebuilt(loader_type: Callable[..., Any], dataset: Any, options: dict[str, Any], state: Any) -> Any:
    loader = loader_type(dataset, **options)
    if state is not None:
        loader.load_merged(state)
    return loader
