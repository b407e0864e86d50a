"""Accelerate: each loader delivers each sample once over all processes, or is refused; state in ``save_state``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import torchdata_remote as tdr
from torchdata_remote.errors import StateError

from .data import NUM_SAMPLES, cells_of, loader_of, numbers_of, pipe_of
from .launch import Row, epoch_rows, launch, outcome

pytest.importorskip("accelerate")
FRAMEWORK, PROGRAM = "Accelerate", "tests.trainers.accelerate_program"
PAIRWISE = {1: [0], 2: [0, 2], 3: [2]}  # numbers of processes -> of workers of the loaders that are resumed
REFUSED = ("DataLoader(pipe)", "DataLoader(Resumable)")  # by several processes
MAP_STYLE = ["DataLoader(RemoteImageFolder)", "DataLoader(ShardedDataset)"]


def workers_of(ranks: list[dict[str, Any]]) -> list[int]:
    """Numbers of workers of the loaders that were saved or resumed."""
    return [n for n in (0, 2) if {f"saved, {n} workers", f"resumed, {n} workers"} & set(ranks[0])]


def arguments(num_processes: int, *, complete: bool) -> dict[str, Any]:
    """What processes run besides a stop and a resume: by default each variant with two processes."""
    cells = cells_of(FRAMEWORK, num_processes, complete=complete)
    has_variants = complete or num_processes == 2
    return {
        "cells": [*cells, *((loader, 0) for loader in REFUSED if loader not in dict(cells))],
        "refused": [(loader, 2) for loader in REFUSED] if has_variants else [],
        "start_methods": ["fork", "spawn"] if has_variants else [],
        "map_style": MAP_STYLE if has_variants and num_processes > 1 else [],
        "num_workers": [0, 2] if complete else PAIRWISE[num_processes],
    }


def resume_rows(saved: list[dict[str, Any]], ranks: list[dict[str, Any]], here: str = "") -> list[Row]:
    """The samples before the stop and after it."""
    return [
        Row(
            FRAMEWORK, "stateful_loader(pipe)", f"{len(saved)} -> {len(ranks)}", n,
            outcome([*(rank[f"saved, {n if n in workers_of(saved) else workers_of(saved)[0]} workers"]["before"]
                       for rank in saved),
                     *(_first(rank[f"resumed{here}, {n} workers"]) for rank in ranks)]),
            "resume",
        )
        for n in workers_of(ranks)
    ]  # fmt: skip


def _first(passes: Any) -> Any:
    return passes if isinstance(passes, dict) else passes[0]


def check(found: list[Row], *, num_processes: int) -> None:
    """Each row is exact, or refused by an error that names the framework and the remedy."""
    for row in found:
        if row.loader in REFUSED and num_processes > 1:
            assert "SplitTwiceError" in row.result, row
            assert "accelerate" in row.result, row
            assert "accelerator.prepare(torchdata_remote.stateful_loader(" in row.result, row
        else:
            assert row.result == "120 of 120", "\n".join(map(str, found))


@pytest.mark.timeout(1200)
def test_each_sample_once_and_resumed_with_other_numbers_of_processes(
    dataset: Path, tmp_path: Path, complete: bool
) -> None:
    """2 processes are stopped and resumed by 2 and by 3, and 3 by 1."""
    at = tmp_path

    def run(num_processes: int, **places: str) -> list[dict[str, Any]]:
        options = arguments(num_processes, complete=complete)
        return launch(PROGRAM, num_processes, folder=str(dataset), timeout_s=600, **options, **places)

    of_two = run(2, save=f"{at}/two")
    of_three = run(3, save=f"{at}/three", load=f"{at}/two")
    of_one = run(1, load=f"{at}/three")
    for ranks in (of_one, of_two, of_three):
        options = arguments(len(ranks), complete=complete)
        check(epoch_rows(FRAMEWORK, ranks, options["cells"]), num_processes=len(ranks))
        refused = [f"{loader}, {n} workers, no dispatch" for loader, n in options["refused"]]
        for name in [*refused, *options["start_methods"]]:
            result = outcome(rank[name] for rank in ranks)
            assert ("SplitTwiceError" in result) if len(ranks) > 1 else (result == "120 of 120"), (name, result)
    found = [
        *resume_rows(of_two, of_two, " here"),
        *resume_rows(of_three, of_three, " here"),
        *resume_rows(of_two, of_three),
        *resume_rows(of_three, of_one),
    ]
    assert {row.result for row in found} == {"120 of 120"}, "\n".join(map(str, found))
    for ranks in (of_two, of_three):
        for loader in arguments(len(ranks), complete=complete)["map_style"]:
            assert outcome(rank[f"resumed here, {loader}"] for rank in ranks) == "120 of 120"
        for rank in ranks:
            for n in workers_of(ranks):
                assert rank[f"resumed here, {n} workers"][0] == rank[f"saved, {n} workers"]["after"]  # same order
                steps = NUM_SAMPLES // 12 * max(1, n)
                assert rank[f"length, {n} workers"] == steps
    for n in workers_of(of_three):
        assert outcome(rank[f"resumed, {n} workers"][1] for rank in of_three) == "120 of 120"  # the next epoch


def prepared(dataset: Path, *, batch_size: int = 16, **options: Any) -> tuple[Any, tdr.StatefulLoader]:
    """An accelerator of this process, and a loader that it has prepared."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, **options)
    loader = loader_of("stateful_loader(pipe)", dataset, batch_size=batch_size, num_workers=0)
    assert accelerator.prepare(loader) is loader
    assert loader in accelerator._dataloaders
    return accelerator, loader


