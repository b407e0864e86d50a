"""Check the options of a ``PrefetchingLoader``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core.frameworks.collating import collate_samples
from ..core.world import require_world

TORCH_OPTIONS = {"batch_size", "collate_fn", "drop_last", "generator", "in_order", "multiprocessing_context"} | {
    "persistent_workers", "pin_memory", "pin_memory_device", "prefetch_factor", "timeout", "worker_init_fn"
}  # fmt: skip
"""Options of torch's ``DataLoader`` that trainers read as attributes."""


def check_options(
    dataset: object,
    *,
    shuffle: bool | None,
    seed: int | None,
    generator: Any,
    has_sampler: bool,
    equalize: object,
    world: Any,
    options: Mapping[str, Any],
) -> None:
    """Refuse options that contradict each other; the error says what to pass instead.

    Raises:
        TypeError: for a dataset or a world of another type.
        ValueError: for contradicting options.
    """
    if not hasattr(dataset, "batches"):
        raise TypeError(
            "PrefetchingLoader is for RemoteFiles, RemoteImageFolder and ShardedDataset, got a "
            f"{type(dataset).__name__}. For another dataset use DataLoader; for a subset of one of these, a sampler."
        )
    require_world(world)
    if options.get("persistent_workers"):
        raise ValueError("persistent_workers: workers of a PrefetchingLoader are started for each epoch.")
    if seed is not None and (not shuffle or generator is not None or has_sampler):
        raise ValueError("seed= requires shuffle=True, without a sampler and without a generator.")
    if has_sampler and (equalize is not None or world is not None):
        raise ValueError("A sampler selects what each rank reads: pass neither equalize= nor world= with it.")


def collate_of(collate_fn: Callable[[Any], Any] | None, batch_size: int | None) -> Callable[[Any], Any] | None:
    """Return the function that makes batches; ``None`` for torch's, which leaves single items as they are."""
    return collate_samples if collate_fn is None and batch_size is not None else collate_fn
