"""Counters of what each stage of this process does: items, bytes, seconds, requests."""

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
    """What a stage has done.

    Args:
        items: that it handed on: URLs listed, objects or members fetched, samples read, samples or images decoded.
        num_bytes: that it took.
        wait_s: seconds in which whoever takes its items had to wait for it.
        busy_s: seconds of work, of all threads together.
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
    """One piece of work: of which stage, from when to when by ``time.perf_counter``, and how many bytes."""

    stage: str
    start_s: float
    end_s: float
    num_bytes: int


class StageCounter:
    """The counters of a stage, of all threads.

    Args:
        name: of the stage.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.forget()

    def forget(self) -> None:
        """Begin anew, also where another process held the lock."""
        # Reentrant: `timed` counts in its `finally`, which the collector may run in a thread that counts.
        self._lock = threading.RLock()
        self._items = self._num_bytes = self._requests = self._retries = 0
        self._wait_s = self._busy_s = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds that were waited for it."""
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
        """Count."""
        with self._lock:
            self._items += items
            self._num_bytes += num_bytes
            self._wait_s += wait_s
            self._busy_s += busy_s
            self._requests += requests
            self._retries += retries

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Somebody waits for it in this block."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self.add(wait_s=time.perf_counter() - began_s)

    def worked(self, start_s: float, num_bytes: int, *, items: int = 0, requests: int = 0, wait: bool = False) -> None:
        """A piece of work has ended.

        Args:
            start_s: when it began, by ``time.perf_counter``.
            num_bytes: that it was about.
            items: that it handed on.
            requests: that it was.
            wait: whether it was done by whoever takes the items.
        """
        end_s = time.perf_counter()
        took_s = end_s - start_s
        self.add(items=items, num_bytes=num_bytes, busy_s=took_s, requests=requests, wait_s=took_s if wait else 0.0)
        for take in _watchers:
            take(Span(self.name, start_s, end_s, num_bytes))

    def snapshot(self) -> StageStats:
        """The counters at this moment."""
        with self._lock:
            now = self._items, self._num_bytes, self._wait_s, self._busy_s, self._requests, self._retries
        return StageStats(*now)


LIST, FETCH, READ, DECODE = stages = tuple(StageCounter(name) for name in ("list", "fetch", "read", "decode"))
_watchers: list[Callable[[Span], object]] = []
_began_s = time.perf_counter()


@contextlib.contextmanager
def watched(take: Callable[[Span], object]) -> Iterator[None]:
    """In this block, each piece of work is told, by the thread that did it."""
    _watchers.append(take)
    try:
        yield
    finally:
        _watchers.remove(take)


def timed(
    items: Iterator[T], stage: StageCounter, *, within: StageCounter, elsewhere: bool = False
) -> Generator[T, None, None]:
    """The same items, each counted with the time that it took, less what was waited for another stage meanwhile.

    Args:
        items: closed with this.
        stage: that they come from.
        within: the other stage.
        elsewhere: whether other threads work for the stage, and count that; then the time was only waited.
    """
    clock = time.perf_counter
    count, took_s, waited_s = 0, 0.0, within.wait_s
    try:
        began_s = clock()
        for item in items:
            took_s += clock() - began_s
            count += 1
            yield item
            if count >= _FLUSH_ITEMS:
                _flush(stage, count, took_s - within.wait_s + waited_s, elsewhere)
                count, took_s, waited_s = 0, 0.0, within.wait_s
            began_s = clock()
        took_s += clock() - began_s
    finally:
        _flush(stage, count, took_s - within.wait_s + waited_s, elsewhere)
        close = getattr(items, "close", None)
        if close is not None:
            close()


def elapsed_s() -> float:
    """Seconds since this process began to count."""
    return time.perf_counter() - _began_s


def _flush(stage: StageCounter, count: int, took_s: float, elsewhere: bool) -> None:
    took_s = max(0.0, took_s)
    stage.add(items=0 if elsewhere else count, wait_s=took_s, busy_s=0.0 if elsewhere else took_s)


def _after_fork() -> None:
    global _began_s
    _began_s = time.perf_counter()
    _watchers.clear()
    for one in stages:
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
