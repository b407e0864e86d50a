"""Counters of each stage in this process: items, bytes, seconds, requests."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple, TypeVar

T = TypeVar("T")

_FLUSH_ITEMS = 256


@dataclass(frozen=True)
class StageStats:
    """Counters of a stage.

    Args:
        items: that it produced: URLs listed, objects or members fetched, samples read, samples or images decoded.
        num_bytes: that it received.
        wait_s: seconds the consumer spent waiting for this stage.
        busy_s: seconds of work, summed over all threads.
        requests: that were sent.
        retries: requests that failed and were sent again.
    """

    items: int = 0
    num_bytes: int = 0
    wait_s: float = 0.0
    busy_s: float = 0.0
    requests: int = 0
    retries: int = 0

    def __sub__(self, other: StageStats) -> StageStats:
        return StageStats(*(getattr(self, name) - getattr(other, name) for name in _NAMES))


_NAMES = tuple(field.name for field in fields(StageStats))


class Span(NamedTuple):
    """One piece of work or of waiting: its stage, start and end by ``time.perf_counter``, and number of bytes.

    ``by_consumer`` is whether the consumer's own thread spent it: it waited for the stage, or did its work.
    """

    stage: str
    start_s: float
    end_s: float
    num_bytes: int
    by_consumer: bool = False


class StageCounter:
    """The counters of a stage, shared by all threads.

    Args:
        name: of the stage.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.reset()

    def reset(self) -> None:
        """Set all counters to zero, with a new lock: in a forked child the old one may be held forever."""
        # Reentrant, because the collector may run the `finally` of `timed` in a thread that holds the lock
        self._lock = threading.RLock()
        self._items = self._num_bytes = self._requests = self._retries = 0
        self._wait_s = self._busy_s = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds the consumer spent waiting for this stage."""
        return self._wait_s

    def add(
        self,
        *,
        items: int = 0,
        num_bytes: int = 0,
        wait_s: float = 0.0,
        busy_s: float = 0.0,
        requests: int = 0,
        retries: int = 0,
    ) -> None:
        """Add to the counters."""
        with self._lock:
            self._items += items
            self._num_bytes += num_bytes
            self._wait_s += wait_s
            self._busy_s += busy_s
            self._requests += requests
            self._retries += retries

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the seconds of this block as waiting for the stage."""
        started_s = time.perf_counter()
        try:
            yield
        finally:
            ended_s = time.perf_counter()
            self.add(wait_s=ended_s - started_s)
            for take in _consumer_watchers:
                take(Span(self.name, started_s, ended_s, 0, by_consumer=True))

    def worked(self, start_s: float, num_bytes: int, *, items: int = 0, requests: int = 0, wait: bool = False) -> None:
        """Count a piece of work that has just ended.

        Args:
            start_s: when it started, by ``time.perf_counter``.
            num_bytes: that it processed.
            items: that it produced.
            requests: that it sent.
            wait: whether the consumer's own thread did it.
        """
        end_s = time.perf_counter()
        took_s = end_s - start_s
        self.add(items=items, num_bytes=num_bytes, busy_s=took_s, requests=requests, wait_s=took_s if wait else 0.0)
        for take in _watchers:
            take(Span(self.name, start_s, end_s, num_bytes, by_consumer=wait))

    def snapshot(self) -> StageStats:
        """Return the current counters."""
        with self._lock:
            now = self._items, self._num_bytes, self._wait_s, self._busy_s, self._requests, self._retries
        return StageStats(*now)


LIST, FETCH, READ, DECODE = stages = tuple(StageCounter(name) for name in ("list", "fetch", "read", "decode"))
_watchers: list[Callable[[Span], object]] = []
_consumer_watchers: list[Callable[[Span], object]] = []  # apart, because a watched item costs a tenth of a small sample
_started_s = time.perf_counter()


@contextlib.contextmanager
def watched(take: Callable[[Span], object], *, consumer: bool = False) -> Iterator[None]:
    """Call a function with each piece of work done in this block, in the thread that did it.

    Args:
        take: the function.
        consumer: whether it also gets each wait of the consumer, and each item of :func:`timed`; the latter include the
            waits within them.
    """
    watchers = [_watchers, _consumer_watchers] if consumer else [_watchers]
    for one in watchers:
        one.append(take)
    try:
        yield
    finally:
        for one in watchers:
            one.remove(take)


def timed(
    items: Iterator[T], stage: StageCounter, *, within: StageCounter, elsewhere: bool = False
) -> Generator[T, None, None]:
    """Yield the same items, and count the time that each took, without the time spent waiting for another stage.

    Args:
        items: closed with this iterator.
        stage: that produces them.
        within: the other stage.
        elsewhere: whether other threads do the work of the stage and count it; then the time counts as waiting only.
    """
    clock = time.perf_counter
    count, took_s, waited_s = 0, 0.0, within.wait_s
    try:
        started_s = clock()
        for item in items:
            ended_s = clock()
            took_s += ended_s - started_s
            count += 1
            for take in _consumer_watchers:
                take(Span(stage.name, started_s, ended_s, 0, by_consumer=True))
            yield item
            if count >= _FLUSH_ITEMS:
                _flush(stage, count, took_s - within.wait_s + waited_s, elsewhere)
                count, took_s, waited_s = 0, 0.0, within.wait_s
            started_s = clock()
        took_s += clock() - started_s
    finally:
        _flush(stage, count, took_s - within.wait_s + waited_s, elsewhere)
        close = getattr(items, "close", None)
        if close is not None:
            close()


def elapsed_s() -> float:
    """Return the seconds since this process started to count."""
    return time.perf_counter() - _started_s


def _flush(stage: StageCounter, count: int, took_s: float, elsewhere: bool) -> None:
    took_s = max(0.0, took_s)
    stage.add(items=0 if elsewhere else count, wait_s=took_s, busy_s=0.0 if elsewhere else took_s)


def _after_fork() -> None:
    global _started_s
    _started_s = time.perf_counter()
    _watchers.clear()
    _consumer_watchers.clear()
    for stage in stages:
        stage.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
