"""Base of the pipes: what they say of themselves, and how they are read without a loader."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..core.arguments import explain_init, whole
from ..core.functional_names import OWN
from ..core.iter_datapipe import Batcher as TorchBatcher
from ..core.iter_datapipe import Collator as TorchCollator
from ..core.iter_datapipe import Filter as TorchFilter
from ..core.iter_datapipe import IterableWrapper
from ..core.iter_datapipe import IterDataPipe as TorchDataPipe
from ..core.iter_datapipe import Mapper as TorchMapper
from ..core.processes import end_worker_with_trainer
from ..core.recording import Stats, stats
from ..core.tracebacks import brief
from ..core.workers import SentToWorkers
from ..fetch.listing.source_argument import pipe_of
from ..formats.error_policy import Skipped
from .chain import all_pipes, describe, functional_name, sources_of
from .env import Described, Env, Shared, latest_skipped
from .other_pipes import pass_of_torch
from .passes import Pass
from .split_guard import SentWithRanks, require_readers
from .typed import IterDataPipe

T_co = TypeVar("T_co", covariant=True)

_PIPES = __name__.rpartition(".")[0] + "."
_forks = 0  # of this process so far


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_count_fork)


class _Epochs(NamedTuple):
    """What was announced of the next passes of a pipe; a copy of the pipe has it, too.

    Args:
        first: epoch of the first direct pass since it was set.
        number: of times that it was set.
        loader: epoch of the last pass that a loader announced.
        is_announced: whether a loader announced a pass that has not started.
        process: id of the one in which it was announced.
        forks: of that process before.
    """

    first: int = 0
    number: int = 0
    loader: int = -1
    is_announced: bool = False
    process: int | None = None
    forks: int = 0


@dataclass
class _Record:
    """What this process knows of the passes over a pipe; not part of the pipe, which reading does not change."""

    number: int = 0  # how often its epoch was set
    num_direct: int = 0  # passes since then
    is_copied: bool = False  # since a loader announced a pass


_records: weakref.WeakKeyDictionary[Any, _Record] = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def _record_of(pipe: Any) -> _Record:
    return _records.setdefault(pipe, _Record())


class DataPipe(SentToWorkers, SentWithRanks, Described[T_co], IterDataPipe[T_co]):
    """Description of a stage of a chain. A subclass has ``open``, which makes a pass over it.

    It is an ``IterDataPipe`` of torch: ``iter`` reads the chain in this process, any number of times at once. What is
    passed to the constructor is stored in attributes, sources too, and nothing changes them.
    """

    _is_child_datapipe = False

    gives_urls = False
    """Whether the items are URLs whose order depends on the epoch only. They are listed once for all streams."""
    uses_epoch = False
    """Whether the items depend on the epoch."""
    reads_data = False
    """Whether it reads objects, so that several readers need shares of their own."""
    lists_data = False
    """Whether it sends requests for a listing."""
    gives_equal_counts = False
    """Whether all ranks get the same number of items."""
    changes_count = False
    """Whether it yields more or fewer items than it takes."""

    order_names: Sequence[str] = ()
    """Attributes that determine the order of the items: see ``order_options``."""
    _epochs = _Epochs()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls) and cls.__module__.startswith(_PIPES):
            explain_init(cls, functional_name(cls))

    @property
    def skipped(self) -> Skipped:
        """What the pipes of this chain left out in their last pass in this process.

        Each pipe of this package has it; torch's pipes, such as ``map``, do not: ask the pipe before them.
        """
        return Skipped.of_all(latest_skipped[pipe] for pipe in all_pipes(self) if pipe in latest_skipped)

    # Type checkers and editors know the functional names
    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """Find a functional name: also where a pipe of another package has it, it is this package's."""
            own = OWN.get(name) or _OF_TORCH.get(name)
            if own is None:
                return super().__getattr__(name)
            return functools.update_wrapper(functools.partial(own, self), own, assigned=("__doc__",))

    def __getstate__(self) -> Any:
        if TorchDataPipe.getstate_hook is None:  # otherwise torch only looks for the pipes of a chain
            _record_of(self).is_copied = True
        return super().__getstate__()

    def __bool__(self) -> bool:
        return True  # also of a chain without a length

    def __repr__(self) -> str:
        return " > ".join(map(describe, all_pipes(self)))

    def stats(self) -> Stats:
        """Return the counters of this process, for all of its chains together: :func:`stats`."""
        return stats()

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
        epoch = whole("set_epoch: epoch", epoch, at_least=0)
        for found in all_pipes(self):
            if isinstance(found, DataPipe):
                found._epochs = _Epochs(epoch, found._epochs.number + 1, epoch - 1)
            elif hasattr(type(found), "set_epoch"):  # of a user; as a functional name each pipe has it
                found.set_epoch(epoch)

    def set_seed(self, seed: int) -> DataPipe[T_co]:
        """Hook of torch's loaders, called when a pass starts. The random ``seed`` is not used."""
        _announce(self)
        end_worker_with_trainer()
        return self

    def order_options(self) -> Mapping[str, Any]:
        """Return the options that determine the order of the items. A state is valid only where they are equal."""
        return {name: getattr(self, name) for name in self.order_names}

    def require_resumable(self) -> None:
        """Check that the options of this pipe allow a state to be resumed.

        Raises:
            StateError: if they do not. Names the option.
        """

    def warn_of_skipped(self, skipped: Skipped) -> None:
        """Called at the end of a pass with what this pipe left out."""


