"""Plot requests and decoding over time, and the distribution of request durations."""

from __future__ import annotations

import heapq
import os
from collections.abc import Sequence

from ..core.stats.counters import DECODE, FETCH, Span

MAX_SPANS = 4_000  # more bars cannot be distinguished in a picture
_COLOURS = {FETCH.name: "#4c78a8", DECODE.name: "#f58518"}


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


def draw_timeline(spans: Sequence[Span], path: str | os.PathLike[str], *, title: str) -> None:
    """Draw the first spans as bars over time, and a histogram of the durations of all requests.

    Args:
        spans: in any order.
        path: of the picture, such as ``bench.png``.
        title: of the picture.

    Raises:
        ValueError: if there is nothing to draw, or matplotlib is missing.
        OSError: if the picture cannot be written.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ValueError("drawing needs matplotlib: pip install 'torchdata_remote[plot]'") from error
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn = sorted((span for span in spans if span.stage in _COLOURS), key=lambda span: span.start_s)[:MAX_SPANS]
    if not drawn:
        raise ValueError("nothing was fetched, so there is nothing to draw")
    began_s = drawn[0].start_s
    figure, (over_time, histogram) = plt.subplots(2, 1, figsize=(10, 7), height_ratios=(3, 1), layout="constrained")
    first_row = 0
    for name, colour in _COLOURS.items():
        own = [span for span in drawn if span.stage == name]
        rows = lanes(own)
        over_time.barh(
            [first_row + row for row in rows],
            [span.end_s - span.start_s for span in own],
            left=[span.start_s - began_s for span in own],
            height=0.8,
            color=colour,
            label=f"{name}: {max(rows, default=-1) + 1} at once",
        )
        first_row += max(rows, default=-1) + 1
    over_time.set(title=title, xlabel="s", ylabel="at once")
    over_time.invert_yaxis()
    over_time.legend(loc="upper right")
    took_ms = [1e3 * (span.end_s - span.start_s) for span in spans if span.stage == FETCH.name]
    histogram.hist(took_ms, bins=60, range=(0, 1.01 * max(took_ms, default=1.0)), color=_COLOURS[FETCH.name])
    histogram.set(
        xlabel=f"ms that each of {len(took_ms):,} requests took", ylabel="requests", yscale="log", xlim=(0, None)
    )
    try:
        figure.savefig(path, dpi=110)
    finally:
        plt.close(figure)
