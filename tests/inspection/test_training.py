"""A running training, followed by the lines that its processes record: states, rates, waits and the verdict."""

from __future__ import annotations

import json
import os
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stats_lines import NOW_S, line, write
from torchdata_remote import RecordedStats


class Watch:
    """A recorded training and a clock that the test sets.

    Args:
        folder: of the recordings.
        monkeypatch: sets the clock.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.folder = NOW_S, folder
        monkeypatch.setattr("time.time", lambda: self.now_s)
        self.stats = RecordedStats(folder)

    def write(self, name: str, *lines: str) -> None:
        """Append lines; the file has the time of the test's clock."""
        write(self.folder / name, *lines)
        os.utime(self.folder / name, (self.now_s, self.now_s))

    def at(self, seconds: float) -> Any:
        """What is seen at that time."""
        self.now_s = NOW_S + seconds
        return self.stats.now()


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(tmp_path, monkeypatch)


def states(now: Any) -> dict[str, str]:
    return {one.name: one.state for one in now.processes}


@given(
    seconds=st.lists(st.integers(1, 8), min_size=1, max_size=12),
    items=st.lists(st.integers(0, 50), min_size=12, max_size=12),
    cut=st.integers(0, 8_000),
)
def test_numbers_are_those_of_the_whole_lines_wherever_the_writing_is_when_they_are_read(
    tmp_path_factory: pytest.TempPathFactory, seconds: list[int], items: list[int], cut: int
) -> None:
    """The total is that of the last one; the recent ones are since the last line of 10 s before it, or the first."""
    counted = list(zip(accumulate(seconds), accumulate(items), strict=False))
    written = "".join(line(second, read_items=number) for second, number in counted)[:cut]
    folder = tmp_path_factory.mktemp("watch")
    write(folder / "0.jsonl", written)
    now = RecordedStats(folder).now()
    assert now.notes == ()
    seen = counted[: written.count("\n")]
    assert len(now.processes) == bool(seen)
    for one in now.processes:
        second, number = seen[-1]
        assert (one.state, one.total.elapsed_s, one.total.samples) == ("running", second, number)
        since = [(0, 0)] if len(seen) == 1 else [two for two in seen[:-1] if two[0] <= second - 10][-1:] or seen[:1]
        assert (one.recent.elapsed_s, one.recent.samples) == (second - since[0][0], number - since[0][1])


def test_processes_are_sorted_by_rank_and_worker(watch: Watch) -> None:
    """As numbers; several may write one file."""
    for rank in (10, 2):
        watch.write("shared.jsonl", *(line(1, pid=10 * rank + w, rank=rank, world_size=12, worker=w) for w in (1, 0)))
    watch.write("1.jsonl", line(1, pid=1, rank=0, world_size=12, worker=0))
    assert list(states(watch.at(1))) == [
        "rank 0 worker 0", "rank 2 worker 0", "rank 2 worker 1", "rank 10 worker 0", "rank 10 worker 1"
    ]  # fmt: skip


def test_a_process_without_new_lines_stalls(watch: Watch) -> None:
    """After 10 s, or three intervals; with a new line it runs again. Its own clock does not matter."""
    watch.write("0.jsonl", line(1, rank=0, time=NOW_S - 300))
    watch.write("1.jsonl", line(1, pid=2, rank=1, every_s=20, time=NOW_S + 300))
    assert states(watch.at(2)) == {"rank 0": "running", "rank 1": "running"}
    assert states(watch.at(12)) == {"rank 0": "stalled", "rank 1": "running"}
    watch.write("0.jsonl", line(13, rank=0))
    assert states(watch.at(13)) == {"rank 0": "running", "rank 1": "running"}
    now = watch.at(80)
    assert states(now) == {"rank 0": "stalled", "rank 1": "stalled"}
    assert [round(one.age_s) for one in now.processes] == [68, 80]


def test_a_process_stalls_whose_file_others_write(watch: Watch) -> None:
    """Processes of one machine may share a file."""
    watch.at(20)
    watch.write("0.jsonl", line(1, rank=0), line(20, pid=2, rank=1))
    assert states(watch.at(20)) == {"rank 0": "stalled", "rank 1": "running"}


def test_a_process_that_ended_is_shown_for_a_minute(watch: Watch) -> None:
    """While others run; then only those that run."""
    watch.write("0.jsonl", line(1, rank=0), line(2, rank=0, ended=True))
    watch.write("1.jsonl", line(2, pid=2, rank=1))
    assert states(watch.at(3)) == {"rank 0": "ended", "rank 1": "running"}
    watch.at(61)
    watch.write("1.jsonl", line(61, pid=2, rank=1))
    assert states(watch.at(61)) == {"rank 1": "running"}


