"""Check the options of a ``PrefetchingLoader``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.arguments import check
from ..core.arguments.amounts import seed_of, whole, whole_or_none
from ..core.arguments.calls import unknown_option
from ..core.partition import EqualizeMode
from ..core.world import require_world

TORCH_OPTIONS = {"batch_size", "collate_fn", "drop_last", "generator", "in_order", "multiprocessing_context"} | {
    "persistent_workers", "pin_memory", "pin_memory_device", "prefetch_factor", "timeout", "worker_init_fn"
}  # fmt: skip
"""Options of torch's ``DataLoader`` that trainers read as attributes."""


PASSED_ON = TORCH_OPTIONS - {"batch_size", "collate_fn", "drop_last", "generator"}
"""Options that ``DataLoader`` gets unchanged."""
_OWN_OPTIONS = (
    "batch_size", "shuffle", "seed", "sampler", "batch_sampler", "num_workers", "collate_fn", "drop_last", "equalize",
    "world", "generator",
)  # fmt: skip


def equalize_mode(equalize: object) -> EqualizeMode | None:
    """Return the mode of an ``equalize`` argument.

    Raises:
        TypeError, ValueError: if it is none.
    """
    return None if equalize is None else check.choice("equalize", equalize, EqualizeMode)


def check_options(
    dataset: object,
    *,
    shuffle: bool | None,
    seed: int | None,
    generator: Any,
    has_sampler: bool,
    equalize: object,
    world: Any,
    drop_last: object,
    num_workers: object,
    batch_size: object,
    collate_fn: object,
    options: Mapping[str, Any],
) -> None:
    """Refuse options that contradict each other; the error says what to pass instead.

    Raises:
        TypeError: for a dataset or a world of another type.
        ValueError: for contradicting options.
    """
    for name in options:
        if name not in PASSED_ON:
            raise unknown_option("PrefetchingLoader", name, sorted({*_OWN_OPTIONS, *PASSED_ON}))
    if not hasattr(dataset, "batches"):
        raise TypeError(
            "PrefetchingLoader is for RemoteFiles, RemoteImageFolder and ShardedDataset, got a "
            f"{type(dataset).__name__}. For another dataset use DataLoader; for a subset of one of these, a sampler."
        )
    require_world(world)
    whole_or_none("batch_size", batch_size)
    whole("num_workers", num_workers, at_least=0)
    check.flag("drop_last", drop_last)
    check.function_or_none("collate_fn", collate_fn, example="torch.utils.data.default_collate")
    equalize_mode(equalize)
    if shuffle is not None:
        check.flag("shuffle", shuffle)
    if seed is not None:
        seed_of(seed)
    if options.get("persistent_workers"):
        raise ValueError("persistent_workers: workers of a PrefetchingLoader are started for each epoch.")
    if seed is not None and (not shuffle or generator is not None or has_sampler):
        raise ValueError("seed= requires shuffle=True, without a sampler and without a generator.")
    if has_sampler and (equalize is not None or world is not None):
        raise ValueError("A sampler selects what each rank reads: pass neither equalize= nor world= with it.")
