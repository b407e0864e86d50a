"""Plot a run: what the consumer waits for, the requests, samples per second, and how long requests take."""

from __future__ import annotations

import heapq
import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ..core.recording import Stats
from ..core.stats import FETCH, LIST, Span
from .plots import COLOURS, DPI, plain_text
from .trace import Percentiles, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHOWN_REQUESTS = 30  # one after the other, so that a bar is wide enough to be seen
_MAX_BINS = 60
_WAITED_FOR = (LIST.name, FETCH.name)
_TITLE_CHARACTERS = 95
_LABEL_HEIGHTS = (0.9, 0.74, 0.58)  # of the percentiles, in each other's way otherwise


def lanes(spans: Sequence[Span]) -> list[int]:
    """Assign a row to each span, so that spans of a row do not overlap; as few rows as possible.

    Args:
        spans: sorted by start.

    Example:
        >>> lanes([Span("fetch", 0, 3, 0), Span("fetch", 1, 2, 0), Span("fetch", 2, 4, 0), Span("fetch", 2.5, 5, 0)])
        [0, 1, 1, 2]
    """
    busy: list[tuple[float, int]] = []  # end of the last span, and the row
    free: list[int] = []
    assigned = []
    for span in spans:
        while busy and busy[0][0] <= span.start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        row = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (span.end_s, row))
        assigned.append(row)
    return assigned


@plain_text()
def draw_timeline(trace: Trace, spent: Stats, *, title: str, subtitle: str, max_in_flight: int) -> Figure:
    """Draw a run: its beginning in detail, the throughput of all of it, and the durations of all requests.

    Args:
        trace: of the run.
        spent: its counters.
        title: such as the verdict.
        subtitle: such as what was read.
        max_in_flight: requests at once that were allowed.
    """
    from matplotlib.figure import Figure

    shown_s = _shown_s(trace, spent.elapsed_s)
    figure = Figure(figsize=(12, 8.5), dpi=DPI, layout="constrained")
    figure.suptitle("\n".join(textwrap.wrap(title, _TITLE_CHARACTERS)), fontsize=15, fontweight="bold")
    panels: dict[str, Axes] = figure.subplot_mosaic(
        [["consumer", "consumer"], ["requests", "requests"], ["throughput", "durations"]],
        height_ratios=(1.5, 2.4, 2),
    )
    panels["consumer"].set_title(subtitle, fontsize=11, parse_math=False)
    _draw_consumer(panels["consumer"], trace, spent, shown_s)
    _draw_requests(panels["requests"], trace, shown_s, max_in_flight)
    panels["requests"].set_xlabel(f"seconds: the first {shown_s:.3g} of {spent.elapsed_s:.3g}")
    for name in ("consumer", "requests"):
        panels[name].set_xlim(0, shown_s)
        panels[name].grid(axis="x", alpha=0.3)
        panels[name].set_axisbelow(True)
    _draw_throughput(panels["throughput"], trace, spent.elapsed_s)
    _draw_durations(panels["durations"], trace)
    return figure


def _shown_s(trace: Trace, elapsed_s: float) -> float:
    """How much of the beginning is drawn: until the first sample, and some requests after it."""
    durations = trace.percentiles()
    typical_s = elapsed_s if durations is None else durations.p50 / 1e3
    first_s = trace.samples_s[0] if trace.samples_s else elapsed_s
    return min(elapsed_s, trace.detailed_until_s, first_s + _SHOWN_REQUESTS * typical_s)


def _draw_consumer(axes: Axes, trace: Trace, spent: Stats, shown_s: float) -> None:
    labels = []
    for row, (name, intervals) in enumerate(trace.consumer(shown_s).items()):
        _draw_bars(axes, intervals, row, COLOURS[name], edge="none")
        took_s = spent.rest_s if name == "rest" else getattr(spent, name).wait_s
        what = f"wait: {name}" if name in _WAITED_FOR else name
        labels.append(f"{what} {100 * took_s / max(spent.elapsed_s, 1e-9):.0f} %")
    axes.set(yticks=range(len(labels)), yticklabels=labels, ylim=(len(labels) - 0.4, -0.6))
    axes.set_ylabel("the loop's time\n(% of the whole run)")
    axes.tick_params(axis="x", labelbottom=False)


