"""Check the options of a ``PrefetchingLoader``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset

from ..core.arguments import check
from ..core.arguments.amounts import seed_of
from ..core.arguments.calls import unknown_option
from ..core.arguments.loader_options import check_start_method, converted
from ..core.frameworks.collating import collate_samples
from ..core.partition import EqualizeMode
from ..core.world import require_world
from ._epoch import indices_of

TORCH_OPTIONS = {"batch_size", "collate_fn", "drop_last", "generator", "in_order", "multiprocessing_context"} | {
    "persistent_workers", "pin_memory", "pin_memory_device", "prefetch_factor", "timeout", "worker_init_fn"
}  # fmt: skip
"""Options of torch's ``DataLoader`` that trainers read as attributes."""


PASSED_ON = TORCH_OPTIONS - {"batch_size", "collate_fn", "drop_last", "generator"}
"""Options that are ``DataLoader``'s only."""
_OWN_OPTIONS = (
    "batch_size", "shuffle", "seed", "sampler", "batch_sampler", "num_workers", "collate_fn", "drop_last", "equalize",
    "world", "generator",
)  # fmt: skip


class Checked(NamedTuple):
    """Options of a ``PrefetchingLoader`` with Python's numbers and flags.

    Args: as :class:`PrefetchingLoader`; ``options`` are those that are ``DataLoader``'s only.
    """

    batch_size: int | None
    num_workers: int
    drop_last: bool
    shuffle: bool | None
    seed: int | None
    options: dict[str, Any]


def equalize_mode(equalize: object) -> EqualizeMode | None:
    """Return the mode of an ``equalize`` argument.

    Raises:
        TypeError, ValueError: if it is none.
    """
    return None if equalize is None else check.choice("equalize", equalize, EqualizeMode)


def check_options(
    dataset: object,
    *,
    shuffle: object,
    seed: object,
    generator: Any,
    samplers: Mapping[str, object],
    equalize: object,
    world: Any,
    drop_last: object,
    num_workers: object,
    batch_size: object,
    collate_fn: object,
    options: Mapping[str, Any],
) -> Checked:
    """Refuse options that are wrong or contradict each other; the error says what to pass instead.

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
            f"{type(dataset).__name__}. "
            + (
                "A chain is read by stateful_loader(pipe)."
                if isinstance(dataset, IterableDataset)
                else "For another dataset use DataLoader; for a subset of one of these, a sampler."
            )
        )
    require_world(world)
    found = converted({"batch_size": batch_size, "num_workers": num_workers, "drop_last": drop_last})
    checked = Checked(
        **found,
        shuffle=check.flag_or_none("shuffle", shuffle),
        seed=None if seed is None else seed_of(seed),
        options=converted(options),
    )
    check.function_or_none("collate_fn", collate_fn, example="torch.utils.data.default_collate")
    equalize_mode(equalize)
    _check_worker_options(checked.options, checked.num_workers)
    check.instance_or_none("generator", generator, torch.Generator, example="torch.Generator()")
    has_sampler = _check_samplers(samplers, checked.shuffle)
    if seed is not None and (not checked.shuffle or generator is not None or has_sampler):
        raise check.marked(ValueError("seed= requires shuffle=True, without a sampler and without a generator."))
    if has_sampler and (equalize is not None or world is not None):
        raise check.marked(
            ValueError("A sampler selects what each rank reads: pass neither equalize= nor world= with it.")
        )
    return checked


def _check_samplers(samplers: Mapping[str, object], shuffle: bool | None) -> bool:
    """Check what decides the order, and return whether a sampler does."""
    for name, order in samplers.items():
        if order is not None and (isinstance(order, str | bytes) or not hasattr(order, "__iter__")):
            raise check.marked(TypeError(f"{name} must hold indices such as [2, 0, 1], got {check.shown(order)}."))
    batches = samplers["batch_sampler"]
    if isinstance(batches, Sequence):
        for batch in batches:
            indices_of(batch)
    has_sampler = any(order is not None for order in samplers.values())
    if has_sampler and shuffle:
        raise check.marked(ValueError("shuffle and a sampler exclude each other: the sampler is the order."))
    if all(order is not None for order in samplers.values()):
        raise check.marked(ValueError("sampler and batch_sampler exclude each other: pass one of them."))
    return has_sampler


def _check_worker_options(options: Mapping[str, Any], num_workers: int) -> None:
    """Check options that concern worker processes."""
    if options.get("persistent_workers"):
        raise check.marked(
            ValueError("persistent_workers: workers are started for each epoch. Leave it out, or write False.")
        )
    for name in ("prefetch_factor", "multiprocessing_context"):
        if options.get(name) is not None and not num_workers:
            raise check.marked(ValueError(f"{name} is for workers, and num_workers is 0. Leave it out."))
    if options.get("multiprocessing_context") is not None:
        check_start_method(options["multiprocessing_context"])


def collate_of(collate_fn: Callable[[Any], Any] | None, batch_size: int | None) -> Callable[[Any], Any] | None:
    """Return the function that makes batches; ``None`` for torch's, which leaves single items as they are."""
    return collate_samples if collate_fn is None and batch_size is not None else collate_fn
