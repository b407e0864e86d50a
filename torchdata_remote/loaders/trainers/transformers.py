"""Train the transformers ``Trainer`` from a chain of pipes, exactly once over all processes."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...core.iter_datapipe import IterDataPipe
from ...errors import StateError
from ..fronts import stateful_loader, thread_loader
from ..loader import StatefulLoader
from ..resumable import Resumable, twin_of
from .loader_record import Record, read_record, write_record
from .trainer_batches import EvalBatches, TrainerBatches, require_equal_shares


class RemoteTrainerMixin:
    """Let a transformers ``Trainer`` read chains: ``class MyTrainer(RemoteTrainerMixin, Trainer)``.

    ``train_dataset``, ``eval_dataset`` and the dataset of ``predict`` may then be a chain with
    ``sharding_filter_rank``, or a :class:`Resumable`; ``Trainer`` handles other datasets. Batch size, workers, collator
    and ``drop_last`` are those of ``TrainingArguments``. Each ``checkpoint-N`` folder contains the position of all
    processes' loaders (``torchdata_remote.json``), and ``train(resume_from_checkpoint=True)`` continues there: no batch
    is read again, also with another number of processes or workers.

    With ``num_train_epochs`` the chain needs a length (``equalize_ranks``); with ``max_steps`` it does not.
    ``evaluate`` and ``predict`` with several processes need ``equalize_ranks``, since ``Trainer`` gathers batches of
    equal size.

    After a change of the number of processes, workers or the batch size within an epoch, ``Trainer`` counts optimizer
    steps only, and the loader counts ``state.epoch``. Without ``equalize_ranks``, ``state.epoch`` is the number of
    passes plus the finished part of ``max_steps``, as ``Trainer`` computes it. With ``gradient_accumulation_steps``,
    batches at the end of an epoch that do not fill a step are added to the next one.

    Workers of an evaluation end with it, unless ``dataloader_persistent_workers`` is set.

    Attributes:
        num_streams: of the chains, as for :class:`Resumable`; ``None`` takes one for each worker of each process. Set
            a number that is divisible by the numbers of workers with which you will resume.
        num_threads: for :func:`thread_loader`, which then makes the batches in place of workers; ``None`` for
            :func:`stateful_loader` with ``dataloader_num_workers``.

    Raises:
        StateError: when training is resumed from a checkpoint without the loader's state; and when processes would
            have different numbers of batches.
        EmptyShareError: when an epoch has fewer samples than one batch, and ``drop_last`` is set.
        TypeError: when a class has the mixin after ``Trainer``.
    """

    num_streams: int | None = None
    num_threads: int | None = None

    args: Any  # of Trainer
    accelerator: Any
    callback_handler: Any
    state: Any

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        trainer = next((kind for kind in cls.__mro__ if kind.__module__ == "transformers.trainer"), None)
        if trainer is not None and cls.__mro__.index(trainer) < cls.__mro__.index(RemoteTrainerMixin):
            raise TypeError(
                f"{cls.__name__}: RemoteTrainerMixin must stand before Trainer, which would override it: "
                f"class {cls.__name__}(RemoteTrainerMixin, {cls.__bases__[0].__name__})"
            )
        if trainer is not None and not hasattr(trainer, "_save_rng_state"):
            raise TypeError(
                f"{cls.__name__}: Trainer of this release of transformers has no _save_rng_state, by which "
                "RemoteTrainerMixin stores where the loader is. Install transformers 4.57 to 5.23."
            )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._record: Record | None = None  # of the checkpoint from which training is resumed
        self._num_steps_saved = 0  # when it was saved
        self._batches: TrainerBatches | None = None
        self._kept: dict[str, EvalBatches] = {}  # with persistent workers
        self._resumes = False
        self._max_steps: int = self.args.max_steps  # as the user has set it
        self._recorded_at = -1  # step of the checkpoint saved last
        self.add_callback(_callback(self))  # type: ignore[attr-defined]  # Trainer's

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any) -> Any:
        """As ``Trainer.train``."""
        self._max_steps, self._batches, self._resumes = self.args.max_steps, None, bool(resume_from_checkpoint)
        if _is_chain(getattr(self, "train_dataset", None)):
            self._read_record(resume_from_checkpoint)
        try:
            return super().train(resume_from_checkpoint, *args, **options)  # type: ignore[misc]  # Trainer's
        finally:
            self.args.max_steps, self._record, self._num_steps_saved = self._max_steps, None, 0

    def _read_record(self, checkpoint: str | bool | None) -> None:
        if checkpoint is True:
            checkpoint = importlib.import_module("transformers.trainer_utils").get_last_checkpoint(self.args.output_dir)
        if checkpoint:
            self._record, self._num_steps_saved = read_record(Path(str(checkpoint)))

    def _save_rng_state(self, output_dir: str) -> None:
        """As ``Trainer._save_rng_state``: each process calls it, before older checkpoints are deleted."""
        super()._save_rng_state(output_dir)  # type: ignore[misc]  # Trainer's
        batches = self._training()
        if batches is None:
            return
        record = batches.record()  # collective
        if self.args.should_save:
            write_record(Path(output_dir), record)
        self._recorded_at = self.state.global_step

    def _training(self) -> TrainerBatches | None:
        """The batches of the training, also if callbacks have called ``get_train_dataloader`` since."""
        batches = getattr(self.callback_handler, "train_dataloader", None)
        return batches if isinstance(batches, TrainerBatches) else self._batches  # wrapped by a user's own method

    def get_train_dataloader(self) -> Any:
        """As ``Trainer.get_train_dataloader``."""
        dataset = getattr(self, "train_dataset", None)
        if not _is_chain(dataset):
            return super().get_train_dataloader()  # type: ignore[misc]  # Trainer's
        own = _own_dataset(dataset, self.num_streams)
        if isinstance(dataset, Resumable) and dataset.loaded is not None:
            own.load_state_dict(dataset.loaded)
        loader = self._loader(own, self._train_batch_size, "training")  # type: ignore[attr-defined]  # Trainer's
        accumulation = self.args.gradient_accumulation_steps
        self._batches = batches = TrainerBatches(
            loader,
            accumulation=accumulation,
            num_steps=lambda: self.state.global_step,
            record=self._record,
            num_steps_saved=self._num_steps_saved,
        )
        if self._max_steps <= 0:  # also where Trainer tries a smaller batch
            max_steps = batches.max_steps(self.args.num_train_epochs)
            self.args.max_steps = self._max_steps if max_steps is None else max_steps
        return batches

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """As ``Trainer.get_eval_dataloader``."""
        dataset = getattr(self, "eval_dataset", None) if eval_dataset is None else eval_dataset
        key = dataset if isinstance(dataset, str) else ""
        if isinstance(dataset, str):
            dataset = self.eval_dataset[dataset]  # type: ignore[attr-defined]  # Trainer's
        if not _is_chain(dataset):
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]  # Trainer's
        return self._eval_batches(dataset, "evaluation", key)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """As ``Trainer.get_test_dataloader``."""
        if not _is_chain(test_dataset):
            return super().get_test_dataloader(test_dataset)  # type: ignore[misc]  # Trainer's
        return self._eval_batches(test_dataset, "test")

    def _eval_batches(self, dataset: Any, description: str, key: str = "") -> EvalBatches:
        keep_workers, key = self.args.dataloader_persistent_workers, f"{description} {key}"
        batches = self._kept.pop(key, None)
        if batches is not None and batches.argument is not dataset:
            batches.end_workers()
            batches = None
        if batches is None:
            loader = self._loader(_own_dataset(dataset, self.num_streams), self.args.eval_batch_size, description)
            self.accelerator._dataloaders.remove(loader)  # which would grow with each evaluation
            batches = EvalBatches(loader, dataset, keep_workers=keep_workers)
        if keep_workers:
            self._kept[key] = batches
        batches.loader.set_epoch(0)  # the epoch of the compared shares
        require_equal_shares(batches.loader, description)
        return batches

    def _loader(self, dataset: Resumable, batch_size: int, description: str) -> StatefulLoader:
        of_columns = getattr(self, "_get_collator_with_removed_columns", lambda collator, **_: collator)
        collate_fn = of_columns(self.data_collator, description=description)  # type: ignore[attr-defined]
        loader = loader_of(
            dataset, self.args, batch_size=batch_size, collate_fn=collate_fn, num_threads=self.num_threads
        )
        prepared: StatefulLoader = self.accelerator.prepare(loader)
        return prepared


def _is_chain(dataset: Any) -> bool:
    return isinstance(dataset, (IterDataPipe, Resumable))


def _own_dataset(dataset: Any, num_streams: int | None) -> Resumable:
    """Make a ``Resumable`` for one loader: loaders that share one would change each other's position."""
    if not isinstance(dataset, Resumable):
        return Resumable(dataset, num_streams=num_streams)
    return twin_of(dataset)


