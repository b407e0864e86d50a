"""A running training, followed by the lines that its processes record: states, rates, waits and the verdict."""

from __future__ import annotations

import json
import os
import socket
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stats_lines import NOW_S, line, write
from torchdata_remote import RecordedStats


class Watch:
    """A recorded training and two clocks that the test sets.

    Args:
        folder: of the recordings.
    """

    def __init__(self, folder: Path) -> None:
        self.now_s = NOW_S
        self.stats = RecordedStats(folder, clock=lambda: self.now_s - NOW_S, wall_clock=lambda: self.now_s)
        self.folder = folder

    def write(self, name: str, *lines: str) -> None:
        """Append lines; the file has the time of the test's clock."""
        write(self.folder / name, *lines)
        os.utime(self.folder / name, (self.now_s, self.now_s))

    def at(self, seconds: float) -> Any:
        """What is seen at that time."""
        self.now_s = NOW_S + seconds
        return self.stats.now()


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


def states(now: Any) -> dict[str, str]:
    return {one.name: one.state for one in now.processes}


def test_rates_are_those_of_the_last_seconds(watch: Watch) -> None:
    """Not the mean since the start; by the clock of the process, however late its lines are read."""
    watch.write("0.jsonl", *(line(second, read_items=10 * second) for second in range(40)))
    watch.write("0.jsonl", *(line(40 + second, read_items=390 + 50 * second) for second in range(1, 13)))
    (one,) = watch.at(52).processes
    assert one.recent.elapsed_s == 10
    assert one.recent.as_scalars("")["samples_per_s"] == 50
    assert one.total.samples == 990


def test_rates_of_rare_lines_are_those_between_the_last_two(watch: Watch) -> None:
    """Also of the only line: since the start."""
    watch.write("0.jsonl", line(60, read_items=60, every_s=60))
    assert watch.at(60).as_scalars("")["samples_per_s"] == 1
    watch.write("0.jsonl", line(120, read_items=360, every_s=60))
    assert watch.at(120).as_scalars("")["samples_per_s"] == 5
    watch.write("0.jsonl", line(180, read_items=960, every_s=60))
    assert watch.at(180).as_scalars("")["samples_per_s"] == 10


def test_processes_are_sorted_by_rank_and_worker(watch: Watch) -> None:
    """As numbers; several may write one file."""
    for rank in (10, 2):
        watch.write("shared.jsonl", *(line(1, pid=10 * rank + w, rank=rank, world_size=12, worker=w) for w in (1, 0)))
    watch.write("1.jsonl", line(1, pid=1, rank=0, world_size=12, worker=0))
    assert list(states(watch.at(1))) == [
        "rank 0 worker 0", "rank 2 worker 0", "rank 2 worker 1", "rank 10 worker 0", "rank 10 worker 1"
    ]  # fmt: skip


def test_a_process_without_new_lines_stalls(watch: Watch) -> None:
    """After 10 s, or three intervals; with a new line it runs again."""
    watch.write("0.jsonl", line(1, rank=0))
    watch.write("1.jsonl", line(1, pid=2, rank=1, every_s=20))
    assert states(watch.at(2)) == {"rank 0": "running", "rank 1": "running"}
    assert states(watch.at(12)) == {"rank 0": "stalled", "rank 1": "running"}
    watch.write("0.jsonl", line(13, rank=0))
    assert states(watch.at(13)) == {"rank 0": "running", "rank 1": "running"}
    now = watch.at(80)
    assert states(now) == {"rank 0": "stalled", "rank 1": "stalled"}
    assert [round(one.age_s) for one in now.processes] == [67, 79]


def test_a_process_that_ended_is_shown_for_a_minute(watch: Watch) -> None:
    """While others run; then only those that run."""
    watch.write("0.jsonl", line(1, rank=0), line(2, rank=0, ended=True))
    watch.write("1.jsonl", line(2, pid=2, rank=1))
    assert states(watch.at(3)) == {"rank 0": "ended", "rank 1": "running"}
    watch.write("1.jsonl", line(61, pid=2, rank=1))
    assert states(watch.at(61)) == {"rank 0": "ended", "rank 1": "running"}
    watch.write("1.jsonl", line(70, pid=2, rank=1))
    assert states(watch.at(70)) == {"rank 1": "running"}


