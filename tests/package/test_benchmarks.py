"""Benchmarks: each runs in its quick form and prints its table; figures are not judged here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

FOLDER = ROOT / "benchmarks"
NEEDS_NGINX = (
    "objects", "shards", "stores", "cache", "loose_files", "listing", "training", "storm", "service", "defaults",
    "resume",
)  # fmt: skip
NGINX = """
import slow_store
try:
    slow_store.nginx_path()
except slow_store.StoreNotInstalledError as error:
    print(error)
"""
ROW, RATIO = r"[\d,.]+ \([\d,.]+ to [\d,.]+\)", r"-?[\d.]+x?"


def printed_by(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=FOLDER, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FAILING = """
import report
from measure import PeerMissingError
runs = []
def run_peer(module, name, job, store):
    runs.append(name)
    raise (PeerMissingError if name == "absent" else RuntimeError)("Traceback\\nIndexError: no such shard")
report.run_peer = run_peer
for name in ("failing", "absent", "ours"):
    try:
        print(report.compare("module", [report.Side(name, name, None, 1, 1)], None, 1).missing, len(runs))
    except RuntimeError as error:
        assert name == "ours"
        print("refused")
"""


def test_only_another_project_that_fails_is_run_again_twice_and_ours_fails_the_run() -> None:
    failing, absent, ours = printed_by("-c", FAILING).splitlines()
    assert failing.endswith("IndexError: no such shard'} 3")
    assert absent.endswith("} 4")
    assert ours == "refused"


# Its arguments, and what each of its lines of figures must be like; the first few are quick
BENCHMARKS: dict[str, tuple[str, list[str]]] = {
    "datapipe": (
        "--quick",
        [rf"^an item costs {RATIO} µs instead of [\d.]+: {RATIO} \(", rf"^a tuple costs {RATIO} µs"],
    ),
    "decode": ("--quick", [rf"^decode_image +{ROW}", rf"^Pillow, NumPy +{ROW}"]),
    "tables": (
        "--quick --workers 1 --methods spawn",
        [r"^one copy for the host .* [\d,]{1,5}$", r"^access: [\d,]+ ns, "],
    ),
    "objects": (
        "--quick --peers ours-32 ceiling-32",
        [rf"^torchdata_remote, 32 in flight.* {ROW}", "target at least 0.85"],
    ),
    "shards": (
        "--quick --peers ours-32 ceiling-32",
        [rf"^torchdata_remote, 32 in flight.* {ROW}", "target at least 0.85"],
    ),
    "stores": (
        "--quick --peers ours-shards-16-s3 ours-loose-8-s3",
        [rf"^torchdata_remote from s3, 16 in flight.* {ROW}"],
    ),
    "cache": (
        "--quick",
        [r"first epoch with a cache against none: \d", r"^  80% of the data kept: GETs saved", r"longest step \d+ ms"],
    ),
    "loose_files": (
        "--quick --peers ours-ahead plain memory",
        [rf"^torchdata_remote, Prefetch.* {ROW}", r"; target at least 40$"],
    ),
    "listing": ("--quick", [rf"^torchdata_remote, list_remote +{ROW}", rf"^obstore, list +{ROW}"]),
    "training": (
        "--quick --peers ours memory",
        [rf"^torchdata_remote, thread_loader.* {ROW}", r"; target at least 0.9$"],
    ),
    "storm": (
        "--rounds 1 --passes 1 --peers ours",
        [r"^torchdata_remote .*2,000 of 2,000 samples right, 0 shards raised"],
    ),
    "service": ("--quick", [rf"^2.* +{side} +{ROW} " for side in ("nginx", "datasets", "disk", "push", "pull")]),
    "tar": (
        "--quick --peers ours walk webdataset",
        [rf"^torchdata_remote: list_remote.* {ROW}", r"against WebDataset: \d"],
    ),
    "writer": (
        "--quick --peers ours webdataset ceiling",
        [rf"^torchdata_remote ShardWriter.* {ROW}", r"^against WebDataset: \d"],
    ),
    "shard_resume": (
        "--quick --sources tar --workers 0",
        [r"^resume of a tar, 0 workers, .*: [\d.]+ \(.*; target at most 0.15$"],
    ),
    "scale": ("--quick", [r"^state of a rank, kB  +[\d.,]+  +[\d.,]+  +[\d.,]+  +1x$"]),
    "defaults": ("--quick --peers default shards-only files", [rf"^shards.* {ROW}", "target at least 0.8"]),
    "resume": ("--quick", [r"^stateful_loader +2 +90% +[\d.]+ \(", r"target at most 1$"]),
    "loaders": ("--quick --only way", [r"^uint8, stacked( +\d+\.\d\d ms){3}$"]),
    "local_files": ("--quick --peers plain stream-files", [r"^stream_files, CPU against open and read: \d"]),
    "items": ("--quick --peers ours-one ours-mix", [rf"^torchdata_remote, mix of two chains +{ROW} "]),
}
QUICK = {"datapipe", "decode"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in BENCHMARKS]
)
def test_a_benchmark_runs_and_prints_its_table(name: str) -> None:
    if name in NEEDS_NGINX and (missing := printed_by("-c", NGINX)):
        pytest.skip(missing)
    arguments, lines = BENCHMARKS[name]
    printed = printed_by(f"bench_{name}.py", *arguments.split())
    assert [line for line in lines if not re.search(line, printed, re.MULTILINE)] == [], printed


@pytest.mark.slow
def test_shuffle_quality_compares_each_method_with_a_full_shuffle(tmp_path: Path) -> None:
    printed = printed_by("shuffle_quality.py", "--quick")
    found = dict(re.findall(r"^(.*?)  +([01]\.\d{3}) \(.* to .*\) .*[\d.-]+$", printed, re.MULTILINE))
    assert found["full shuffle"] == "1.000"
    assert found['shuffle="shards"'] < found["interleave 8 + buffer 500"] < found["default"]
