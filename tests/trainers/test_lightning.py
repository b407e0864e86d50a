"""Lightning and Fabric: each sample once over all ranks, also through checkpoints, with another number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.launch import launch

from .data import Cells
from .lightning_cases import CASES, IN_THREE, STOP_AFTER, UNEVEN, stop_of
from .table import WHOLE, Row, epoch_rows, needs, outcome

pytestmark = [needs("lightning"), pytest.mark.timeout(1200)]  # the first test waits for all launches
Runs = dict[int, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def runs(dataset: Path, cells: dict[int, Cells], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Two ranks save and resume, three resume."""
    at = str(tmp_path_factory.mktemp("checkpoints"))
    given: dict[str, Any] = {"folder": str(dataset), "resume": at}
    program = "tests.trainers.lightning_program"
    return {n: launch(program, n, save=at if n == 2 else "", cells=cells[n], **given) for n in (2, 3)}


@pytest.mark.parametrize("framework", ["Lightning", "Fabric"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_an_epoch_has_each_sample_once(runs: Runs, cells: dict[int, Cells], world_size: int, framework: str) -> None:
    for row in epoch_rows(framework, runs[world_size], cells[world_size]):
        assert row.result == WHOLE, row


def test_fabric_resumes_with_the_batches_of_an_unstopped_training_or_the_rest(runs: Runs) -> None:
    """As many ranks have the same batches; others each sample once, in this epoch and the next."""
    for rank in runs[2]:
        assert rank["Fabric: resumed"] == rank["Fabric: whole"][STOP_AFTER:]
    before = [rank["Fabric: whole"][:STOP_AFTER] for rank in runs[2]]
    num_left = [rank["Fabric: left"] for rank in runs[3]]
    again = [rank["Fabric: resumed"] for rank in runs[3]]
    rest = [batches[:left] for batches, left in zip(again, num_left, strict=True)]
    row = Row("Fabric", "stateful_loader(pipe)", "2 -> 3", 2, outcome([*before, *rest]), "resume")
    assert row.result == WHOLE, row
    assert outcome(batches[left:] for batches, left in zip(again, num_left, strict=True)) == WHOLE


def trained(ranks: list[dict[str, Any]], name: str, epoch: int) -> list[Any]:
    """Of each rank the batches of an epoch."""
    assert all("error" not in rank[name] for rank in ranks), ranks
    return [rank[name]["train"].get(str(epoch), []) for rank in ranks]


@pytest.mark.parametrize("case", CASES)
def test_as_many_ranks_resume_with_the_batches_of_an_unstopped_training(runs: Runs, case: str) -> None:
    """The batches after a checkpoint, in mid-epoch or at its end, and of the next epoch are those of a whole one."""
    for rank in runs[2]:
        whole, again = rank[f"whole: {case}"], rank[f"resumed: {case}"]
        assert "error" not in whole, whole
        assert "error" not in again, again
        batches = flat_batches(whole)
        assert flat_batches(again) == batches[stop_of(case) :]
        assert again["global_step"] == whole["global_step"][stop_of(case) :]
    orders = list(whole["train"].values())
    assert all(order not in orders[:number] for number, order in enumerate(orders))
    for epoch in (0, 1):
        assert outcome(trained(runs[2], f"whole: {case}", epoch)) == WHOLE


def flat_batches(report: dict[str, Any]) -> list[Any]:
    return [batch for batches in report["train"].values() for batch in batches]


@pytest.mark.parametrize("case", IN_THREE)
def test_another_number_of_ranks_completes_the_epoch(runs: Runs, case: str) -> None:
    """Once each sample, before and after the checkpoint together, and in the next epoch."""
    before = [batches[:STOP_AFTER] for batches in trained(runs[2], f"whole: {case}", 0)]
    found = outcome([*before, *trained(runs[3], f"resumed: {case}", 0)])
    row = Row("Lightning", case, "2 -> 3", 2 if "workers" in case else 0, found, "resume")
    assert row.result == WHOLE, row
    row = Row("Lightning", case, "3", 0, outcome(trained(runs[3], f"resumed: {case}", 1)), "next epoch")
    assert row.result == WHOLE, row


def test_ranks_with_different_numbers_of_batches_left_end_together(runs: Runs) -> None:
    """Of 110 samples that are left, two ranks have one more than the third."""
    trained = [rank[f"resumed: {UNEVEN}"]["train"]["0"] for rank in runs[3]]
    assert [len(batches) for batches in trained] == [36, 36, 36]
    assert len({number for batches in trained for batch in batches for number in batch}) == 108


def test_a_checkpoint_without_the_callback_warns_of_the_batch_that_was_read_ahead(runs: Runs) -> None:
    for rank in (*runs[2], *runs[3]):
        assert any("callbacks=[...]" in message for message in rank["no callback"]), rank["no callback"]


def test_a_checkpoint_without_the_position_of_the_loader_warns(runs: Runs) -> None:
    for rank in runs[2]:
        assert any("no position of the training loader" in message for message in rank["no position"]), rank


def test_a_loader_that_ends_before_lightnings_epoch_warns_that_the_middle_is_not_resumed(runs: Runs) -> None:
    for rank in (*runs[2], *runs[3]):
        assert any('mode="min_size"' in message for message in rank["two loaders"]), rank["two loaders"]
