"""A rank of Fabric: an epoch of each loader, and checkpoints that are saved and resumed."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .data import Cells, loader_of, numbers_of
from .launch import attempt, report

STOP_AFTER = 5  # batches
BATCH_SIZE = 4


def main(*, folder: str, cells: Cells, save: str, resume: str, num_workers: list[int]) -> None:
    """Report what each loader delivers, and what is trained on before and after a checkpoint.

    Args:
        folder: of the dataset.
        cells: loaders and numbers of workers of the epochs.
        save: folder to which checkpoints of this world are saved; ``""`` for none.
        resume: folder of those that are resumed; ``""`` for none.
        num_workers: of the loaders that are saved and resumed.
    """
    from lightning.fabric import Fabric  # here, since workers import this module

    os.environ["TORCHELASTIC_RUN_ID"] = "test"  # by which Fabric knows torchrun
    fabric = Fabric(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp")
    fabric.launch()

    def prepared(name: str, workers: int) -> tuple[Any, Any]:
        loader = fabric.setup_dataloaders(loader_of(name, Path(folder), batch_size=BATCH_SIZE, num_workers=workers))
        return fabric.setup(torch.nn.Linear(4, 1)), loader

    def train(model: Any, batch: Any) -> list[int]:
        fabric.backward(model(batch["x"]).sum())
        return numbers_of(batch)

    def epoch(name: str, workers: int) -> list[int]:
        model, loader = prepared(name, workers)
        batches = [train(model, batch) for batch in loader]
        assert len(batches) == len(loader), (len(batches), len(loader))
        return [number for batch in batches for number in batch]

    def save_mid_epoch(workers: int) -> list[list[int]]:
        model, loader = prepared("stateful_loader(pipe)", workers)
        numbers = []
        for step, batch in enumerate(loader, 1):
            numbers.append(train(model, batch))
            if step == STOP_AFTER:
                fabric.save(f"{save}/{workers}.ckpt", {"model": model, "loader": loader})
        return numbers + [train(model, batch) for batch in loader]

    def load(workers: int) -> list[list[int]]:
        model, loader = prepared("stateful_loader(pipe)", workers)
        fabric.load(f"{resume}/{workers}.ckpt", {"model": model, "loader": loader})
        rest = [train(model, batch) for batch in loader]
        report(f"left, {workers} workers", len(rest))
        return rest + [train(model, batch) for batch in loader]

    for name, workers in cells:
        attempt(f"{name}, {workers} workers", partial(epoch, name, workers))
    for workers in num_workers:
        if save:
            attempt(f"whole, {workers} workers", partial(save_mid_epoch, workers))
        if resume:
            attempt(f"resumed, {workers} workers", partial(load, workers))
    torch.distributed.destroy_process_group()
