"""A rank of the transformers ``Trainer``: an epoch of each dataset; stop in mid-epoch, resume from ``checkpoint-N``."""

from __future__ import annotations

import collections
import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DistributedSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

import torchdata_remote as tdr
from torchdata_remote.loaders.trainers import RemoteTrainerMixin

from .data import NUM_SAMPLES, NUM_STREAMS, Cells, dataset_of, loader_of, of_sample, pipe_of
from .launch import attempt, report

STOP_AFTER = 4  # steps


class Model(torch.nn.Module):
    """Records the samples that it is trained on: a list for each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.epochs: list[list[int]] = []

    def forward(self, x: torch.Tensor, number: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.epochs[-1] += number.tolist()
        logits = self.layer(x)
        return {"loss": logits.mean(), "logits": logits}


class Epochs(TrainerCallback):  # type: ignore[misc]  # no types are read of it
    """Starts a list for each epoch, and stops after some steps with a checkpoint."""

    def __init__(self, model: Model, stop_at: int | None) -> None:
        self._model, self._stop_at = model, stop_at

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._model.epochs.append([])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self._stop_at:
            control.should_save = control.should_training_stop = True


class ChainTrainer(RemoteTrainerMixin, Trainer):  # type: ignore[misc]  # no types are read of it
    """The class that users define."""

    num_streams = NUM_STREAMS


class PrefetchingTrainer(Trainer):  # type: ignore[misc]  # no types are read of it
    """One with a loader of its own, which Accelerate does not see."""

    folder: Path

    def get_train_dataloader(self) -> Any:
        sampler: Any = DistributedSampler(range(NUM_SAMPLES), seed=0)  # type: ignore[arg-type]
        workers = self.args.dataloader_num_workers
        return loader_of("PrefetchingLoader", self.folder, batch_size=4, num_workers=workers, sampler=sampler)


def main(
    *,
    folder: str,
    cells: Cells,
    num_workers: list[int],
    output: str,
    save: str | None = None,
    load: list[str] | None = None,
) -> None:
    """Report an epoch of each dataset; save to one folder, and resume from others.

    Args:
        folder: of the images.
        cells: datasets and numbers of workers of the epochs.
        num_workers: of the trainings that are evaluated, saved and resumed.
        output: folder of the trainer's files.
        save: prefix of the folders to save to.
        load: prefixes of the folders to resume from.
    """
    # Workers import what the frameworks pass to them: the server from which they are forked does it once.
    multiprocessing.set_forkserver_preload(["tests.trainers.data", "transformers.data.data_collator"])
    data = Path(folder)
    for name, workers in cells:
        attempt(f"{name}, {workers} workers", partial(_epoch, name, data, workers, output))
    attempt("no dispatch", partial(_no_dispatch, data, output))
    for workers in num_workers:
        attempt(f"evaluated, {workers} workers", partial(_evaluate, data, workers, output))
    attempt("evaluated, unequal", partial(_evaluate_unequal, data, output))
    for workers in num_workers:
        if save is not None:
            run = partial(_run, data, workers, f"{save}-{workers}")
            attempt(f"whole, {workers} workers", partial(_run, data, workers, f"{output}/whole-{workers}"))
            attempt(f"saved, {workers} workers", partial(run, stop_at=STOP_AFTER))
            attempt(f"resumed here, {workers} workers", partial(run, load=f"{save}-{workers}/checkpoint-{STOP_AFTER}"))
        for place in load or []:
            source = _saved(place, workers)
            run = partial(_run, data, workers, f"{output}/resumed-{workers}", load=str(source))
            attempt(f"resumed {Path(place).name}, {workers} workers", run)
    if save is not None and load:
        source = _saved(load[0], 0)
        attempt("resumed, steps", partial(_run, data, 0, f"{output}/steps", load=str(source), max_steps=12))
        attempt("saved again", partial(_run, data, 0, f"{save}-again-0", load=str(source), stop_at=STOP_AFTER + 2))
        if 0 in num_workers:
            attempt(
                "saved again, 2", partial(_run, data, 2, f"{save}-again-2", load=str(source), stop_at=STOP_AFTER + 2)
            )
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _saved(place: str, workers: int) -> Path:
    """A checkpoint of as many workers, or else of another number of them."""
    folders = [Path(f"{place}-{number}") for number in (workers, 0, 2)]
    return next(checkpoint for folder in folders for checkpoint in sorted(folder.glob("checkpoint-*")))


def _arguments(output: str, workers: int, **options: Any) -> TrainingArguments:
    defaults: dict[str, Any] = {
        "num_train_epochs": 1, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4,
        "save_strategy": "no", "logging_strategy": "no",
    }  # fmt: skip
    return TrainingArguments(
        output_dir=output, use_cpu=True, report_to=[], disable_tqdm=True, dataloader_num_workers=workers,
        **{**defaults, **options},
    )  # fmt: skip


def _epoch(name: str, folder: Path, workers: int, output: str) -> list[int]:
    kind = {"stateful_loader(pipe)": ChainTrainer, "PrefetchingLoader": PrefetchingTrainer}.get(name, Trainer)
    of = {"stateful_loader(pipe)": "DataLoader(pipe)", "PrefetchingLoader": "DataLoader(RemoteImageFolder)"}
    model = Model()
    trainer = kind(
        model, _arguments(output, workers), train_dataset=dataset_of(of.get(name, name), folder),
        callbacks=[Epochs(model, None)],
    )  # fmt: skip
    if isinstance(trainer, PrefetchingTrainer):
        trainer.folder = folder
    trainer.train()
    (epoch,) = model.epochs
    return epoch


def _no_dispatch(folder: Path, output: str) -> list[int]:
    """The other way in which Accelerate splits."""
    arguments = _arguments(output, 2, accelerator_config={"dispatch_batches": False})
    model = Model()
    Trainer(model, arguments, train_dataset=pipe_of(folder), callbacks=[Epochs(model, None)]).train()
    return model.epochs[0]


def _evaluate(folder: Path, workers: int, output: str) -> dict[str, Any]:
    """Which samples each of two evaluations had, in all processes together."""
    found: list[list[int]] = []

    def metrics(prediction: Any) -> dict[str, float]:
        found.append(sorted(prediction.label_ids.tolist()))
        return {"distinct": float(len(set(found[-1])))}

    arguments = _arguments(output, workers, label_names=["number"])
    trainer = ChainTrainer(Model(), arguments, eval_dataset=pipe_of(folder), compute_metrics=metrics)
    examples = trainer.num_examples(trainer.get_eval_dataloader())  # of which it reports speeds
    return {"metrics": [trainer.evaluate()["eval_distinct"] for _ in range(2)], "numbers": found, "examples": examples}


def _evaluate_unequal(folder: Path, output: str) -> dict[str, float]:
    pipe = tdr.stream_shards(f"{folder}/shards/").map(of_sample)  # without equalize_ranks
    metrics: dict[str, float] = ChainTrainer(Model(), _arguments(output, 0), eval_dataset=pipe).evaluate()
    return metrics


def _run(
    folder: Path, workers: int, output: str, *,
    stop_at: int | None = None, load: str | None = None, max_steps: int = -1,
) -> list[list[int]]:  # fmt: skip
    """Two epochs, or up to a stop: the samples of each."""
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    arguments = _arguments(
        output, workers, num_train_epochs=2, max_steps=max_steps,
        per_device_train_batch_size=NUM_STREAMS // (ranks * max(1, workers)),  # a sample of each stream
    )  # fmt: skip
    model = Model()
    trainer = ChainTrainer(model, arguments, train_dataset=pipe_of(folder), callbacks=[Epochs(model, stop_at)])
    trainer.train(resume_from_checkpoint=load)
    report(f"steps of {output.rpartition('/')[2]}", [trainer.state.global_step, trainer.state.max_steps])
    return model.epochs


def counts(epochs: list[list[int]]) -> collections.Counter[int]:
    """How often each sample was seen."""
    return collections.Counter(number for epoch in epochs for number in epoch)
