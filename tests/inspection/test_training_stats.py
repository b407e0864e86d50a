"""Numbers and verdict of a training."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchdata_remote.core.stats.counters import StageStats
from torchdata_remote.core.stats.report import Stats
from torchdata_remote.inspection.training_stats import ProcessStats, State, TrainingStats


def process(
    rank: int | None = 0,
    worker: int | None = 0,
    *,
    state: State = "running",
    age_s: float = 1,
    retries: int = 0,
    **waits: float,
) -> ProcessStats:
    """A process that waited for so many of 10 seconds."""
    stages = {name: StageStats(wait_s=waits.get(name, 0)) for name in ("list", "decode")}
    fetch = StageStats(10, 5_000_000, waits.get("fetch", 0), 1, 10, retries)
    stats = Stats(10, fetch=fetch, read=StageStats(items=200, wait_s=waits.get("read", 0)), **stages)
    number = 100 * (rank or 0) + (worker or 0)
    return ProcessStats("node", number, rank, 8, worker, 4, state, age_s, stats, stats)


def training(*processes: ProcessStats) -> TrainingStats:
    return TrainingStats(processes)


def test_rates_are_summed_and_waits_averaged() -> None:
    """Over the processes that run."""
    now = training(process(0, fetch=8), process(1, fetch=2, read=2), process(2, state="stalled", fetch=10))
    assert now.as_scalars("") == pytest.approx(
        {
            "samples_per_s": 40,
            "megabytes_per_s": 1,
            "requests_per_s": 2,
            "retries_per_s": 0,
            "waiting": 0.6,
            "waiting_list": 0,
            "waiting_fetch": 0.5,
            "waiting_read": 0.1,
            "waiting_decode": 0,
        }
    )
    assert set(training().as_scalars().values()) == {0}


@pytest.mark.parametrize(
    ("processes", "verdict"),
    [
        ([], "Nothing is read yet."),
        ([process(fetch=8)], "The process waits for the store 80% of the time: raise max_in_flight,"),
        (
            [process(worker=0, fetch=8), process(worker=1, fetch=6)],
            "The workers wait for the store 70% of the time: raise max_in_flight,",
        ),
        (
            [process(0, fetch=8), process(1, fetch=7.5)],
            "All ranks wait for the store 78% of the time: raise max_in_flight,",
        ),
        (
            [process(0, fetch=1), process(1, 0, fetch=7), process(1, 1, fetch=9), process(2, fetch=1)],
            "rank 1 on node waits for the store 80% of the time, and other ranks wait 10%: raise max_in_flight,",
        ),
        (
            [process(fetch=8, retries=4)],
            "The process waits for the store 80% of the time: 40% of the requests are repeated; look at",
        ),
        ([process(decode=9)], "The process waits for decoding 90% of the time: add workers, or decode smaller images."),
        ([process(read=9)], "The process waits for reading of shards 90% of the time: add workers, and"),
        ([process(list=9)], "The process waits for the listing 90% of the time: list the manifest"),
        (
            [process(fetch=3)],
            "The training step is the bottleneck (or collating, or pipes of your own): readers wait for it 70% of the",
        ),
        ([process(worker=None, fetch=3)], "The process waits for the store 30% of the time"),
        ([process(worker=None, fetch=1)], "The training step is the bottleneck"),
        (
            [process(0, 1, state="stalled", age_s=45), process(1, fetch=8)],
            "rank 0 worker 1: no line for 45 s. The process hangs, or its machine is gone. The process",
        ),
        (
            [process(0, state="stalled", age_s=45), process(1, state="stalled", age_s=50)],
            "rank 1 worker 0 and 1 more: no line for 50 s.",
        ),
        ([process(None, None, fetch=8), process(None, None, fetch=8)], "The workers wait for the store 80%"),
        ([process(0, state="ended", fetch=8)], "The process waits for the store 80% of the time"),
    ],
)  # fmt: skip
def test_the_verdict_says_what_is_waited_for_and_what_to_change(processes: list[ProcessStats], verdict: str) -> None:
    """The slowest rank counts: the others wait for it at each step."""
    assert training(*processes).verdict.startswith(verdict)


def test_numbers_are_plain_json() -> None:
    """Each process, the total and the verdict."""
    now = TrainingStats((process(1, 2, fetch=8, retries=1),), ("a note",))
    found: dict[str, Any] = json.loads(json.dumps(now.as_dict()))
    (one,) = found["processes"]
    assert {name: one[name] for name in ("host", "pid", "rank", "worker", "state", "samples", "retries")} == {
        "host": "node", "pid": 102, "rank": 1, "worker": 2, "state": "running", "samples": 200, "retries": 1
    }  # fmt: skip
    assert one["waiting_fetch"] == found["all"]["waiting"] == 0.8
    assert (found["verdict"], found["notes"]) == (now.verdict, ["a note"])
