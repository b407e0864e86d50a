"""A training that records itself, and ``torchdata-remote top`` beside it."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.waiting import wait_for
from torchdata_remote import RecordedStats, record_stats
from torchdata_remote.testing import write_small_shards

# Workers of each start method; they stay until the input ends, as in a long training
TRAINING = """
import multiprocessing, sys, torchdata_remote as tdr
if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["torchdata_remote"])
    pipe = tdr.stream_shards(sys.argv[1], seed=0).to_tuple("__key__")
    methods = {"fork": 1, "forkserver": 2, "spawn": 1}
    loaders = [tdr.stateful_loader(pipe, num_workers=n, multiprocessing_context=name) for name, n in methods.items()]
    passes = [list(loader) for loader in loaders]
    print(sum(map(len, passes)), flush=True)
    sys.stdin.read()
    loaders.clear()
"""


def test_top_follows_the_workers_of_a_training(tmp_path: Path) -> None:
    """An environment variable makes them record, however they were started. Ctrl-C ends the view, not the training."""
    pytest.importorskip("prometheus_client")
    write_small_shards(f"{tmp_path}/train/", num_shards=8, samples_per_shard=3)
    (tmp_path / "training.py").write_text(TRAINING)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    rank = {"RANK": "1", "WORLD_SIZE": "2", "TORCHDATA_REMOTE_STATS": "stats"}
    address = f"127.0.0.1:{free_port()}"
    ours, theirs = os.openpty()
    training = subprocess.Popen(
        [sys.executable, "training.py", f"{tmp_path}/train/"],
        cwd=tmp_path, env={**environment, **rank}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    view = subprocess.Popen(
        [sys.executable, "-m", "torchdata_remote.cli", "top", "stats", "--every-s", "0.2", "--prometheus", address],
        cwd=tmp_path, env=environment, stdout=theirs,
    )  # fmt: skip
    os.close(theirs)
    os.set_blocking(ours, False)
    seen = bytearray()

    def shows(pattern: bytes) -> bool:
        assert view.poll() is None
        try:
            seen.extend(os.read(ours, 1 << 16))
        except BlockingIOError:
            return False
        return re.search(pattern, seen) is not None

    def view_has_ended() -> bool:
        """It may have to write before it ends."""
        with contextlib.suppress(OSError):
            os.read(ours, 1 << 16)
        return view.poll() is not None

    with os.fdopen(ours), training, view:
        try:
            assert training.stdin is not None
            assert training.stdout is not None
            assert training.stdout.readline() == "36\n"
            wait_for(lambda: shows(rb"4 of 4 processes run"))
            with urllib.request.urlopen(f"http://{address}/metrics") as answer:
                metrics = answer.read().decode()
            running = r"^torchdata_remote_samples_total\{.*rank=\"1\",worker=\"(.)\"\} [1-9]"
            assert sorted(re.findall(running, metrics, re.MULTILINE)) == ["0", "0", "0", "1"]
            view.send_signal(signal.SIGINT)
            wait_for(view_has_ended)
            assert view.returncode == 0
            training.stdin.close()
            assert training.wait(60) == 0
        finally:
            training.kill()
            view.kill()
    now = RecordedStats(tmp_path / "stats").now()
    assert [
        (one.name, one.world_size, one.num_workers, one.state) for one in now.processes if one.num_workers == 2
    ] == [
        ("rank 1 worker 0", 2, 2, "ended"),
        ("rank 1 worker 1", 2, 2, "ended"),
    ]
    assert [one.name for one in now.processes if one.num_workers == 1] == ["rank 1 worker 0"] * 2
    assert sum(one.total.samples for one in now.processes) == 36


def write_lines(path: str, num_lines: int) -> None:
    with record_stats(path, every_s=1e-4):
        wait_for(lambda: Path(path).read_text().count(f'"pid": {os.getpid()},') >= num_lines)


def test_processes_append_whole_lines_to_one_file(tmp_path: Path) -> None:
    """Four processes write at the same time; each line is theirs from its first to its last character."""
    path = tmp_path / "stats.jsonl"
    path.touch()
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_lines, args=(str(path), 100)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {line["pid"] for line in lines} == {writer.pid for writer in writers}
    assert sum(line["ended"] for line in lines) == 4
    assert {line["parent_pid"] for line in lines} == {os.getpid()}
