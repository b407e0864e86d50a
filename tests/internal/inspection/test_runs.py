"""The trace of a run of ``bench``: whose time it was, the verdict, and rows of requests in its plot."""

from __future__ import annotations

import pytest

from torchdata_remote.core.recording import Stats
from torchdata_remote.core.stats import Span, StageStats
from torchdata_remote.inspection.trace import Trace, verdict

IDLE = StageStats()


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch) -> Trace:
    """Of a run that began at 100 s."""
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    return Trace()


def test_the_consumers_time_is_divided_among_the_stages(trace: Trace) -> None:
    """Waits within the reading of a sample are not reading; what no stage took is the rest; requests are apart."""
    for stage, start_s, end_s in [("fetch", 101, 103), ("read", 100.5, 104), ("decode", 104, 105), ("read", 107, 112)]:
        trace.take(Span(stage, start_s, end_s, 0, by_consumer=True))
    trace.take(Span("fetch", 100, 109, 7))
    assert trace.consumer(until_s=8.0) == {
        "list": [],
        "fetch": [(1.0, 3.0)],
        "read": [(0.5, 1.0), (3.0, 4.0), (7.0, 8.0)],
        "decode": [(4.0, 5.0)],
        "rest": [(0.0, 0.5), (5.0, 7.0)],
    }
    assert trace.requests == [Span("fetch", 0.0, 9.0, 7)]


def test_percentiles_are_of_all_requests(trace: Trace) -> None:
    assert trace.percentiles() is None
    for number in range(1, 102):
        trace.take(Span("fetch", 100.0, 100.0 + number / 1e3, 1))
    assert trace.percentiles() == pytest.approx((51, 91, 100, 101))


@pytest.mark.parametrize(
    ("waits", "share", "expected"),
    [
        ({"list": StageStats(wait_s=6)}, 60,
         "waits for the listing: use a manifest, an index, or fewer and larger objects"),
        ({"fetch": StageStats(wait_s=8.2, busy_s=70, requests=100, retries=5)}, 82,
         "waits for the store: raise max_in_flight (8)"),
        ({"fetch": StageStats(wait_s=8.2, busy_s=12, requests=100)}, 82,
         "waits for the store: only 1.2 of 8 requests run at once; raise max_buffer_bytes, or add objects"),
        ({"fetch": StageStats(wait_s=8.2, busy_s=12, requests=100, retries=6)}, 82,
         "waits for the store: it failed 6 of 100 requests; lower max_in_flight (8)"),
        ({"read": StageStats(wait_s=7)}, 70, "goes into parsing shards: add workers"),
        ({"decode": StageStats(wait_s=7)}, 70,
         "goes into decoding: add workers, or decode smaller images (rgb(min_size=...))"),
        ({"read": StageStats(wait_s=4)}, 60, "goes into counting samples: the pipeline is not the limit"),
    ],
)  # fmt: skip
def test_the_verdict_names_share_stage_and_remedy(waits: dict[str, StageStats], share: int, expected: str) -> None:
    """Of the stage that took most of the time."""
    stages = [waits.get(name, IDLE) for name in ("list", "fetch", "read", "decode")]
    assert verdict(Stats(10.0, *stages), max_in_flight=8) == f"{share} % of the time {expected}"
