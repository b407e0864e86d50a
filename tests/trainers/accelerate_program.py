"""A rank of Accelerate: an epoch of each loader; stop in mid-epoch by ``save_state``, resume by ``load_state``."""

from __future__ import annotations

import multiprocessing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader, DistributedSampler

import torchdata_remote as tdr

from .data import NUM_SAMPLES, NUM_STREAMS, Cells, loader_of, numbers_of, pipe_of
from .launch import attempt, report

STOP_AFTER = 4  # steps


def main(
    *,
    folder: str,
    cells: Cells,
    refused: Cells,
    start_methods: list[str],
    map_style: list[str],
    num_workers: list[int],
    save: str | None = None,
    load: str | None = None,
) -> None:
    """Report an epoch of each loader; save to one folder, and resume from another.

    Args:
        folder: of the dataset.
        cells: loaders and numbers of workers of the epochs.
        refused: those of epochs with ``dispatch_batches=False``.
        start_methods: of workers of epochs of a plain ``DataLoader``.
        map_style: loaders whose epoch is stopped and resumed by Accelerate's own state.
        num_workers: of the loaders that are saved and resumed.
        save: prefix of the folders to save to.
        load: prefix of the folders to resume from.
    """
    # Workers import what the frameworks pass to them: the server from which they are forked does it once.
    multiprocessing.set_forkserver_preload(["tests.trainers.data", "accelerate.data_loader"])
    for name, workers in cells:
        attempt(f"{name}, {workers} workers", partial(_epoch, name, Path(folder), workers, None))
    for name, workers in refused:
        attempt(f"{name}, {workers} workers, no dispatch", partial(_epoch, name, Path(folder), workers, False))
    for context in start_methods:
        attempt(context, partial(_with_start_method, Path(folder), context))
    for workers in num_workers:
        if save is not None:
            attempt(f"saved, {workers} workers", partial(_stop, Path(folder), workers, f"{save}-{workers}"))
            attempt(f"resumed here, {workers} workers", partial(_resume, Path(folder), workers, f"{save}-{workers}"))
        if load is not None:
            attempt(f"resumed, {workers} workers", partial(_resume, Path(folder), workers, _saved(load, workers)))
    for name in map_style:
        attempt(f"resumed here, {name}", partial(_map_style, name, Path(folder), f"{save}-map"))
    Accelerator(cpu=True).end_training()


def _saved(place: str, workers: int) -> str:
    """What as many workers have saved, or else another number of them."""
    return next(folder for folder in (f"{place}-{number}" for number in (workers, 0, 2)) if Path(folder).exists())


def _accelerator(**options: Any) -> Accelerator:
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))


def _epoch(name: str, folder: Path, workers: int, dispatch: bool | None) -> list[int]:
    options: dict[str, Any] = {}
    if name == "PrefetchingLoader":  # is no DataLoader, so Accelerate leaves it as it is
        options["sampler"] = DistributedSampler(range(NUM_SAMPLES), seed=0)  # type: ignore[arg-type]
    loader = loader_of(name, folder, batch_size=4, num_workers=workers, **options)
    accelerator = _accelerator(dispatch_batches=dispatch)
    return _trained(accelerator, *accelerator.prepare(torch.nn.Linear(4, 1), loader))


def _trained(accelerator: Accelerator, model: torch.nn.Module, batches: Any) -> list[int]:
    numbers = []
    for batch in batches:
        accelerator.backward(model(batch["x"]).sum())
        numbers += numbers_of(batch)
    return numbers


def _with_start_method(folder: Path, context: str) -> list[int]:
    loader = DataLoader(pipe_of(folder), 4, num_workers=1, multiprocessing_context=context)
    return [number for batch in _accelerator().prepare(loader) for number in numbers_of(batch)]


def _prepared(folder: Path, workers: int) -> tuple[Accelerator, torch.nn.Module, Any]:
    accelerator = _accelerator()
    batch_size = NUM_STREAMS // (accelerator.num_processes * max(1, workers))  # a sample of each stream
    loader = tdr.stateful_loader(pipe_of(folder), batch_size=batch_size, num_workers=workers, num_streams=NUM_STREAMS)
    model = torch.nn.Linear(4, 1)
    model, _, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters()), loader)
    return accelerator, model, loader


def _stop(folder: Path, workers: int, save: str) -> dict[str, list[int]]:
    """An epoch, saved in the middle: what came before, and after."""
    accelerator, model, loader = _prepared(folder, workers)
    batches = iter(loader)
    before = []
    for batch in islice(batches, STOP_AFTER):
        with accelerator.accumulate(model):  # reads one batch ahead
            accelerator.backward(model(batch["x"]).sum())
        before += numbers_of(batch)
    accelerator.save_state(save)
    accelerator.wait_for_everyone()
    report(f"length, {workers} workers", len(loader))
    return {"before": before, "after": _trained(accelerator, model, batches)}


def _resume(folder: Path, workers: int, load: str) -> list[list[int]]:
    """The rest of the epoch, and the next one."""
    accelerator, model, loader = _prepared(folder, workers)
    accelerator.load_state(load)
    return [_trained(accelerator, model, loader) for _ in range(2)]


def _map_style(name: str, folder: Path, save: str) -> list[int]:
    """An epoch in two halves, by Accelerate's own state of a DataLoader."""
    numbers = []
    for half in range(2):
        accelerator = _accelerator(use_stateful_dataloader=True)
        loader = accelerator.prepare(loader_of(name, folder, batch_size=4, num_workers=0))
        if half == 1:
            accelerator.load_state(f"{save}-{name}")
        for batch in islice(iter(loader), STOP_AFTER if half == 0 else None):
            numbers += numbers_of(batch)
        if half == 0:
            accelerator.save_state(f"{save}-{name}")
            accelerator.wait_for_everyone()
    return numbers
