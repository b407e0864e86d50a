"""What all plots share: checks before the work, and files that are complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from tests.support.full_disk import full_disk
from tests.support.paths import ROOT
from torchdata_remote.errors import RemoteDataError
from torchdata_remote.inspection.contents import ShardContents
from torchdata_remote.inspection.contents_plot import draw_contents
from torchdata_remote.inspection.plots import require_plot, save_plot

CONTENTS = ShardContents("s3://bucket/0.tar", 5_120, None, num_samples=7, labels={"a_b $x": 7})


def test_a_plot_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    """As on a full disk; nothing else is left behind."""
    path = tmp_path / "a.png"
    path.write_bytes(b"old")
    with full_disk(max_bytes=1_000), pytest.raises(RemoteDataError) as caught:
        save_plot(draw_contents(CONTENTS, title="a"), str(path))
    assert str(caught.value) == f"{path}: the picture cannot be written: File too large"
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.png"]


def test_names_are_not_set_by_latex(tmp_path: Path) -> None:
    """Whatever the user's matplotlibrc says: it may not be installed, and names are no LaTeX."""
    with mpl.rc_context({"text.usetex": True}):
        figure = draw_contents(CONTENTS, title="a_b")
        save_plot(figure, str(tmp_path / "a.png"))
    assert not any(text.get_usetex() for text in figure.axes[0].get_yticklabels())


def test_each_format_that_is_accepted_can_be_written(tmp_path: Path) -> None:
    """One that needs LaTeX is refused before the work."""
    known = sorted(Figure().canvas.get_supported_filetypes())
    for name in known:
        path = str(tmp_path / f"a.{name}")
        if name == "pgf":
            with pytest.raises(RemoteDataError, match="no picture format has the extension 'pgf'"):
                require_plot(path)
        else:
            require_plot(path)
            save_plot(Figure(figsize=(1, 1)), path)
    assert len(os.listdir(tmp_path)) == len(known) - 1


@pytest.mark.system
def test_an_unknown_backend_in_the_environment_does_not_matter(tmp_path: Path) -> None:
    """Plots are drawn without one; matplotlib cannot even be imported with it."""
    program = """
import os, sys
from torchdata_remote.inspection.plots import require_plot
require_plot(sys.argv[1])
assert os.environ["MPLBACKEND"] == "nonsense"
assert "matplotlib.pyplot" not in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "nonsense"}
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.png")], env=environment, check=True)


def test_a_library_that_cannot_be_imported_is_an_error_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raises."""
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise AttributeError('_ARRAY_API not found')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RemoteDataError, match="--plot: matplotlib cannot be imported: AttributeError: _ARRAY_API"):
        require_plot(str(tmp_path / "a.png"))
