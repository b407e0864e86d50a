"""Counters of stages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from torchdata_remote.core.stats import counters
from torchdata_remote.core.stats.counters import StageCounter, timed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr(counters, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def test_a_wait_counts_before_it_has_ended(clock: list[float]) -> None:
    """A store that does not answer is waited for, although no wait ever ends; afterwards it counts once."""
    stage = StageCounter("fetch")
    with stage.waiting():
        clock[0] += 30
        assert stage.snapshot().wait_s == 30
        with stage.waiting():
            clock[0] += 1
    assert stage.snapshot().wait_s == stage.wait_s == 32


def test_a_slow_reader_is_counted_twice_a_second(clock: list[float]) -> None:
    """Not only after some hundred samples, which may be minutes."""
    stage, other = StageCounter("read"), StageCounter("fetch")

    def samples() -> Iterator[int]:
        for number in range(8):
            clock[0] += 0.2
            yield number

    counted = [stage.snapshot().items for _ in timed(samples(), stage, within=other)]
    assert counted == [0, 0, 0, 3, 3, 3, 6, 6]
    assert stage.snapshot().items == 8
    assert stage.snapshot().wait_s == pytest.approx(1.6)


def test_many_samples_are_counted_in_blocks(clock: list[float]) -> None:
    """A lock is taken once for 256 samples."""
    stage, other = StageCounter("read"), StageCounter("fetch")
    counted = [stage.snapshot().items for _ in timed(iter(range(600)), stage, within=other)]
    assert set(counted) == {0, 256, 512}


def test_one_thread_starts_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first piece of work of a process does, whichever thread has it."""
    from torchdata_remote.core.stats import recording

    folders: list[str] = []
    monkeypatch.setattr(recording, "record_in_folder", folders.append)
    monkeypatch.setenv(counters.STATS_VARIABLE, "stats/")
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
    monkeypatch.setenv(counters.STATS_VARIABLE, "stats/")
    monkeypatch.setattr(counters, "_idle", [True])
    with StageCounter("list").waiting():
        assert folders == ["stats/"]
