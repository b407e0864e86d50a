"""Leave a sampler's generator in the state that torch's ``DataLoader`` would, although the order is drawn at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

T = TypeVar("T")

_REPEATABLE = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)  # equal generators yield equal orders


class SamplerFollower:
    """Draw the order of an epoch again, batch by batch, while the batches are consumed.

    ``DataLoader`` draws from a sampler as batches are consumed, so an epoch that is stopped early leaves the generator
    in the middle of the order. Only torch's own samplers with a generator are followed: others may not be iterable
    twice, and those without a generator draw a seed, or their complete order, at the first item.

    Args:
        sampler: of items.
        batch_sampler: of batches; ``None`` for single items.
    """

    def __init__(self, sampler: Any, batch_sampler: Any) -> None:
        index_sampler = sampler if batch_sampler is None else batch_sampler
        items = batch_sampler.sampler if type(batch_sampler) is BatchSampler else sampler
        own: torch.Generator | None = getattr(items, "generator", None)
        repeatable = type(items) in _REPEATABLE and (batch_sampler is None or type(batch_sampler) is BatchSampler)
        self._generator = own if repeatable else None
        self._before = None if self._generator is None else self._generator.get_state()
        self._order: Iterator[Any] = iter(index_sampler) if self._generator is not None else iter(())

    def rewind(self) -> None:
        """Reset the generator to its state before the order was drawn."""
        if self._generator is not None and self._before is not None:
            self._generator.set_state(self._before)

    def draw(self, num_batches: int) -> None:
        """Advance the generator by a number of batches."""
        for _ in range(num_batches):
            next(self._order, None)

    def follow(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the batches, and advance the generator with each."""
        for batch in batches:
            self.draw(1)
            yield batch
        self.draw(1)


def seeds_of(generator: torch.Generator | None) -> torch.Generator:
    """Copy the generator, then advance it as a ``DataLoader`` does that draws the seed of its workers.

    So orders and random transforms equal those of a ``DataLoader``, which draws that seed before the order.
    """
    original = generator if generator is not None else torch.default_generator
    copy = torch.Generator()
    copy.set_state(original.get_state())
    torch.empty((), dtype=torch.int64, device=original.device).random_(generator=original)
    return copy
