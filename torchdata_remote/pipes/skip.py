"""``skip``: leave out the first items of a chain."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from ..core.arguments.amounts import whole
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..fetch.listing.source_argument import pipe_of
from .base.counted import CountedPipe
from .base.slots import place_among_readers, share_of

T = TypeVar("T")


@functional_datapipe("skip")
class Skip(CountedPipe[T]):
    """Leave out the first ``number`` items of a pass, of all ranks together (functional name: ``skip``).

    The number is divided as that of ``take``, so ``take(n)`` and ``skip(n)`` of one chain divide its items into two
    parts: for validation and training, for example, if nothing above them is shuffled. The items that are left out are
    read, which takes their time in each epoch; URLs, before the reader, cost nothing. A resumed pass does not skip
    again. To continue a training use the state of a loader, which reads nothing again.

    Args:
        source_datapipe: any items.
        number: of items, of all ranks together.

    Yields:
        The same items.

    Example:
        >>> list(Skip(IterableWrapper("abcd"), 3))
        ['d']
    """

    changes_count = True

    def __init__(self, source_datapipe: IterDataPipe[T], number: int) -> None:
        super().__init__(pipe_of(source_datapipe, of="skip", holds="items"))
        self.number = whole("number", number, at_least=0, of="items")

    def __iter__(self) -> Iterator[T]:
        # Items that were left out are not counted, so a count says that this pass has begun behind them
        num_skipped = 0 if self._begin() else share_of(self.number, place_among_readers(self.source_datapipe))
        for item in islice(self.source_datapipe, min(num_skipped, sys.maxsize), None):
            self._num_passed += 1
            yield item

    def equal_counts(self, num_streams: int) -> bool | None:
        return False if self.number % num_streams else None

    def order_options(self) -> Mapping[str, Any]:
        return {"number": self.number}

    def __len__(self) -> int:
        num_skipped = share_of(self.number, place_among_readers(self.source_datapipe))
        return max(0, len(self.source_datapipe) - num_skipped)
