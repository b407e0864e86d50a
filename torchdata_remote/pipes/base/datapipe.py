"""Base classes of the pipes, with the hooks for states, warm-up and copies."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ...core.arguments import check
from ...core.arguments.calls import explain_init
from ...core.iter_datapipe import IterDataPipe as TorchDataPipe
from ...core.iter_datapipe.light_iter import light_iter, num_yielded, set_num_yielded
from ...core.processes.worker_start import SentToWorkers
from ...core.shared_names import SHARED
from ...core.stats.report import Stats, stats
from ...core.world import World
from ...errors import StateError
from ...formats.error_policy import Skipped
from .chain import Snapshot, load_state, snapshots_of, state_of, upstream, warm_up
from .typed import IterDataPipe

T_co = TypeVar("T_co", covariant=True)

_PIPES = __name__.rpartition(".base.")[0] + "."


class OtherStateError(StateError):
    """A pipe got the state of another one. Loaders, whose states hold those of pipes, report a damaged state."""


class DataPipe(SentToWorkers, IterDataPipe[T_co]):
    """torch's ``IterDataPipe`` at a fraction of its time per item (``benchmarks/bench_datapipe.py``).

    torch's wrapper of ``__iter__`` runs for every item, and checks whether the pipe belongs to a ``fork`` or ``demux``.
    Without the attribute below, the check searches the functional names and ends in an exception.
    """

    _is_child_datapipe = False

    gives_urls = False
    """Whether the items are URLs whose order depends on the epoch only. They are listed once for all streams."""
    needs_source_state = False
    """Whether the state contains that of each source, so that each of them must have one."""
    gives_equal_counts = False
    """Whether all ranks get the same number of items."""
    changes_count = False
    """Whether it yields more or fewer items than it takes."""
    repeats_sources = False
    """Whether it may pass over a source several times in a pass of its own."""
    marks_passes = False
    """Whether samples show in which of these passes they were read, for pipes behind it that draw random numbers."""

    _is_stream = False
    """Whether it is the copy for a stream. The streams of a process record together what they skip."""
    _skipped: Skipped | None = None

    _number_of_samples_yielded = property(num_yielded, set_num_yielded)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__iter__" in vars(cls):
            cls.__iter__ = light_iter(cls.__iter__)  # type: ignore[method-assign]
        if "__init__" in vars(cls) and cls.__module__.startswith(_PIPES):
            explain_init(cls, re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower())

    @property
    def skipped(self) -> Skipped:
        """What the pipes of this chain left out in their last pass in this process.

        Each pipe of this package has it; torch's pipes, such as ``map``, do not: ask the pipe before them.
        """
        # Never an error: torch reads each property of a pipe when it describes the pipe in an error
        found = [vars(pipe).get("_skipped") for pipe in upstream(self)]
        return Skipped.of_all(skipped for skipped in found if isinstance(skipped, Skipped))

    # Type checkers and editors know the functional names
    if not TYPE_CHECKING:

        def __getattr__(self, name):
            """Find a functional name that a pipe of another package has too: here it is this package's."""
            own = SHARED.get(name)
            if own is None:
                return super().__getattr__(name)
            return functools.update_wrapper(functools.partial(own, self), own, assigned=("__doc__",))

    def stats(self) -> Stats:
        """Return the counters of this process, for all of its chains together: :func:`stats`."""
        return stats()

    def order_options(self) -> Mapping[str, Any]:
        """Return the options that determine the order of the items. A state is valid only where they are equal."""
        return {}

    def require_resumable(self) -> None:
        """Check that the options of this pipe allow a state to be resumed.

        Raises:
            StateError: if they do not. Names the option.
        """

    def equal_counts(self, num_streams: int) -> bool | None:
        """Hook: whether so many streams all get the same number of items; ``None`` if they do where the source's do."""
        return True if self.gives_equal_counts else None

    def warm_up(self) -> Iterator[None]:
        """Hook: prepare the first item. Yields after each step, so that several streams can be warmed up concurrently.

        Called at most once per pass, before ``__iter__``.
        """
        return iter(())

    def forget_start(self) -> None:
        """Hook: drop a loaded state, and what was warmed up, of a pass that has not begun and will not begin."""

    def prepare_copy(self, num_streams: int) -> None:
        """Hook: called once per pass on the template that is copied for each stream of this process."""

    def bind_stream(self, world: World) -> None:
        """Hook: called on each copy of the template. It reads the share of ``world``."""
        self._is_stream = True

    def forget_skipped(self) -> None:
        """Forget what the pass before has skipped, unless this is one of the streams of a pass."""
        if self._skipped is not None and not self._is_stream:
            self._skipped.clear()

    def warn_of_skipped(self) -> None:
        """Hook: called after a pass. It does nothing for one of the streams of a pass."""


