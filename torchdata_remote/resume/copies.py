"""Copies of loaders: what pickle keeps of one, since it cannot keep the generator that torchdata's own one holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def reduced(loader: Any, state: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What ``__reduce__`` of a ``StatefulLoader`` returns.

    Args:
        loader: of which a copy is made. The copy has workers of its own.
        state: with which the copy begins; ``None`` where that is in the dataset.
    """
    options = {name: getattr(loader, name) for name in _OPTIONS}
    if loader.num_workers > 0:
        options["multiprocessing_context"] = loader.multiprocessing_context.get_start_method()
    listings = loader.dataset.listings
    options.update(list_once=listings.once, list_in_rank_0=listings.in_rank_0)
    return _made, (type(loader), loader.dataset, options, state)


def _made(loader_type: Callable[..., Any], dataset: Any, options: dict[str, Any], state: Any) -> Any:
    loader = loader_type(dataset, **options)
    if state is not None:
        loader._load(state)
    return loader
