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
    printed = capsys.readouterr().out
    title, _, names, *rows, _, verdict = printed.splitlines()
    assert title == f"{folder}: 0 of 2 processes run"
    assert names.split() == [*NAMES, "process"]
    assert re.sub(r"ended \d+ s", "ended", rows[1]).split() == [
        "1", "0", "40.0", "3.0", "2.0", "1", "80%", "fetch", "80%", "ended", "n:8"
    ]  # fmt: skip
    assert rows[2].split() == ["all", "80.0", "6.0", "4.0", "1", "40%", "fetch", "40%"]
    assert verdict.startswith("rank 1 on n waits for the store 80% of the time, and other ranks wait 0%: raise")
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
    assert f"{tmp_path / 'missing'}: no such file or folder. A process writes its first line" in message
    (tmp_path / "0.jsonl").write_text("text\n")
    assert main(["top", "--once", str(tmp_path)]) == 1
    assert "1 lines are no statistics" in capsys.readouterr().err


def test_what_is_odd_about_the_recordings_is_a_line_before_the_verdict(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in JSON."""
    for pid in range(11, 16):
        write(folder / "0.jsonl", line(20, pid=pid, host="n", rank=0, ended=True, read_items=1), "broken\n")
    (folder / "2.jsonl").mkdir()
    assert main(["top", "--once", "--json", str(folder)]) == 0
    *notes, last = json.loads(capsys.readouterr().out)["notes"]
    broken = "5 lines are no statistics, or were written in part only"
    assert notes == [f"{folder}/2.jsonl: Is a directory", broken]
    assert last.startswith(
        "rank 0 is recorded by 6 processes (n:11, n:12, n:13, n:14, ...): if they are two trainings,"
    )
    assert main(["top", str(folder)]) == 0
    *_, total, empty, _, _, _, verdict = lines = capsys.readouterr().out.splitlines()
    assert (total.split()[0], lines[-4:-1], empty) == ("all", [*notes, last], "")
    assert verdict.startswith("rank 1 on n waits")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--every-s", "0"], "expected a positive number of seconds"),
        (["--every-s", "3601"], "expected a positive number of seconds"),
        (["--prometheus", "x"], "expected PORT or HOST:PORT"),
        (["--prometheus", "70000"], "expected PORT or HOST:PORT"),
        (["--prometheus", "9400", "--json"], "not allowed with"),
        (["--prometheus", "9400", "--once"], "argument --once: not allowed with argument --prometheus"),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["top", "stats/", *arguments])
    assert ended.value.code == 2
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
    folder: Path, monkeypatch: pytest.MonkeyPatch, between: Callable[[Callable[[float], None]], None]
) -> None:
    """Each is written over the last one; columns are left out as the terminal shrinks: process, requests, bytes."""
    ours, theirs = os.openpty()
    sizes = [(24, 200), (24, 82), (24, 56), (7, 30)]
    seen = []

    def next_frame(seconds: float) -> None:
        assert seconds == 5
        seen.append(os.read(ours, 1 << 16).decode())
        if not sizes:
            raise KeyboardInterrupt
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", *sizes.pop(0), 0, 0))

    with os.fdopen(theirs, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        between(next_frame)
        assert main(["top", "--every-s", "5", str(folder)]) == 0
    os.close(ours)
    assert seen[0].startswith("\x1b[2J\x1b[H")
    named = []
    for frame, (lines, columns) in zip(seen, [(24, 80), (24, 200), (24, 82), (24, 56), (7, 30)], strict=True):
        shown = re.sub(r"\x1b\[\d*\w", "", frame).splitlines()
        assert len(shown) < lines
        assert max(map(len, shown)) <= columns
        assert frame.endswith("\x1b[J")
        assert frame is seen[0] or "\x1b[2J" not in frame
        named.append(next(row for row in shown if row.lstrip().startswith("rank ")).split())
        assert columns < 56 or len({row.index("%") for row in shown if re.match(r"^ *(\d+ +0|all) ", row)}) == 1
    assert named[1:4] == [[*NAMES, "process"], NAMES, [*NAMES[:3], *NAMES[6:]]]


def test_a_terminal_that_is_too_small_for_all_shows_those_that_wait_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: Callable[[Callable[[float], None]], None]
) -> None:
    """With the number of those that are not shown, the total, and the verdict."""
    for rank in range(256):
        place: dict[str, Any] = {"rank": rank, "world_size": 256, "worker": 0, "num_workers": 1}
        write(tmp_path / "all.jsonl", line(10, pid=rank, read_items=10, fetch_wait_s=rank / 30, ended=True, **place))
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 13, 100, 0, 0))

    def stop(seconds: float) -> None:
        raise KeyboardInterrupt

    with os.fdopen(theirs, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        between(stop)
        assert main(["top", str(tmp_path)]) == 0
        lines = re.sub(r"\x1b\[\d*\w", "", os.read(ours, 1 << 16).decode()).splitlines()
    os.close(ours)
    assert len(lines) <= 12
    ranks = [int(found[1]) for row in lines if (found := re.match(r" *(\d+) +0 ", row))]
    assert ranks == list(range(255, 255 - len(ranks), -1))
    assert f"... and {256 - len(ranks)} processes that wait less" in lines
    assert any(row.lstrip().startswith("all") for row in lines)
    assert lines[-1].endswith("cache.")


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
    assert f"--prometheus {address}: Address already in use" in capsys.readouterr().err


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
    assert values["torchdata_remote_running", None] == 1
    assert values["torchdata_remote_samples_total", None] == 60
    assert values["torchdata_remote_wait_seconds_total", "fetch"] == 4
    assert values["torchdata_remote_elapsed_seconds_total", None] == 30
    assert len(values) == 4 + 6 * 4
    assert 'pid="7"' not in text
    assert r'host="\\udcff"' in text  # a lone surrogate, which cannot be encoded, keeps no other from the metrics