class SharedList(DataPipe[T_co]):
    """Base of a pipe whose items are one list, made once per pass and shared by its copies.

    A copy that reads a share takes it by number, so the list is not iterated again for each copy.
    """

    def urls(self) -> list[T_co]:
        """Return all items of this pass. The caller must not modify the list."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.urls())


class StatefulPipe(DataPipe[T_co]):
    """Base of a pipe with a state of its own.

    A subclass implements ``_state``, and calls ``_take_loaded`` when a pass starts.
    """

    state_fields: ClassVar[tuple[str, ...]] = ()
    """What a state of this pipe has."""
    state_counts: ClassVar[tuple[str, ...]] = ()
    """Those of them that are numbers from 0 on."""
    # State from which the next pass resumes.
    _loaded: Any = None

    def state_dict(self) -> Any:
        """Return the position after the last item that was yielded, as plain JSON."""
        return self._state() if self._loaded is None else self._loaded

    def load_state_dict(self, state: Any) -> None:
        """Resume the next pass from a state.

        Raises:
            StateError: if it is a state of another pipe.
        """
        if state is not None and not (isinstance(state, Mapping) and all(name in state for name in self.state_fields)):
            raise OtherStateError(
                f"{type(self).__name__}: expected a state with {', '.join(self.state_fields)}, got "
                f"{check.shown(state)}. Load what state_dict() of the same pipe has returned."
            )
        if state is not None:
            for name in self.state_counts:
                require_count(type(self).__name__, name, state[name])
        self._loaded = state

    def forget_start(self) -> None:
        self._loaded = None

    def _state(self) -> Any:
        raise NotImplementedError

    def _take_loaded(self) -> Any:
        """Return the loaded state, or ``None``, and clear it: the pass after this one starts from the beginning."""
        state, self._loaded = self._loaded, None
        return state


def require_count(owner: str, name: str, value: object) -> None:
    """Check a number of a state.

    Raises:
        StateError: if it is no int from 0 on.
    """
    if type(value) is not int or value < 0:
        raise OtherStateError(
            f"{owner}: the state is damaged, {name} must be an int of at least 0, got {check.shown(value)}."
        )


class OneForOne(DataPipe[T_co]):
    """Base of a pipe that yields one item for each that it takes: state and length are those of its source."""

    needs_source_state = True
    source_datapipe: TorchDataPipe[Any]

    def state_dict(self) -> Any:
        """Return the position after the last item that was yielded, as plain JSON."""
        return state_of(self.source_datapipe)

    def load_state_dict(self, state: Any) -> None:
        """Resume the next pass from a state."""
        load_state(self.source_datapipe, state)

    def snapshots(self) -> Callable[[], Snapshot]:
        """Hook: return a function that returns the state as it is now, to be called after each item of a pass."""
        return snapshots_of(self.source_datapipe)

    def warm_up(self) -> Iterator[None]:
        return warm_up(self.source_datapipe)

    def __len__(self) -> int:
        return len(self.source_datapipe)  # TypeError where it has none, as for torch's pipes
