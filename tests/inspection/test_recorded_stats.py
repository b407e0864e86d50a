"""A training, followed by what its processes record."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.support.stats_lines import NOW_S, line, write
from torchdata_remote.inspection.recorded_stats import RecordedStats
from torchdata_remote.inspection.training_stats import TrainingStats


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

    def at(self, seconds: float) -> TrainingStats:
        """What is seen at that time."""
        self.now_s = NOW_S + seconds
        return self.stats.now()


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


def states(now: TrainingStats) -> dict[str, str]:
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


def test_a_recording_without_times_has_that_of_its_file(watch: Watch) -> None:
    """Earlier versions wrote none."""
    watch.write("0.jsonl", line(1, time=None, host=None))
    assert [round(one.age_s) for one in watch.at(5).processes] == [5]


def test_a_process_number_that_is_used_again_starts_anew(watch: Watch) -> None:
    """Counters never go back."""
    watch.write("0.jsonl", line(100, read_items=1_000), line(1, read_items=3, time=NOW_S + 101), line(2, read_items=5))
    (one,) = watch.at(102).processes
    assert one.recent.as_scalars("")["samples_per_s"] == 2


@pytest.mark.parametrize(("items", "began_s"), [(300, 0), (300, 13), (5_000, 13)])
def test_a_process_number_that_is_used_again_by_a_slower_process_starts_anew(
    watch: Watch, items: int, began_s: float
) -> None:
    """Its first line may come later than the last line of the other one: counters go back, or it began afterwards."""
    watch.write("0.jsonl", line(4, read_items=4_000), line(7, read_items=items, time=NOW_S + began_s + 7))
    (one,) = watch.at(began_s + 7).processes
    assert one.recent.elapsed_s == 7
    assert one.recent.as_scalars("")["samples_per_s"] == items / 7


def test_a_clock_that_is_set_back_does_not_stall_a_process(watch: Watch) -> None:
    """The last line of a file is as old as the file, whatever lines before it say."""
    lines = [line(2 * n, read_items=200 * n, time=NOW_S + 2 * n - (3_600 if n > 2 else 0)) for n in range(1, 6)]
    watch.now_s = NOW_S + 10
    watch.write("0.jsonl", *lines)
    (one,) = watch.at(11).processes
    assert (one.state, round(one.age_s)) == ("running", 1)
    assert one.recent.as_scalars("")["samples_per_s"] == 100


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


def test_a_process_in_two_files_counts_once(watch: Watch) -> None:
    """As with the environment variable and record_stats."""
    watch.write("0.jsonl", line(2, read_items=20))
    watch.write("1.jsonl", line(2, read_items=20))
    assert watch.at(2).as_scalars("")["samples_per_s"] == 10


def test_a_file_that_vanished_leaves_its_process_stalled(watch: Watch) -> None:
    """Removing a recording does not end the process."""
    watch.write("0.jsonl", line(1))
    watch.at(1)
    (watch.folder / "0.jsonl").unlink()
    assert [one.state for one in watch.at(20).processes] == ["stalled"]


def test_what_cannot_be_read_is_noted(watch: Watch) -> None:
    """Broken lines by their number, files by name."""
    watch.write("0.jsonl", line(1), "broken\n")
    (watch.folder / "1.jsonl").mkdir()
    now = watch.at(1)
    assert now.notes == (
        f"{watch.folder / '1.jsonl'}: Is a directory",
        "1 lines are no statistics, or were written in part only",
    )
    assert len(now.processes) == 1


def test_256_processes_are_summed(watch: Watch) -> None:
    """One row each, also where all of them write one file."""
    for second in (2, 4):
        lines = (line(second, pid=n, rank=n // 8, worker=n % 8, read_items=second * 10) for n in range(256))
        watch.write("all.jsonl", *lines)
    now = watch.at(5)
    assert len(now.processes) == 256
    assert now.as_scalars("")["samples_per_s"] == 2_560
