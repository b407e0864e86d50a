"""The plot of requests and decoding over time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from torchdata_remote.core.stats.counters import Span
from torchdata_remote.inspection.timeline import draw_timeline, lanes

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


def test_timeline_is_drawn_as_png(tmp_path: Path) -> None:
    """Of requests and decoding; in the colours of both."""
    spans = [Span(stage, start / 10, start / 10 + 0.2, 1) for start in range(30) for stage in ("fetch", "decode")]
    draw_timeline(spans, tmp_path / "a.png", title="some data")
    with Image.open(tmp_path / "a.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20) or ()}
    assert {(0x4C, 0x78, 0xA8), (0xF5, 0x85, 0x18)} <= colours


def test_timeline_without_spans_is_refused(tmp_path: Path) -> None:
    """An error, and no file is left."""
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_timeline([], tmp_path / "a.png", title="")
    assert not (tmp_path / "a.png").exists()


def test_timeline_without_matplotlib_names_the_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the extra to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'torchdata_remote\[plot\]'"):
        draw_timeline([Span("fetch", 0, 1, 1)], tmp_path / "a.png", title="")
