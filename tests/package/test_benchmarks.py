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
FIGURE = re.compile(r"^\S.* {2,}[\d,.]+|: -?[\d,.]+", re.MULTILINE)


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


# The first one is quick
BENCHMARKS = {
    "datapipe": "--quick",
    "decode": "--quick",
    "tables": "--quick --workers 1 --methods spawn",
    "objects": "--quick --peers ours-32 ceiling-32",
    "shards": "--quick --peers ours-32 ceiling-32",
    "stores": "--quick --peers ours-shards-16-s3 ours-loose-8-s3",
    "cache": "--quick",
    "loose_files": "--quick --peers ours-ahead plain memory",
    "listing": "--quick",
    "training": "--quick --peers ours memory",
    "storm": "--rounds 1 --passes 1 --peers ours",
    "service": "--quick",
    "tar": "--quick --peers ours walk webdataset",
    "writer": "--quick --peers ours webdataset ceiling",
    "shard_resume": "--quick --sources tar --workers 0",
    "scale": "--quick",
    "defaults": "--quick --peers default shards-only files",
    "resume": "--quick",
    "loaders": "--quick --only way",
    "local_files": "--quick --peers plain stream-files",
    "items": "--quick --peers ours-one ours-mix",
}
QUICK = {"datapipe"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in BENCHMARKS]
)
def test_a_benchmark_runs_and_prints_its_table(name: str) -> None:
    if name in NEEDS_NGINX and (missing := printed_by("-c", NGINX)):
        pytest.skip(missing)
    printed = printed_by(f"bench_{name}.py", *BENCHMARKS[name].split())
    assert FIGURE.search(printed), printed


@pytest.mark.slow
def test_shuffle_quality_compares_each_method_with_a_full_shuffle(tmp_path: Path) -> None:
    printed = printed_by("shuffle_quality.py", "--quick")
    found = dict(re.findall(r"^(.*?)  +([01]\.\d{3}) \(.* to .*\) .*[\d.-]+$", printed, re.MULTILINE))
    assert found["full shuffle"] == "1.000"
    assert found['shuffle="shards"'] < found["interleave 8 + buffer 500"] < found["default"]
