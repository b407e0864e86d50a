"""Plots of ``inspect`` and ``bench``: what they show, and files that are complete or not there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, StepPatch
from PIL import Image

from tests.support.full_disk import full_disk
from tests.support.paths import ROOT
from torchdata_remote import ShardWriter
from torchdata_remote.cli import main
from torchdata_remote.testing import write_small_shards

from .shards import get, put


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *arguments: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def inspected(drawn: list[Figure], tmp_path: Path, *samples: dict[str, Any], folder: str = "") -> Figure:
    """The plot of a shard of these samples, numbered by their order."""
    folder = folder or f"{tmp_path}/set"
    with ShardWriter(f"{folder}/{{shard}}.tar") as writer:
        for number, sample in enumerate(samples):
            writer.write({"__key__": f"{number:04d}", **sample})
    assert main(["inspect", f"{folder}/0.tar", "--plot", f"{tmp_path}/plot.png"]) == 0
    return drawn[-1]


def texts(labels: Any) -> list[str]:
    return [label.get_text() for label in labels]


def test_classes_are_bars_with_names_and_numbers_in_the_order_of_their_numbers(
    drawn: list[Figure], tmp_path: Path, memory_folder: str
) -> None:
    """The title has URL, samples and bytes; names are no formulas, and those of other alphabets no warning."""
    names = '{"a": {"id": 9, "name": "kit fox"}, "b": {"id": 10, "name": "$x$ 漢"}}'
    put(f"{memory_folder}/classes.json", names.encode())
    samples: list[dict[str, Any]] = [*[{"cls": 10}] * 4, *[{"cls": 9}] * 3, {"txt": "no class"}]
    with mpl.rc_context({"text.usetex": True}):  # whatever the user's matplotlibrc says
        figure = inspected(drawn, tmp_path, *samples, folder=memory_folder)
    classes, sizes = figure.axes
    shard = f"{memory_folder}/0.tar"  # short: a long URL is shortened in its middle
    assert figure.get_suptitle() == f"{shard}: 8 samples, {len(get(shard)):,} bytes"
    assert classes.get_title() == "2 classes, of 7 of 8 samples"
    assert texts(classes.get_yticklabels()) == ["9  kit fox", "10  $x$ 漢"]
    assert classes.yaxis_inverted()
    assert [bar.get_width() for bar in classes.patches if isinstance(bar, Rectangle)] == [3, 4]
    assert texts(classes.texts) == ["3", "4"]
    (steps,) = sizes.patches
    assert isinstance(steps, StepPatch)
    assert sum(steps.get_data()[0]) == 8
    assert sizes.get_xlabel() == "bytes of all members together"
    assert not any(text.get_usetex() for text in classes.get_yticklabels())
    with Image.open(tmp_path / "plot.png") as picture:
        assert (picture.format, *picture.size) == ("PNG", 1200, 420)


def test_many_classes_are_a_falling_curve(drawn: list[Figure], tmp_path: Path) -> None:
    """Names of hundreds of bars could not be read."""
    figure = inspected(drawn, tmp_path, *({"cls": number} for number in range(300) for _ in range(1 + number % 3)))
    (curve,) = figure.axes[0].lines
    assert figure.axes[0].get_title() == "300 classes"
    assert list(curve.get_ydata()) == sorted((1 + n % 3 for n in range(300)), reverse=True)  # type: ignore[arg-type]


def test_sizes_of_different_magnitude_have_a_logarithmic_scale_with_a_tick_for_each_edge(
    drawn: list[Figure], tmp_path: Path
) -> None:
    figure = inspected(drawn, tmp_path, *({"bin": bytes(size)} for size in (0, 20, 300, 5_000, 5_001)))
    sizes = figure.axes[1]
    assert sizes.get_xscale() == "symlog"
    (steps,) = sizes.patches
    assert isinstance(steps, StepPatch)
    assert sizes.get_xticks().tolist() == list(steps.get_data()[1])
    assert texts(sizes.get_xticklabels()) == [f"{int(edge):,}" for edge in steps.get_data()[1]]


def test_ticks_of_sizes_that_are_all_the_same_differ(drawn: list[Figure], tmp_path: Path) -> None:
    """There is no part of a byte or of a sample."""
    figure = inspected(drawn, tmp_path, *[{"bin": bytes(75)}] * 7)
    figure.draw_without_rendering()
    for axis in (figure.axes[1].xaxis, figure.axes[1].yaxis):
        shown = texts(axis.get_ticklabels())
        assert len(set(shown)) == len(shown) > 0
        assert all(tick == int(tick) for tick in axis.get_ticklocs())
    assert figure.axes[0].get_title() == "0 folders of keys"
    assert "no classes: no cls members, no folders in keys" in texts(figure.axes[0].texts)


@pytest.fixture
def shards(memory_folder: str) -> str:
    write_small_shards(memory_folder, num_shards=3, samples_per_shard=20)
    return memory_folder


def test_the_plot_of_a_run_shows_waits_requests_throughput_and_durations(
    drawn: list[Figure], shards: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row for each stage with its share of the time, of which all are 100 %; the title is the verdict."""
    assert main(["inspect", shards, "--json"]) == 0
    num_bytes = json.loads(capsys.readouterr().out)["set"]["num_bytes"]
    assert main(["bench", shards, "--plot", f"{tmp_path}/bench.png", "--max-in-flight", "2"]) == 0
    *_, verdict = capsys.readouterr().out.splitlines()
    (figure,) = drawn
    figure.canvas.draw()
    assert figure.get_suptitle().replace("\n", " ") == verdict
    consumer, requests = figure.axes[:2]
    rows = texts(consumer.get_yticklabels())
    assert [row.rpartition(" ")[0].rpartition(" ")[0] for row in rows] == [
        "wait: list", "wait: fetch", "read", "decode", "rest"
    ]  # fmt: skip
    assert abs(sum(int(row.split()[-2]) for row in rows) - 100) <= 3
    assert requests.get_ylabel() == "requests\n(2 allowed at once)"
    assert {tick % 1 for tick in requests.get_yticks()} == {0}
    assert requests.get_xlabel().startswith("seconds")
    throughput = next(axes for axes in figure.axes if axes.get_title() == "Throughput of the whole run")
    (beside,) = (axes for axes in figure.axes if axes.get_ylabel() == "MB/s from the store")
    for axes, expected in ((throughput, 60), (beside, num_bytes / 1e6)):
        (steps,) = axes.patches
        assert isinstance(steps, StepPatch)
        values, edges, _ = steps.get_data()
        assert float((values * np.diff(edges)).sum()) == pytest.approx(expected)
    durations = next(axes for axes in figure.axes if axes.get_title() == "How long 3 requests took")
    legend = durations.get_legend()
    assert legend is not None
    assert [text.split()[0] for text in texts(legend.get_texts())] == ["p50", "p90", "p99"]
    assert durations.get_xlabel().startswith("ms; the slowest took ")


