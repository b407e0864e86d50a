"""Train the transformers ``Trainer`` from a chain of pipes, exactly once over all processes."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ...core.iter_datapipe import IterDataPipe
from ...core.world import World
from ...errors import EmptyShareError, StateError
from ..fronts import stateful_loader, thread_loader
from ..loader import StatefulLoader
from ..resumable import Resumable, twin_of
from ..stream_counts import end_together

_IN_STATE = "torchdata_remote"  # key in trainer_state.json, among the states of callbacks


class RemoteTrainerMixin:
    """Let a transformers ``Trainer`` read chains: ``class MyTrainer(RemoteTrainerMixin, Trainer)``.

    ``train_dataset``, ``eval_dataset`` and the dataset of ``predict`` may then be a chain with
    ``sharding_filter_rank``, or a :class:`Resumable`; ``Trainer`` handles other datasets. Batch size, workers, collator
    and ``drop_last`` are those of ``TrainingArguments``. ``trainer_state.json`` of each checkpoint contains the
    position of all processes' loaders, and ``train(resume_from_checkpoint=True)`` continues there: no batch is read
    again, also with another number of processes or workers.

    With ``num_train_epochs`` the chain needs a length, from the manifest or ``equalize_ranks``; with ``max_steps`` it
    does not.
    ``evaluate`` and ``predict`` with several processes need ``equalize_ranks``, since ``Trainer`` gathers batches of
    equal size.

    After a resume, the loader counts ``state.epoch`` and the steps that are left. Without a length,
    ``state.epoch`` is the number of passes plus the finished part of ``max_steps``, as ``Trainer`` computes it. With
    ``gradient_accumulation_steps``, batches at the end of the resumed epoch that do not fill a step are added to the
    next one.

    Workers of an evaluation end with it, unless ``dataloader_persistent_workers`` is set.

    Attributes:
        num_streams: of the chains, as for :class:`Resumable`; ``None`` takes one for each worker of each process. Set
            a number that is divisible by the numbers of workers with which you will resume.
        num_threads: for :func:`thread_loader`, which then makes the batches in place of workers; ``None`` for
            :func:`stateful_loader` with ``dataloader_num_workers``.

    Raises:
        StateError: when training is resumed from a checkpoint without the loader's state; and when processes could
            have different numbers of batches in an evaluation.
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

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Of the checkpoint from which training is resumed: the loader's state, and the number of steps
        self._saved: tuple[Mapping[str, Any], int] | None = None
        self._max_steps: int = self.args.max_steps  # as the user has set it
        self._kept: dict[str, tuple[Any, _EvalBatches]] = {}  # with persistent workers
        self.add_callback(_callback())  # type: ignore[attr-defined]  # Trainer's

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any) -> Any:
        """As ``Trainer.train``."""
        checkpoint, skips = resume_from_checkpoint, self.args.ignore_data_skip
        self._max_steps = self.args.max_steps
        if _is_chain(getattr(self, "train_dataset", None)) and checkpoint:
            if checkpoint is True:
                utils = importlib.import_module("transformers.trainer_utils")
                checkpoint = utils.get_last_checkpoint(self.args.output_dir)
            self._saved = None if checkpoint is None else _saved_in(Path(str(checkpoint)))
        try:
            return super().train(resume_from_checkpoint, *args, **options)  # type: ignore[misc]  # Trainer's
        finally:
            self.args.max_steps, self.args.ignore_data_skip, self._saved = self._max_steps, skips, None

    def _save_checkpoint(self, *args: Any, **options: Any) -> None:
        """As ``Trainer._save_checkpoint``, which each process calls; ``trainer_state.json`` gets the position."""
        batches = self.callback_handler.train_dataloader
        if isinstance(batches, _TrainBatches):
            state = batches.loader.state_dict()  # collective
            self.state.stateful_callbacks[_IN_STATE] = {"args": {}, "attributes": state}
        super()._save_checkpoint(*args, **options)  # type: ignore[misc]  # Trainer's

    def get_train_dataloader(self) -> Any:
        """As ``Trainer.get_train_dataloader``."""
        dataset = getattr(self, "train_dataset", None)
        if not _is_chain(dataset):
            return super().get_train_dataloader()  # type: ignore[misc]  # Trainer's
        loader = self._loader(dataset, self._train_batch_size, "training")  # type: ignore[attr-defined]  # Trainer's
        if isinstance(dataset, Resumable) and dataset.loaded is not None:
            loader.load_merged(dataset.loaded)
        batches = _TrainBatches(loader)
        if self._saved is not None:
            state, num_steps = self._saved
            batches.resume(state)
            self.args.ignore_data_skip = True  # of Trainer, which would skip what was trained on before
            if self._max_steps <= 0 and batches.length is not None:
                num_left = batches.num_steps_left(self.args.num_train_epochs, self.args.gradient_accumulation_steps)
                self.args.max_steps = num_steps + num_left
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

    def _eval_batches(self, dataset: Any, description: str, key: str = "") -> _EvalBatches:
        keep_workers, key = self.args.dataloader_persistent_workers, f"{description} {key}"
        before, batches = self._kept.get(key, (None, None))
        if batches is None or before is not dataset:
            loader = self._loader(dataset, self.args.eval_batch_size, description)
            self.accelerator._dataloaders.remove(loader)  # which would grow with each evaluation
            batches = _EvalBatches(loader)
        if keep_workers:
            batches.keep_workers, self._kept[key] = True, (dataset, batches)
        world_size = batches.loader.dataset.world().world_size
        if world_size > 1 and not end_together(batches.loader.dataset):
            raise StateError(
                f"transformers Trainer, {description}: {world_size} processes may have different numbers of samples, "
                "and Trainer gathers batches of equal size. Chain .equalize_ranks() after the reader, or evaluate in "
                "one process."
            )
        return batches

    def _loader(self, dataset: Any, batch_size: int, description: str) -> StatefulLoader:
        """Make a loader of its own position over a chain, by ``TrainingArguments``."""
        of_columns = getattr(self, "_get_collator_with_removed_columns", lambda collator, **_: collator)
        options: dict[str, Any] = {
            "batch_size": batch_size,
            "drop_last": self.args.dataloader_drop_last,
            "collate_fn": of_columns(self.data_collator, description=description),  # type: ignore[attr-defined]
            "pin_memory": self.args.dataloader_pin_memory and torch.cuda.is_available(),
        }
        own = twin_of(dataset) if isinstance(dataset, Resumable) else Resumable(dataset, num_streams=self.num_streams)
        num_workers, ahead = self.args.dataloader_num_workers, self.args.dataloader_prefetch_factor
        if self.num_threads is None:
            how = getattr(self.args, "dataloader_multiprocessing_context", None) or "forkserver"
            options |= {"num_workers": num_workers, "prefetch_factor": ahead, "multiprocessing_context": how}
            loader = stateful_loader(own, **options)
        elif num_workers:
            raise StateError(
                f"transformers Trainer: num_threads={self.num_threads} and dataloader_num_workers={num_workers}. Set "
                "one of them: threads make the batches in place of workers."
            )
        else:
            loader = thread_loader(own, num_threads=self.num_threads, prefetch_batches=ahead or 2, **options)
        prepared: StatefulLoader = self.accelerator.prepare(loader)
        return prepared


