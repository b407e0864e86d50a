"""A rank of Lightning and of Fabric: an epoch of each loader, and checkpoints that are saved and resumed."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric import Fabric

import torchdata_remote as tdr
from tests.support.launch import attempt, report
from torchdata_remote.loaders.trainers import LightningResume

from .data import NUM_STREAMS, Cells, loader_of, numbers_of, of_sample, pipe_of
from .lightning_cases import AT_END, BATCH_SIZE, CASES, IN_THREE, NUM_BATCHES, STOP_AFTER, UNEVEN, stop_of

QUIET = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)


def main(*, folder: str, cells: Cells, save: str, resume: str) -> None:
    """Report what each loader delivers, and what is trained on before and after a checkpoint.

    Args:
        folder: of the dataset.
        cells: loaders and numbers of workers of the epochs.
        save: folder to which checkpoints of this world are saved; ``""`` for none.
        resume: folder of those that are resumed.
    """
    warnings.filterwarnings("ignore", category=UserWarning)
    for package in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(package).setLevel(logging.ERROR)
    os.environ.setdefault("TORCHELASTIC_RUN_ID", "test")  # by which Lightning knows torchrun
    at, ranks = Path(folder), int(os.environ["LOCAL_WORLD_SIZE"])
    for name, workers in cells:
        attempt(f"Lightning: {name}, {workers} workers", partial(epoch, name, at, workers))
    for case in (*CASES, UNEVEN):
        if save:
            attempt(f"whole: {case}", partial(save_and_go_on, case, at, save))
        if case in (*IN_THREE, UNEVEN) or save:
            attempt(f"resumed: {case}", partial(fit, case, at, f"{resume}/{case}/step={stop_of(case)}.ckpt"))
    attempt("two loaders", partial(warnings_of_two_loaders, at))
    attempt("no callback", partial(warnings_without_callback, at))
    if save:
        attempt("no position", partial(warnings_without_position, at, save))
    with_fabric(Fabric(accelerator="cpu", devices=ranks, strategy="ddp"), at, cells, save, resume)
    torch.distributed.destroy_process_group()


class Model(pl.LightningModule):
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


def trainer(**given: Any) -> Any:
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    callbacks = [LightningResume(), *given.pop("callbacks", [])]
    options: dict[str, Any] = {"enable_checkpointing": False, "callbacks": callbacks, **QUIET, **given}
    return pl.Trainer(accelerator="cpu", devices=devices, strategy="ddp", **options)


def stateful(folder: Path, kind: str, batch_size: int = BATCH_SIZE, num_workers: int = 0) -> Any:
    """A loader that Lightning can resume. If it has no length, Lightning prefetches a batch to detect the last one."""
    if kind in ("PrefetchingLoader", "DataLoader(pipe)"):
        return loader_of(kind, folder, batch_size=batch_size, num_workers=0)
    pipe: Any = pipe_of(folder)
    if "no length" in kind:
        urls = tdr.IterableWrapper([f"{folder}/shards/index.json"]).list_remote().shuffle_shards(seed=0)
        pipe = urls.sharding_filter_rank().shard_tar_reader().shuffle_samples(buffer_size=7, seed=0).map(of_sample)
    if "threads" in kind:
        return tdr.thread_loader(pipe, batch_size=batch_size, num_streams=NUM_STREAMS)
    workers: dict[str, Any] = {"num_workers": num_workers, "multiprocessing_context": "fork"}
    return tdr.stateful_loader(pipe, batch_size=batch_size, num_streams=NUM_STREAMS, **workers)


def options_of(case: str) -> dict[str, Any]:
    """The options of the trainer of a case."""
    if "validation" in case:
        return {"val_check_interval": STOP_AFTER, "num_sanity_val_steps": 2}
    return {"limit_val_batches": 0, **({"max_steps": 3 * NUM_BATCHES, "max_epochs": 3} if "max_steps" in case else {})}


def epoch(name: str, folder: Path, workers: int) -> list[Any]:
    model, loader = Model(), loader_of(name, folder, batch_size=BATCH_SIZE, num_workers=workers)
    trainer(max_epochs=1, limit_val_batches=0).fit(model, loader)
    return model.seen[0]


def fit(case: str, folder: Path, ckpt_path: str | None = None, **given: Any) -> Any:
    model = Model()
    if case == UNEVEN and ckpt_path is None:
        given["max_steps"] = STOP_AFTER
    loader = stateful(folder, case, 1 if case == UNEVEN else BATCH_SIZE, 2 if "workers" in case else 0)
    val = stateful(folder, "length") if "validation" in case else None
    trainer(**{"max_epochs": 2, **options_of(case), **given}).fit(model, loader, val, ckpt_path=ckpt_path)
    return {"train": model.seen, "validated": model.validated, "global_step": model.steps}


def save_and_go_on(case: str, folder: Path, save: str) -> Any:
    when: dict[str, Any] = {"every_n_epochs": 1} if AT_END in case else {"every_n_train_steps": STOP_AFTER}
    checkpoint = pl.callbacks.ModelCheckpoint(dirpath=f"{save}/{case}", filename="{step}", save_top_k=-1, **when)
    return fit(case, folder, callbacks=[checkpoint], enable_checkpointing=True)


def warnings_without_callback(folder: Path) -> list[str]:
    """One step, and its checkpoint."""
    with tempfile.TemporaryDirectory() as save, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        options: dict[str, Any] = {"max_steps": 1, "default_root_dir": save, **QUIET}
        plain = pl.Trainer(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), **options)
        plain.fit(Model(), stateful(folder, "no length"))
    return [str(warning.message) for warning in caught if warning.category is RuntimeWarning]


def warnings_without_position(folder: Path, save: str) -> list[str]:
    """A checkpoint that was saved with a loader without a state."""
    save_and_go_on("DataLoader(pipe)", folder, save)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit("length", folder, f"{save}/DataLoader(pipe)/step={STOP_AFTER}.ckpt")
    return [str(warning.message) for warning in caught if warning.category is RuntimeWarning]


def warnings_of_two_loaders(folder: Path) -> list[str]:
    """Batches of 16 are fewer: that loader begins its next pass within Lightning's epoch."""
    loaders = {"long": stateful(folder, "length"), "short": stateful(folder, "no length", 16)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(max_epochs=1, limit_val_batches=0).fit(Model(), loaders)
    return [str(warning.message) for warning in caught if warning.category is RuntimeWarning]


def with_fabric(fabric: Any, folder: Path, cells: Cells, save: str, resume: str) -> None:
    fabric.launch()

    def prepared(name: str, workers: int) -> tuple[Any, Any]:
        options: dict[str, Any] = {"state_of_all_ranks": True} if name == "stateful_loader(pipe)" else {}
        loader = loader_of(name, folder, batch_size=BATCH_SIZE, num_workers=workers, **options)
        loader = fabric.setup_dataloaders(loader)
        return fabric.setup(torch.nn.Linear(4, 1)), loader

    def train(model: Any, batch: Any) -> list[int]:
        fabric.backward(model(batch["x"]).sum())
        return numbers_of(batch)

    def epoch(name: str, workers: int) -> list[list[int]]:
        model, loader = prepared(name, workers)
        batches = [train(model, batch) for batch in loader]
        assert len(batches) == len(loader), (len(batches), len(loader))
        return batches

    def save_mid_epoch() -> list[list[int]]:
        model, loader = prepared("stateful_loader(pipe)", 2)
        numbers = []
        for step, batch in enumerate(loader, 1):
            numbers.append(train(model, batch))
            if step == STOP_AFTER:
                fabric.save(f"{save}/fabric.ckpt", {"model": model, "loader": loader})
        return numbers + [train(model, batch) for batch in loader]

    def load() -> list[list[int]]:
        model, loader = prepared("stateful_loader(pipe)", 2)
        fabric.load(f"{resume}/fabric.ckpt", {"model": model, "loader": loader})
        rest = [train(model, batch) for batch in loader]
        report("Fabric: left", len(rest))
        return rest + [train(model, batch) for batch in loader]

    for name, workers in cells:
        attempt(f"Fabric: {name}, {workers} workers", partial(epoch, name, workers))
    if save:
        attempt("Fabric: whole", save_mid_epoch)
    attempt("Fabric: resumed", load)
