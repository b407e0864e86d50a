"""Progress on terminals, and nowhere else."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import torchdata_remote as tdr
from tests.support.terminals import shown_on, terminal
from torchdata_remote.cli import main


@pytest.fixture
def files(tmp_path: Path) -> str:
    """A folder of files."""
    (tmp_path / "files").mkdir()
    for number in range(40):
        (tmp_path / "files" / f"{number:02d}.txt").write_bytes(bytes(100_000))
    return str(tmp_path / "files")


def write(files: str, *, progress: bool = True) -> None:
    template = f"{files}-out/{{shard:02d}}.tar"
    tdr.shard_dataset(files, template, max_shard_samples=10, overwrite=True, progress=progress)


def test_a_bar_shows_samples_shards_and_mib_and_stays(files: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as ours:
        write(files)
        last = shown_on(ours).rstrip().rpartition("\r")[2]
    assert "100%" in last
    assert "40.0/40.0" in last
    assert "samples/s" in last
    assert "4 shards, 4 MiB" in last


@pytest.mark.parametrize(
    ("variable", "value"),
    [("TORCHDATA_REMOTE_PROGRESS", "0"), ("TQDM_DISABLE", "1"), ("RANK", "1"), ("progress", "")],
)
def test_options_the_environment_and_other_ranks_hide_bars(
    files: str, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal(monkeypatch) as ours:
        if variable == "progress":
            write(files, progress=False)
        else:
            monkeypatch.setenv(variable, value)
            write(files)
        assert "%" not in shown_on(ours)


def test_without_a_terminal_there_is_no_bar(files: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    write(files)
    assert stderr.getvalue() == ""


def test_commands_print_their_lines_beside_a_bar(
    files: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(files, progress=False)
    with terminal(monkeypatch) as ours:
        assert main(["manifest", "--overwrite", f"{files}-out/"]) == 0
        assert "%" in shown_on(ours)
        assert main(["manifest", "--overwrite", "--quiet", f"{files}-out/"]) == 0
        assert shown_on(ours) == ""