def test_the_last_run_stays_when_all_have_ended(watch: Watch) -> None:
    """With the means since their first work; earlier runs in the same folder are not shown."""
    watch.write("old.jsonl", line(10, pid=3, rank=0, ended=True))
    watch.write("killed.jsonl", line(10, pid=4, rank=1))
    for rank in (0, 1):
        watch.write(f"{rank}.jsonl", line(250, pid=rank, rank=rank, read_items=590))
        watch.write(f"{rank}.jsonl", line(300, pid=rank, rank=rank, idle_s=100, read_items=600, ended=True))
    now = watch.at(5_000)
    assert [one.pid for one in now.processes] == [0, 1]
    assert now.as_scalars("")["samples_per_s"] == 6
    watch.write("new.jsonl", line(10, pid=5, rank=0, time=NOW_S + 5_010))
    assert [one.pid for one in watch.at(5_010).processes] == [5]


def test_a_stalled_process_of_this_run_stays(watch: Watch) -> None:
    """However long ago its last line is."""
    watch.write("0.jsonl", line(10, pid=1, rank=0))
    watch.write("1.jsonl", line(10, pid=2, rank=1))
    watch.at(10)
    watch.write("1.jsonl", line(1_000, pid=2, rank=1))
    assert states(watch.at(1_000)) == {"rank 0": "stalled", "rank 1": "running"}


def test_workers_of_earlier_epochs_are_replaced(watch: Watch) -> None:
    """A loader without persistent workers starts new ones; two loaders of a rank are both shown."""
    for epoch in range(3):
        began_s = 10 * epoch
        last = line(9, pid=epoch + 1, rank=0, worker=0, parent_pid=99, ended=True, time=NOW_S + began_s + 9)
        watch.write(f"{epoch}.jsonl", last)
    assert [one.pid for one in watch.at(30).processes] == [3]
    other = line(20, pid=7, rank=0, worker=0, parent_pid=99, time=NOW_S + 31)
    watch.write("other.jsonl", other)
    assert [one.pid for one in watch.at(31).processes] == [3, 7]


def test_a_rank_whose_workers_read_is_not_shown(watch: Watch) -> None:
    """It lists only. Its rank is that of its workers, which may not know it."""
    watch.write("main.jsonl", line(1, pid=50, rank=1, world_size=2, list_items=3))
    assert states(watch.at(1)) == {"rank 1": "running"}
    watch.write("worker.jsonl", line(1, pid=51, parent_pid=50, rank=0, world_size=1, worker=0, num_workers=1))
    now = watch.at(2)
    assert states(now) == {"rank 1 worker 0": "running"}
    assert now.processes[0].world_size == 2


def test_a_process_without_a_last_line_is_gone(watch: Watch) -> None:
    """On this machine, where that can be seen; a process that lives stalls."""
    host, gone = socket.gethostname(), (1 << 22) + 1  # Linux has no such number
    watch.write("0.jsonl", line(1, pid=gone, host=host, rank=0))
    watch.write("1.jsonl", line(1, pid=os.getpid(), host=host, rank=1))
    watch.write("2.jsonl", line(1, pid=gone, host="other", rank=2), line(1, pid=1 << 80, host=host, rank=3))
    assert states(watch.at(30)) == {"rank 0": "gone", "rank 1": "stalled", "rank 2": "stalled", "rank 3": "stalled"}


def test_workers_end_with_their_rank(watch: Watch) -> None:
    """One that is stopped at the end of the program writes no last line."""
    watch.write("worker.jsonl", line(2, pid=51, parent_pid=50, rank=0, worker=0, read_items=1))
    watch.write("main.jsonl", line(1, pid=50, rank=0))
    assert states(watch.at(2)) == {"rank 0 worker 0": "running"}
    watch.write("main.jsonl", line(3, pid=50, rank=0, ended=True))
    assert states(watch.at(3)) == {"rank 0 worker 0": "ended"}


@pytest.mark.parametrize("ahead_s", [-300, 300])
def test_clocks_of_machines_may_differ(watch: Watch, ahead_s: float) -> None:
    """A process whose clock is wrong runs as long as lines arrive, and stalls when they do not."""
    watch.write("0.jsonl", line(1, time=NOW_S + 1 + ahead_s))
    assert [one.state for one in watch.at(2).processes] == ["running"]
    watch.write("0.jsonl", line(3, time=NOW_S + 3 + ahead_s))
    assert [one.state for one in watch.at(4).processes] == ["running"]
    assert [one.state for one in watch.at(20).processes] == ["stalled"]


