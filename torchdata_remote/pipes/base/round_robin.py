"""Round robin over several iterators."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class InterleavedSource(Protocol[T_co]):
    """A closable iterable whose iteration continues where it stopped when ``__iter__`` is called again."""

    def __iter__(self) -> Iterator[T_co]: ...

    def close(self) -> None: ...


def round_robin(
    sources: Iterable[InterleavedSource[T]], num_open: int, waiting: deque[InterleavedSource[T]] | None = None
) -> Generator[T, None, None]:
    """Interleave ``num_open`` sources, one item of each in turn; the next source replaces one that is exhausted.

    The order is determined by the lengths of the sources alone. A source is taken from ``sources`` when its turn comes,
    and all open ones are closed with this generator.

    Args:
        sources: taken one after the other.
        num_open: the number of sources that are open at the same time, at most.
        waiting: the sources that are open already, next in turn first. While an item is being handled by the consumer,
            it holds all open sources, also those that are exhausted.
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
