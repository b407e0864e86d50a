"""What works where macOS or Windows have less than Linux: in processes from which these names are taken away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reports of all platforms are."""
    folder = tmp_path_factory.mktemp("platforms")
    process = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "write_and_read.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return folder


@pytest.fixture(scope="module", params=["macos", "windows"])
def platform(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def report(platform: str, folder: Path) -> Any:
    return json.loads((folder / f"{platform}.json").read_text())


@pytest.mark.parametrize("place", ["local", "memory"])
def test_shards_are_written_listed_and_read(report: Any, place: str) -> None:
    """Small and large ones, by pattern, by manifest, by number and as files."""
    received = report[place]
    assert received["listed"] == 3
    assert received["read"] == received["by manifest"] == received["by number"] == report["written"]
    assert len(received["files"]) == 3
    assert sorted(report["sharded"]) == sorted(report["written"])
    assert report["stopped"] == [[["0", "1"]], [["2", "3"]], [["4"]]]


@pytest.mark.parametrize("place", ["local", "memory"])
def test_cache_works_or_names_the_missing_file_locks(report: Any, platform: str, place: str) -> None:
    """macOS has file locks; without them two processes could not share a cache."""
    cached = report[place]["cached"]
    if platform == "macos":
        assert cached == [report["written"]] * 2
    else:
        assert all("StorageError" in error and "file locks (flock), which Windows lacks" in error for error in cached)


def test_modules_that_windows_lacks_are_not_imported(report: Any, platform: str) -> None:
    """The package works without these modules; pull reports that it needs flock."""
    if platform == "windows":
        assert report["modules"] == []
        assert "pull needs flock, which Windows lacks" in report["pull"]