def _draw_requests(axes: Axes, trace: Trace, shown_s: float, max_in_flight: int) -> None:
    from matplotlib.ticker import MaxNLocator

    shown = sorted((span for span in trace.requests if span.start_s < shown_s), key=lambda span: span.start_s)
    placed = sorted(zip(lanes(shown), shown, strict=True), key=lambda pair: pair[0])
    for row, spans in groupby(placed, key=lambda pair: pair[0]):
        _draw_bars(axes, [(span.start_s, span.end_s) for _, span in spans], row + 1, COLOURS["fetch"], edge="white")
    num_rows = max([max_in_flight, *(row + 1 for row, _ in placed)])
    axes.set(ylim=(0.4, num_rows + 0.6), ylabel=f"requests\n({max_in_flight} allowed at once)")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _draw_bars(axes: Axes, intervals: Sequence[tuple[float, float]], row: int, colour: str, *, edge: str) -> None:
    widths = [(start_s, end_s - start_s) for start_s, end_s in intervals]
    axes.broken_barh(widths, (row - 0.4, 0.8), facecolor=colour, edgecolor=edge, linewidth=0.5)


def _draw_throughput(axes: Axes, trace: Trace, elapsed_s: float) -> None:
    import numpy as np

    edges = np.linspace(0, elapsed_s, min(_MAX_BINS, max(4, len(trace.samples_s) // 4)) + 1)
    width_s = edges[1] - edges[0]
    times_s = np.frombuffer(trace.samples_s) if trace.samples_s else np.zeros(0)
    samples = np.histogram(np.minimum(times_s, elapsed_s), edges)[0]  # the trace began before ``elapsed_s`` did
    axes.stairs(samples / width_s, edges, fill=True, color=COLOURS["rest"])
    axes.set(title="Throughput of the whole run", xlabel="seconds", ylabel="samples/s", xlim=(0, elapsed_s))
    axes.set_ylim(0, None)
    beside: Any = axes.twinx()
    beside.stairs(_bytes_between(trace.requests, edges) / width_s / 1e6, edges, color=COLOURS["fetch"], linewidth=1.5)
    beside.set_ylim(0, None)
    beside.set_ylabel("MB/s from the store", color=COLOURS["fetch"])
    beside.tick_params(axis="y", labelcolor=COLOURS["fetch"])


def _bytes_between(requests: Sequence[Span], edges: Any) -> Any:
    """Bytes that arrived between each two edges, as if each request brought its bytes evenly."""
    import numpy as np

    starts, ends, sizes = np.array([(one.start_s, one.end_s, one.num_bytes) for one in requests] or [(0, 1, 0)]).T
    arrived = [(sizes * np.clip((edge - starts) / np.maximum(ends - starts, 1e-9), 0, 1)).sum() for edge in edges]
    return np.diff(arrived)


def _draw_durations(axes: Axes, trace: Trace) -> None:
    found = trace.percentiles()
    if found is None:
        axes.text(0.5, 0.5, "no requests", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    last_ms = min(1.02 * found.max, 2.5 * found.p99)
    took_ms = [1e3 * (span.end_s - span.start_s) for span in trace.requests]
    axes.hist(took_ms, bins=_MAX_BINS, range=(0, last_ms), color=COLOURS["fetch"])
    axes.set(title=f"How long {len(took_ms):,} requests took", ylabel="requests", xlim=(0, last_ms))
    axes.set_xlabel(f"ms; the slowest took {found.max:,.1f}")
    for name, height in zip(Percentiles._fields, _LABEL_HEIGHTS, strict=False):
        value_ms = getattr(found, name)
        on_the_left = value_ms > 0.7 * last_ms
        axes.axvline(value_ms, color="black", linewidth=1, linestyle="--")
        axes.annotate(
            f"{name} {value_ms:,.1f} ms",
            (value_ms, height),
            xycoords=("data", "axes fraction"),
            xytext=(-6 if on_the_left else 6, 0),
            textcoords="offset points",
            ha="right" if on_the_left else "left",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
        )
