"""Record what happens while a dataset is read, and judge where the time goes."""

from __future__ import annotations

import time
from array import array

from ..core.recording import Stats
from ..core.stats import FETCH, Span, stages

_MAX_CONSUMER_SPANS = 80_000  # drawn are those of the beginning
_MANY_RETRIES = 0.05  # of all requests
_FEW_IN_FLIGHT = 0.5  # of those that are allowed


class Trace:
    """Requests, the consumer's waits and work, and when samples arrived; all times are seconds since the beginning.

    Pass :meth:`take` to ``watched(..., consumer=True)``.
    """

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self.requests: list[Span] = []
        self.consumer: list[Span] = []
        self.samples_s = array("d")

    def take(self, span: Span) -> None:
        """Record a piece of work. Called by several threads."""
        span = span._replace(start_s=span.start_s - self._began_s, end_s=span.end_s - self._began_s)
        if span.by_consumer:
            if len(self.consumer) < _MAX_CONSUMER_SPANS:
                self.consumer.append(span)
        elif span.stage == FETCH.name:
            self.requests.append(span)

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

    @property
    def detailed_until_s(self) -> float:
        """Until when the consumer's time was recorded."""
        return self.consumer[-1].end_s if len(self.consumer) == _MAX_CONSUMER_SPANS else float("inf")

    def percentiles(self) -> dict[str, float]:
        """Return the durations of the requests in milliseconds, such as ``"p50"``; empty without requests."""
        import numpy as np

        took_ms = [1e3 * (span.end_s - span.start_s) for span in self.requests]
        names = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
        return {name: float(np.percentile(took_ms, share)) for name, share in names.items()} if took_ms else {}


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
    stage, fetch, elapsed_s = spent.bottleneck, spent.fetch, max(spent.elapsed_s, 1e-9)
    waited_s = spent.rest_s if stage == "rest" else getattr(spent, stage).wait_s
    remedy = f"raise max_in_flight ({max_in_flight})"
    if waiting_s > elapsed_s / 2:
        remedy = f"nothing came in the last {waiting_s:.1f} s"
    elif fetch.retries > _MANY_RETRIES * fetch.requests:
        remedy = f"it failed {fetch.retries:,} of {fetch.requests:,} requests; lower max_in_flight ({max_in_flight})"
    elif fetch.busy_s / elapsed_s < _FEW_IN_FLIGHT * max_in_flight:
        at_once = f"only {fetch.busy_s / elapsed_s:.1f} of {max_in_flight} requests run at once"
        remedy = f"{at_once}; raise max_buffer_bytes, or add objects"
    advice = {
        "list": "waits for the listing: use a manifest, an index, or fewer and larger objects",
        "fetch": f"waits for the store: {remedy}",
        "read": "goes into parsing shards: add workers",
        "decode": "goes into decoding: add workers, or decode smaller images (rgb(min_size=...))",
        "rest": "goes into counting samples: the pipeline is not the limit",
    }
    return f"{100 * waited_s / elapsed_s:.0f} % of the time {advice[stage]}"
