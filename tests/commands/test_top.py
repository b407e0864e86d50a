"""``torchdata-remote top``: a table, JSON, frames on a terminal, and metrics for Prometheus of a recorded training."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.stats_lines import line, write
from torchdata_remote.cli import main

NAMES = ["rank", "worker", "samples/s", "MB/s", "requests/s", "retries", "waits", "most", "for", "latest", "line"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What two ranks with a worker each have recorded; rank 1 waits for the store."""
    for rank in (0, 1):
        for second in (10, 20):
            counted: dict[str, Any] = {
                "read_items": 40 * second,
                "fetch_num_bytes": 3_000_000 * second,
                "fetch_requests": 2 * second,
            }
            waited = {"fetch_wait_s": 0.8 * rank * second, "fetch_retries": rank}
            place = {"rank": rank, "world_size": 2, "worker": 0, "num_workers": 1}
            ended = {"ended": second == 20}
            write(
                tmp_path / f"{rank}.jsonl", line(second, pid=rank + 7, host="n", **counted, **waited, **place, **ended)
            )
    return tmp_path


def test_once_prints_one_table_and_the_verdict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Title, a row for each process, the total; a pipe gets the same."""
    assert main(["top", "--once", str(folder)]) == 0
    title, _, names, *rows, _, verdict = capsys.readouterr().out.splitlines()
    assert title == f"{folder}: 0 of 2 processes run"
    assert names.split() == [*NAMES, "process"]
    assert re.sub(r"ended \d+ s", "ended", rows[1]).split() == [
        "1", "0", "40.0", "3.0", "2.0", "1", "80%", "fetch", "80%", "ended", "n:8"
    ]  # fmt: skip
    assert rows[2].split() == ["all", "80.0", "6.0", "4.0", "1", "40%", "fetch", "40%"]
    assert verdict.startswith("rank 1 on n waits for the store 80% of the time: raise max_in_flight")
    assert main(["top", str(folder / "*.jsonl")]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == ["", names]


def test_json_has_the_numbers_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--json", str(folder / "0.jsonl"), str(folder / "1.jsonl")]) == 0
    (printed,) = capsys.readouterr().out.splitlines()
    found = json.loads(printed)
    assert [one["rank"] for one in found["processes"]] == [0, 1]
    assert found["all"]["samples_per_s"] == 80


def test_the_environment_names_the_folder_if_the_command_line_does_not(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHDATA_REMOTE_STATS", str(folder))
    assert main(["top"]) == 0
    assert capsys.readouterr().out.startswith(str(folder))
    monkeypatch.delenv("TORCHDATA_REMOTE_STATS")
    assert main(["top"]) == 1
    assert "TORCHDATA_REMOTE_STATS=FOLDER" in capsys.readouterr().err


def test_a_folder_without_recordings_is_an_error_that_says_what_makes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--once", str(tmp_path / "missing")]) == 1
    message = capsys.readouterr().err
    assert f"{tmp_path / 'missing'}: no file has a line of statistics. A process writes its first line" in message
    (tmp_path / "0.jsonl").write_text("text\n")
    assert main(["top", "--once", str(tmp_path)]) == 1
    assert "1 lines are no statistics" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--every-s", "0"], "--every-s"),
        (["--every-s", "3601"], "--every-s"),
        (["--prometheus", "9400", "--json"], "--prometheus"),
        (["--prometheus", "9400", "--once"], "--prometheus"),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "stats/", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[float], None]], None]:
    """What happens where the view waits for its next frame: ``KeyboardInterrupt`` ends it. Other threads sleep."""
    viewer, sleep = threading.current_thread(), time.sleep

    def set_what_happens(happens: Callable[[float], None]) -> None:
        monkeypatch.setattr(
            "time.sleep", lambda seconds: (happens if threading.current_thread() is viewer else sleep)(seconds)
        )

    return set_what_happens


def test_a_terminal_shows_frames_that_fit_until_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: Callable[[Callable[[float], None]], None]
) -> None:
    """Each is written over the last one. Of too many processes those that wait most, with the total and the verdict."""
    for rank in range(256):
        place: dict[str, Any] = {"rank": rank, "world_size": 256, "worker": 0, "num_workers": 1}
        write(tmp_path / "all.jsonl", line(10, pid=rank, read_items=10, fetch_wait_s=rank / 30, ended=True, **place))
    ours, theirs = os.openpty()
    sizes = [(24, 200), (13, 82), (7, 30)]
    frames = []

    def next_frame(seconds: float) -> None:
        assert seconds == 5
        frames.append(os.read(ours, 1 << 16).decode())
        if len(frames) == len(sizes):
            raise KeyboardInterrupt
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", *sizes[len(frames)], 0, 0))

    with os.fdopen(theirs, "w") as stdout:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", *sizes[0], 0, 0))
        monkeypatch.setattr(sys, "stdout", stdout)
        between(next_frame)
        assert main(["top", "--every-s", "5", str(tmp_path)]) == 0
    os.close(ours)
    assert frames[0].startswith("\x1b[2J\x1b[H")
    for frame, (num_lines, columns) in zip(frames, sizes, strict=True):
        shown = re.sub(r"\x1b\[\d*\w", "", frame).splitlines()
        assert len(shown) < num_lines
        assert max(map(len, shown)) <= columns
        assert frame.endswith("\x1b[J")
        ranks = [int(found[1]) for row in shown if (found := re.match(r" *(\d+) +0 ", row))]
        assert ranks == list(range(255, 255 - len(ranks), -1)) != []
        if num_lines > 12:
            assert f"... and {256 - len(ranks)} processes that wait less" in shown
            assert any(row.lstrip().startswith("all") for row in shown)
            assert shown[-1].startswith("rank 255 on a waits for the store")


def test_a_view_that_is_opened_before_the_training_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: Callable[[Callable[[float], None]], None]
) -> None:
    ours, theirs = os.openpty()

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    with os.fdopen(theirs, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        between(stop)
        assert main(["top", str(tmp_path)]) == 0
        assert "Nothing is read yet." in os.read(ours, 1 << 16).decode()
    os.close(ours)


def test_names_do_not_reach_the_terminal_as_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recording may be from anywhere."""
    write(tmp_path / "0.jsonl", line(1, host="a\x1b[2J\nb", rank=0, fetch_wait_s=0.9, ended=True))
    write(tmp_path / "1.jsonl", line(1, host="c", pid=2, rank=1, ended=True, fetch_wait_s=0.01))
    assert main(["top", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert r"rank 0 on a\x1b[2J\nb waits for the store" in printed.splitlines()[-1]
    assert "\x1b" not in printed


def test_a_port_in_use_is_an_error_with_the_address(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert main(["top", str(folder), "--prometheus", address]) == 1
        assert "Address already in use" in capsys.readouterr().err
        assert main(["top", str(folder), "--prometheus", "x"]) == 1
        assert "expected [HOST:]PORT" in capsys.readouterr().err


def test_metrics_are_counters_of_processes_that_run(
    folder: Path, capsys: pytest.CaptureFixture[str], between: Callable[[Callable[[float], None]], None]
) -> None:
    """Their rates are Prometheus's business. One that has ended has no series; port 0 is printed when it is known."""
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    running = {"read_items": 60, "fetch_wait_s": 4, "rank": 2, "worker": 1, "every_s": 1e9, "time": None}
    write(folder / "2.jsonl", line(30, pid=3, host="n", **running), line(30, pid=4, host="\udcff", **running))
    answers = []

    def ask(seconds: float) -> None:
        url = capsys.readouterr().out.split()[-1]
        with urlopen(url) as answer:
            answers.append(answer.read().decode())
        raise KeyboardInterrupt

    between(ask)
    assert main(["top", str(folder), "--prometheus", "0"]) == 0
    (text,) = answers
    values = {
        (sample.name, sample.labels.get("stage")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if {name: sample.labels.get(name) for name in ("rank", "worker", "host", "pid")}
        == {"rank": "2", "worker": "1", "host": "n", "pid": "3"}
    }
    assert values["torchdata_remote_samples_total", None] == 60
    assert values["torchdata_remote_wait_seconds_total", "fetch"] == 4
    assert values["torchdata_remote_elapsed_seconds_total", None] == 30
    assert len(values) == 2 + 6 * 4
    assert 'pid="7"' not in text
    assert r'host="\\udcff"' in text  # a lone surrogate, which cannot be encoded, keeps no other from the metrics
