"""The batches of a loader as the transformers ``Trainer`` consumes them: resumed without reading batches again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..callers import callers
from ..errors import StateError
from ..rank_exchange import exchanged
from ..resume import StatefulLoader
from ..world import World

Record = dict[str, Any]
_SAME = ("world_size", "batch_size", "accumulation", "batches_per_epoch")


class TrainerBatches(DataLoader[Any]):
    """A ``DataLoader`` over the batches of a :class:`StatefulLoader`.

    ``Trainer`` resumes by ``skip_first_batches``, which builds a loader over ``dataset`` that drops as many batches as
    were trained on before. ``dataset`` hands out ``None`` for each of these, and then what the state has left.

    In another world, ``Trainer`` would compute a wrong epoch from the number of its steps. There this has no length:
    ``Trainer`` then counts steps only (:meth:`max_steps`), and the loader counts the epochs.

    Args:
        loader: with ``state_of_all_ranks``.
        accumulation: batches to an optimizer step.
        record: of a checkpoint, as :meth:`record` gave it; ``None`` begins anew.

    Raises:
        StateError: in each rank, if the ranks would have different numbers of batches in the rest of the epoch.
    """

    def __init__(self, loader: StatefulLoader, *, accumulation: int, record: Record | None = None) -> None:
        super().__init__(_Batches(self), batch_size=None, collate_fn=_unchanged, generator=torch.Generator())
        self.loader, self._accumulation = loader, accumulation
        self._length = _length(loader)
        self._num_done = 0  # batches of the pass, with those before it was resumed
        self._resumed = record is not None
        self._num_epochs: float | None = None  # after which nothing is handed out
        self._follows_trainer = self._length is not None
        if record is not None:
            loader.load_state_dict(record["loader"])
            self._num_done = record["batches"]
            here = self._place()
            self._follows_trainer &= record["follows_trainer"] and all(record[key] == here[key] for key in _SAME)
            if not self._follows_trainer:
                _num_batches_left(loader)  # which are the same in each rank

    def _place(self) -> Record:
        return {
            "world_size": self.loader.dataset.world().world_size,
            "batch_size": self.loader.batch_size,
            "accumulation": self._accumulation,
            "batches_per_epoch": self._length,
        }

    def record(self) -> Record:
        """What a checkpoint holds: plain JSON, the same in each rank; all of them have to call this."""
        return {
            **self._place(),
            "batches": self._num_done,
            "follows_trainer": self._follows_trainer,
            "loader": self.loader.state_dict(),
        }

    def max_steps(self, num_done: int, num_epochs: float) -> int | None:
        """The ``max_steps`` by which ``Trainer`` ends after the last epoch, where it cannot compute it.

        Args:
            num_done: optimizer steps done.
            num_epochs: to train in all.

        Returns:
            ``None`` where ``Trainer`` computes it.
        """
        if self._follows_trainer or self._length is None:
            return None
        self._num_epochs = num_epochs
        epochs_after = num_epochs - self.loader.dataset.next_epoch - 1
        left = math.ceil(_num_batches_left(self.loader) / self._accumulation)
        return num_done + max(1, left + math.ceil(epochs_after * math.ceil(self._length / self._accumulation)))

    @property
    def has_ended(self) -> bool:
        """Whether all epochs are done, where this counts them."""
        return self._num_epochs is not None and self.loader.dataset.next_epoch >= self._num_epochs

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch, where ``Trainer`` counts as the loader does."""
        if self._follows_trainer:
            if self.loader.dataset.next_epoch != epoch:
                self._resumed = False  # what was loaded ended with its epoch
            self.loader.set_epoch(epoch)

    def batches(self) -> Iterator[Any]:
        """A pass, or the rest of one."""
        num_skipped = next(filter(None, map(_num_skipped, callers("accelerate.data_loader"))), 0)
        if self._follows_trainer and num_skipped and num_skipped != self._num_done:
            raise StateError(
                f"Trainer resumes after {num_skipped} batches of the epoch, and the loader was saved after "
                f"{self._num_done}: trainer_state.json is of another run. Resume from a whole checkpoint folder."
            )
        yield from (None for _ in range(num_skipped))
        if not self._resumed:
            self._num_done = 0
        passes = self._rest() if self._resumed else iter(self.loader)
        self._resumed = False
        for batch in passes:
            self._num_done += 1
            yield batch

    def _rest(self) -> Iterator[Any]:
        """What is left of the epoch; if that is nothing, the next one."""
        batches = iter(self.loader)
        first = list(islice(batches, 1))
        if not any(exchanged(self.loader.dataset.world(), "go on with an epoch", bool(first)).values()):
            self._num_done = 0
            batches = iter(()) if self.has_ended else iter(self.loader)
        yield from first
        yield from batches

    def __len__(self) -> int:
        if self._length is None or not self._follows_trainer:
            raise TypeError("The number of batches is not known: Trainer counts steps.")
        return self._length


class _Batches(IterableDataset[Any]):
    def __init__(self, owner: TrainerBatches) -> None:
        self._owner = owner

    def __iter__(self) -> Iterator[Any]:
        return self._owner.batches()

    def __len__(self) -> int:
        """Samples of an epoch, in all ranks: ``Trainer`` shows it."""
        dataset = self._owner.loader.dataset
        world_size = dataset.world().world_size
        return sum(dataset.share_lengths([World(rank, world_size) for rank in range(world_size)]))


def _unchanged(batch: Any) -> Any:
    return batch


def _num_skipped(caller: Any) -> int:
    return int(caller.skip_batches) if type(caller).__name__ == "SkipDataLoader" else 0


def _length(loader: StatefulLoader) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _num_batches_left(loader: StatefulLoader) -> int:
    """Batches that each rank has in the rest of the epoch, after a state was loaded; 0 if the chain does not tell."""
    dataset, num_workers = loader.dataset, max(1, loader.num_workers)
    loaded, world_size = dataset.loaded, dataset.world().world_size
    if loaded is None or _length(loader) is None:
        return 0
    num_streams = loaded["num_streams"]
    lengths = dataset.share_lengths([World(stream, num_streams) for stream in range(num_streams)])
    for stream, at in loaded["streams"]:
        lengths[stream] -= at["passed"] if isinstance(at, Mapping) else 0 if at is None else lengths[stream]
    shares = [sum(lengths[slot :: world_size * num_workers]) for slot in range(world_size * num_workers)]
    per_rank = [sum(map(_batches_of(loader), shares[rank::world_size])) for rank in range(world_size)]
    if len(set(per_rank)) > 1:
        raise StateError(
            f"transformers Trainer: after this state {world_size} processes would have {per_rank} batches left in the "
            "epoch, and wait for each other at its end. Resume with as many processes and workers as before. Train "
            "with batches of an equal number of samples of each stream "
            f"(batch_size = k x {num_streams} streams / processes / workers), to resume with other numbers too."
        )
    return int(per_rank[0])


def _batches_of(loader: StatefulLoader) -> Any:
    batch_size = loader.batch_size or 1
    return (lambda n: n // batch_size) if loader.drop_last else (lambda n: -(-n // batch_size))
