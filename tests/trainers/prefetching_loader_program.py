"""A rank with a ``PrefetchingLoader`` under real trainers: an epoch, an epoch that is stopped, and the rest of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed as dist
from accelerate import Accelerator
from lightning.pytorch.callbacks import ModelCheckpoint

from .data import loader_of, numbers_of
from .launch import attempt

BATCH_SIZE, STOP_AFTER = 4, 4


def main(*, folder: str, checkpoints: str, num_workers: list[int], stop: bool) -> None:
    """Report the numbers of the samples that each trainer saw.

    Args:
        folder: of the dataset.
        checkpoints: folder of the trainers' own checkpoints.
        num_workers: each of them in turn.
        stop: whether to read an epoch, and to write these checkpoints in the middle of another one; else resume.
    """
    dist.init_process_group("gloo")
    trainers: dict[str, Callable[..., list[int]]] = {"Accelerate": _accelerate, "Lightning": _lightning}
    for name, train in trainers.items():
        for workers in num_workers:

            def make(workers: int = workers) -> Any:
                return loader_of("PrefetchingLoader", Path(folder), batch_size=BATCH_SIZE, num_workers=workers)

            where = Path(checkpoints, f"{name}-{workers}")
            if stop:
                attempt(f"{name}, {workers} workers, epoch", lambda: train(make()))  # noqa: B023
                attempt(f"{name}, {workers} workers, stop", lambda: train(make(), stop_in=where))  # noqa: B023
                dist.barrier()
            attempt(f"{name}, {workers} workers, resume", lambda: train(make(), resume_from=where))  # noqa: B023
    dist.destroy_process_group()


def _accelerate(loader: Any, stop_in: Path | None = None, resume_from: Path | None = None) -> list[int]:
    """One epoch by ``Accelerator.prepare``; ``save_state`` and ``load_state`` hold the loader's state."""
    accelerator = Accelerator(cpu=True)
    model, prepared = accelerator.prepare(torch.nn.Linear(4, 1), loader)
    assert prepared is loader  # which is not divided again
    accelerator.register_for_checkpointing(prepared)
    if resume_from is not None:
        accelerator.load_state(str(resume_from))
    numbers: list[int] = []
    for step, batch in enumerate(prepared, 1):
        accelerator.backward(model(batch["x"]).sum())
        numbers += numbers_of(batch)
        if stop_in is not None and step == STOP_AFTER:
            accelerator.save_state(str(stop_in))
            break
    accelerator.wait_for_everyone()
    return numbers


class _Model(lightning.LightningModule):
    """Records the numbers of its samples."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
        self.numbers: list[int] = []

    def training_step(self, batch: Any) -> Any:
        self.numbers += numbers_of(batch)
        return self.linear(batch["x"]).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)


def _lightning(loader: Any, stop_in: Path | None = None, resume_from: Path | None = None) -> list[int]:
    """One epoch by ``Trainer.fit``; its checkpoint holds the loader's state."""
    world_size = dist.get_world_size()
    callbacks: list[Any] = []
    if stop_in is not None:
        callbacks = [ModelCheckpoint(stop_in, filename="last", every_n_train_steps=STOP_AFTER, save_top_k=-1)]
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=world_size,
        strategy="ddp" if world_size > 1 else "auto",
        max_epochs=1,
        max_steps=-1 if stop_in is None else STOP_AFTER,
        callbacks=callbacks,
        enable_checkpointing=stop_in is not None,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = _Model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(model, loader, ckpt_path=None if resume_from is None else str(resume_from / "last.ckpt"))
    return model.numbers
