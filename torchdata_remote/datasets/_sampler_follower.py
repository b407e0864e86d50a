"""Leave a sampler's generator where torch's ``DataLoader`` would, although the whole order was drawn at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

T = TypeVar("T")

_REPEATABLE = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)  # the same order from the same random numbers


class SamplerFollower:
    """Draws an epoch's order once more, batch by batch, while the batches are taken.

    ``DataLoader`` draws from a sampler as batches are taken, so an epoch that is left early leaves the generator
    somewhere in the order. Only torch's own samplers with a generator are followed: others may not be iterated twice,
    and those without one draw a seed, or all of their order, at the first item.

    Args:
        sampler: of items.
        batch_sampler: of batches; ``None`` where items are single.
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
        """The order has been drawn: let the generator be where it was before that."""
        if self._generator is not None and self._before is not None:
            self._generator.set_state(self._before)

    def draw(self, num_batches: int) -> None:
        """Move the generator on by what so many batches take."""
        for _ in range(num_batches):
            next(self._order, None)

    def beside(self, batches: Iterator[T]) -> Iterator[T]:
        """The batches; each one moves the generator on by one."""
        for batch in batches:
            self.draw(1)
            yield batch
        self.draw(1)


def seeds_of(generator: torch.Generator | None) -> torch.Generator:
    """A copy of the generator, which then is moved on as by a ``DataLoader`` that draws the seed of its workers.

    So orders and random transforms are those of a ``DataLoader``, which draws that seed before the order.
    """
    original = generator if generator is not None else torch.default_generator
    copy = torch.Generator()
    copy.set_state(original.get_state())
    torch.empty((), dtype=torch.int64).random_(generator=original)
    return copy
