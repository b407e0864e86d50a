"""The transformers ``Trainer``: each sample once over all processes, or refused; state in ``checkpoint-N``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .data import NUM_SAMPLES, Cells, cells_of
from .launch import Row, epoch_rows, launch, outcome

pytest.importorskip("transformers")
pytestmark = pytest.mark.timeout(1200)
FRAMEWORK, PROGRAM = "transformers Trainer", "tests.trainers.transformers_program"
PAIRWISE = {1: [0], 2: [0], 3: [2]}  # numbers of processes -> of workers of the trainings that are resumed
REFUSED = ("DataLoader(pipe)", "DataLoader(Resumable)")  # by several processes


def workers_of(ranks: list[dict[str, Any]]) -> list[int]:
    """Numbers of workers of the trainings that were evaluated, saved and resumed."""
    return [n for n in (0, 2) if f"evaluated, {n} workers" in ranks[0]]


def cells_with_refused(num_processes: int, *, complete: bool) -> Cells:
    """Those of all frameworks, and with each number of processes the datasets that several of them refuse."""
    cells = cells_of(FRAMEWORK, num_processes, complete=complete)
    return [*cells, *((loader, 0) for loader in REFUSED if loader not in dict(cells))]


def resume_rows(saved: list[dict[str, Any]], ranks: list[dict[str, Any]], what: str) -> list[Row]:
    """The first epoch, before the stop and after it."""
    return [
        Row(
            FRAMEWORK, "stateful_loader(pipe)", f"{len(saved)} -> {len(ranks)}", n,
            outcome([*(_epoch(rank[f"saved, {n if n in workers_of(saved) else workers_of(saved)[0]} workers"])
                       for rank in saved),
                     *(_epoch(rank[f"{what}, {n} workers"]) for rank in ranks)]),
            "resume",
        )
        for n in workers_of(ranks)
    ]  # fmt: skip


def _epoch(epochs: Any, number: int = 0) -> Any:
    return epochs if isinstance(epochs, dict) else epochs[number]


@pytest.fixture(scope="module")
def runs(dataset: Path, complete: bool, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """2 processes are stopped and resumed by 2 and by 3; 3 are stopped, also after that, and resumed by 1."""
    at = tmp_path_factory.mktemp("transformers")

    def run(num_processes: int, **places: Any) -> list[dict[str, Any]]:
        return launch(
            PROGRAM, num_processes, folder=str(dataset), timeout_s=600, output=f"{at}/{num_processes}",
            cells=cells_with_refused(num_processes, complete=complete),
            num_workers=[0, 2] if complete else PAIRWISE[num_processes], **places,
        )  # fmt: skip

    two = run(2, save=f"{at}/two")
    three = run(3, save=f"{at}/three", load=[f"{at}/two"])
    return {1: run(1, load=[f"{at}/three", f"{at}/three-again"]), 2: two, 3: three}


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_epoch_has_each_sample_once_or_is_refused(
    runs: dict[int, list[dict[str, Any]]], complete: bool, world_size: int
) -> None:
    """A plain ``Trainer`` with a chain is refused by an error that names the framework and the remedy."""
    found = epoch_rows(FRAMEWORK, runs[world_size], cells_with_refused(world_size, complete=complete))
    for row in found:
        if row.loader in REFUSED and world_size > 1:
            assert "SplitTwiceError" in row.result, row
            assert "class MyTrainer(RemoteTrainerMixin, Trainer)" in row.result, row
        else:
            assert row.result == "120 of 120", "\n".join(map(str, found))
    result = outcome(rank["no dispatch"] for rank in runs[world_size])
    assert ("SplitTwiceError" in result) if world_size > 1 else (result == "120 of 120"), result


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_evaluation_has_each_sample_once_or_is_refused(
    runs: dict[int, list[dict[str, Any]]], world_size: int
) -> None:
    """Each time; processes with different numbers of samples are refused."""
    for rank in runs[world_size]:
        for n in workers_of(runs[world_size]):
            found = rank[f"evaluated, {n} workers"]
            numbers = [list(range(NUM_SAMPLES))] * 2
            assert found == {"metrics": [NUM_SAMPLES] * 2, "numbers": numbers, "examples": NUM_SAMPLES}
        unequal = rank["evaluated, unequal"]
        if world_size > 1:
            assert "StateError: transformers Trainer, evaluation" in unequal["error"]
            assert ".equalize_ranks()" in unequal["error"]
        else:
            assert "eval_runtime" in unequal  # one process evaluates it


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_same_world_continues_in_the_same_order(runs: dict[int, list[dict[str, Any]]], world_size: int) -> None:
    """The samples after the stop are those of a run without one; with the same number of steps."""
    ranks = runs[world_size]
    for n in workers_of(ranks):
        steps = 2 * NUM_SAMPLES // 12 * max(1, n)
        for rank in ranks:
            whole, saved, resumed = (rank[f"{what}, {n} workers"] for what in ("whole", "saved", "resumed here"))
            assert [saved[0] + resumed[0], *resumed[1:]] == whole
            assert rank[f"steps of whole-{n}"] == [steps, steps]
    assert {row.result for row in resume_rows(ranks, ranks, "resumed here")} == {"120 of 120"}


def test_another_world_trains_on_the_rest(runs: dict[int, list[dict[str, Any]]]) -> None:
    """2 -> 3 and 3 -> 1: each sample once in each of the two epochs."""
    for before, after, what in ((2, 3, "resumed two"), (3, 1, "resumed three")):
        found = resume_rows(runs[before], runs[after], what)
        assert {row.result for row in found} == {"120 of 120"}, "\n".join(map(str, found))
        for n in workers_of(runs[after]):
            for rank in runs[after]:
                assert len(rank[f"{what}, {n} workers"]) == 2
            assert outcome(_epoch(rank[f"{what}, {n} workers"], 1) for rank in runs[after]) == "120 of 120"


def test_the_world_can_change_twice_within_an_epoch(runs: dict[int, list[dict[str, Any]]]) -> None:
    """2 -> 3 -> 1: each sample once in each of the two epochs."""
    for n in workers_of(runs[1]):
        name = "saved again, 2" if n else "saved again"
        parts = [*(rank["saved, 0 workers"] for rank in runs[2]), *(rank[name] for rank in runs[3])]
        last = [rank[f"resumed three-again, {n} workers"] for rank in runs[1]]
        assert outcome(_epoch(epochs) for epochs in [*parts, *last]) == "120 of 120"
        assert [outcome([_epoch(epochs, 1)]) for epochs in last] == ["120 of 120"]


def test_max_steps_is_kept_in_another_world(runs: dict[int, list[dict[str, Any]]]) -> None:
    """4 steps of 12 were done by 2 processes; 3 processes do 8: 6 to the end of the epoch, and 2."""
    first = [_epoch(rank["resumed, steps"]) for rank in runs[3]]
    assert outcome([*(_epoch(rank["saved, 0 workers"]) for rank in runs[2]), *first]) == "120 of 120"
    assert [rank["steps of steps"] for rank in runs[3]] == [[12, 12]] * 3
    for rank in runs[3]:
        assert [len(epoch) for epoch in rank["resumed, steps"]] == [24, 8]
