"""The plot of a shard's classes and sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.patches import Rectangle, StepPatch
from PIL import Image

from torchdata_remote.inspection.contents import ShardContents
from torchdata_remote.inspection.contents_plot import draw_contents
from torchdata_remote.inspection.histograms import Histogram
from torchdata_remote.inspection.plots import save_plot


def contents(**counts: object) -> ShardContents:
    return ShardContents("s3://bucket/0.tar", 5_120, None, num_samples=7, **counts)  # type: ignore[arg-type]


def test_classes_are_bars_with_names_and_numbers(tmp_path: Path) -> None:
    """In the order of their numbers, from the top; sizes in their bins; the title has URL, samples and bytes."""
    named = contents(
        labels={"10": 4, "9": 3},
        class_names={"9": "kit fox", "10": "$x$"},
        sample_bytes=Histogram([0, 10, 20], [2, 5]),
    )
    figure = draw_contents(named, title="s3://bucket/0.tar")
    classes, sizes = figure.axes
    assert figure.get_suptitle() == "s3://bucket/0.tar: 7 samples, 5,120 bytes"
    assert classes.get_title() == "2 classes"
    assert [label.get_text() for label in classes.get_yticklabels()] == ["9  kit fox", "10  $x$"]
    assert classes.yaxis_inverted()
    assert [bar.get_width() for bar in classes.patches if isinstance(bar, Rectangle)] == [3, 4]
    assert [text.get_text() for text in classes.texts] == ["3", "4"]
    (steps,) = sizes.patches
    assert isinstance(steps, StepPatch)
    assert steps.get_data()[0].tolist() == [2, 5]
    assert sizes.get_xlabel() == "bytes of all members together"
    save_plot(figure, str(tmp_path / "a.png"))
    assert 5_000 < (tmp_path / "a.png").stat().st_size < 300_000
    with Image.open(tmp_path / "a.png") as picture:
        assert (picture.format, *picture.size) == ("PNG", 1200, 420)


def test_many_classes_are_a_falling_curve() -> None:
    """Names of hundreds of bars could not be read."""
    classes, _ = draw_contents(contents(labels={str(n): 1 + n % 7 for n in range(700)}), title="").axes
    (curve,) = classes.lines
    assert classes.get_title() == "700 classes"
    assert list(curve.get_ydata()) == sorted((1 + n % 7 for n in range(700)), reverse=True)  # type: ignore[arg-type]


def test_sizes_of_different_magnitude_have_a_tick_for_each_edge() -> None:
    """In a logarithmic scale, which starts at zero."""
    edges = [0, 1, 16, 256, 4096]
    _, sizes = draw_contents(contents(sample_bytes=Histogram(edges, [1, 0, 2, 4])), title="").axes
    assert sizes.get_xscale() == "symlog"
    assert sizes.get_xticks().tolist() == edges
    assert [label.get_text() for label in sizes.get_xticklabels()] == ["0", "1", "16", "256", "4,096"]


@pytest.mark.parametrize("edges", [[1, 2], [75, 76], [1_000_000, 1_000_001], [0, 1], [3, 4, 5]])
def test_ticks_of_sizes_differ(edges: list[int]) -> None:
    """Of samples that are all of one size, too: there is no part of a byte."""
    counts = [7, *[0] * (len(edges) - 2)]
    figure = draw_contents(contents(sample_bytes=Histogram(edges, counts)), title="")
    figure.draw_without_rendering()
    for axis in (figure.axes[1].xaxis, figure.axes[1].yaxis):
        shown = [label.get_text() for label in axis.get_ticklabels()]
        assert len(set(shown)) == len(shown) > 0
        assert all(tick == int(tick) for tick in axis.get_ticklocs())


def test_the_title_says_how_many_samples_have_a_class() -> None:
    """If not all of them have one."""
    classes, _ = draw_contents(contents(labels={"1": 2}), title="").axes
    assert classes.get_title() == "1 classes, of 2 of 7 samples"


@pytest.mark.parametrize(("folders", "title"), [({"cat": 7}, "1 folders of keys"), ({}, "0 folders of keys")])
def test_without_labels_folders_are_counted(folders: dict[str, int], title: str) -> None:
    """Without folders, too, the picture says so."""
    classes, sizes = draw_contents(contents(folders=folders), title="").axes
    assert classes.get_title() == title
    assert bool(folders) == (
        "no classes: no cls members, no folders in keys" not in [t.get_text() for t in classes.texts]
    )
    assert [text.get_text() for text in sizes.texts] == ["no samples"]


def test_characters_that_the_font_lacks_are_drawn_without_a_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """As boxes."""
    save_plot(draw_contents(contents(labels={"漢": 7}), title="漢"), str(tmp_path / "a.png"))
    assert not recwarn.list