def test_the_last_run_stays_when_all_have_ended(watch: Watch) -> None:
    """With the means since their first work; earlier runs in the same folder are not shown."""
    watch.write("old.jsonl", line(10, pid=3, rank=0, ended=True))
    watch.write("killed.jsonl", line(10, pid=4, rank=1))
    watch.at(400)
    for rank in (0, 1):
        watch.write(f"{rank}.jsonl", line(250, pid=rank, rank=rank, read_items=590))
        watch.write(f"{rank}.jsonl", line(300, pid=rank, rank=rank, idle_s=100, read_items=600, ended=True))
    now = watch.at(5_000)
    assert [one.pid for one in now.processes] == [0, 1]
    assert now.as_scalars("")["samples_per_s"] == 6
    watch.at(5_010)
    watch.write("new.jsonl", line(10, pid=5, rank=0))
    assert [one.pid for one in watch.at(5_010).processes] == [5]


def test_a_stalled_process_of_this_run_stays(watch: Watch) -> None:
    """However long ago its last line is."""
    watch.write("0.jsonl", line(10, pid=1, rank=0))
    watch.at(1_000)
    watch.write("1.jsonl", line(1_010, pid=2, rank=1))
    assert states(watch.at(1_000)) == {"rank 0": "stalled", "rank 1": "running"}


def test_a_rank_whose_workers_read_is_not_shown(watch: Watch) -> None:
    """It lists only. Its rank is that of its workers, which may not know it, and which end with it."""
    watch.write("main.jsonl", line(1, pid=50, rank=1, world_size=2, list_items=3))
    assert states(watch.at(1)) == {"rank 1": "running"}
    watch.write("worker.jsonl", line(1, pid=51, parent_pid=50, rank=0, world_size=1, worker=0, num_workers=1))
    now = watch.at(2)
    assert states(now) == {"rank 1 worker 0": "running"}
    assert now.processes[0].world_size == 2
    watch.write("main.jsonl", line(3, pid=50, rank=1, ended=True))
    assert states(watch.at(3)) == {"rank 1 worker 0": "ended"}


def test_a_process_number_that_is_used_again_starts_anew(watch: Watch) -> None:
    """Counters never go back. A process that is recorded in two files counts once."""
    watch.write("0.jsonl", line(100, read_items=1_000), line(1, read_items=3), line(2, read_items=5))
    watch.write("1.jsonl", line(2, read_items=5))
    (one,) = watch.at(2).processes
    assert one.total.samples == 5


def run(**fields: Any) -> dict[str, Any]:
    """A process that waited for so many of 10 seconds, and whose last line is late."""
    return {"rank": 0, "world_size": 8, "worker": 0, "num_workers": 4, "read_items": 200, **fields}


def now_of(watch: Watch, *processes: dict[str, Any]) -> Any:
    """What is seen after 101 s, in each 10 of which the processes did that."""
    for number, fields in enumerate(processes):
        counted = {"fetch_items": 10, "fetch_num_bytes": 5_000_000, "fetch_busy_s": 1, "fetch_requests": 10, **fields}
        late_s = counted.pop("late_s", 0)
        counted = {name: 10 * n if "_" in name and name[0] in "flrd" else n for name, n in counted.items()}
        counted["rank"], counted["num_workers"] = fields["rank"], fields["num_workers"]
        watch.at(100 - late_s)
        watch.write(f"{number}.jsonl", line(100, pid=100 + number, host="node", **counted))
    return watch.at(101)


def test_rates_are_summed_and_waits_averaged_over_the_processes_that_run(watch: Watch) -> None:
    stalled = run(rank=2, fetch_wait_s=10, late_s=50)
    now = now_of(watch, run(fetch_wait_s=8, fetch_retries=1), run(rank=1, fetch_wait_s=2, read_wait_s=2), stalled)
    assert now.as_scalars("") == pytest.approx(
        {
            "samples_per_s": 40,
            "megabytes_per_s": 1,
            "requests_per_s": 2,
            "retries_per_s": 0.1,
            "waiting": 0.6,
            "waiting_list": 0,
            "waiting_fetch": 0.5,
            "waiting_read": 0.1,
            "waiting_decode": 0,
        }
    )
    found = json.loads(json.dumps(now.as_dict()))
    first = found["processes"][0]
    assert {name: first[name] for name in ("host", "pid", "rank", "worker", "state", "samples", "retries")} == {
        "host": "node", "pid": 100, "rank": 0, "worker": 0, "state": "running", "samples": 2_000, "retries": 10
    }  # fmt: skip
    assert (first["waiting_fetch"], found["all"]["waiting"]) == (0.8, pytest.approx(0.6))
    assert found["verdict"] == now.verdict


