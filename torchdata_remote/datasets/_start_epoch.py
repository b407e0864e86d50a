"""Start an epoch: draw its complete order, and start the workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from ._epoch import Batched, Epoch, batches_of
from ._sampler_follower import SamplerFollower
from ._sampler_order import SamplerOrder
from ._split_order import SplitOrder


def start_epoch(
    dataset: Batched,
    loader: DataLoader[Any],
    seeds: torch.Generator,
    follower: SamplerFollower,
    options: Mapping[str, Any],
    order: SplitOrder | SamplerOrder,
) -> Iterator[Any]:
    """Draw the order of an epoch and start its workers.

    Args:
        dataset: of the items.
        loader: with the samplers and the ``collate_fn``.
        seeds: generator of the seeds of the workers.
        follower: of the generator of the samplers.
        options: of the ``DataLoader`` that reads.
        order: of the batches.

    Raises:
        StateError: if the order of the sampler differs from that of the state.
    """
    single, first = loader.batch_sampler is None, order.batches_done if isinstance(order, SamplerOrder) else 0
    epoch = Epoch(dataset, order.batches(), loader.collate_fn, single=single, first=first)
    follower.rewind()
    if isinstance(order, SamplerOrder):
        order.check(epoch)
        follower.draw(first)
    return follower.follow(batches_of(epoch, num_workers=loader.num_workers, generator=seeds, **options))
