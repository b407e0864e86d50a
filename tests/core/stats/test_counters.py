"""Counters of what the stages do."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator

import pytest

from torchdata_remote.core.stats import counters
from torchdata_remote.core.stats.counters import FETCH, StageCounter, StageStats
from torchdata_remote.core.stats.spans import Span, watched
from torchdata_remote.core.stats.timing import timed, timed_runs
from torchdata_remote.core.stats.variable import STATS_VARIABLE


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the time is, in its only element."""
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def test_no_count_is_lost_among_threads() -> None:
    """Eight threads that count at once are all counted."""
    stage = StageCounter("stage")

    def work() -> None:
        for _ in range(5_000):
            stage.add(items=1, num_bytes=2, requests=3, retries=4, wait_s=0.5, busy_s=0.25)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stage.snapshot() == StageStats(40_000, 80_000, 20_000.0, 10_000.0, 120_000, 160_000)


def test_watchers_receive_each_piece_of_work(clock: list[float]) -> None:
    """From when to when, and whether the consumer did it, as long as they watch."""
    stage, spans = StageCounter("stage"), list[Span]()
    with watched(spans.append):
        clock[0] = 103.0
        stage.worked(101.0, 7, items=1, requests=2, wait=True)
        stage.worked(102.0, 0)
        with stage.waiting():
            pass
    stage.worked(102.0, 5)
    assert spans == [Span("stage", 101.0, 103.0, 7, by_consumer=True), Span("stage", 102.0, 103.0, 0)]
    assert stage.snapshot() == StageStats(items=1, num_bytes=12, wait_s=2.0, busy_s=4.0, requests=2)


def test_watchers_of_the_consumer_receive_its_waits_and_runs(clock: list[float]) -> None:
    """Each wait, and each run with the waits within it, as long as they watch."""
    outer, inner, spans = StageCounter("outer"), StageCounter("inner"), list[Span]()

    def runs() -> Iterator[Iterator[int]]:
        for number in range(3):
            with inner.waiting():
                clock[0] += 2
            clock[0] += 1
            yield iter((number, number))

    with watched(spans.append, consumer=True):
        for run in timed_runs(runs(), outer, within=inner):
            clock[0] += 50
            if 1 in run:
                break
    start_s = spans[0].start_s
    assert [(span.stage, span.start_s - start_s, span.end_s - start_s, span.by_consumer) for span in spans] == [
        ("inner", 0, 2, True),
        ("outer", 0, 3, True),
        ("inner", 53, 55, True),
        ("outer", 53, 56, True),
    ]


@pytest.mark.parametrize("num_runs", [0, 1, 255, 256, 257, 700])
def test_each_run_is_timed(num_runs: int, clock: list[float]) -> None:
    """Without the time that its taker takes, and without what was waited for the stage before."""
    outer, inner = StageCounter("outer"), StageCounter("inner")

    def runs() -> Iterator[Iterator[int]]:
        for _ in range(num_runs):
            clock[0] += 3
            inner.add(wait_s=1)
            yield iter((0, 1, 2))

    for run in timed_runs(runs(), outer, within=inner):
        for _ in run:
            clock[0] += 50  # a training step
    assert outer.snapshot() == StageStats(3 * num_runs, 0, 2.0 * num_runs, 2.0 * num_runs)


def test_runs_of_several_shards_in_turn_are_timed_each(clock: list[float]) -> None:
    """What one of them waits for another stage does not count in the others."""
    outer, inner = StageCounter("outer"), StageCounter("inner")

    def runs(waits_s: float) -> Iterator[Iterator[int]]:
        for _ in range(4):
            clock[0] += 3 + waits_s
            inner.add(wait_s=waits_s)
            yield iter((0,))

    shards = [timed_runs(runs(waits_s), outer, within=inner) for waits_s in (0, 5)]
    for in_turn in zip(*shards, strict=True):
        assert [list(run) for run in in_turn] == [[0], [0]]
    assert outer.snapshot() == StageStats(8, 0, 24.0, 24.0)


def test_work_of_other_threads_counts_as_waiting_only(clock: list[float]) -> None:
    """Items and work are counted where the work is done."""
    outer, inner = StageCounter("outer"), StageCounter("inner")

    def items() -> Iterator[int]:
        clock[0] += 2
        yield 0

    assert list(timed(items(), outer, within=inner)) == [0]
    assert outer.snapshot() == StageStats(wait_s=2.0)


