"""``torchdata-remote bench``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest

from tests.servers.s3 import S3Server
from tests.servers.scripted import Request, Response, scripted
from tests.support.paths import ROOT
from torchdata_remote import stream_files, stream_shards
from torchdata_remote.cli import main
from torchdata_remote.testing import write_small_shards


def test_bench_reads_all_shards_and_names_the_longest_wait(
    memory_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All samples, a table, the stage with the longest waits; indexes and manifest beside shards are no samples."""
    write_small_shards(memory_folder, num_shards=3, samples_per_shard=4)
    assert main(["bench", memory_folder, "--seconds", "60"]) == 0
    first, *table, requests, verdict = capsys.readouterr().out.splitlines()
    assert first.startswith("12 samples in ")
    assert "the whole dataset" in first
    assert [line.split()[0] for line in table] == ["stage", "list", "fetch", "read", "decode", "rest"]
    assert table[3].split()[1] == "12"
    assert re.fullmatch(r"3 requests: p50 [\d.]+ ms, p90 [\d.]+ ms, p99 [\d.]+ ms, max [\d.]+ ms", requests)
    assert re.match(r"\d+ % of the time (waits for|goes into) .*: ", verdict)


@pytest.mark.parametrize("name", ["000001.tar", "index.json", "00000*.tar"])
def test_bench_reads_a_shard_a_manifest_or_a_glob_as_shards(
    name: str, memory_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A URL that names shards is read as shards, without a listing."""
    write_small_shards(memory_folder, num_shards=3, samples_per_shard=4)
    assert main(["bench", f"{memory_folder}/{name}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["read"]["items"] == (4 if name == "000001.tar" else 12)


def test_bench_reads_loose_files_of_a_bucket(moto: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    """One line of JSON with the counters; --no-decode leaves members as bytes."""
    bucket = moto.new_bucket()
    for number in range(20):
        moto.client().put_object(Bucket=bucket, Key=f"a/{number}.jpg", Body=b"no image")
    options = ["--storage-options", json.dumps(moto.storage_options)]
    assert main(["bench", f"s3://{bucket}/a/", "--json", "--no-decode", "--max-in-flight", "3", *options]) == 0
    did = json.loads(capsys.readouterr().out)
    assert did["url"] == f"s3://{bucket}/a/"
    assert (did["num_samples"], did["complete"]) == (20, True)
    waits = {"rest": did["rest_s"]} | {name: did[name]["wait_s"] for name in ("list", "fetch", "read", "decode")}
    assert did["verdict"].startswith(f"{100 * waits[did['bottleneck']] / did['elapsed_s']:.0f} % of the time ")
    assert waits[did["bottleneck"]] == max(waits.values())
    assert sorted(did["request_ms"].values()) == list(did["request_ms"].values())
    assert list(did["request_ms"]) == ["p50", "p90", "p99", "max"]
    assert did["fetch"]["items"] == did["fetch"]["requests"] == 20
    assert did["fetch"]["num_bytes"] == 160
    assert did["decode"]["items"] == 0
    assert main(["bench", f"s3://{bucket}/a/", *options]) == 1
    assert "cannot be decoded" in capsys.readouterr().err


def test_bench_stops_after_the_seconds_asked_for(memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No further sample is read after the time limit."""
    write_small_shards(memory_folder, num_shards=2, samples_per_shard=4)
    assert main(["bench", memory_folder, "--seconds", "1e-9"]) == 0
    assert capsys.readouterr().out.startswith("1 samples in ")


@pytest.fixture
def hanging() -> Iterator[tuple[str, threading.Event]]:
    """The URL of files of which the fourth never comes, and the event of its request."""
    asked, ends = threading.Event(), threading.Event()

    def respond(request: Request) -> Response:
        if request.target.endswith("/3.bin"):
            asked.set()
            ends.wait(600)
        return Response.of_object(request, b"data")

    with scripted(respond) as server:
        yield f"{server.url}/{{0..3}}.bin", asked
        ends.set()


def test_the_time_limit_holds_while_the_store_sends_nothing(
    hanging: tuple[str, threading.Event], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was read so far is reported and drawn, with the wait that has not ended."""
    path = tmp_path / "bench.png"
    command = ["bench", hanging[0], "--no-decode", "--seconds", "6", "--max-in-flight", "1", "--plot", str(path)]
    assert main(command) == 0
    first, *table, _, verdict = capsys.readouterr().out.splitlines()
    assert re.match(r"[1-3] samples in ", first)
    assert "the whole dataset" not in first
    assert table[3].split()[0] == "read"
    assert re.fullmatch(r"\d+ % of the time waits for the store: nothing came in the last \d+\.\d s", verdict)
    assert path.exists()


def test_ctrl_c_reports_what_was_read_so_far_with_its_status(hanging: tuple[str, threading.Event]) -> None:
    command = [
        sys.executable,
        "-m",
        "torchdata_remote",
        "bench",
        hanging[0],
        "--no-decode",
        "--json",
        "--seconds",
        "600",
    ]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert hanging[1].wait(60)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    found = json.loads(printed)
    assert found["num_samples"] <= 3
    assert not found["complete"]


def test_help_names_the_defaults_of_the_streams(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests at once, as the signatures have them."""
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["bench", "--help"]) == 0
    defaults = [signature(stream).parameters["max_in_flight"].default for stream in (stream_shards, stream_files)]
    assert "by default {} for shards, {} for files".format(*defaults) in capsys.readouterr().out


def test_plot_without_matplotlib_names_the_extra_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read before: the URL does not exist."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["bench", "memory://no-such-folder/", "--plot", str(tmp_path / "bench.png")]) == 1
    assert capsys.readouterr().err == (
        "torchdata-remote: --plot needs matplotlib: pip install 'torchdata_remote[plot]'\n"
    )


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "soon"])
def test_invalid_seconds_are_a_wrong_command_line(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "memory://x/", "--seconds", seconds]) == 2
    assert "--seconds" in capsys.readouterr().err


def test_bench_of_an_empty_folder_fails_with_its_url(memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1, and the URL on stderr."""
    assert main(["bench", memory_folder]) == 1
    assert memory_folder in capsys.readouterr().err


def test_bench_of_shards_without_samples_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "0.tar").write_bytes(bytes(1024))
    assert main(["bench", f"{tmp_path}/0.tar"]) == 1
    assert capsys.readouterr().err.endswith("0.tar: no samples found.\n")
