"""Several iterators at once, an item of each by turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def by_turns(sources: Iterable[Generator[T, None, None]], num_open: int) -> Iterator[T]:
    """An item of each of the first ``num_open`` sources by turns; the next source takes the place of one that ended.

    The order follows from the lengths of the sources alone. A source is taken from ``sources`` when its turn comes, and
    closed when this is.
    """
    upcoming = iter(sources)
    waiting: deque[Generator[T, None, None]] = deque()
    try:
        while True:
            source = next(upcoming, None) if len(waiting) < num_open else None
            if source is None:
                if not waiting:
                    return
                source = waiting.popleft()
            if num_open == 1:
                yield from source
                continue
            for item in source:
                waiting.append(source)
                yield item
                break
    finally:
        for source in waiting:
            source.close()