def test_a_process_number_that_is_used_again_starts_anew(watch: Watch) -> None:
    """Counters never go back."""
    watch.write("0.jsonl", line(100, read_items=1_000), line(1, read_items=3, time=NOW_S + 101), line(2, read_items=5))
    (one,) = watch.at(102).processes
    assert one.recent.as_scalars("")["samples_per_s"] == 2


def test_two_trainings_in_a_folder_are_noted(watch: Watch) -> None:
    """Their rates are added up. A rank and its workers are one training."""
    alone = {"rank": 0, "world_size": 1}
    watch.write("a.jsonl", line(1, pid=7, host="a", read_items=1, **alone))
    watch.write("aw.jsonl", line(1, pid=8, host="a", parent_pid=7, worker=0, num_workers=1, read_items=1, **alone))
    assert watch.at(1).notes == ()
    watch.write("bw.jsonl", line(1, pid=9, host="b", parent_pid=7, worker=0, num_workers=1, read_items=1, **alone))
    (note,) = watch.at(1).notes
    assert note == (
        "rank 0 is recorded by 2 processes (a:7, b:7): if they are two trainings, their numbers are added up. Record "
        "each training in a folder of its own"
    )


@pytest.mark.parametrize(("num", "named"), [(4, "n:10, n:11, n:12, n:13"), (5, "n:10, n:11, n:12, n:13, ...")])
def test_of_many_processes_of_a_rank_four_are_named(watch: Watch, num: int, named: str) -> None:
    """In the order of their names; one note, whichever other ranks are recorded several times, too."""
    for pid in range(9 + num, 9, -1):
        watch.write("0.jsonl", line(1, pid=pid, host="n", rank=3, read_items=1), line(1, pid=99 + pid, rank=4))
    (note,) = watch.at(1).notes
    assert note.startswith(f"rank 3 is recorded by {num} processes ({named}): if they are two trainings,")


def test_a_recording_without_hosts_and_times_is_as_old_as_its_file(watch: Watch) -> None:
    """Earlier versions wrote none."""
    watch.write("0.jsonl", *(line(1, pid=pid, time=None, host=None, rank=0, read_items=pid) for pid in (7, 8)))
    now = watch.at(5)
    assert [(one.host, one.state, one.age_s) for one in now.processes] == [(None, "running", pytest.approx(5))] * 2
    assert now.notes[0].startswith("rank 0 is recorded by 2 processes (7, 8): ")


@pytest.mark.parametrize(("items", "began_s"), [(300, 0), (300, 13), (5_000, 13)])
def test_a_number_that_a_slower_process_has_again_starts_anew(watch: Watch, items: int, began_s: float) -> None:
    """Its first line may come later than the last one of the other: counters fall, or it began afterwards."""
    watch.write("0.jsonl", line(4, read_items=4_000), line(7, read_items=items, time=NOW_S + began_s + 7))
    (one,) = watch.at(began_s + 7).processes
    assert (one.recent.elapsed_s, one.recent.samples) == (7, items)


def test_a_clock_that_is_set_back_does_not_stall_a_process(watch: Watch) -> None:
    """The last line of a file is as old as the file, whatever lines before it say."""
    lines = [line(2 * n, read_items=200 * n, time=NOW_S + 2 * n - (3_600 if n > 2 else 0)) for n in range(1, 6)]
    watch.now_s = NOW_S + 10
    watch.write("0.jsonl", *lines)
    (one,) = watch.at(11).processes
    assert (one.state, round(one.age_s), one.recent.samples, one.recent.elapsed_s) == ("running", 1, 800, 8)


def test_a_process_in_two_files_counts_once(watch: Watch) -> None:
    """As with the environment variable and record_stats."""
    watch.write("0.jsonl", line(2, read_items=20))
    watch.write("1.jsonl", line(2, read_items=20))
    assert watch.at(2).as_scalars("")["samples_per_s"] == 10


def run(**fields: Any) -> dict[str, Any]:
    """A process that waited for so many of 10 seconds, and whose last line is late."""
    return {"rank": 0, "world_size": 8, "worker": 0, "num_workers": 4, "read_items": 200, **fields}


def now_of(watch: Watch, *processes: dict[str, Any]) -> Any:
    """What is seen after 101 s, in each 10 of which the processes did that."""
    for number, fields in enumerate(processes):
        counted = {"fetch_items": 10, "fetch_num_bytes": 5_000_000, "fetch_busy_s": 1, "fetch_requests": 10, **fields}
        counted = {
            name: 10 * value if "_" in name and name[0] in "flrd" else value
            for name, value in counted.items()
            if name != "late_s"
        }
        counted["rank"], counted["num_workers"] = fields["rank"], fields["num_workers"]
        watch.now_s = NOW_S + 100 - fields.get("late_s", 0)
        watch.write(f"{number}.jsonl", line(100, pid=100 + number, host="node", **{"time": watch.now_s, **counted}))
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


