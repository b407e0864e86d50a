"""Lightning's checkpoints at the edges of an epoch: the last batch, an exception, two loaders, another size."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import pytest

from .data import NUM_SAMPLES
from .launch import launch

KINDS = ("length", "no length")


@pytest.fixture(scope="module")
def reports(dataset: Path) -> dict[str, Any]:
    """The reports of one rank, by case."""
    return launch("tests.trainers.lightning_edges_program", 1, folder=str(dataset))[0]


def per_epoch(batches: list[Any]) -> dict[int, tuple[int, int]]:
    """Epoch -> (different samples, all samples)."""
    epochs: dict[int, list[int]] = collections.defaultdict(list)
    for epoch, batch in batches:
        epochs[epoch] += batch
    return {epoch: (len(set(numbers)), len(numbers)) for epoch, numbers in epochs.items()}


@pytest.mark.parametrize("kind", [*KINDS, "PrefetchingLoader"])
@pytest.mark.parametrize("size", [4, 8, 12])
@pytest.mark.parametrize("at", [1, 15, 30])
def test_each_epoch_has_each_sample_once_whatever_the_batch_size(
    reports: dict[str, Any], kind: str, at: int, size: int
) -> None:
    """Another size changes an epoch's number of batches as another number of ranks does."""
    once = (NUM_SAMPLES, NUM_SAMPLES)
    assert per_epoch(reports[f"{kind}, {at}, {size}"]["stopped"]) == {0: once, 1: once, 2: once}


@pytest.mark.parametrize("kind", [*KINDS, "PrefetchingLoader"])
@pytest.mark.parametrize("at", [1, 15, 30])
def test_the_same_world_resumes_with_the_batches_of_an_unstopped_training(
    reports: dict[str, Any], kind: str, at: int
) -> None:
    """Also after an epoch's last batch."""
    case = reports[f"{kind}, {at}, 8"]
    assert [batch for _, batch in case["stopped"]] == [batch for _, batch in case["whole"]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_by_max_steps_resumes_after_the_end_of_an_epoch(reports: dict[str, Any], kind: str) -> None:
    """``Trainer(max_steps=...)`` with ``ModelCheckpoint()``."""
    case = reports[f"{kind}, max_steps"]
    assert [batch for _, batch in case["stopped"]] == [batch for _, batch in case["whole"]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [5, 14])
def test_the_batch_of_a_failed_step_is_trained_on_after_the_resume(reports: dict[str, Any], kind: str, at: int) -> None:
    """``OnExceptionCheckpoint``."""
    case = reports[f"{kind}, exception, {at}"]
    assert [batch for _, batch in case["stopped"]] == [batch for _, batch in case["whole"]]


@pytest.mark.parametrize("kind", KINDS)
def test_two_loaders_resume_with_the_batches_of_an_unstopped_training(reports: dict[str, Any], kind: str) -> None:
    """The shorter one is in its second pass of the epoch."""
    case = reports[f"{kind}, two loaders"]
    assert case["stopped"] == case["whole"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [8, 9])
def test_a_loader_that_has_ended_stays_ended_until_the_next_epoch(reports: dict[str, Any], kind: str, at: int) -> None:
    """``CombinedLoader(mode="max_size")``."""
    case = reports[f"{kind}, first has ended, {at}"]
    assert case["stopped"] == case["whole"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_longer_of_two_loaders_is_read_to_its_end(reports: dict[str, Any], kind: str) -> None:
    """With another batch size."""
    batches = [epoch for epoch, _ in reports[f"{kind}, two loaders, other size"]["stopped"]]
    left = NUM_SAMPLES - 5 * 8  # of the longer loader's first epoch, in batches of 12
    assert batches.count(0) == 5 + -(-left // 12)


def test_each_training_of_a_process_reads_the_next_epoch(reports: dict[str, Any]) -> None:
    """Also if an epoch is a single batch, which Lightning prefetches."""
    assert reports["one batch"]["trained"] == reports["one batch"]["alone"]


def test_a_loader_can_be_sent_to_spawned_processes(reports: dict[str, Any]) -> None:
    """``strategy="ddp_spawn"``."""
    assert "error" not in reports["pickled"], reports["pickled"]
    assert sorted(reports["pickled"]) == list(range(NUM_SAMPLES))
