"""Files of statistics, read while they grow."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.support.stats_lines import line, write
from torchdata_remote.inspection import stats_lines
from torchdata_remote.inspection.stats_lines import StatsFiles, StatsLine


def elapsed(files: StatsFiles) -> list[float]:
    """Of the lines that are new."""
    return [found.stats.elapsed_s for new in files.new_lines() for found in new.lines]


def test_a_line_has_counters_and_origin() -> None:
    """All fields that a recording writes."""
    found = StatsLine.parse(line(4, pid=7, host="b", rank=1, world_size=2, worker=3, num_workers=4, fetch_requests=5))
    assert (found.pid, found.host, found.rank, found.world_size) == (7, "b", 1, 2)
    assert (found.worker, found.num_workers, found.every_s, found.ended) == (3, 4, 2, False)
    assert (found.stats.elapsed_s, found.stats.fetch.requests) == (4, 5)


def test_a_line_of_an_earlier_version_has_no_origin() -> None:
    """It has the process and the counters."""
    old = StatsLine.parse(
        '{"pid": 7, "elapsed_s": 1.5, "list": {}, "fetch": {"items": 2, "num_bytes": 3, "wait_s": 1.0, "busy_s": 1.0, '
        '"requests": 2, "retries": 0}, "read": {}, "decode": {}, "rest_s": 0.5}'
    )
    assert (old.pid, old.rank, old.worker, old.host, old.time_s) == (7, None, None, None, None)
    assert old.stats.fetch.num_bytes == 3


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "{",
        "[]",
        "null",
        '{"pid": 1}',
        line(1)[:-40],
        line(1).replace('"elapsed_s": 1', '"elapsed_s": NaN'),
        line(1).replace('"elapsed_s": 1', '"elapsed_s": "soon"'),
        line(1).replace('"read": {', '"read": 3, "other": {'),
        line(1, fetch_items=None),
        "\x00\x00\x00",
    ],
)
def test_what_is_no_line_is_refused(broken: str) -> None:
    """By ValueError only."""
    with pytest.raises(ValueError, match=r"."):
        StatsLine.parse(broken.encode())


def test_only_what_was_appended_is_read(tmp_path: Path) -> None:
    """The second time nothing, then the new lines; of several files, of new ones too."""
    files = StatsFiles([tmp_path])
    assert elapsed(files) == []
    write(tmp_path / "0.jsonl", line(1), line(2))
    assert elapsed(files) == [1, 2]
    assert elapsed(files) == []
    write(tmp_path / "0.jsonl", line(3))
    write(tmp_path / "1.jsonl", line(9))
    write(tmp_path / "notes.txt", "no statistics\n")
    assert elapsed(files) == [3, 9]
    assert files.num_broken == 0


def test_a_line_that_is_written_half_is_read_when_it_is_whole(tmp_path: Path) -> None:
    """It is not broken."""
    files, whole = StatsFiles([tmp_path / "0.jsonl"]), line(2)
    write(tmp_path / "0.jsonl", line(1), whole[:50])
    assert elapsed(files) == [1]
    write(tmp_path / "0.jsonl", whole[50:])
    assert elapsed(files) == [2]
    assert files.num_broken == 0


def test_broken_lines_are_counted_and_passed_over(tmp_path: Path) -> None:
    """Text, bytes that are no text, a line that was cut by a full disk; empty lines are none."""
    write(tmp_path / "0.jsonl", line(1), "text\n", line(2)[:30] + "\n", "\n", line(3))
    with (tmp_path / "0.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\x00\n")
    files = StatsFiles([tmp_path])
    assert elapsed(files) == [1, 3]
    assert files.num_broken == 3


def test_a_truncated_or_replaced_file_is_read_from_its_start(tmp_path: Path) -> None:
    """Also if the new one is longer."""
    path = tmp_path / "0.jsonl"
    files = StatsFiles([path])
    write(path, line(1), line(2))
    assert elapsed(files) == [1, 2]
    path.write_text(line(3))
    assert elapsed(files) == [3]
    write(tmp_path / "new", line(4), line(5), line(6))
    (tmp_path / "new").replace(path)
    assert elapsed(files) == [4, 5, 6]
    path.write_text("\n" + line(7) + line(8) + line(9) + line(10))  # the file has the same number
    assert elapsed(files) == [7, 8, 9, 10]


def test_a_file_that_vanishes_is_no_error(tmp_path: Path) -> None:
    """When it is there again, it is a new one."""
    path = tmp_path / "0.jsonl"
    files = StatsFiles([path])
    write(path, line(1))
    assert elapsed(files) == [1]
    path.unlink()
    assert elapsed(files) == []
    write(path, line(2))
    assert elapsed(files) == [2]


def test_of_a_long_file_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of lines cost as much as the last ones; the line that is cut is not counted as broken."""
    monkeypatch.setattr(stats_lines, "_MAX_TAIL_BYTES", 10_000)
    monkeypatch.setattr(stats_lines, "_MIN_TAIL_BYTES", 10_000)
    write(tmp_path / "0.jsonl", *(line(number) for number in range(5_000)))
    files = StatsFiles([tmp_path])
    found = elapsed(files)
    assert found == list(range(5_000 - len(found), 5_000))
    assert 10 <= len(found) <= 10_000 // len(line(0))
    assert files.num_broken == 0
    write(tmp_path / "0.jsonl", line(5_000))
    assert elapsed(files) == [5_000]


def test_of_a_file_without_lines_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a large binary one."""
    monkeypatch.setattr(stats_lines, "_MAX_TAIL_BYTES", 1_000)
    monkeypatch.setattr(stats_lines, "_MIN_TAIL_BYTES", 1_000)
    path = tmp_path / "0.jsonl"
    path.write_bytes(b"x" * 5_000)
    files = StatsFiles([path])
    assert elapsed(files) == []
    with path.open("ab") as file:
        file.write(b"\n" + line(1).encode())
    assert elapsed(files) == [1]
    assert files.num_broken == 0


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """With the reason; the others are read."""
    write(tmp_path / "0.jsonl", line(1))
    (tmp_path / "1.jsonl").mkdir()
    files = StatsFiles([tmp_path])
    assert elapsed(files) == [1]
    assert files.unreadable == {str(tmp_path / "1.jsonl"): "Is a directory"}


@pytest.mark.skipif(os.name == "nt", reason="pipes have no names there")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A file that is no regular one is named as such."""
    os.mkfifo(tmp_path / "0.jsonl")
    assert stat.S_ISFIFO((tmp_path / "0.jsonl").stat().st_mode)
    files = StatsFiles([tmp_path])
    assert elapsed(files) == []
    assert files.unreadable == {str(tmp_path / "0.jsonl"): "no regular file"}


def test_paths_are_files_folders_and_globs(tmp_path: Path) -> None:
    """A file that two of them name is read once; a name with a bracket is a file if there is one."""
    write(tmp_path / "a" / "0.jsonl", line(1))
    write(tmp_path / "b" / "1.log", line(2))
    write(tmp_path / "[c].jsonl", line(3))
    files = StatsFiles([f"{tmp_path}/a", f"{tmp_path}/*/0.jsonl", f"{tmp_path}/b/1.*", f"{tmp_path}/[c].jsonl"])
    assert sorted(elapsed(files)) == [1, 2, 3]
