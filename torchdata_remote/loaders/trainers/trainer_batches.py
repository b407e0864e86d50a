"""Loaders as ``DataLoader`` for the transformers ``Trainer``: of a training, which resumes, and of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ...core.frameworks.call_stack import callers
from ...core.frameworks.loader_length import num_batches
from ...core.frameworks.untrained_batches import Snapshot
from ...core.rank_exchange import exchanged
from ...core.world import World
from ...errors import EmptyShareError, StateError
from ..loader import StatefulLoader
from ..rank_exchange import merged_in_group
from ..state.state_format import ALL_RANKS
from .loader_record import Record


class LoaderBatches(DataLoader[Any]):
    """A ``DataLoader`` over the batches of a :class:`StatefulLoader`.

    ``len(dataset)`` is the number of samples in all ranks, from which ``Trainer`` computes speeds.

    Args:
        loader: reads the batches.
    """

    def __init__(self, loader: StatefulLoader) -> None:
        super().__init__(_Batches(self), batch_size=None, collate_fn=_unchanged, generator=torch.Generator())
        self.loader = loader

    def batches(self) -> Iterator[Any]:
        """Start a pass."""
        raise NotImplementedError


class EvalBatches(LoaderBatches):
    """The batches of an evaluation: the same ones in each pass.

    Args:
        loader: reads the batches.
        dataset: the argument of the user.
        keep_workers: whether workers persist for the next pass.
    """

    def __init__(self, loader: StatefulLoader, dataset: Any, *, keep_workers: bool) -> None:
        super().__init__(loader)
        self.argument, self._keep_workers = dataset, keep_workers

    def batches(self) -> Iterator[Any]:
        """Start a pass."""
        self.loader.set_epoch(0)
        try:
            yield from self.loader
        finally:
            if not self._keep_workers:
                self.end_workers()

    def end_workers(self) -> None:
        """End the worker processes."""
        self.loader.end_workers()

    def __len__(self) -> int:
        return len(self.loader)


class _Batches(IterableDataset[Any]):
    def __init__(self, owner: LoaderBatches) -> None:
        self._owner = owner

    def __iter__(self) -> Iterator[Any]:
        return self._owner.batches()

    def __len__(self) -> int:
        dataset = self._owner.loader.dataset
        world_size = dataset.world().world_size
        return sum(dataset.share_lengths([World(rank, world_size) for rank in range(world_size)]))


def _unchanged(batch: Any) -> Any:
    return batch


def require_equal_shares(loader: StatefulLoader, description: str) -> None:
    """Refuse an evaluation in which processes would have batches of different sizes.

    Raises:
        StateError: in each process.
    """
    dataset, num_workers = loader.dataset, max(1, loader.num_workers)
    world_size = dataset.world().world_size
    if world_size == 1:
        return
    slots = [
        World(rank, world_size, worker, num_workers) for rank in range(world_size) for worker in range(num_workers)
    ]
    try:
        lengths = dataset.share_lengths(slots)
        counts = (
            f"{[sum(lengths[rank * num_workers : (rank + 1) * num_workers]) for rank in range(world_size)]} samples"
        )
    except TypeError:
        lengths, counts = list(range(len(slots))), "unknown numbers of samples"
    if any(
        lengths[:num_workers] != lengths[first : first + num_workers] for first in range(0, len(slots), num_workers)
    ):
        raise StateError(
            f"transformers Trainer, {description}: {world_size} processes would have {counts}, and Trainer gathers "
            "batches of equal size. Chain .equalize_ranks() after the reader, or evaluate in one process."
        )


class TrainerBatches(LoaderBatches):
    """The batches of a training.

    ``Trainer`` resumes by ``skip_first_batches``, which builds a loader over ``dataset`` that drops as many batches as
    were trained on before. ``dataset`` yields ``None`` for each of these, and then the batches after the loaded state.

    ``Trainer`` computes from the number of its steps in which epoch, and after which batch, it continues. This is wrong
    with another number of processes or workers, or another batch size. If it differs from the loaded state, this object
    has no length: ``Trainer`` then counts steps only (:meth:`max_steps`), and the loader counts the epochs.

    Args:
        loader: reads the batches.
        accumulation: number of batches for an optimizer step.
        num_steps: returns the number of finished optimizer steps.
        record: of a checkpoint, a result of :meth:`record`; ``None`` starts from the beginning.
        num_steps_saved: finished steps when it was saved, from ``trainer_state.json``.

    Raises:
        EmptyShareError: if an epoch has no batch.
        StateError: in all ranks, if they would have different numbers of batches in the rest of the epoch.
    """

    def __init__(
        self,
        loader: StatefulLoader,
        *,
        accumulation: int,
        num_steps: Callable[[], int],
        record: Record | None = None,
        num_steps_saved: int = 0,
    ) -> None:
        super().__init__(loader)
        self._accumulation, self._num_steps, self._num_steps_saved = accumulation, num_steps, num_steps_saved
        self._length = self._num_left = _length(loader)
        if self._length == 0:
            samples = sum(loader.dataset.share_lengths(loader.dataset.world().workers(loader.num_workers)))
            raise EmptyShareError(
                f"transformers Trainer: an epoch of {samples} samples in this process has no batch of "
                f"{loader.batch_size} (drop_last={loader.drop_last}, {loader.num_workers} workers). Lower "
                "per_device_train_batch_size or dataloader_num_workers, or set dataloader_drop_last=False."
            )
        self._resumed = record is not None
        self._num_epochs: float | None = None  # after which there are no more batches
        self._before_step: tuple[int, Snapshot] | None = None  # finished steps, and the loader's position then
        self._follows_trainer = self._length is not None
        if record is not None:
            loader.load_state_dict(record["loader"])
            if self._length is not None:
                self._num_left = left = _num_batches_left(loader)
                self._follows_trainer = self._reads_what_is_left(self._length, left)

    def _reads_what_is_left(self, length: int, left: int) -> bool:
        """Whether ``Trainer`` continues in the loader's epoch and expects as many batches as it has left."""
        epoch, steps = divmod(self._num_steps_saved, max(1, math.ceil(length / self._accumulation)))
        next_epoch = self.loader.dataset.next_epoch
        where = (epoch, steps * self._accumulation)
        return where == (next_epoch, length - left) or (left == 0 and where == (next_epoch + 1, 0))

    def record(self) -> Record:
        """Make the record for a checkpoint: plain JSON, the same in each rank. Collective: every rank calls it.

        Batches of an unfinished step count as not handed out.
        """
        num_steps, state = self._num_steps(), self.loader.rank_state
        if self._before_step is not None and self._before_step[0] == num_steps:
            state = self._before_step[1]
        return {"global_step": num_steps, "loader": {ALL_RANKS: merged_in_group(self.loader.dataset.world(), state)}}

    def _note(self, snapshot: Callable[[], Snapshot]) -> None:
        """Capture the loader's position before the first batch of a step is read."""
        num_steps = self._num_steps()
        if self._before_step is None or self._before_step[0] != num_steps:
            self._before_step = num_steps, snapshot()

    def max_steps(self, num_epochs: float) -> int | None:
        """Compute the ``max_steps`` with which ``Trainer`` ends after the last epoch.

        Args:
            num_epochs: to train in all.

        Returns:
            ``None`` if ``Trainer`` computes it correctly.
        """
        if self._follows_trainer or self._length is None or self._num_left is None:
            return None
        self._num_epochs = num_epochs
        epochs_after = num_epochs - self.loader.dataset.next_epoch - 1
        left = math.ceil(self._num_left / self._accumulation)
        steps = left + math.ceil(epochs_after * math.ceil(self._length / self._accumulation))
        return self._num_steps_saved + max(1, steps)

    @property
    def has_ended(self) -> bool:
        """Whether all epochs are done; ``False`` if ``Trainer`` counts them."""
        return self._num_epochs is not None and self.loader.dataset.next_epoch >= self._num_epochs

    @property
    def epoch(self) -> float | None:
        """Number of finished epochs; ``None`` if ``Trainer`` counts them, or the loader has no length."""
        if self._follows_trainer or not self._length or self._num_left is None:
            return None
        return self.loader.dataset.next_epoch - self._num_left / self._length

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch, if ``Trainer`` counts as the loader does."""
        if self._follows_trainer:
            if self.loader.dataset.next_epoch != epoch:
                self._resumed = False  # the loaded state was of the epoch before
            self.loader.set_epoch(epoch)

    def batches(self) -> Iterator[Any]:
        """Start a pass, or the rest of one."""
        num_skipped = next(filter(None, map(_num_skipped, callers("accelerate.data_loader"))), 0)
        num_done = (self._length or 0) - (self._num_left or 0)
        if self._follows_trainer and num_skipped not in (0, num_done):
            raise StateError(
                f"Trainer would skip {num_skipped} batches of the epoch, and the loader continues after {num_done}. "
                "Resume with the TrainingArguments and the release of transformers that saved the checkpoint."
            )
        yield from (None for _ in range(num_skipped))
        self._note(self.loader.snapshot_before_pass)
        if not self._resumed:
            self._num_left = self._length
        passes = self._rest() if self._resumed else iter(self.loader)
        self._resumed = False
        for batch in passes:
            self._num_left = None if self._num_left is None else self._num_left - 1
            yield batch
            self._note(self.loader.snapshot)

    def _rest(self) -> Iterator[Any]:
        """The rest of the epoch; if it has ended in all ranks, the next one."""
        batches = iter(self.loader)
        first = list(islice(batches, 1))
        if not any(exchanged(self.loader.dataset.world(), "continue an epoch", bool(first)).values()):
            self._num_left = self._length
            batches = iter(()) if self.has_ended else iter(self.loader)
        yield from first
        yield from batches

    def __len__(self) -> int:
        if self._length is None or not self._follows_trainer:
            raise TypeError("The number of batches is not known: Trainer counts steps.")
        return self._length


def _num_skipped(caller: Any) -> int:
    return int(caller.skip_batches) if type(caller).__name__ == "SkipDataLoader" else 0


def _length(loader: StatefulLoader) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _num_batches_left(loader: StatefulLoader) -> int:
    """Count the batches that each rank has in the rest of the epoch, after a state was loaded.

    Raises:
        StateError: in all ranks, if the numbers differ.
    """
    dataset, world_size = loader.dataset, loader.dataset.world().world_size
    num_streams = 0 if dataset.loaded is None else dataset.loaded["num_streams"]
    per_rank = [
        num_batches(
            dataset.lengths_left(World(rank, world_size).workers(loader.num_workers)),
            loader.batch_size,
            drop_last=loader.drop_last,
        )
        for rank in range(world_size)
    ]
    if len(set(per_rank)) > 1:
        raise StateError(
            f"transformers Trainer: after this state {world_size} processes would have {per_rank} batches left in the "
            "epoch, and wait for each other at its end. Resume with as many processes and workers as before. Train "
            "with batches of an equal number of samples of each stream "
            f"(batch_size = k x {num_streams} streams / processes / workers), to resume with other numbers too."
        )
    return per_rank[0]
