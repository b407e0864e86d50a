"""Counters of each stage in this process: items, bytes, seconds, requests; and those who watch each piece of work."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, fields
from operator import length_hint
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Run = TypeVar("Run", bound=Iterator[Any])

_FLUSH_ITEMS, _FLUSH_S = 256, 0.5

STATS_VARIABLE = "TORCHDATA_REMOTE_STATS"
"""Environment variable with the folder to which each process that reads records its counters."""

FOLDER_EVERY_S = 2.0
"""Seconds between the lines of a process in that folder: 10 MB in 8 hours."""

on_first_work: list[Callable[[], object]] = []
"""Called before the first piece of work of a process is counted; in a forked process again."""


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


def record_if_asked() -> None:
    """Record this process, and those that it forks, from their first piece of work on.

    Called when the package is imported. A relative folder is resolved against the working directory now, for this
    process and those that it starts: frameworks such as Hydra change it before the first sample is read.
    """
    folder = os.environ.get(STATS_VARIABLE)
    if folder and "://" not in folder and not os.path.isabs(folder):
        os.environ[STATS_VARIABLE] = os.path.abspath(folder)
    on_first_work[:] = [_record]


def _record() -> None:
    # A program without torch, such as `torchdata-remote ls`, is no training
    if os.environ.get(STATS_VARIABLE) and "torch" in sys.modules:
        from .recording import record_in_folder  # it imports more

        record_in_folder(os.environ[STATS_VARIABLE])
