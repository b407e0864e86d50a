"""What works where macOS or Windows have less than Linux: in processes from which these names are taken away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.paths import ROOT

TESTS = ROOT / "tests"


@pytest.fixture(scope="module", params=["macos", "windows"])
def platform(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def told(platform: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = str(tmp_path_factory.mktemp(platform))
    process = subprocess.run(
        [sys.executable, str(TESTS / "platforms" / "write_and_read.py"), platform, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.parametrize("place", ["local", "memory"])
def test_shards_are_written_listed_and_read(told: Any, place: str) -> None:
    """Small and large ones, by pattern, by manifest, by number and as files."""
    came = told[place]
    assert came["listed"] == 3
    assert came["read"] == came["by manifest"] == came["by number"] == told["written"]
    assert len(came["files"]) == 3
    assert sorted(told["sharded"]) == sorted(told["written"])
    assert told["stopped"] == [[["0", "1"]], [["2", "3"]], [["4"]]]


@pytest.mark.parametrize("place", ["local", "memory"])
def test_cache_works_or_names_the_missing_file_locks(told: Any, platform: str, place: str) -> None:
    """macOS has file locks; without them two processes could not share a cache."""
    cached = told[place]["cached"]
    if platform == "macos":
        assert cached == [told["written"]] * 2
    else:
        assert all("StorageError" in error and "file locks (flock), which Windows lacks" in error for error in cached)


def test_modules_that_windows_lacks_are_not_imported(told: Any, platform: str) -> None:
    """The package works without these modules; pull reports that it needs POSIX descriptors."""
    if platform == "windows":
        assert told["modules"] == []
        assert "pull needs POSIX file descriptors, which Windows lacks" in told["pull"]
