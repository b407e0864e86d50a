"""Counters of each stage in this process: items, bytes, seconds, requests."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from operator import length_hint
from typing import Any

from .spans import Span, consumer_watchers, watchers
from .variable import on_first_work


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


class NotAdded:
    """Counts the items of runs, each when it is handed out, which costs nothing for a single one."""

    def __init__(self) -> None:
        # Items of all runs, and what is left of the last one: one object, so that other threads see both
        self._runs: tuple[int, Iterator[Any]] = 0, iter(())

    def add(self, run: Iterator[Any]) -> None:
        """Count a run, whose length hint is exact, after the one before was handed out."""
        self._runs = self._runs[0] + length_hint(run), run

    def count(self) -> int:
        """Return the number of items that were handed out."""
        num_items, rest = self._runs
        return num_items - length_hint(rest)

    def take(self) -> int:
        """Return that number, and count from 0 again."""
        num_items, rest = self._runs
        num_rest = length_hint(rest)
        self._runs = num_rest, rest
        return num_items - num_rest


class Waiting:
    """A wait of the consumer, counted while the ``with`` block runs.

    Args:
        stage: that is waited for.
    """

    __slots__ = ("_stage", "_started_s")

    def __init__(self, stage: StageCounter) -> None:
        self._stage, self._started_s = stage, 0.0

    def __enter__(self) -> None:
        if _idle:
            _begin()
        self._started_s = self._stage._open_waits[self] = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        stage = self._stage
        with stage._lock:
            stage._open_waits.pop(self, None)  # missing in a child that was forked meanwhile
            ended_s = time.perf_counter()
            stage._wait_s += ended_s - self._started_s
        for take in consumer_watchers:
            take(Span(stage.name, self._started_s, ended_s, 0, by_consumer=True))


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
        # Reentrant, because the collector may run the `finally` of `timed_runs` in a thread that holds the lock
        self._lock = threading.RLock()
        self._items = self._num_bytes = self._requests = self._retries = 0
        self._wait_s = self._busy_s = 0.0
        # Start of each wait that has not ended, by a key of its own
        self._open_waits: dict[object, float] = {}
        # Items of each iterator of `timed_runs` that were not added yet, by its id
        self._not_added: dict[int, NotAdded] = {}

    @property
    def wait_s(self) -> float:
        """Seconds the consumer spent in waits for this stage that have ended."""
        return self._wait_s

    @property
    def open_waits_s(self) -> list[float]:
        """Start of each wait that has not ended, by ``time.perf_counter``."""
        return list(self._open_waits.values())

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
        if _idle:
            _begin()
        with self._lock:
            self._items += items
            self._num_bytes += num_bytes
            self._wait_s += wait_s
            self._busy_s += busy_s
            self._requests += requests
            self._retries += retries

    def waiting(self) -> Waiting:
        """Count the seconds of a ``with`` block as waiting for the stage, also before the block has ended."""
        return Waiting(self)

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
        for take in watchers:
            take(Span(self.name, start_s, end_s, num_bytes, by_consumer=wait))

    @contextlib.contextmanager
    def counting(self) -> Iterator[NotAdded]:
        """Yield a counter of items that belong to the stage although they were not added to it yet."""
        own = NotAdded()
        self._not_added[id(own)] = own
        try:
            yield own
        finally:
            self._not_added.pop(id(own), None)  # missing in a child that was forked meanwhile

    def flush(self, own: NotAdded, took_s: float, *, elsewhere: bool) -> None:
        """Add items, whose number becomes 0, and the time that they took; not those that other threads counted."""
        took_s = max(0.0, took_s)
        with self._lock:  # no snapshot has them twice
            self.add(items=own.take(), wait_s=took_s, busy_s=0.0 if elsewhere else took_s)

    def snapshot(self) -> StageStats:
        """Return the current counters; a wait that has not ended counts up to now."""
        with self._lock:
            now_s = time.perf_counter()
            waited_s = self._wait_s + sum(now_s - started_s for started_s in self.open_waits_s)
            items = self._items + sum(own.count() for own in list(self._not_added.values()))
            now = items, self._num_bytes, waited_s, self._busy_s, self._requests, self._retries
        return StageStats(*now)


LIST, FETCH, READ, DECODE = stages = tuple(StageCounter(name) for name in ("list", "fetch", "read", "decode"))
_started_s = time.perf_counter()
_idle = [True]  # empty once this process has done something
_first_work_s: float | None = None


def elapsed_s() -> float:
    """Return the seconds since this process started to count."""
    return time.perf_counter() - _started_s


def idle_s() -> float:
    """Return the seconds before the first piece of work, such as for imports; all of them if there was none yet."""
    return elapsed_s() if _first_work_s is None else _first_work_s - _started_s


def _begin() -> None:
    """Note the time, and call those who wait for the first piece of work. One of the threads that call this does it."""
    global _first_work_s
    try:
        _idle.pop()
    except IndexError:
        return
    _first_work_s = time.perf_counter()
    for call in on_first_work:
        call()


def _after_fork() -> None:
    global _started_s, _first_work_s
    _started_s, _first_work_s = time.perf_counter(), None
    _idle[:] = [True]
    watchers.clear()
    consumer_watchers.clear()
    for stage in stages:
        stage.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