def _callback(trainer: RemoteTrainerMixin) -> Any:
    """Make the callback of a trainer; its base class is imported on first use."""
    transformers = importlib.import_module("transformers")

    class LoaderCallback(transformers.TrainerCallback):  # type: ignore[misc, name-defined]  # is loaded by name
        def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
            if isinstance(train_dataloader, StatefulLoader):
                _refuse_to_resume(args, resumes=trainer._resumes)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            batches = trainer._training()
            if batches is not None and batches.epoch is not None:
                state.epoch = batches.epoch

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            is_recorded = args.save_only_model or trainer._recorded_at == state.global_step
            if trainer._training() is not None and not is_recorded:
                warnings.warn(
                    f"checkpoint-{state.global_step} does not contain the loader's position, and training cannot be "
                    "resumed from it: the trainer's own _save_checkpoint has to call self._save_rng_state(folder).",
                    RuntimeWarning,
                    stacklevel=2,
                )

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            batches = trainer._training()
            if batches is not None and batches.has_ended:
                control.should_training_stop = True

    return LoaderCallback()


def _refuse_to_resume(args: Any, *, resumes: bool) -> None:
    """Refuse to resume, or warn before saving, if ``Trainer`` would read the epoch's first batches again.

    Raises:
        StateError: if training is resumed.
    """
    message = (
        "transformers Trainer: get_train_dataloader returns a stateful_loader, whose position Trainer does not store "
        "in its checkpoints. Do not override that method of RemoteTrainerMixin, and pass train_dataset=pipe."
    )
    if resumes:
        raise StateError(message)
    if args.save_strategy != "no":
        warnings.warn(f"{message} These checkpoints cannot be resumed.", RuntimeWarning, stacklevel=2)


def loader_of(
    dataset: Resumable, args: Any, *, batch_size: int, collate_fn: Callable[[list[Any]], Any], num_threads: int | None
) -> StatefulLoader:
    """Build the loader of a trainer.

    Args:
        dataset: the chain.
        args: of ``Trainer``.
        batch_size: of one process.
        collate_fn: of ``Trainer``.
        num_threads: of a loader without workers; ``None`` for one with them.

    Raises:
        StateError: for threads and workers.
    """
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "drop_last": args.dataloader_drop_last,
        "collate_fn": collate_fn,
        "pin_memory": args.dataloader_pin_memory and torch.cuda.is_available(),
        "state_of_all_ranks": True,
    }
    if num_threads is None:
        return stateful_loader(
            dataset,
            num_workers=args.dataloader_num_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=getattr(args, "dataloader_multiprocessing_context", None) or "forkserver",
            **options,
        )
    if args.dataloader_num_workers:
        raise StateError(
            f"transformers Trainer: num_threads={num_threads} and dataloader_num_workers="
            f"{args.dataloader_num_workers}. Set one of them: threads make the batches in place of workers."
        )
    return thread_loader(
        dataset, num_threads=num_threads, prefetch_batches=args.dataloader_prefetch_factor or 2, **options
    )