def _is_chain(dataset: Any) -> bool:
    return isinstance(dataset, (IterDataPipe, Resumable))


def _saved_in(folder: Path) -> tuple[Mapping[str, Any], int]:
    """Read the loader's state and the number of steps from ``trainer_state.json`` of a checkpoint.

    Raises:
        StateError: if it does not contain the position of the loaders.
    """
    path = folder / "trainer_state.json"
    try:
        saved = json.loads(path.read_text())
        return saved["stateful_callbacks"][_IN_STATE]["attributes"], saved["global_step"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{path} does not contain the loader's position ({type(error).__name__}: {error}). Either saving was "
            "interrupted, or it was saved by a Trainer without RemoteTrainerMixin. Resume from another checkpoint, or "
            "begin anew."
        ) from error


def _callback() -> Any:
    """Make the callback that tells a loader what was trained on; its base class is imported on first use."""
    transformers = importlib.import_module("transformers")

    class LoaderCallback(transformers.TrainerCallback):  # type: ignore[misc, name-defined]  # is loaded by name
        def on_step_end(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
            if isinstance(train_dataloader, _TrainBatches):
                train_dataloader.loader.trained(train_dataloader.num_read)
                if train_dataloader.length is not None:
                    state.epoch = train_dataloader.epoch

        def on_epoch_end(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
            if isinstance(train_dataloader, _TrainBatches) and train_dataloader.has_ended:
                control.should_training_stop = True

    return LoaderCallback()


class _Batches:
    """What ``Trainer`` reads: the batches of a loader, whose epochs it does not set.

    Args:
        loader: reads the batches.
    """

    def __init__(self, loader: StatefulLoader) -> None:
        self.loader, self.dataset = loader, _Samples(loader.dataset)

    def __len__(self) -> int:
        return len(self.loader)


class _Samples:
    """The samples of all processes, of whose number ``Trainer`` computes speeds."""

    def __init__(self, dataset: Resumable) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        world_size = self._dataset.world().world_size
        return sum(self._dataset.share_lengths([World(rank, world_size) for rank in range(world_size)]))


class _EvalBatches(_Batches):
    """The batches of an evaluation: the same ones in each pass."""

    keep_workers = False

    def __iter__(self) -> Iterator[Any]:
        self.loader.set_epoch(0)
        try:
            yield from self.loader
        finally:
            if not self.keep_workers:
                self.loader.end_workers()


class _TrainBatches(_Batches):
    """The batches of a training; after a resume, the rest of the epoch first.

    Raises:
        EmptyShareError: if an epoch has no batch.
    """

    def __init__(self, loader: StatefulLoader) -> None:
        super().__init__(loader)
        self.num_read = 0  # batches of the pass
        self._num_before = 0  # batches of its epoch that were trained on before a resume
        self._epoch = loader.dataset.next_epoch  # of the pass
        self._num_epochs = math.inf  # after which a resumed training ends
        self.length: int | None = None
        with suppress(TypeError):
            self.length = len(loader)
        loader.trained(0)
        if self.length == 0:
            samples = sum(loader.dataset.share_lengths(loader.dataset.world().workers(loader.num_workers)))
            raise EmptyShareError(
                f"transformers Trainer: an epoch of {samples} samples in this process has no batch of "
                f"{loader.batch_size} (drop_last={loader.drop_last}, {loader.num_workers} workers). Lower "
                "per_device_train_batch_size or dataloader_num_workers, or set dataloader_drop_last=False."
            )

    def resume(self, state: Mapping[str, Any]) -> None:
        """Load a state, and count what was trained on before it. Collective."""
        self.loader.load_state_dict(state)
        self._epoch = self.loader.dataset.next_epoch
        if self.length is not None:
            self._num_before = self.length - self.loader.num_batches_left()

    def num_steps_left(self, num_epochs: float, accumulation: int) -> int:
        """Number of steps up to the end of the training."""
        assert self.length is not None
        self._num_epochs = num_epochs
        of_epoch, left = (math.ceil(n / accumulation) for n in (self.length, self.length - self._num_before))
        return left - of_epoch + math.ceil((num_epochs - self._epoch) * of_epoch)

    @property
    def has_ended(self) -> bool:
        """Whether all epochs of a resumed training are done, maybe with batches that do not fill a step."""
        return self._epoch + 1 >= self._num_epochs

    @property
    def epoch(self) -> float:
        """Number of finished epochs."""
        assert self.length is not None
        return self._epoch + (self._num_before + self.num_read) / self.length

    def __iter__(self) -> Iterator[Any]:
        yield from self._pass()
        if not self.num_read:  # nothing was left of the resumed epoch
            yield from self._pass()

    def _pass(self) -> Iterator[Any]:
        if self._epoch != self.loader.dataset.next_epoch:
            self._epoch, self._num_before = self.loader.dataset.next_epoch, 0
        self.num_read = 0
        for batch in self.loader:
            self.num_read += 1
            yield batch
