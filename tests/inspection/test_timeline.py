"""The plot of a run."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from torchdata_remote.core.stats.counters import StageStats
from torchdata_remote.core.stats.report import Stats
from torchdata_remote.core.stats.spans import Span
from torchdata_remote.inspection.plots import save_plot
from torchdata_remote.inspection.timeline import draw_timeline, lanes
from torchdata_remote.inspection.trace import Trace

SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=20).map(
    lambda pairs: [Span("fetch", start, start + length, 1) for start, length in sorted(pairs)]
)


@given(SPANS)
def test_spans_of_a_row_do_not_overlap(spans: list[Span]) -> None:
    """There are as many rows as spans at the same time."""
    rows = lanes(spans)
    assert len(rows) == len(spans)
    for number, (span, row) in enumerate(zip(spans, rows, strict=True)):
        for other, other_row in zip(spans[:number], rows[:number], strict=True):
            assert row != other_row or other.end_s <= span.start_s
    at_once = [1 + sum(other.end_s > span.start_s for other in spans[:number]) for number, span in enumerate(spans)]
    assert max(rows, default=-1) + 1 == max(at_once, default=0)


@pytest.fixture
def run() -> tuple[Trace, Stats]:
    """Two slots, 100 requests of 20 ms each and one of 200 ms, 1 MB each; a sample after each request."""
    trace = Trace()
    began_s = trace._began_s
    for number in range(100):
        start_s = began_s + number // 2 * 0.0201  # the next request begins after the one before
        trace.take(Span("fetch", start_s, start_s + 0.02, 1_000_000))
        trace.samples_s.append(start_s + 0.02 - began_s)
        trace.take(Span("fetch", start_s, start_s + 0.015, 0, by_consumer=True))
        trace.take(Span("decode", start_s + 0.015, start_s + 0.02, 9, by_consumer=True))
    trace.take(Span("fetch", began_s + 1.0, began_s + 1.2, 1_000_000))
    idle = StageStats()
    return trace, Stats(1.2, idle, StageStats(wait_s=0.9), idle, StageStats(wait_s=0.3))


def drawn(run: tuple[Trace, Stats]) -> Figure:
    return draw_timeline(*run, title="verdict " * 20, subtitle="what was read", max_in_flight=4)


def test_timeline_shows_waits_stages_and_request_slots(run: tuple[Trace, Stats]) -> None:
    """A row for each stage with its share of the time, and a row for each slot, the first at the bottom."""
    figure = drawn(run)
    consumer, requests = figure.axes[:2]
    assert figure.get_suptitle().splitlines() == [" ".join(["verdict"] * 12), " ".join(["verdict"] * 8)]
    assert consumer.get_title() == "what was read"
    rows = [label.get_text() for label in consumer.get_yticklabels()]
    assert rows == ["wait: list 0 %", "wait: fetch 75 %", "read 0 %", "decode 25 %", "rest 0 %"]
    bars = [len(collection.get_paths()) for collection in consumer.collections]
    assert bars[0] == bars[2] == 0
    assert bars[1] > 10
    assert bars[3] > 10
    low, high = requests.get_ylim()
    assert low < 1 < 4 < high < 5
    figure.canvas.draw()
    assert {tick % 1 for tick in requests.get_yticks()} == {0}
    assert requests.get_ylabel() == "requests\n(4 allowed at once)"
    assert requests.get_xlabel() == "seconds: the first 0.62 of 1.2"
    assert len(requests.collections) == 2


def test_throughput_is_that_of_the_whole_run(run: tuple[Trace, Stats]) -> None:
    """Samples and bytes per second; together they are all samples and bytes."""
    figure = drawn(run)
    throughput = next(axes for axes in figure.axes if axes.get_title() == "Throughput of the whole run")
    (beside,) = (axes for axes in figure.axes if axes.get_ylabel() == "MB/s from the store")
    for axes, expected in ((throughput, 100), (beside, 101)):
        (steps,) = axes.patches
        assert isinstance(steps, StepPatch)
        values, edges, _ = steps.get_data()
        assert edges[-1] == pytest.approx(1.2)
        assert float((values * (edges[1:] - edges[:-1])).sum()) == pytest.approx(expected)


def test_durations_have_labelled_percentiles_that_do_not_overlap(run: tuple[Trace, Stats]) -> None:
    """p50, p90, p99 at their place; the slowest below."""
    figure = drawn(run)
    durations = next(axes for axes in figure.axes if axes.get_title() == "How long 101 requests took")
    assert [text.get_text() for text in durations.texts] == ["p50 20.0 ms", "p90 20.0 ms", "p99 20.0 ms"]
    assert durations.get_xlabel() == "ms; the slowest took 200.0"
    assert [np.asarray(line.get_xdata()).tolist() for line in durations.lines] == [pytest.approx([20.0] * 2)] * 3
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in durations.texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_a_run_without_requests_is_drawn(tmp_path: Path) -> None:
    """Such as one that ended at once."""
    idle = StageStats()
    figure = draw_timeline(Trace(), Stats(0.5, idle, idle, idle, idle), title="", subtitle="", max_in_flight=4)
    save_plot(figure, str(tmp_path / "a.png"))
    assert "no requests" in [text.get_text() for axes in figure.axes for text in axes.texts]
