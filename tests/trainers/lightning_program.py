"""A rank of Lightning: an epoch of each loader, and checkpoints that are saved and resumed."""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

import torchdata_remote as tdr
from torchdata_remote.core.iter_datapipe import IterableWrapper, IterDataPipe

from .data import NUM_STREAMS, Cells, loader_of, numbers_of, of_sample, pipe_of
from .launch import attempt

STOP_AFTER = 5  # batches
BATCH_SIZE = 4


def pipe_without_length(folder: Path) -> IterDataPipe[Any]:
    """A chain without a length: Lightning prefetches one batch to detect the last one."""
    urls = IterableWrapper([f"{folder}/shards/index.json"]).list_remote().shuffle_shards(seed=0).sharding_filter_rank()
    chain: IterDataPipe[Any] = urls.shard_tar_reader().shuffle_samples(buffer_size=7, seed=0).map(of_sample)
    return chain


def stateful(pipe: IterDataPipe[Any], num_workers: int = 0, batch_size: int = BATCH_SIZE) -> tdr.StatefulLoader:
    """A loader that Lightning can resume."""
    return tdr.stateful_loader(pipe, batch_size=batch_size, num_workers=num_workers, num_streams=NUM_STREAMS)


def train_loader(case: str, folder: Path) -> Any:
    """The loaders of a case."""
    if case == "stateless":
        return loader_of("DataLoader(pipe)", folder, batch_size=BATCH_SIZE, num_workers=0)
    if case == "two loaders":
        # Batches of 16 are fewer: that loader begins its next pass within Lightning's epoch
        return {"long": stateful(pipe_of(folder)), "short": stateful(pipe_without_length(folder), batch_size=16)}
    pipe = pipe_without_length(folder) if "no length" in case else pipe_of(folder)
    if "threads" in case:
        return tdr.thread_loader(pipe, batch_size=BATCH_SIZE, num_streams=NUM_STREAMS)
    return stateful(pipe, num_workers=2 if "workers" in case else 0, batch_size=1 if case == UNEVEN else BATCH_SIZE)


def options(case: str) -> dict[str, Any]:
    """The options of the trainer of a case."""
    more: dict[str, Any] = {"limit_val_batches": 0}
    if "validation" in case:
        more = {"val_check_interval": STOP_AFTER, "num_sanity_val_steps": 2}
    if "accumulated" in case:
        more["accumulate_grad_batches"] = 2
    if "limited" in case:
        more["limit_train_batches"] = 2 * STOP_AFTER
    if "reloaded" in case:
        more["reload_dataloaders_every_n_epochs"] = 1
    return more


UNEVEN = "single samples"
"""Three ranks have different numbers of batches left of what two have saved."""

STATELESS = (("DataLoader(pipe)", 0), ("DataLoader(Resumable)", 2))
"""Loaders whose position is in no checkpoint, with their numbers of workers."""

CASES = (
    "length",
    "no length",
    "length, workers",
    "no length, workers",
    "two loaders",
    "length, validation",
    "no length, validation",
    "no length, accumulated, threads",
    "no length, limited",
    "length, reloaded, threads",
)
"""Checkpoints in mid-epoch, by ``ModelCheckpoint(every_n_train_steps=...)``."""


def main(*, folder: str, package: str, cells: Cells, cases: list[str], save: str, resume: str) -> None:
    """Report what each loader delivers, and what is trained on before and after a checkpoint.

    Args:
        folder: of the dataset.
        package: ``"lightning.pytorch"`` or ``"pytorch_lightning"``.
        cells: loaders and numbers of workers of the epochs.
        cases: of ``CASES``.
        save: folder to which checkpoints of this world are saved; ``""`` for none.
        resume: folder of those that are resumed; ``""`` for none.
    """
    warnings.filterwarnings("ignore", category=UserWarning)
    logging.getLogger(package).setLevel(logging.ERROR)
    lightning = importlib.import_module(package)
    model_type = model_of(lightning)
    os.environ.setdefault("TORCHELASTIC_RUN_ID", "test")  # by which Lightning knows torchrun

    def trainer(**given: Any) -> Any:
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        return lightning.Trainer(
            accelerator="cpu",
            devices=int(os.environ["LOCAL_WORLD_SIZE"]),
            strategy="ddp",
            **{"enable_checkpointing": False, **quiet, **given},
        )

    def epoch(name: str, workers: int) -> list[int]:
        model = model_type()
        loader = loader_of(name, Path(folder), batch_size=BATCH_SIZE, num_workers=workers)
        trainer(max_epochs=1, limit_val_batches=0).fit(model, loader)
        return list(chain.from_iterable(model.seen[0]))

    def fit(case: str, ckpt_path: str | None = None, **given: Any) -> Any:
        model = model_type()
        val = stateful(pipe_of(Path(folder))) if "validation" in case else None
        trainer(max_epochs=2, **options(case), **given).fit(
            model, train_loader(case, Path(folder)), val, ckpt_path=ckpt_path
        )
        return {"train": model.seen, "validated": model.validated, "global_step": model.steps}

    def save_mid_epoch(case: str) -> Any:
        checkpoint = lightning.callbacks.ModelCheckpoint(
            dirpath=f"{save}/{case}", filename="{step}", every_n_train_steps=STOP_AFTER, save_top_k=-1
        )
        return fit(case, callbacks=[checkpoint], enable_checkpointing=True)

    def resume_without_state(name: str, workers: int, case: str) -> list[str]:
        loader = loader_of(name, Path(folder), batch_size=BATCH_SIZE, num_workers=workers)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            path = f"{resume}/{case}/step={STOP_AFTER}.ckpt"
            trainer(max_epochs=1, limit_val_batches=0).fit(model_type(), loader, ckpt_path=path)
        return [str(warning.message) for warning in caught if warning.category is RuntimeWarning]

    def report_warnings() -> None:
        for name, workers in STATELESS:
            attempt(f"stateless: {name}, {workers} workers", partial(resume_without_state, name, workers, "stateless"))

    for name, workers in cells:
        attempt(f"{name}, {workers} workers", partial(epoch, name, workers))
    for case in cases:
        if save:
            attempt(f"whole: {case}", partial(save_mid_epoch, case))
        if resume and case != "stateless":
            step = 10 if "limited" in case else STOP_AFTER
            path = f"{resume}/{case}/step={step}.ckpt"
            attempt(f"resumed: {case}", partial(fit, case, path))
    if resume and "stateless" in cases:
        report_warnings()
    torch.distributed.destroy_process_group()


def model_of(lightning: Any) -> Any:
    """The model, of one of Lightning's packages."""

    class Model(lightning.LightningModule):  # type: ignore[misc]
        """Records its samples: epoch -> batches."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)
            self.seen: dict[int, list[Any]] = {}
            self.validated: list[int] = []
            self.steps: list[int] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            parts = [batch] if "x" in batch else [part for part in batch.values() if part is not None]
            numbers = [number for part in parts for number in numbers_of(part)]
            self.seen.setdefault(self.trainer.current_epoch, []).append(numbers)
            self.steps.append(self.trainer.global_step)
            return sum(self.linear(part["x"]).sum() for part in parts)

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if not self.trainer.sanity_checking:
                self.validated += numbers_of(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    return Model
