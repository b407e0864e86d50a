"""Statistics as lines of JSON."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_for
from torchdata_remote.core.stats.recording import record_in_folder, record_stats


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_record_stats_writes_lines_of_json(tmp_path: Path) -> None:
    """Now and then, and at the end; with the counters, and the number of the process."""
    path = tmp_path / "stats.jsonl"
    with record_stats(path, every_s=0.01):
        wait_for(lambda: path.read_text().count("\n") > 0)
    lines = lines_of(path)
    assert len(lines) >= 2
    assert {line["pid"] for line in lines} == {os.getpid()}
    assert {"elapsed_s", "list", "fetch", "read", "decode", "rest_s"} < set(lines[0])
    assert set(lines[0]["fetch"]) == {"items", "num_bytes", "wait_s", "busy_s", "requests", "retries"}
    assert [line["ended"] for line in lines] == [False] * (len(lines) - 1) + [True]


def test_a_line_says_who_wrote_it_and_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank, worker, host, time, and the interval. In the process of a rank there is no worker."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    before_s = time.time()
    record_stats(tmp_path / "stats.jsonl", every_s=3600).close()
    (line,) = lines_of(tmp_path / "stats.jsonl")
    assert (line["rank"], line["world_size"], line["worker"], line["num_workers"]) == (3, 4, None, 0)
    assert 0 <= line["idle_s"] <= line["elapsed_s"]
    assert (line["host"], line["every_s"]) == (socket.gethostname(), 3600)
    assert before_s - 1 <= line["time"] <= time.time() + 1


def test_an_unknown_rank_is_recorded_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe that splits the data raises the error; a recording does not."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    record_stats(tmp_path / "stats.jsonl", every_s=3600).close()
    assert lines_of(tmp_path / "stats.jsonl")[0]["rank"] is None


def test_a_recording_is_closed_twice(tmp_path: Path) -> None:
    """The second time nothing happens; and seconds are positive."""
    writing = record_stats(tmp_path / "stats.jsonl", every_s=3600)
    writing.close()
    writing.close()
    assert (tmp_path / "stats.jsonl").read_text().count("\n") == 1
    with pytest.raises(ValueError, match="every_s must be positive"):
        record_stats(tmp_path / "stats.jsonl", every_s=0)
    with pytest.raises(OSError, match="missing"):
        record_stats(tmp_path / "missing" / "stats.jsonl")
    with pytest.raises(ValueError, match=r"^record_stats: path must be a local path .* got a URL"):
        record_stats("s3://bucket/stats.jsonl")


def test_a_file_that_was_moved_away_is_written_again(tmp_path: Path) -> None:
    """As a program that rotates logs does."""
    path = tmp_path / "stats.jsonl"
    with record_stats(path, every_s=0.01):
        wait_for(lambda: path.read_text().count("\n") > 0)
        path.rename(tmp_path / "old")
        wait_for(path.exists)
    assert lines_of(path)[-1]["ended"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_a_full_disk_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The training goes on."""
    writing = record_stats("/dev/full", every_s=0.001)
    wait_for(lambda: bool(caplog.records))
    writing.close()
    assert [record.getMessage() for record in caplog.records] == [
        "/dev/full: statistics are not recorded: [Errno 28] No space left on device"
    ]


def test_the_line_after_one_that_was_cut_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that was full for a moment costs one line."""
    write, cuts = os.write, [40]

    def cut(file: int, data: bytes) -> int:
        return write(file, data[: cuts.pop()] if cuts and data.startswith(b'{"time"') else data)

    monkeypatch.setattr(os, "write", cut)
    path = tmp_path / "stats.jsonl"
    with record_stats(path, every_s=0.01):
        wait_for(lambda: path.read_text().count("\n") > 1)
    first, *lines = path.read_text().splitlines()
    assert len(first) == 40
    assert all(json.loads(line) for line in lines)


def test_a_folder_holds_one_file_for_each_process(tmp_path: Path) -> None:
    """Named by host and process, because appending is atomic only on one machine."""
    writing = record_in_folder(str(tmp_path / "new" / "stats"))
    assert writing is not None
    writing.close()
    (path,) = (tmp_path / "new" / "stats").iterdir()
    assert path.name == f"{socket.gethostname()}-{os.getpid()}.jsonl"


@pytest.mark.parametrize("folder", ["{file}/stats", "s3://bucket/stats"])
def test_an_unusable_folder_is_a_warning(folder: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Statistics do not stop a training."""
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "torchdata_remote"):
        assert record_in_folder(folder.format(file=tmp_path / "file")) is None
    assert "TORCHDATA_REMOTE_STATS=" in caplog.text
    assert "statistics are not recorded" in caplog.text
