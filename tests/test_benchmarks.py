"""The benchmarks run, and deliver what they measure; their figures are not looked at here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from slow_store import StoreNotInstalledError, nginx_path

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def _needs_nginx() -> None:
    try:
        nginx_path()
    except StoreNotInstalledError as error:
        pytest.skip(str(error))


def printed_by(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=FOLDER, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("_needs_nginx")
@pytest.mark.parametrize("benchmark", ["bench_objects.py", "bench_shards.py"])
def test_comparison(benchmark: str) -> None:
    """Each side reads every sample, and the table and the ratios are printed."""
    printed = printed_by(benchmark, "--quick", "--peers", "ours-32", "ceiling-32")
    for side in ("torchdata_remote, 32 in flight", "ceiling: obstore in 32 threads"):
        assert re.search(rf"^{side}.* [\d,]+ \([\d,]+ to [\d,]+\) .*[1-9]", printed, re.MULTILINE), printed
    assert "target at least 0.85" in printed


@pytest.mark.usefixtures("_needs_nginx")
def test_storm() -> None:
    """Through every storm all samples come right."""
    printed = printed_by("bench_storm.py", "--rounds", "1", "--peers", "ours")
    lines = re.findall(r"^torchdata_remote .*$", printed, re.MULTILINE)
    assert len(lines) == 4
    assert all("6,000 of 6,000 samples right, 0 shards raised" in line for line in lines), printed


def test_datapipe() -> None:
    """One line, with both figures and the ratio."""
    printed = printed_by("bench_datapipe.py")
    assert re.fullmatch(r"an item costs [\d.]+ µs instead of [\d.]+: [\d.]+x \([\d.]+ to [\d.]+\) as .*\n", printed)


def test_tar() -> None:
    """Each side that is installed reads every sample of both sizes, and the ratios are printed."""
    printed = printed_by(
        "bench_tar.py", "--quick", "--peers", "ours", "ours-views", "walk", "walk-samples", "webdataset"
    )
    assert len(re.findall(r"^torchdata_remote: list_remote.* [\d,]+ \([\d,]+ to [\d,]+\) ", printed, re.MULTILINE)) == 2
    assert re.findall(r"^against WebDataset: \d.*; target at least (\d+)$", printed, re.MULTILINE) == ["10", "8"]
    assert (
        len(re.findall(r"^against the bare walk over samples: \d.*; target at least 0.7$", printed, re.MULTILINE)) == 2
    )