def test_before_anything_is_recorded_all_rates_are_zero(watch: Watch) -> None:
    now = watch.at(0)
    assert set(now.as_scalars().values()) == {0}
    assert now.verdict == "Nothing is read yet."


BOTTLENECK = "The training step is the bottleneck (or collating, or pipes of your own): readers wait for it 70% of the"
STORE = "waits for the store 80% of the time: raise max_in_flight,"


@pytest.mark.parametrize(
    ("processes", "verdict"),
    [
        ([run(fetch_wait_s=8)], f"rank 0 on node {STORE}"),
        (
            [
                run(fetch_wait_s=1),
                run(rank=1, fetch_wait_s=7),
                run(rank=1, worker=1, fetch_wait_s=9),
                run(rank=2, fetch_wait_s=1),
            ],
            f"rank 1 on node {STORE}",
        ),
        ([run(decode_wait_s=9)], "rank 0 on node waits for decoding 90% of the time: add workers, or decode smaller"),
        ([run(read_wait_s=9)], "rank 0 on node waits for reading of shards 90% of the time: add workers, and"),
        ([run(list_wait_s=9)], "rank 0 on node waits for the listing 90% of the time: list the manifest"),
        ([run(fetch_wait_s=3)], BOTTLENECK),
        ([run(rank=None, worker=None, num_workers=0, fetch_wait_s=8)], f"process 100 on node {STORE}"),
        ([run(worker=None, num_workers=0, fetch_wait_s=1)], "The training step is the bottleneck"),
        ([run(late_s=44), run(rank=1, late_s=49), run(rank=2)], "rank 1 worker 0: no line for 50 s."),
    ],
)  # fmt: skip
def test_the_verdict_says_what_is_waited_for_and_what_to_change(
    watch: Watch, processes: list[dict[str, Any]], verdict: str
) -> None:
    """The slowest rank counts: the others wait for it at each step."""
    assert now_of(watch, *processes).verdict.startswith(verdict)


@pytest.mark.parametrize(
    "broken",
    [
        "{",
        '{"pid": 1}',
        line(1)[:-40],
        line(1).replace('"elapsed_s": 1', '"elapsed_s": NaN'),
        line(1).replace('"read": {', '"read": 3, "other": {'),
        line(1, fetch_items=None).rstrip(),
        "\x00\x00\x00",
        line(1).replace('"elapsed_s": 1', '"elapsed_s": 1' + 400 * "0"),
    ],
)
def test_broken_lines_are_counted_and_passed_over(watch: Watch, broken: str) -> None:
    """A line that was cut by a full disk, text, or what is no number."""
    watch.write("0.jsonl", line(1, read_items=1), broken.rstrip("\n") + "\n", "\n", line(2, read_items=7))
    now = watch.at(2)
    assert now.notes == ("1 lines are no statistics, or were written in part only",)
    assert [one.total.samples for one in now.processes] == [7]


def test_of_a_long_file_the_end_is_read(watch: Watch) -> None:
    """The line that is cut is not counted as broken; a large binary file has no lines."""
    padding = " " * 1_000 + "\n"
    watch.write("0.jsonl", "broken\n", *(line(second, read_items=second).rstrip() + padding for second in range(9_000)))
    (watch.folder / "1.jsonl").write_bytes(b"x" * 9_000_000)
    now = watch.at(9_000)
    assert now.notes == ()
    assert [(one.total.samples, one.recent.samples) for one in now.processes] == [(8_999, 10)]


def test_what_cannot_be_read_is_named_and_a_pipe_is_not_waited_for(watch: Watch) -> None:
    watch.write("0.jsonl", line(1))
    (watch.folder / "1.jsonl").mkdir()
    os.mkfifo(watch.folder / "2.jsonl")
    now = watch.at(1)
    assert sorted(now.notes) == [f"{watch.folder / name}: no regular file" for name in ("1.jsonl", "2.jsonl")]
    assert len(now.processes) == 1


def test_paths_are_files_folders_and_globs(tmp_path: Path) -> None:
    """A file that two of them name is read once; a name with a bracket is a file if there is one."""
    write(tmp_path / "a" / "0.jsonl", line(1, pid=1))
    write(tmp_path / "b" / "1.log", line(2, pid=2))
    write(tmp_path / "[c].jsonl", line(3, pid=3))
    paths = [f"{tmp_path}/a", f"{tmp_path}/*/0.jsonl", f"{tmp_path}/b/1.*", f"{tmp_path}/[c].jsonl"]
    assert sorted(one.pid for one in RecordedStats(*paths).now().processes) == [1, 2, 3]
