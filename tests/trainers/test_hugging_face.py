"""Accelerate and the transformers ``Trainer``: each sample once over all processes, also through checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.launch import launch

from .data import NUM_SAMPLES, Cells
from .table import WHOLE, Row, epoch_rows, needs, outcome

pytestmark = [
    needs("accelerate"),
    needs("transformers"),
    pytest.mark.timeout(1200),
]  # the first test waits for a launch
Runs = dict[int, list[dict[str, Any]]]
PROGRAM = "tests.trainers.hugging_face_program"
WORKERS = 2  # of the loaders that stop and resume under Accelerate
REFUSED = ("DataLoader(pipe)", "DataLoader(Resumable)")  # by several processes
REMEDY = {
    "Accelerate": "accelerator.prepare(torchdata_remote.stateful_loader(",
    "transformers Trainer": "class MyTrainer(RemoteTrainerMixin, Trainer)",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hugging-face")


@pytest.fixture(scope="module")
def two(dataset: Path, cells: dict[int, Cells], saved: Path) -> list[dict[str, Any]]:
    """Two processes are stopped, and resumed by as many."""
    return launch(PROGRAM, 2, cells=cells[2], folder=str(dataset), save=f"{saved}/two", load="")


@pytest.fixture(scope="module")
def runs(two: list[dict[str, Any]], dataset: Path, cells: dict[int, Cells], saved: Path) -> Runs:
    """Those, and three that resume what the two have saved."""
    given: dict[str, Any] = {"folder": str(dataset), "save": f"{saved}/three", "load": f"{saved}/two"}
    return {2: two, 3: launch(PROGRAM, 3, cells=cells[3], **given)}


def test_a_checkpoint_of_trainer_continues_in_the_same_order_with_as_many_processes(
    two: list[dict[str, Any]],
) -> None:
    for rank in two:
        whole, saved, resumed = (rank[f"Trainer: {what}"] for what in ("whole", "saved", "resumed"))
        assert [saved[0] + resumed[0], *resumed[1:]] == whole
        assert rank["steps of whole"] == [20, 20]


@pytest.mark.parametrize("framework", REMEDY)
@pytest.mark.parametrize("world_size", [2, 3])
def test_an_epoch_has_each_sample_once_or_is_refused_with_the_remedy(
    runs: Runs, cells: dict[int, Cells], world_size: int, framework: str
) -> None:
    given = [(loader, n) for loader, n in cells[world_size] if framework == "Accelerate" or not n]
    for row in epoch_rows(framework, runs[world_size], given):
        if row.loader in REFUSED:
            assert "SplitTwiceError" in row.result, row
            assert "accelerate" in row.result, row
            assert REMEDY[framework] in row.result, row
        else:
            assert row.result == WHOLE, row
    assert "SplitTwiceError" in outcome(rank["no dispatch"] for rank in runs[world_size])


def first(passes: Any) -> Any:
    return passes if isinstance(passes, dict) else passes[0]


@pytest.mark.parametrize("world_size", [2, 3])
def test_save_state_and_load_state_hold_the_position_of_all_processes(runs: Runs, world_size: int) -> None:
    """For as many processes the same order, for others the rest; and the next epoch is whole."""
    stopped = [rank["saved"] for rank in runs[2]]
    again = [rank["resumed"] for rank in runs[world_size]]
    if world_size == 2:
        assert [passes[0] for passes in again] == [after for _, after, _ in stopped]
        assert [length for _, _, length in stopped] == [NUM_SAMPLES // 12 * WORKERS] * 2
    found = outcome([*map(first, stopped), *map(first, again)])
    row = Row("Accelerate", "stateful_loader(pipe)", f"2 -> {world_size}", WORKERS, found, "resume")
    assert row.result == WHOLE, row
    assert outcome(passes[1] for passes in again) == WHOLE


def test_a_loader_whose_chain_is_divided_over_other_ranks_is_refused(runs: Runs) -> None:
    """Such as one that gives each process everything: each sample would be trained on by each of them."""
    for size, ranks in runs.items():
        for rank in ranks:
            assert f"{size} processes, and this chain is divided over 1" in rank["divided otherwise"]["error"], rank


def test_prefetching_loaders_resume_under_accelerate(runs: Runs) -> None:
    for size, ranks in runs.items():
        stopped = [rank["PrefetchingLoader: saved"] for rank in runs[2]]
        rest = [rank["PrefetchingLoader: resumed"] for rank in ranks]
        row = Row("Accelerate", "PrefetchingLoader", f"2 -> {size}", 0, outcome([*stopped, *rest]), "resume")
        assert row.result == WHOLE, row


@pytest.mark.parametrize("world_size", [2, 3])
def test_an_evaluation_of_trainer_has_each_sample_once_or_is_refused(runs: Runs, world_size: int) -> None:
    """Each time; processes with different numbers of samples are refused."""
    for rank in runs[world_size]:
        numbers = [list(range(NUM_SAMPLES))] * 2
        expected = {"metrics": [NUM_SAMPLES] * 2, "numbers": numbers, "examples": NUM_SAMPLES}
        assert rank["Trainer: evaluated"] == expected
        unequal = rank["Trainer: evaluated, unequal"]["error"]
        assert "StateError: transformers Trainer, evaluation" in unequal
        assert ".equalize_ranks()" in unequal


def test_another_number_of_processes_trains_on_the_rest_of_a_checkpoint(runs: Runs) -> None:
    """Each sample once in each of the two epochs."""
    stopped = [first(rank["Trainer: saved"]) for rank in runs[2]]
    again = [rank["Trainer: resumed"] for rank in runs[3]]
    found = outcome([*stopped, *map(first, again)])
    row = Row("transformers Trainer", "stateful_loader(pipe)", "2 -> 3", 0, found, "resume")
    assert row.result == WHOLE, row
    assert outcome(epochs[1] for epochs in again) == WHOLE
    assert [rank["steps of resumed"] for rank in runs[3]] == [[20, 20]] * 3
