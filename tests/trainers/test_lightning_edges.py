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
def told(dataset: Path) -> dict[str, Any]:
    """What one rank has reported, by case."""
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
    told: dict[str, Any], kind: str, at: int, size: int
) -> None:
    """Another size changes an epoch's number of batches as another number of ranks does."""
    once = (NUM_SAMPLES, NUM_SAMPLES)
    assert per_epoch(told[f"{kind}, {at}, {size}"]["stopped"]) == {0: once, 1: once, 2: once}


@pytest.mark.parametrize("kind", [*KINDS, "PrefetchingLoader"])
@pytest.mark.parametrize("at", [1, 15, 30])
def test_the_same_world_goes_on_as_it_would_have(told: dict[str, Any], kind: str, at: int) -> None:
    """Also after an epoch's last batch."""
    case = told[f"{kind}, {at}, 8"]
    assert [batch for _, batch in case["stopped"]] == [batch for _, batch in case["whole"]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_by_steps_goes_on_after_an_epochs_end(told: dict[str, Any], kind: str) -> None:
    """``Trainer(max_steps=...)`` with ``ModelCheckpoint()``."""
    case = told[f"{kind}, max_steps"]
    assert [batch for _, batch in case["stopped"]] == [batch for _, batch in case["whole"]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [5, 14])
def test_the_batch_whose_step_failed_is_not_lost(told: dict[str, Any], kind: str, at: int) -> None:
    """``OnExceptionCheckpoint``: nobody has trained on it."""
    case = told[f"{kind}, exception, {at}"]
    assert [batch for _, batch in case["stopped"]] == [batch for _, batch in case["whole"]]


@pytest.mark.parametrize("kind", KINDS)
def test_two_loaders_go_on_as_they_would_have(told: dict[str, Any], kind: str) -> None:
    """The shorter one is in its second pass of the epoch."""
    case = told[f"{kind}, two loaders"]
    assert case["stopped"] == case["whole"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [8, 9])
def test_a_loader_that_has_ended_stays_ended_until_the_next_epoch(told: dict[str, Any], kind: str, at: int) -> None:
    """``CombinedLoader(mode="max_size")``."""
    case = told[f"{kind}, first has ended, {at}"]
    assert case["stopped"] == case["whole"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_longer_one_of_two_loaders_is_read_to_its_end(told: dict[str, Any], kind: str) -> None:
    """With another batch size."""
    batches = [epoch for epoch, _ in told[f"{kind}, two loaders, other size"]["stopped"]]
    left = NUM_SAMPLES - 5 * 8  # of the longer loader's first epoch, in batches of 12
    assert batches.count(0) == 5 + -(-left // 12)


def test_each_training_of_a_process_reads_the_next_epoch(told: dict[str, Any]) -> None:
    """Also where an epoch is a single batch, which Lightning reads ahead."""
    assert told["one batch"]["trained"] == told["one batch"]["alone"]


def test_a_loader_can_be_sent_to_spawned_processes(told: dict[str, Any]) -> None:
    """``strategy="ddp_spawn"``."""
    assert "error" not in told["pickled"], told["pickled"]
    assert sorted(told["pickled"]) == list(range(NUM_SAMPLES))