def test_timed_runs_are_closed_early_and_counted(clock: list[float]) -> None:
    """The source is closed at once; of the last run, the items that were handed out count."""
    closed: list[bool] = []

    def runs() -> Iterator[Iterator[int]]:
        try:
            clock[0] += 1
            yield iter((0, 1, 2))
        finally:
            closed.append(True)

    stage = StageCounter("stage")
    counted = timed_runs(runs(), stage, within=StageCounter("inner"))
    run = next(counted)
    assert [next(run), next(run)] == [0, 1]
    counted.close()
    assert closed == [True]
    assert stage.snapshot() == StageStats(2, 0, 1.0, 1.0)


def _counted_in_child(answers: multiprocessing.SimpleQueue[StageStats]) -> None:
    answers.put(FETCH.snapshot())


def test_counters_are_zero_in_a_forked_process() -> None:
    """What its parent did is not its own."""
    FETCH.add(items=1)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_counted_in_child, args=(answers,))
    child.start()
    assert answers.get() == StageStats()
    child.join()


def test_a_wait_counts_before_it_has_ended(clock: list[float]) -> None:
    """A store that does not answer is waited for, although no wait ever ends; afterwards it counts once."""
    stage = StageCounter("fetch")
    with stage.waiting():
        clock[0] += 30
        assert stage.snapshot().wait_s == 30
        with stage.waiting():
            clock[0] += 1
    assert stage.snapshot().wait_s == stage.wait_s == 32


def test_the_time_of_a_slow_reader_is_counted_twice_a_second(clock: list[float]) -> None:
    """Not only after some hundred samples, which may be minutes."""
    stage, other = StageCounter("read"), StageCounter("fetch")

    def runs() -> Iterator[Iterator[int]]:
        for number in range(8):
            clock[0] += 0.2
            yield iter((number,))

    waits_s = [stage.snapshot().wait_s for run in timed_runs(runs(), stage, within=other) for _ in run]
    assert waits_s == pytest.approx([0, 0, 0, 0.6, 0.6, 0.6, 1.2, 1.2])
    assert stage.snapshot().items == 8
    assert stage.snapshot().wait_s == pytest.approx(1.6)


def test_each_sample_is_counted_at_once() -> None:
    """Although a run is counted as a whole: those before a training step that hangs are counted, and no others."""
    stage, other = StageCounter("read"), StageCounter("fetch")
    own: list[int] = []
    added = set()
    runs = (iter(range(3)) for _ in range(600))
    for run in timed_runs(runs, stage, within=other):
        for _ in run:
            own.append(stage.snapshot().items)
            added.add(stage._items)
    assert own == list(range(1, 1801))
    # A lock is taken once for 256 runs
    assert added == {0, 768, 1536}
    assert stage.snapshot().items == 1800


def test_one_thread_starts_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first piece of work of a process does, whichever thread has it."""
    from torchdata_remote.core.stats import recording

    folders: list[str] = []
    monkeypatch.setattr(recording, "record_in_folder", folders.append)
    monkeypatch.setenv(STATS_VARIABLE, "stats/")
    monkeypatch.setattr(counters, "_idle", [True])
    stage = StageCounter("fetch")
    threads = [threading.Thread(target=stage.add, kwargs={"items": 1}) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == ["stats/"]
    assert stage.snapshot().items == 8


def test_the_time_before_the_first_work_is_known(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports are no part of a rate."""
    monkeypatch.setattr(counters, "_idle", [True])
    monkeypatch.setattr(counters, "_started_s", clock[0])
    monkeypatch.setattr(counters, "_first_work_s", None)
    clock[0] += 3
    assert counters.idle_s() == 3
    stage = StageCounter("fetch")
    stage.add(items=1)
    clock[0] += 5
    stage.add(items=1)
    assert (counters.idle_s(), counters.elapsed_s()) == (3, 8)


def test_a_wait_starts_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose first request is never answered is recorded, too."""
    from torchdata_remote.core.stats import recording

    folders: list[str] = []
    monkeypatch.setattr(recording, "record_in_folder", folders.append)
    monkeypatch.setenv(STATS_VARIABLE, "stats/")
    monkeypatch.setattr(counters, "_idle", [True])
    with StageCounter("list").waiting():
        assert folders == ["stats/"]