def _read(self: DataPipe[T_co]) -> Iterator[T_co]:
    """Read the chain: a direct pass, or one of a loader of torch."""
    end_worker_with_trainer()
    require_readers(self)
    shared = Shared(all_pipes(self))
    try:
        with closing(self.open(Env(shared, epoch=(_next_epoch(self),)))) as items:
            yield from items
    except Exception as error:  # noqa: BLE001  # raised again
        raise brief(error)  # noqa: B904  # the same error
    end_pass(shared)


DataPipe.__iter__ = _read  # type: ignore[method-assign, assignment]  # after the class was made: torch would wrap it


class _OfTorch(DataPipe[Any]):
    def open(self, env: Env) -> Pass[Any]:
        return pass_of_torch(self, env)


class Mapper(_OfTorch, TorchMapper[Any]):
    """torch's ``map`` of a pipe of this package: it can be read any number of times at once, too."""


class Collator(Mapper, TorchCollator):
    """torch's ``collate`` of a pipe of this package."""


class Filter(_OfTorch, TorchFilter[Any]):
    """torch's ``filter`` of a pipe of this package."""

    changes_count = True


class Batcher(_OfTorch, TorchBatcher):
    """torch's ``batch`` of a pipe of this package."""

    changes_count = True


_OF_TORCH = {"map": Mapper, "collate": Collator, "filter": Filter, "batch": Batcher}


def end_pass(shared: Shared) -> None:
    """Say what was left out in a pass that has ended."""
    for pipe in shared.pipes:
        if isinstance(pipe, DataPipe) and id(pipe) in shared.left_out:
            pipe.warn_of_skipped(shared.left_out[id(pipe)])


# So that it can be called after torch's map or batch, too
TorchDataPipe.register_function("set_epoch", DataPipe.set_epoch)


def _announce(pipe: DataPipe[Any]) -> None:
    """Record that a loader starts a pass; a repeated announcement of the same pass counts once.

    ``DataLoader`` with workers calls this on the pipe in the main process, which is never iterated and could not count
    passes otherwise, before it starts the workers and again after, and on the copy in each worker.
    """
    known, record, process = pipe._epochs, _record_of(pipe), os.getpid()
    if not known.is_announced:
        known = known._replace(loader=known.loader + 1, is_announced=True, forks=_forks)
        record.is_copied = False
    elif known.process == process and (record.is_copied or known.forks != _forks):
        known = known._replace(is_announced=False)  # the workers have started that pass
    pipe._epochs = known._replace(process=process)


def _next_epoch(pipe: DataPipe[Any]) -> int:
    """Begin a pass that no loader of this package counts; return its epoch."""
    known = pipe._epochs
    if known.is_announced:
        pipe._epochs = known._replace(is_announced=False)
        return known.loader
    with _lock:
        record = _record_of(pipe)
        if record.number != known.number:
            record.number, record.num_direct = known.number, 0
        record.num_direct += 1
        return known.first + record.num_direct - 1


def length_here(pipe: Any) -> int:
    """Count the items of a direct pass: the ``__len__`` of pipes that have a length."""
    length: int = pipe.length(Env(Shared(all_pipes(pipe))))
    return length


def listed_pipes(pipe: TorchDataPipe[Any]) -> list[tuple[TorchDataPipe[Any], bool]]:
    """Find the listings of a chain, and within them what does not depend on the epoch.

    Returns:
        Each with whether its order depends on the epoch; those inside of another one before it.
    """
    found: dict[int, tuple[TorchDataPipe[Any], bool]] = {}

    def visit(current: TorchDataPipe[Any], *, inside: bool) -> None:
        pipes = all_pipes(current)
        is_listing = all(map(gives_urls, pipes))
        by_epoch = any(map(uses_epoch, pipes))
        if not is_listing or by_epoch:
            for source in sources_of(current):
                visit(source, inside=inside or is_listing)
        if is_listing and (not inside or not by_epoch):
            found.setdefault(id(current), (current, by_epoch))

    visit(pipe, inside=False)
    return list(found.values())


def gives_urls(pipe: TorchDataPipe[Any]) -> bool:
    """Whether a pipe can be part of a listing: some of torch's, and those with ``gives_urls``."""
    return isinstance(pipe, (IterableWrapper, TorchMapper, TorchFilter)) or bool(
        getattr(type(pipe), "gives_urls", False)
    )


def uses_epoch(pipe: TorchDataPipe[Any]) -> bool:
    """Whether the items of a pipe depend on the epoch: of a user's pipe if it can be told the epoch."""
    return pipe.uses_epoch if isinstance(pipe, DataPipe) else hasattr(type(pipe), "set_epoch")


class SourcePipe(DataPipe[T_co]):
    """Base of the pipes with one source.

    Args:
        source_datapipe: that is read.
        holds: what its items are, for errors.
    """

    def __init__(self, source_datapipe: Any, holds: str = "URLs") -> None:
        super().__init__()
        self.source_datapipe = pipe_of(source_datapipe, of=functional_name(type(self)), holds=holds)
