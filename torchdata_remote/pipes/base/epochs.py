"""Epochs that count by themselves, in all processes alike."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from ...core.frameworks.lightning_resume import warn_if_state_is_missing
from ...core.frameworks.second_split import warn_of_skipping
from ...core.iter_datapipe import IterDataPipe
from ...core.parent_watch import end_worker_with_trainer
from ...core.world import World
from .chain import all_pipes
from .datapipe import DataPipe

T_co = TypeVar("T_co", covariant=True)

_forks = 0  # of this process


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_count_fork)


class Epochs:
    """Counts the passes of a pipe, those that a loader announces apart from those that nobody does."""

    def __init__(self) -> None:
        self._direct = -1  # epoch of the last pass that nobody announced
        self._loader = -1  # epoch of the last pass that a loader announced
        self._announced = False  # and that has not begun
        self._announced_in: int | None = None  # process id
        self._copied = False  # pickled since, or
        self._forks_before = 0  # forked, if there were more since

    def set_next(self, epoch: int) -> None:
        """Let the next pass be this epoch."""
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        self._direct = self._loader = epoch - 1
        self._announced = False

    def announce(self) -> None:
        """A loader begins a pass, or tells so once more.

        ``DataLoader`` with workers does it on the copy in the main process, which is never iterated and could not count
        passes otherwise, before it starts them and once more after; and on each worker's copy of that.
        """
        if not self._announced:
            self._loader += 1
            self._announced = True
            self._copied = False
            self._forks_before = _forks
        elif self._announced_in == os.getpid() and (self._copied or _forks != self._forks_before):
            self._announced = False  # the workers have begun it
        self._announced_in = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        if IterDataPipe.getstate_hook is None:  # else torch only looks for the pipes in the chain
            self._copied = True
        return vars(self)

    def begin(self) -> int:
        """The epoch of the pass that begins."""
        if self._announced:
            self._announced = False
            return self._loader
        self._direct += 1
        return self._direct


class EpochPipe(DataPipe[T_co]):
    """Base of the pipes that know of epochs.

    The epoch counts by itself, from 0: each pass is a new one, by ``DataLoader`` with or without persistent workers,
    and by ``DataLoader2``, in all ranks and workers alike. Passes without a loader count for themselves, so that a
    look at the first sample in one rank leaves the ranks together.
    """

    def __init__(self) -> None:
        self._epochs = Epochs()

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch, as ``DistributedSampler.set_epoch`` does.

        Persistent workers hold copies that began before; there the epoch only counts by itself.
        """
        self._epochs.set_next(epoch)

    def set_seed(self, seed: int) -> EpochPipe[T_co]:
        """Not for users: torch's loaders call it, with a random number that is not used, when a pass begins."""
        self._epochs.announce()
        warn_if_state_is_missing()
        warn_of_skipping()
        end_worker_with_trainer()
        return self

    def prepare_copy(self, num_streams: int) -> None:
        self._epochs = Epochs()

    def bind_stream(self, world: World) -> None:
        self._epochs = copy.copy(self._epochs)


@contextmanager
def uncounted(pipe: IterDataPipe[Any]) -> Iterator[None]:
    """Passes over a chain within the block are not counted."""
    counted = [(found, found._epochs) for found in all_pipes(pipe) if isinstance(found, EpochPipe)]
    for found, _ in counted:
        found._epochs = Epochs()
    try:
        yield
    finally:
        for found, epochs in counted:
            found._epochs = epochs


class SeededPipe(EpochPipe[T_co]):
    """Base of the pipes whose order depends on seed and epoch.

    Args:
        seed: any int.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        if not isinstance(seed, int):
            raise TypeError(f"seed must be an int, got {type(seed).__name__}: {seed!r}")
        self.seed = seed

    def order_options(self) -> Mapping[str, Any]:
        return {"seed": self.seed}