def test_an_incomplete_accumulation_is_synchronised_at_the_end(dataset: Path) -> None:
    """8 batches, 3 to a step: after the 3rd, the 6th and the last."""
    accelerator, loader = prepared(dataset, gradient_accumulation_steps=3)
    model = torch.nn.Linear(4, 1)
    for _ in range(2):  # epochs
        synchronised = []
        for _ in loader:
            with accelerator.accumulate(model):
                synchronised.append(accelerator.sync_gradients)
        assert synchronised == [False, False, True, False, False, True, False, True]
        assert not accelerator.gradient_state.in_dataloader


def test_gather_for_metrics_keeps_the_whole_last_batch(dataset: Path) -> None:
    """No sample is dropped as a repeated one."""
    accelerator, loader = prepared(dataset)
    assert sorted(n for batch in loader for n in accelerator.gather_for_metrics(batch["number"]).tolist()) == list(
        range(NUM_SAMPLES)
    )


@pytest.mark.parametrize("stop", [1, 4, 7, 8])
def test_a_state_excludes_the_prefetched_batch(dataset: Path, stop: int) -> None:
    """``end_of_dataloader`` prefetches a batch; the state is that of the consumer."""
    accelerator, loader = prepared(dataset)
    batches = iter(loader)
    for _ in range(stop):
        next(batches)
        assert accelerator.gradient_state.end_of_dataloader == (stop == 8 and _ == 7)
    state = loader.state_dict()
    expected = [numbers_of(batch) for batch in batches]
    _, resumed = prepared(dataset)
    resumed.load_state_dict(state)
    assert [numbers_of(batch) for batch in resumed] == expected
    assert len(expected) == 8 - stop


def test_a_dropped_pass_keeps_its_state(dataset: Path) -> None:
    """After ``break`` the state is that of the consumer, and no loader is active; the next pass is whole."""
    accelerator, loader = prepared(dataset)
    for _ in loader:
        assert not accelerator.gradient_state.end_of_dataloader
        break
    assert not accelerator.gradient_state.in_dataloader
    _, resumed = prepared(dataset)
    resumed.load_state_dict(loader.state_dict())
    assert len(list(resumed)) == 7
    assert len(list(loader)) == 8


def test_batches_are_put_on_the_accelerators_device(dataset: Path) -> None:
    """As those of Accelerate's own loaders, unless ``device_placement`` is off."""
    accelerator, loader = prepared(dataset)
    before = accelerator.state.device
    try:
        accelerator.state.device = torch.device("meta")
        assert next(iter(loader))["x"].device.type == "meta"
        accelerator.device_placement = False
        assert next(iter(loader))["x"].device.type == "cpu"
    finally:
        accelerator.state.device = before


