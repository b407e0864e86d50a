"""Several iterators at once, an item of each by turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Source(Protocol[T_co]):
    """Hands out items, goes on where it was when it is iterated again, and can be closed."""

    def __iter__(self) -> Iterator[T_co]: ...

    def close(self) -> None: ...


def round_robin(sources: Iterable[Source[T]], num_open: int, waiting: deque[Source[T]] | None = None) -> Iterator[T]:
    """An item of each of the first ``num_open`` sources by turns; the next source takes the place of one that ended.

    The order follows from the lengths of the sources alone. A source is taken from ``sources`` when its turn comes, and
    closed when this is.

    Args:
        sources: taken one after the other.
        num_open: how many are waiting for their turns at the most.
        waiting: those that are open already, the one whose turn it is first. When an item was handed out, all that are
            open are in it, also those that have nothing left.
    """
    upcoming = iter(sources)
    waiting = deque() if waiting is None else waiting
    try:
        while True:
            source = next(upcoming, None) if len(waiting) < num_open else None
            if source is None:
                if not waiting:
                    return
                source = waiting.popleft()
            if num_open == 1:
                waiting.append(source)
                yield from source
                waiting.pop()
                continue
            for item in source:
                waiting.append(source)
                yield item
                break
    finally:
        for source in waiting:
            source.close()
