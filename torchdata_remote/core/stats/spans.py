"""Pieces of work and of waiting, for those who watch them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """One piece of work or of waiting: its stage, start and end by ``time.perf_counter``, and number of bytes.

    ``by_consumer`` is whether the consumer's own thread spent it: it waited for the stage, or did its work.
    """

    stage: str
    start_s: float
    end_s: float
    num_bytes: int
    by_consumer: bool = False


watchers: list[Callable[[Span], object]] = []
consumer_watchers: list[Callable[[Span], object]] = []
"""Apart from the others, because few want to know of each wait."""


@contextlib.contextmanager
def watched(take: Callable[[Span], object], *, consumer: bool = False) -> Iterator[None]:
    """Call a function with each piece of work done in this block, in the thread that did it.

    Args:
        take: the function.
        consumer: whether it also gets each wait of the consumer, and each item of ``timing.timed`` and run of
            ``timing.timed_runs``; the latter include the waits within them.
    """
    lists = [watchers, consumer_watchers] if consumer else [watchers]
    for one in lists:
        one.append(take)
    try:
        yield
    finally:
        for one in lists:
            one.remove(take)