def test_skip_first_batches_is_refused(dataset: Path) -> None:
    """The loaded state continues by itself; skipping would lose samples."""
    accelerator, loader = prepared(dataset)
    with pytest.raises(StateError, match=r"skip_first_batches .* accelerator\.load_state\(\)"):
        next(iter(accelerator.skip_first_batches(loader, 2)))


@pytest.mark.parametrize("option", ["split_batches", "dispatch_batches"])
def test_options_that_split_again_are_refused(dataset: Path, option: str) -> None:
    """The loader has the batches of one process already."""
    from accelerate import DataLoaderConfiguration

    with pytest.raises(StateError, match=f"Accelerate's {option}=True .* DataLoaderConfiguration"):
        prepared(dataset, dataloader_config=DataLoaderConfiguration(**{option: True}))


def test_tensor_parallel_processes_need_a_world_of_data_parallel_ranks(dataset: Path) -> None:
    """Under tensor parallelism; a chain that gives each process a share of its own is refused."""
    parallelism = pytest.importorskip("accelerate.parallelism_config")
    accelerator, loader = prepared(dataset)
    accelerator.state.parallelism_config = parallelism.ParallelismConfig(tp_size=2)
    try:
        with pytest.raises(StateError, match=r"Accelerate: groups of 2 .* sharding_filter_rank\(world="):
            accelerator.prepare(loader)
    finally:
        accelerator.state.parallelism_config = None


def test_a_plain_loader_in_one_process_is_left_to_accelerate(dataset: Path) -> None:
    """Nothing is split twice there."""
    from accelerate import Accelerator

    loader = Accelerator(cpu=True).prepare(torch.utils.data.DataLoader(pipe_of(dataset), 16))
    assert sorted(n for batch in loader for n in numbers_of(batch)) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("stop", [0, 4])
def test_a_resumable_under_accelerates_own_state_in_one_process(dataset: Path, tmp_path: Path, stop: int) -> None:
    """``DataLoader(Resumable)`` with ``use_stateful_dataloader=True``: saved and resumed, each sample once."""
    from accelerate import Accelerator, DataLoaderConfiguration

    numbers: list[int] = []
    for half in range(2):
        options = DataLoaderConfiguration(use_stateful_dataloader=True)
        accelerator = Accelerator(cpu=True, dataloader_config=options)
        loader = accelerator.prepare(torch.utils.data.DataLoader(tdr.Resumable(pipe_of(dataset), num_streams=12), 4))
        if half == 1:
            accelerator.load_state(str(tmp_path))
        for number, batch in enumerate(loader):
            numbers += numbers_of(batch)
            if half == 0 and number == stop:
                accelerator.save_state(str(tmp_path))
                break
    assert sorted(numbers) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("damaged", ['{"ver', None, 5, "{}"])
def test_a_damaged_state_of_all_ranks_is_refused(dataset: Path, damaged: object) -> None:
    """As after a full disk."""
    _, loader = prepared(dataset)
    with pytest.raises(StateError):
        loader.load_state_dict({"all_ranks": damaged})


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_chain_that_is_divided_over_other_ranks_is_refused(dataset: Path, world_size: int) -> None:
    """Such as one that gives each process everything: each sample would be trained on by each of them."""
    from types import SimpleNamespace

    from torchdata_remote.loaders.trainers.accelerate import _require_same_ranks

    accelerator = SimpleNamespace(num_processes=2, parallelism_config=None)
    with pytest.raises(StateError, match=f"2 processes, and this chain is divided over {world_size}"):
        _require_same_ranks(accelerator, world_size)
    _require_same_ranks(accelerator, 2)


def test_skip_first_batches_of_a_prepared_loader_is_refused(dataset: Path) -> None:
    """Of which Accelerate makes another class."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(torch.utils.data.DataLoader(tdr.Resumable(pipe_of(dataset), num_streams=12), 4))
    with pytest.raises(StateError, match="skip_first_batches"):
        list(accelerator.skip_first_batches(loader, 2))
