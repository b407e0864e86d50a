"""``torchdata-remote top``."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import sys
import termios
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.stats_lines import line, write
from torchdata_remote.cli import _top, main
from torchdata_remote.cli._top_table import table
from torchdata_remote.inspection.recorded_stats import RecordedStats

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


def test_once_prints_one_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Title, a row for each process, the total, and the verdict; a pipe gets the same."""
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


def test_json_has_the_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As one line."""
    assert main(["top", "--once", "--json", str(folder / "0.jsonl"), str(folder / "1.jsonl")]) == 0
    (printed,) = capsys.readouterr().out.splitlines()
    found = json.loads(printed)
    assert [one["rank"] for one in found["processes"]] == [0, 1]
    assert found["all"]["samples_per_s"] == 80


def test_the_environment_names_the_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the command line does not; one of them has to."""
    monkeypatch.setenv("TORCHDATA_REMOTE_STATS", str(folder))
    assert main(["top"]) == 0
    assert capsys.readouterr().out.startswith(str(folder))
    monkeypatch.delenv("TORCHDATA_REMOTE_STATS")
    assert main(["top"]) == 1
    assert "TORCHDATA_REMOTE_STATS=FOLDER" in capsys.readouterr().err


def test_a_folder_without_recordings_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what makes them, and what could not be read."""
    assert main(["top", "--once", str(tmp_path / "missing")]) == 1
    message = capsys.readouterr().err
    assert f"{tmp_path / 'missing'}: no such file or folder. A process writes its first line" in message
    (tmp_path / "0.jsonl").write_text("text\n")
    assert main(["top", "--once", str(tmp_path)]) == 1
    assert "1 lines are no statistics" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--every-s", "0"], "expected a positive number of seconds"),
        (["--every-s", "soon"], "expected a positive number of seconds"),
        (["--prometheus", "x"], "expected PORT or HOST:PORT"),
        (["--prometheus", "70000"], "expected PORT or HOST:PORT"),
        (["--prometheus", "9400", "--json"], "not allowed with"),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 2."""
    with pytest.raises(SystemExit) as ended:
        main(["top", "stats/", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_port_in_use_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the address."""
    pytest.importorskip("prometheus_client")
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert main(["top", str(folder), "--prometheus", address]) == 1
    assert f"--prometheus {address}: Address already in use" in capsys.readouterr().err


def test_a_terminal_shows_frames_until_ctrl_c(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is written over the last one, in one piece and no larger than the terminal, whose size may change."""
    ours, theirs = os.openpty()
    sizes = [(24, 100), (7, 30)]
    seen = []

    def sleep(seconds: float) -> None:
        assert seconds == 5
        seen.append(os.read(ours, 1 << 16).decode())
        if not sizes:
            raise KeyboardInterrupt
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", *sizes.pop(0), 0, 0))

    with os.fdopen(theirs, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(_top, "time", SimpleNamespace(sleep=sleep))
        assert main(["top", "--every-s", "5", str(folder)]) == 0
    os.close(ours)
    first, wide, narrow = seen
    assert first.startswith("\x1b[2J\x1b[H")
    assert "\x1b[2J" not in wide + narrow
    for frame, columns, lines in ((first, 80, 24), (wide, 100, 24), (narrow, 30, 7)):
        shown = re.sub(r"\x1b\[\d*\w", "", frame).splitlines()
        assert len(shown) < lines
        assert max(map(len, shown)) <= columns
        assert frame.endswith("\x1b[J")
    assert "n:8" in wide
    assert "rank" in narrow


def test_a_terminal_waits_for_a_training_that_has_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view may be opened first."""
    now = RecordedStats(tmp_path).now()
    assert table(now, "stats/", columns=80, lines=23) == ["stats/", "", "Nothing is read yet."]


def test_columns_that_do_not_fit_are_left_out(folder: Path) -> None:
    """The process first, then requests, retries and bytes; rows stay aligned."""
    now = RecordedStats(folder).now()
    for columns, names in [(200, [*NAMES, "process"]), (82, NAMES), (56, [*NAMES[:3], *NAMES[6:]])]:
        lines = table(now, "stats/", columns=columns)
        assert lines[2].split() == names
        assert max(map(len, lines)) <= columns
        assert len({line.index("%") for line in lines[3:6]}) == 1


def test_more_processes_than_lines_show_those_that_wait_most(tmp_path: Path) -> None:
    """With the number of those that are not shown, the total, and the verdict."""
    for rank in range(256):
        place: dict[str, Any] = {"rank": rank, "world_size": 256, "worker": 0, "num_workers": 1}
        write(tmp_path / "all.jsonl", line(10, pid=rank, read_items=10, fetch_wait_s=rank / 30, ended=True, **place))
    lines = table(RecordedStats(tmp_path).now(), "stats/", columns=100, lines=12)
    assert len(lines) <= 12
    ranks = [int(found[1]) for line in lines if (found := re.match(r" *(\d+) +0 ", line))]
    assert ranks == list(range(255, 255 - len(ranks), -1))
    assert f"... and {256 - len(ranks)} processes that wait less" in lines
    assert any(line.lstrip().startswith("all") for line in lines)
    assert lines[-1].endswith("cache.")


def test_names_do_not_reach_the_terminal_as_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recording may be from anywhere."""
    write(tmp_path / "0.jsonl", line(1, host="a\x1b[2Jb", ended=True))
    assert main(["top", str(tmp_path)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_metrics_are_counters_of_processes_that_run(folder: Path) -> None:
    """Their rates are Prometheus's business; one that has ended has no series."""
    pytest.importorskip("prometheus_client")
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    from torchdata_remote.cli._top_metrics import TrainingCollector

    recorded = RecordedStats(folder, wall_clock=lambda: 1_800_000_031.0)
    write(folder / "2.jsonl", line(30, pid=3, host="n", rank=2, worker=1, read_items=60, fetch_wait_s=4))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(TrainingCollector(recorded))
    values = {
        (sample.name, sample.labels.get("stage")): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if {name: sample.labels[name] for name in ("rank", "worker", "host", "pid")}
        == {"rank": "2", "worker": "1", "host": "n", "pid": "3"}
    }
    assert values["torchdata_remote_running", None] == 1
    assert values["torchdata_remote_samples_total", None] == 60
    assert values["torchdata_remote_wait_seconds_total", "fetch"] == 4
    assert values["torchdata_remote_elapsed_seconds_total", None] == 30
    assert len(values) == 4 + 6 * 4
    assert 'pid="7"' not in generate_latest(registry).decode()
