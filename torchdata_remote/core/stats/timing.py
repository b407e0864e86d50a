"""Count the time that a consumer spends in a stage, without the time in which it uses what the stage yielded."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any, TypeVar

from .counters import LIST, NotAdded, StageCounter
from .spans import Span, consumer_watchers

T = TypeVar("T")
Run = TypeVar("Run", bound=Iterator[Any])

_FLUSH_ITEMS, _FLUSH_S = 256, 0.5


def timed(items: Iterator[T], stage: StageCounter, *, within: StageCounter) -> Generator[T, None, None]:
    """Yield the same items, and count the time that each took as waiting: other threads do the work, and count it.

    Args:
        items: closed with this iterator.
        stage: that produces them.
        within: another stage. The time spent waiting for it, and for the listing, is left out.
    """
    return _timed(items, stage, within, None)


def timed_runs(runs: Iterator[Run], stage: StageCounter, *, within: StageCounter) -> Generator[Run, None, None]:
    """Yield runs of items, and count the time that each run took, and its items when they are handed out.

    Args:
        runs: iterators with exact length hints, each of which is consumed before the next one is asked for. Closed with
            this iterator.
        stage: that produces them.
        within: another stage. The time spent waiting for it, and for the listing, is left out.
    """
    with stage.counting() as own:
        yield from _timed(runs, stage, within, own)


def _waited_s(within: StageCounter) -> float:
    return within.wait_s + LIST.wait_s


def _timed(
    items: Iterator[Any], stage: StageCounter, within: StageCounter, own: NotAdded | None
) -> Generator[Any, None, None]:
    clock, took_s = time.perf_counter, 0.0
    counted = NotAdded() if own is None else own
    try:
        started_s = clock()
        flush_at_s, num_left = started_s + _FLUSH_S, _FLUSH_ITEMS
        waited_s = _waited_s(within)
        for item in items:
            ended_s = clock()
            took_s += ended_s - started_s - (_waited_s(within) - waited_s)
            if own is not None:
                own.add(item)
            for take in consumer_watchers:
                take(Span(stage.name, started_s, ended_s, 0, by_consumer=True))
            yield item
            del item  # or it would be kept while the next one is made
            started_s, num_left = clock(), num_left - 1
            if not num_left or started_s >= flush_at_s:
                stage.flush(counted, took_s, elsewhere=own is None)
                flush_at_s, num_left, took_s = started_s + _FLUSH_S, _FLUSH_ITEMS, 0.0
            waited_s = _waited_s(within)
        took_s += clock() - started_s - (_waited_s(within) - waited_s)
    finally:
        stage.flush(counted, took_s, elsewhere=own is None)
        close = getattr(items, "close", None)
        if close is not None:
            close()