def commands(shards: str, path: str) -> list[list[str]]:
    return [["inspect", shards, "--plot", path], ["bench", shards, "--plot", path]]


def test_a_plot_is_whole_or_not_there(
    shards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a full disk: what was there before stays."""
    path = tmp_path / "a.png"
    path.write_bytes(b"old")
    for command in commands(shards, str(path)):
        with full_disk(max_bytes=500):
            assert main(command) == 1
        assert f"{path}: the picture cannot be written: File too large" in capsys.readouterr().err
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["a.png"]


@pytest.mark.parametrize(("extension", "status"), [("png", 0), ("svg", 0), ("pdf", 0), ("pgf", 1)])
def test_formats_of_matplotlib_are_written_but_none_that_needs_latex(
    shards: str, tmp_path: Path, extension: str, status: int
) -> None:
    assert main(["inspect", shards, "--plot", f"{tmp_path}/a.{extension}"]) == status
    assert os.listdir(tmp_path) == [f"a.{extension}"][status:]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("missing/a.png", "does not exist"), ("a.pgn", "Use a name such as out.png"), ("", "no picture format")],
)
def test_a_plot_that_cannot_be_written_is_an_error_before_anything_is_read(
    name: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in commands("memory://no-such-folder/", str(tmp_path / name)):
        assert main(command) == 1
        assert expected in capsys.readouterr().err


@pytest.mark.parametrize("broken", [False, True])
def test_a_matplotlib_that_cannot_be_imported_is_an_error_before_anything_is_read(broken: bool, tmp_path: Path) -> None:
    """Whatever it raises; an unknown backend in the environment does not matter, since plots are drawn without one."""
    if broken:
        (tmp_path / "matplotlib").mkdir()
        (tmp_path / "matplotlib" / "__init__.py").write_text("raise AttributeError('_ARRAY_API not found')")
    write_small_shards(f"{tmp_path}/set", num_shards=1, samples_per_shard=1)
    done = subprocess.run(
        [sys.executable, "-m", "torchdata_remote", "inspect", "set", "--plot", "a.png"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "MPLBACKEND": "nonsense"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if broken:
        assert re.search("--plot: matplotlib cannot be imported: AttributeError: _ARRAY_API", done.stderr)
    assert (done.returncode, (tmp_path / "a.png").exists()) == ((1, False) if broken else (0, True))
