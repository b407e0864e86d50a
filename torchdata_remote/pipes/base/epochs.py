"""Epoch counters that agree in all processes without communication."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from ...core.arguments.amounts import seed_of, whole
from ...core.frameworks.lightning_resume import warn_if_state_is_missing
from ...core.frameworks.second_split import warn_of_skipping
from ...core.iter_datapipe import IterDataPipe
from ...core.processes.parent_watch import end_worker_with_trainer
from ...core.world import World
from ...formats.sample import URL
from .chain import sources_of, upstream
from .datapipe import DataPipe

T_co = TypeVar("T_co", covariant=True)

PASS_STRIDE = 1 << 32
"""Larger than any epoch, and any number of passes in it."""

_forks = 0  # of this process so far


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_count_fork)


class Epochs:
    """Count the passes of a pipe: those of a ``DataLoader`` separately from those of direct iteration."""

    def __init__(self) -> None:
        self._direct = -1  # epoch of the last pass by direct iteration
        self._loader = -1  # epoch of the last pass that a loader announced
        self._announced = False  # whether a loader announced a pass that has not started
        self._announced_in: int | None = None  # process id
        self._copied = False  # whether this was pickled since the announcement
        self._forks_before = 0  # forks of this process before the announcement

    def set_next(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._direct = self._loader = epoch - 1
        self._announced = False

    def announce(self) -> None:
        """Record that a loader starts a pass; a repeated announcement of the same pass counts once.

        ``DataLoader`` with workers calls this on the pipe in the main process, which is never iterated and could not
        count passes otherwise, before it starts the workers and again after, and on the copy in each worker.
        """
        if not self._announced:
            self._loader += 1
            self._announced = True
            self._copied = False
            self._forks_before = _forks
        elif self._announced_in == os.getpid() and (self._copied or _forks != self._forks_before):
            self._announced = False  # the workers have started that pass
        self._announced_in = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        if IterDataPipe.getstate_hook is None:  # otherwise torch only traverses the chain
            self._copied = True
        return vars(self)

    def next_epoch(self) -> int:
        """Start a pass and return its epoch."""
        if self._announced:
            self._announced = False
            return self._loader
        self._direct += 1
        return self._direct


class EpochPipe(DataPipe[T_co]):
    """Base of the pipes that depend on the epoch.

    Each pass is a new epoch, counted from 0, in all ranks and workers alike: under ``DataLoader`` with or without
    persistent workers, and under ``DataLoader2``. Passes of a loader and passes of direct iteration are counted
    separately, so peeking at the first sample on one rank does not desynchronise the ranks.
    """

    def __init__(self) -> None:
        self._epochs = Epochs()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass of this chain, as ``DistributedSampler.set_epoch`` does.

        It reaches this pipe and all pipes above it, and each pipe of torch has it too, so call it once, on the last
        pipe of the chain. The order of an epoch is the same however it is reached, and as often as it is set. The
        passes after it are counted from there. Where nothing depends on the epoch, as without a shuffle, it changes
        nothing.

        Workers read copies of the chain. Those of a ``DataLoader`` are made when its pass starts, so call this before.
        It does not reach persistent workers, whose copies were made before; they only count.

        Args:
            epoch: from 0.

        Raises:
            TypeError, ValueError: if it is not an int of at least 0.
        """
        set_epoch(self, epoch)

    def set_seed(self, seed: int) -> EpochPipe[T_co]:
        """Hook of torch's loaders, called when a pass starts. The random ``seed`` is not used."""
        self._epochs.announce()
        warn_if_state_is_missing()
        warn_of_skipping()
        end_worker_with_trainer()
        return self

    def prepare_copy(self, num_streams: int) -> None:
        self._epochs = Epochs()

    def bind_stream(self, world: World) -> None:
        super().bind_stream(world)
        self._epochs = copy.copy(self._epochs)


def set_epoch(pipe: IterDataPipe[Any], epoch: int) -> None:
    """Set the epoch of the next pass of a chain: of all its pipes that depend on it.

    Args:
        pipe: the last one of the chain.
        epoch: from 0.

    Raises:
        TypeError, ValueError: if it is not an int of at least 0.
    """
    epoch = whole("set_epoch: epoch", epoch, at_least=0)
    for found in upstream(pipe):
        if isinstance(found, EpochPipe):
            found._epochs.set_next(epoch)
        elif has_epochs(found):
            found.set_epoch(epoch)


def set_epoch_of_pass(pipe: IterDataPipe[Any], epoch: int, num_passes: int) -> int:
    """Set the epoch of a repeated pass over a source: another one for each pass within each epoch.

    A source may contain pipes that repeat theirs, too. So passes count in a higher digit than those of the source.

    Args:
        pipe: the source.
        epoch: of the pipe that repeats it.
        num_passes: before this one.

    Returns:
        By how much the epoch of the source is larger.
    """
    more: int = num_passes * PASS_STRIDE ** (1 + _num_repeated(pipe))
    set_epoch(pipe, epoch + more)
    return more


class _UrlOfPass(str):
    """The URL of a sample that is read in a repeated pass: the only part of it that its pipes hand on."""

    epochs = 0
    """By how much the epoch of the pass is larger than that of the pipes behind it."""


def of_pass(item: Any, more: int) -> Any:
    """Return a sample with the epoch of its pass, so that pipes behind it draw other random numbers in each pass.

    Args:
        item: of the source.
        more: by which the epoch of the source is larger.
    """
    if not isinstance(item, dict) or URL not in item:
        return item
    url = _UrlOfPass(item[URL])
    url.epochs = more + getattr(item[URL], "epochs", 0)
    return {**item, URL: url}


def _num_repeated(pipe: IterDataPipe[Any]) -> int:
    """Count the pipes that repeat their sources, within each other."""
    inner = max((_num_repeated(source) for _, _, source in sources_of(pipe)), default=0)
    return inner + bool(getattr(type(pipe), "repeats_sources", False))


def has_epochs(pipe: IterDataPipe[Any]) -> bool:
    """Whether a pipe itself depends on the epoch. As a functional name each pipe has ``set_epoch``."""
    return hasattr(type(pipe), "set_epoch")


IterDataPipe.register_function("set_epoch", set_epoch)  # so that it can be called after torch's map or batch, too


@contextmanager
def uncounted(pipe: IterDataPipe[Any]) -> Iterator[None]:
    """Exclude the passes over a chain within the block from the epoch counters."""
    counters = [(member, member._epochs) for member in upstream(pipe) if isinstance(member, EpochPipe)]
    for member, _ in counters:
        member._epochs = Epochs()
    try:
        yield
    finally:
        for member, epochs in counters:
            member._epochs = epochs


class SeededPipe(EpochPipe[T_co]):
    """Base of the pipes whose order is determined by seed and epoch.

    Args:
        seed: any int.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed_of(seed)

    def order_options(self) -> Mapping[str, Any]:
        return {"seed": self.seed}
