"""Record what happens while a dataset is read, and judge where the time goes."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..core.recording import Stats
from ..core.stats import DECODE, FETCH, LIST, READ, Span, stages

_MAX_CONSUMER_SPANS = 20_000  # of a stage; drawn are those of the beginning
_MANY_RETRIES = 0.05  # of all requests
_FEW_IN_FLIGHT = 0.5  # of those that are allowed

Interval = tuple[float, float]


class Percentiles(NamedTuple):
    """Durations of requests in milliseconds."""

    p50: float
    p90: float
    p99: float
    max: float


class Trace:
    """Requests, the consumer's waits and work, and when samples arrived; all times are seconds since the beginning.

    Pass :meth:`take` to ``watched(..., consumer=True)``.
    """

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self.requests: list[Span] = []
        self._consumer: dict[str, list[Interval]] = {stage.name: [] for stage in stages}
        self.samples_s = array("d")

    def take(self, span: Span) -> None:
        """Record a piece of work. Called by several threads."""
        start_s, end_s = span.start_s - self._began_s, span.end_s - self._began_s
        if span.by_consumer:
            own = self._consumer[span.stage]
            if len(own) < _MAX_CONSUMER_SPANS:
                own.append((start_s, end_s))
        elif span.stage == FETCH.name:
            self.requests.append(span._replace(start_s=start_s, end_s=end_s))

    def take_open_waits(self) -> float:
        """Record the consumer's waits that have not ended, up to now.

        Returns:
            float: seconds of the longest one for the store; 0 if there is none.
        """
        now_s = time.perf_counter()
        for stage in stages:
            for start_s in stage.open_waits_s:
                self.take(Span(stage.name, start_s, now_s, 0, by_consumer=True))
        return max((now_s - start_s for start_s in FETCH.open_waits_s), default=0.0)

    def took_sample(self) -> None:
        """Record that a sample has arrived."""
        self.samples_s.append(time.perf_counter() - self._began_s)

    def consumer(self, until_s: float) -> dict[str, list[Interval]]:
        """Return when the consumer waited for, or was in, each stage, and when it was elsewhere (``"rest"``)."""
        found: dict[str, list[Interval]] = {stage.name: [] for stage in stages}
        spent: list[Interval] = []
        for stage in (LIST, FETCH, DECODE, READ):  # the inner ones first
            found[stage.name] = subtract(_clipped(self._consumer[stage.name], until_s), spent)
            spent += found[stage.name]
        return {**found, "rest": subtract([(0.0, until_s)], spent)}

    @property
    def detailed_until_s(self) -> float:
        """Until when the consumer's time was recorded."""
        full = [own[-1][1] for own in self._consumer.values() if len(own) == _MAX_CONSUMER_SPANS]
        return min(full, default=float("inf"))

    def percentiles(self) -> Percentiles | None:
        """Return the durations of the requests; ``None`` without requests."""
        import numpy as np

        took_ms = [1e3 * (span.end_s - span.start_s) for span in self.requests]
        return Percentiles(*(float(one) for one in np.percentile(took_ms, [50, 90, 99, 100]))) if took_ms else None


def _clipped(intervals: Iterable[Interval], until_s: float) -> list[Interval]:
    return [(max(0.0, start_s), min(end_s, until_s)) for start_s, end_s in intervals if start_s < until_s]


def subtract(intervals: Iterable[Interval], holes: Iterable[Interval]) -> list[Interval]:
    """Remove parts of intervals.

    Args:
        intervals: that do not overlap each other.
        holes: that may.

    Returns:
        What remains, sorted.

    Example:
        >>> subtract([(0, 10), (12, 15)], [(2, 3), (2, 5), (9, 13)])
        [(0, 2), (5, 9), (13, 15)]
    """
    rest, holes = [], sorted(holes)
    first = 0  # hole that may reach into this interval
    for start, end in sorted(intervals):
        at = start
        while first < len(holes) and holes[first][1] <= start:
            first += 1
        for hole_start, hole_end in _until(holes, first, end):
            if hole_start > at:
                rest.append((at, hole_start))
            at = max(at, hole_end)
        if at < end:
            rest.append((at, end))
    return rest


def _until(holes: Sequence[Interval], first: int, end: float) -> Iterable[Interval]:
    while first < len(holes) and holes[first][0] < end:
        yield holes[first]
        first += 1


def verdict(spent: Stats, *, max_in_flight: int, waiting_s: float = 0.0) -> str:
    """Say in a sentence which stage takes most of the time, and what to change.

    Args:
        spent: counters of the run.
        max_in_flight: requests at once that were allowed.
        waiting_s: seconds of a wait for the store that had not ended.

    Example:
        >>> from torchdata_remote.core.stats import StageStats
        >>> idle, fetch = StageStats(), StageStats(wait_s=8.2, busy_s=150.0, requests=9_000)
        >>> verdict(Stats(10.0, idle, fetch, idle, idle), max_in_flight=16)
        '82 % of the time waits for the store: raise max_in_flight (16)'
    """
    stage = spent.bottleneck
    waited_s = spent.rest_s if stage == "rest" else getattr(spent, stage).wait_s
    share = f"{100 * waited_s / max(spent.elapsed_s, 1e-9):.0f} % of the time"
    if stage == FETCH.name and waiting_s > spent.elapsed_s / 2:
        return f"{share} waits for the store: nothing came in the last {waiting_s:.1f} s"
    if stage == FETCH.name:
        return f"{share} waits for the store: {_remedy(spent, max_in_flight)}"
    return {
        "list": f"{share} waits for the listing: use a manifest, an index, or fewer and larger objects",
        "read": f"{share} goes into parsing shards: add workers",
        "decode": f"{share} goes into decoding: add workers, or decode smaller images (rgb(min_size=...))",
        "rest": f"{share} goes into counting samples: the pipeline is not the limit",
    }[stage]


def _remedy(spent: Stats, max_in_flight: int) -> str:
    fetch = spent.fetch
    if fetch.retries > _MANY_RETRIES * fetch.requests:
        return f"it failed {fetch.retries:,} of {fetch.requests:,} requests; lower max_in_flight ({max_in_flight})"
    in_flight = fetch.busy_s / max(spent.elapsed_s, 1e-9)
    if in_flight < _FEW_IN_FLIGHT * max_in_flight:
        return f"only {in_flight:.1f} of {max_in_flight} requests run at once; raise max_buffer_bytes, or add objects"
    return f"raise max_in_flight ({max_in_flight})"