@pytest.mark.parametrize(
    ("processes", "verdict"),
    [
        ([run(fetch_wait_s=8)], "The process waits for the store 80% of the time: raise max_in_flight,"),
        (
            [run(fetch_wait_s=8), run(worker=1, fetch_wait_s=6)],
            "The workers wait for the store 70% of the time: raise max_in_flight,",
        ),
        (
            [run(fetch_wait_s=8), run(rank=1, fetch_wait_s=7.5)],
            "All ranks wait for the store 78% of the time: raise max_in_flight,",
        ),
        (
            [
                run(fetch_wait_s=1),
                run(rank=1, fetch_wait_s=7),
                run(rank=1, worker=1, fetch_wait_s=9),
                run(rank=2, fetch_wait_s=1),
            ],
            "rank 1 on node waits for the store 80% of the time, and other ranks wait 10%: raise max_in_flight,",
        ),
        (
            [run(fetch_wait_s=8, fetch_retries=4)],
            "The process waits for the store 80% of the time: 40% of the requests are repeated; look at",
        ),
        (
            [run(decode_wait_s=9)],
            "The process waits for decoding 90% of the time: add workers, or decode smaller images.",
        ),
        ([run(read_wait_s=9)], "The process waits for reading of shards 90% of the time: add workers, and"),
        ([run(list_wait_s=9)], "The process waits for the listing 90% of the time: list the manifest"),
        ([run(fetch_wait_s=3)], BOTTLENECK),
        ([run(worker=None, num_workers=0, fetch_wait_s=3)], "The process waits for the store 30% of the time"),
        ([run(worker=None, num_workers=0, fetch_wait_s=1)], "The training step is the bottleneck"),
        (
            [run(worker=1, late_s=44), run(rank=1, fetch_wait_s=8)],
            "rank 0 worker 1: no line for 45 s. The process hangs, or its machine is gone. The process",
        ),
        (
            [run(late_s=44), run(rank=1, late_s=49), run(rank=2)],
            "rank 1 worker 0 and 1 more: no line for 50 s.",
        ),
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


def samples(now: Any) -> list[int]:
    return [one.total.samples for one in now.processes]


def test_a_line_that_is_written_half_is_read_when_it_is_whole(watch: Watch) -> None:
    whole = line(2, read_items=2)
    watch.write("0.jsonl", line(1, read_items=1), whole[:50])
    assert (samples(watch.at(1)), watch.at(1).notes) == ([1], ())
    watch.write("0.jsonl", whole[50:])
    assert (samples(watch.at(2)), watch.at(2).notes) == ([2], ())


@given(
    seconds=st.lists(st.integers(1, 8), min_size=1, max_size=12),
    items=st.lists(st.integers(0, 50), min_size=12, max_size=12),
    cuts=st.lists(st.integers(0, 8_000), max_size=6),
)
def test_numbers_are_those_of_the_whole_lines_wherever_the_writing_is_when_they_are_read(
    tmp_path_factory: pytest.TempPathFactory, seconds: list[int], items: list[int], cuts: list[int]
) -> None:
    """The total is that of the last one; the recent ones are since the last line of 10 s before it, or the first."""
    watch = Watch(tmp_path_factory.mktemp("watch"))
    counted = list(zip(accumulate(seconds), accumulate(items), strict=False))
    written = "".join(line(second, read_items=number) for second, number in counted)
    for start, end in pairwise(sorted({0, len(written), *(cut for cut in cuts if cut < len(written))})):
        watch.write("0.jsonl", written[start:end])
        seen = counted[: written.count("\n", 0, end)]
        now = watch.at(seen[-1][0] if seen else 0)
        assert now.notes == ()
        if not seen:
            assert now.processes == ()
            continue
        (one,) = now.processes
        second, number = seen[-1]
        assert (one.state, one.total.elapsed_s, one.total.samples) == ("running", second, number)
        since = [(0, 0)] if len(seen) == 1 else [two for two in seen[:-1] if two[0] <= second - 10][-1:] or seen[:1]
        assert (one.recent.elapsed_s, one.recent.samples) == (second - since[0][0], number - since[0][1])


def test_a_file_that_is_replaced_or_truncated_is_read_from_its_start(watch: Watch) -> None:
    """Also if the new one is longer, and if it has the number of the old one; none of its lines is read twice."""
    path = watch.folder / "0.jsonl"
    watch.write("0.jsonl", line(5, read_items=5), line(6, read_items=6), "broken\n")
    assert samples(watch.at(6)) == [6]
    for number, lines, how, recent_s in (
        (7, [line(7, pid=2, read_items=7)], "renamed", 7),
        (8, [line(n, pid=3, read_items=n) for n in range(4, 9)], "renamed", 4),
        (9, [line(9, pid=4, read_items=9)], "overwritten", 9),  # shorter
        (10, ["\n", *(line(n, pid=5, read_items=n) for n in range(4, 11))], "overwritten", 6),  # longer
    ):
        new = watch.folder / "new" if how == "renamed" else path
        new.write_text("".join(lines))
        new.replace(path)
        now = watch.at(number)
        (one,) = (one for one in now.processes if one.total.elapsed_s == number)
        assert (one.total.samples, one.recent.elapsed_s) == (number, recent_s)
        assert now.notes == ("1 lines are no statistics, or were written in part only",)
    path.unlink()
    assert [one.state for one in watch.at(12).processes if one.pid == 5] == ["running"]
    assert {one.state for one in watch.at(30).processes} == {"stalled"}, "a file that vanished ends no process"
    watch.write("0.jsonl", line(31, pid=5, read_items=31))
    assert [one.total.samples for one in watch.at(31).processes if one.state == "running"] == [31]


def test_of_a_long_file_the_end_is_read_once(watch: Watch) -> None:
    """The line that is cut is not counted as broken; a large binary file has no lines."""
    padding = " " * 1_000 + "\n"

    def long(*seconds: int) -> list[str]:
        return [line(second, read_items=second).rstrip() + padding for second in seconds]

    watch.write("0.jsonl", "broken\n", *long(*range(9_000)), line(9_000)[:90])
    (watch.folder / "1.jsonl").write_bytes(b"x" * 9_000_000)
    now = watch.at(9_000)
    assert (samples(now), now.notes, now.processes[0].recent.samples) == ([8_999], (), 10)
    assert [one.state for one in watch.at(9_020).processes] == ["stalled"], "its lines are not read again"
    with (watch.folder / "1.jsonl").open("ab") as file:
        file.write(b"\n" + line(9_030, pid=2, read_items=3).encode())
    watch.write("0.jsonl", line(9_000)[90:].rstrip() + padding, "broken\n", line(9_030, read_items=9_060))
    now = watch.at(9_030)
    assert sorted(samples(now)) == [3, 9_060]
    assert now.notes == ("1 lines are no statistics, or were written in part only",)
    assert watch.at(9_031).notes == now.notes
    # So many between two looks that their beginning is not read
    watch.write("0.jsonl", "broken\n", *long(*range(10_000, 15_000)))
    now = watch.at(15_000)
    assert [(one.total.samples, one.recent.samples) for one in now.processes if one.pid == 1] == [(14_999, 10)]
    assert now.notes == ("1 lines are no statistics, or were written in part only",)


def test_what_cannot_be_read_is_named_and_a_pipe_is_not_waited_for(watch: Watch) -> None:
    watch.write("0.jsonl", line(1))
    (watch.folder / "1.jsonl").mkdir()
    os.mkfifo(watch.folder / "2.jsonl")
    now = watch.at(1)
    assert now.notes == (
        f"{watch.folder / '1.jsonl'}: Is a directory",
        f"{watch.folder / '2.jsonl'}: no regular file",
    )
    assert len(now.processes) == 1


def test_paths_are_files_folders_and_globs(tmp_path: Path) -> None:
    """A file that two of them name is read once; a name with a bracket is a file if there is one."""
    write(tmp_path / "a" / "0.jsonl", line(1, pid=1))
    write(tmp_path / "b" / "1.log", line(2, pid=2))
    write(tmp_path / "[c].jsonl", line(3, pid=3))
    paths = [f"{tmp_path}/a", f"{tmp_path}/*/0.jsonl", f"{tmp_path}/b/1.*", f"{tmp_path}/[c].jsonl"]
    now = RecordedStats(*paths, clock=lambda: 0.0, wall_clock=lambda: NOW_S + 3).now()
    assert sorted(one.pid for one in now.processes) == [1, 2, 3]
