"""A rank of Accelerate and of the transformers ``Trainer``: an epoch of each loader; stops that are resumed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration, PartialState
from accelerate.data_loader import IterableDatasetShard
from transformers import Trainer, TrainerCallback, TrainingArguments

import torchdata_remote as tdr
from tests.support.launch import attempt, report
from torchdata_remote.loaders.trainers import RemoteTrainerMixin

from .data import NUM_STREAMS, Cells, dataset_of, loader_of, numbers_of, of_sample, pipe_of

__all__ = ["IterableDatasetShard", "PartialState"]  # for tests in one process
STOP_AFTER, WORKERS = 4, 2  # steps; processes of loaders that stop and resume under Accelerate


def main(*, folder: str, cells: Cells, save: str, load: str) -> None:
    """Report an epoch of each loader; save below one folder, and resume from others.

    Args:
        folder: of the dataset.
        cells: loaders and numbers of workers of the epochs.
        save: folder to save to.
        load: folder to resume from; ``""`` for ``save``.
    """
    at = Path(folder)
    for name, workers in cells:
        attempt(f"Accelerate: {name}, {workers} workers", partial(_epoch, name, at, workers))
    attempt("no dispatch", partial(_epoch, "DataLoader(pipe)", at, 0, dispatch_batches=False))
    if not load:
        attempt("saved", partial(_stop, at, f"{save}/accelerate"))
    attempt("resumed", partial(_resume, at, f"{load or save}/accelerate"))
    everything = tdr.stream_shards(f"{folder}/shards/", world=tdr.World())
    attempt("divided otherwise", lambda: _accelerator().prepare(tdr.stateful_loader(everything)))
    if not load:
        attempt("PrefetchingLoader: saved", partial(_prefetching, at, save, ""))
    attempt("PrefetchingLoader: resumed", partial(_prefetching, at, "", load or save))
    Accelerator(cpu=True).wait_for_everyone()
    with_trainer(at, [name for name, workers in cells if not workers], save, load)
    torch.distributed.destroy_process_group()


# Accelerate


def _accelerator(**options: Any) -> Accelerator:
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))


def _epoch(name: str, folder: Path, workers: int, **options: Any) -> list[int]:
    loader = loader_of(name, folder, batch_size=4, num_workers=workers)
    accelerator = _accelerator(**options)
    return _trained(accelerator, *accelerator.prepare(torch.nn.Linear(4, 1), loader))


def _trained(accelerator: Accelerator, model: torch.nn.Module, batches: Any) -> list[int]:
    numbers = []
    for batch in batches:
        accelerator.backward(model(batch["x"]).sum())
        numbers += numbers_of(batch)
    return numbers


def _prepared(folder: Path) -> tuple[Accelerator, torch.nn.Module, Any]:
    accelerator = _accelerator()
    batch_size = NUM_STREAMS // (accelerator.num_processes * WORKERS)  # a sample of each stream
    loader = loader_of("stateful_loader(pipe)", folder, batch_size=batch_size, num_workers=WORKERS)
    model = torch.nn.Linear(4, 1)
    model, _, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters()), loader)
    return accelerator, model, loader


def _stop(folder: Path, save: str) -> list[Any]:
    """An epoch, saved in the middle: what came before, and after; and its length."""
    accelerator, model, loader = _prepared(folder)
    batches = iter(loader)
    before = []
    for batch in islice(batches, STOP_AFTER):
        with accelerator.accumulate(model):  # reads one batch ahead
            accelerator.backward(model(batch["x"]).sum())
        before += numbers_of(batch)
    accelerator.save_state(save)
    accelerator.wait_for_everyone()
    return [before, _trained(accelerator, model, batches), len(loader)]


def _resume(folder: Path, load: str) -> list[list[int]]:
    """The rest of the epoch, and the next one."""
    accelerator, model, loader = _prepared(folder)
    accelerator.load_state(load)
    return [_trained(accelerator, model, loader) for _ in range(2)]


def _prefetching(folder: Path, save: str, load: str) -> list[int]:
    """An epoch of a ``PrefetchingLoader``, up to a stop or from one."""
    accelerator = _accelerator()
    loader = loader_of("PrefetchingLoader", folder, batch_size=4, num_workers=0)
    model, prepared = accelerator.prepare(torch.nn.Linear(4, 1), loader)
    assert prepared is loader  # which is not divided again
    if load:
        accelerator.load_state(f"{load}/prefetching")
    numbers = _trained(accelerator, model, islice(prepared, STOP_AFTER) if save else prepared)
    if save:
        accelerator.save_state(f"{save}/prefetching")
    accelerator.wait_for_everyone()
    return numbers


# The transformers Trainer


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
        return loader_of("PrefetchingLoader", self.folder, batch_size=4, num_workers=0)


def arguments(output: str, workers: int = 0, **options: Any) -> TrainingArguments:
    defaults: dict[str, Any] = {
        "num_train_epochs": 1, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4,
        "save_strategy": "no", "logging_strategy": "no",
    }  # fmt: skip
    return TrainingArguments(
        output_dir=output, use_cpu=True, report_to=[], disable_tqdm=True, dataloader_num_workers=workers,
        **{**defaults, **options},
    )  # fmt: skip


def with_trainer(folder: Path, loaders: list[str], save: str, load: str) -> None:
    """An epoch of each dataset, evaluations, and trainings of two epochs that are stopped and resumed."""
    for name in loaders:
        attempt(f"transformers Trainer: {name}, 0 workers", partial(_epoch_of_trainer, name, folder, save))
    attempt("Trainer: evaluated", partial(_evaluate, folder, save))
    attempt("Trainer: evaluated, unequal", partial(_evaluate_unequal, folder, save))
    if not load:
        attempt("Trainer: whole", partial(_run, folder, f"{save}/whole"))
        attempt("Trainer: saved", partial(_run, folder, f"{save}/trainer", stop_at=STOP_AFTER))
    begin = f"{load or save}/trainer/checkpoint-{STOP_AFTER}"
    attempt("Trainer: resumed", partial(_run, folder, f"{save}/resumed", load=begin))


def _epoch_of_trainer(name: str, folder: Path, output: str) -> list[int]:
    kind = {"stateful_loader(pipe)": ChainTrainer, "PrefetchingLoader": PrefetchingTrainer}.get(name, Trainer)
    of = {"stateful_loader(pipe)": "DataLoader(pipe)", "PrefetchingLoader": "DataLoader(RemoteImageFolder)"}
    model = Model()
    given = {"train_dataset": dataset_of(of.get(name, name), folder), "callbacks": [Epochs(model, None)]}
    trainer = kind(model, arguments(output), **given)
    if isinstance(trainer, PrefetchingTrainer):
        trainer.folder = folder
    trainer.train()
    (epoch,) = model.epochs
    return epoch


def _evaluate(folder: Path, output: str) -> dict[str, Any]:
    """Which samples each of two evaluations had, in all processes together."""
    found: list[list[int]] = []

    def metrics(prediction: Any) -> dict[str, float]:
        found.append(sorted(prediction.label_ids.tolist()))
        return {"distinct": float(len(set(found[-1])))}

    options = arguments(output, label_names=["number"])
    trainer = ChainTrainer(Model(), options, eval_dataset=pipe_of(folder), compute_metrics=metrics)
    examples = trainer.num_examples(trainer.get_eval_dataloader())  # of which it reports speeds
    return {"metrics": [trainer.evaluate()["eval_distinct"] for _ in range(2)], "numbers": found, "examples": examples}


def _evaluate_unequal(folder: Path, output: str) -> dict[str, float]:
    pipe = tdr.stream_shards(f"{folder}/shards/").map(of_sample)  # without equalize_ranks
    metrics: dict[str, float] = ChainTrainer(Model(), arguments(output), eval_dataset=pipe).evaluate()
    return metrics


def _run(folder: Path, output: str, *, stop_at: int | None = None, load: str | None = None) -> list[list[int]]:
    """Two epochs, or up to a stop: the samples of each."""
    ranks = torch.distributed.get_world_size()
    size = NUM_STREAMS // ranks  # a sample of each stream
    options = arguments(output, num_train_epochs=2, per_device_train_batch_size=size)
    model = Model()
    trainer = ChainTrainer(model, options, train_dataset=pipe_of(folder), callbacks=[Epochs(model, stop_at)])
    trainer.train(resume_from_checkpoint=load)
    report(f"steps of {Path(output).name}", [trainer.state.global_step, trainer.state.max_steps])
    return model.epochs


# For tests in one process


class At(TrainerCallback):  # type: ignore[misc]  # no types are read of it
    """Calls a function at each event of a name."""

    def __init__(self, event: str, function: Callable[[Any, Any], None]) -> None:
        setattr(self, event, lambda args, state, control, **_: function(state, control))


class Threads(ChainTrainer):
    """Its batches are made by threads."""

    num_threads = 2
