"""Lightning and Fabric: each sample once over all ranks, also through checkpoints, with another number of ranks."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import pytest

from tests.support.launch import launch

from .data import NUM_SAMPLES, Cells
from .lightning_cases import CASES, IN_THREE, ONE_LOADER, STOP_AFTER, UNEVEN
from .table import WHOLE, Row, epoch_rows, flat, outcome

pytest.importorskip("lightning")
pytestmark = pytest.mark.timeout(1200)  # the first test waits for all launches
Runs = dict[int, list[dict[str, Any]]]
NO_DATALOADER = "TypeError: Only PyTorch DataLoader are currently supported in `setup_dataloaders`."
KINDS = ("length", "no length")


@pytest.fixture(scope="module")
def runs(dataset: Path, cells: dict[int, Cells], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Two ranks save and resume, three resume; one runs the edges of an epoch."""
    at = str(tmp_path_factory.mktemp("checkpoints"))
    given: dict[str, Any] = {"folder": str(dataset), "resume": at}
    program = "tests.trainers.lightning_program"
    return {n: launch(program, n, save=at if n == 2 else "", cells=cells[n], **given) for n in (2, 3, 1)}


@pytest.mark.parametrize("framework", ["Lightning", "Fabric"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_an_epoch_has_each_sample_once(runs: Runs, cells: dict[int, Cells], world_size: int, framework: str) -> None:
    for row in epoch_rows(framework, runs[world_size], cells[world_size]):
        refused = framework == "Fabric" and row.loader == "PrefetchingLoader"
        assert row.result == (NO_DATALOADER if refused else WHOLE), row


@pytest.mark.parametrize("workers", [0, 2])
def test_fabric_resumes_with_the_batches_of_an_unstopped_training_or_the_rest(runs: Runs, workers: int) -> None:
    """As many ranks have the same batches; others each sample once, in this epoch and the next."""
    for rank in runs[2]:
        assert rank[f"Fabric: resumed, {workers} workers"] == rank[f"Fabric: whole, {workers} workers"][STOP_AFTER:]
    before = [rank[f"Fabric: whole, {workers} workers"][:STOP_AFTER] for rank in runs[2]]
    num_left = [rank[f"Fabric: left, {workers} workers"] for rank in runs[3]]
    again = [rank[f"Fabric: resumed, {workers} workers"] for rank in runs[3]]
    rest = [batches[:left] for batches, left in zip(again, num_left, strict=True)]
    row = Row("Fabric", "stateful_loader(pipe)", "2 -> 3", workers, outcome([*before, *rest]), "resume")
    assert row.result == WHOLE, row
    assert outcome(batches[left:] for batches, left in zip(again, num_left, strict=True)) == WHOLE


def trained(ranks: list[dict[str, Any]], name: str, epoch: int) -> list[Any]:
    """Of each rank the batches of an epoch."""
    assert all("error" not in rank[name] for rank in ranks), ranks
    return [rank[name]["train"].get(str(epoch), []) for rank in ranks]


def stop_of(case: str) -> int:
    return 2 * STOP_AFTER if "accumulated" in case or "limited" in case else STOP_AFTER


@pytest.mark.parametrize("case", CASES)
def test_as_many_ranks_resume_with_the_batches_of_an_unstopped_training(runs: Runs, case: str) -> None:
    """The batches after a checkpoint in mid-epoch, and those of the next epoch, are those of a whole training."""
    for rank in runs[2]:
        whole, again = rank[f"whole: {case}"], rank[f"resumed: {case}"]
        assert "error" not in whole, whole
        assert "error" not in again, again
        batches = flat_batches(whole)
        assert flat_batches(again) == batches[stop_of(case) :]
        assert again["global_step"] == whole["global_step"][stop_of(case) :]
        assert again["train"]["1"] == whole["train"]["1"]
    if case in ONE_LOADER:
        for epoch in (0, 1):
            assert outcome(trained(runs[2], f"whole: {case}", epoch)) == WHOLE


def flat_batches(report: dict[str, Any]) -> list[Any]:
    return [batch for batches in report["train"].values() for batch in batches]


@pytest.mark.parametrize("case", IN_THREE)
def test_another_number_of_ranks_completes_the_epoch(runs: Runs, case: str) -> None:
    """Once each sample, before and after the checkpoint together, and in the next epoch."""
    before = [batches[: stop_of(case)] for batches in trained(runs[2], f"whole: {case}", 0)]
    found = outcome([*before, *trained(runs[3], f"resumed: {case}", 0)])
    row = Row("Lightning", case, "2 -> 3", 2 if "workers" in case else 0, found, "resume")
    assert row.result == WHOLE, row
    row = Row("Lightning", case, "3", 0, outcome(trained(runs[3], f"resumed: {case}", 1)), "next epoch")
    assert row.result == WHOLE, row


def test_ranks_with_different_numbers_of_batches_left_are_refused_with_a_batch_size_that_fits(runs: Runs) -> None:
    """A loader with a length notices it before the first batch."""
    expected = "36, 37, 37. Those with fewer would wait for the others at its end. Resume with batch_size=5, "
    for rank in runs[3]:
        assert expected in rank[f"resumed: {UNEVEN}"]["error"], rank
        assert "as many ranks as saved the state (2)" in rank[f"resumed: {UNEVEN}"]["error"]


def test_resuming_with_a_loader_without_a_state_warns(runs: Runs) -> None:
    """Lightning reads the epoch from its beginning, and counts as if it resumed."""
    for rank in (*runs[2], *runs[3]):
        assert any("Train with stateful_loader(pipe)" in message for message in rank["stateless"]), rank["stateless"]


# Edges of an epoch, in one rank


def per_epoch(batches: list[Any]) -> dict[int, tuple[int, int]]:
    """Epoch -> (different samples, all samples)."""
    epochs: dict[int, list[int]] = collections.defaultdict(list)
    for epoch, batch in batches:
        epochs[epoch] += batch
    return {epoch: (len(set(numbers)), len(numbers)) for epoch, numbers in epochs.items()}


@pytest.mark.parametrize("kind", [*KINDS, "PrefetchingLoader"])
@pytest.mark.parametrize(("at", "size"), [(15, 8), (16, 12)])
def test_each_epoch_has_each_sample_once_wherever_it_is_stopped_and_whatever_the_batch_size(
    runs: Runs, kind: str, at: int, size: int
) -> None:
    """Also after the last batch of an epoch; another size changes an epoch's number of batches as other ranks do."""
    case, once = runs[1][0][f"{kind}, {at}, {size}"], (NUM_SAMPLES, NUM_SAMPLES)
    assert per_epoch(case["stopped"]) == {0: once, 1: once, 2: once}
    if size == 8:
        assert [batch for _, batch in case["stopped"]] == [batch for _, batch in case["whole"]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ["max_steps", "exception", "two loaders", "first has ended"])
def test_a_training_that_is_stopped_at_an_edge_resumes_with_the_batches_of_an_unstopped_one(
    runs: Runs, kind: str, case: str
) -> None:
    """By ``max_steps``; in a failed step, whose batch was not trained on; with two loaders, of which one has ended."""
    found = runs[1][0][f"{kind}, {case}"]
    assert [batch for _, batch in found["stopped"]] == [batch for _, batch in found["whole"]] != []


@pytest.mark.parametrize("kind", KINDS)
def test_the_longer_of_two_loaders_is_read_to_its_end_with_another_batch_size(runs: Runs, kind: str) -> None:
    batches = [epoch for epoch, _ in runs[1][0][f"{kind}, two loaders, other size"]["stopped"]]
    left = NUM_SAMPLES - 5 * 8  # of the longer loader's first epoch, in batches of 12
    assert batches.count(0) == 5 + -(-left // 12)


def test_each_training_of_a_process_reads_the_next_epoch_and_a_loader_can_be_sent_to_another(runs: Runs) -> None:
    """Also if an epoch is a single batch, which Lightning prefetches; as ``strategy="ddp_spawn"`` sends it."""
    assert runs[1][0]["one batch"]["stopped"] == runs[1][0]["one batch"]["whole"]
    assert sorted(flat(runs[1][0]["pickled"])) == list(range(NUM_SAMPLES))
