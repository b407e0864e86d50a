"""The batches of an order that is drawn at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from ._epoch import Batched, Epoch, batches_of
from ._sampler_follower import SamplerFollower
from ._sampler_order import SamplerOrder
from ._split_order import SplitOrder


def drawn(
    order: SplitOrder | SamplerOrder,
    dataset: Batched,
    loader: DataLoader[Any],
    *,
    seeds: torch.Generator,
    followed: SamplerFollower,
    options: Mapping[str, Any],
) -> Iterator[Any]:
    """Draw the order of an epoch, and start its workers.

    Args:
        order: of the batches.
        dataset: which has the items.
        loader: whose samplers and ``collate_fn`` they are.
        seeds: of the workers.
        followed: the samplers' generator.
        options: of the loader that reads.

    Raises:
        StateError: if a sampler gives another order than that of the state.
    """
    single, first = loader.batch_sampler is None, order.batches_done if isinstance(order, SamplerOrder) else 0
    epoch = Epoch(dataset, order.batches(), loader.collate_fn, single=single, first=first)
    followed.rewind()
    if isinstance(order, SamplerOrder):
        order.check(epoch)
        followed.draw(first)
    return followed.beside(batches_of(epoch, num_workers=loader.num_workers, generator=seeds, **options))
