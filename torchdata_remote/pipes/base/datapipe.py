"""The base of the package's pipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from ...core.iter_datapipe import IterDataPipe
from ...core.parent_watch import WatchedWhenUnpickled
from ...core.stats.report import Stats, stats
from ...core.world import World
from .chain import load_state, state_of, warm_up

T_co = TypeVar("T_co", covariant=True)


class DataPipe(WatchedWhenUnpickled, IterDataPipe[T_co]):
    """torch's ``IterDataPipe``, at a fifth of its time for each item (``benchmarks/bench_datapipe.py``).

    torch asks for every item whether the pipe is a part of a ``fork`` or ``demux``. Where the attribute is missing, the
    question goes through the search for functional names and ends in an exception: 0.7 of the 0.9 µs an item costs.
    """

    _is_child_datapipe = False

    gives_urls = False
    """Whether the items are URLs, in an order that depends on the epoch only: they are listed once for all streams."""
    needs_source_state = False
    """Whether the state contains that of each source, so that each of them must have one."""
    gives_equal_counts = False
    """Whether all ranks get the same number of items."""

    def stats(self) -> Stats:
        """What the stages of this process have done so far, for all of its chains together: :func:`stats`."""
        return stats()

    def order_options(self) -> Mapping[str, Any]:
        """The options on which the order of the items depends: a state fits where they are the same."""
        return {}

    def require_resumable(self) -> None:
        """Check the options on which it depends whether a state can be resumed.

        Raises:
            StateError: if it cannot; names the option.
        """

    def warm_up(self) -> Iterator[None]:
        """Bring what the first item needs, in steps, which several streams take by turns. Then it is iterated."""
        return iter(())

    def prepare_copy(self, num_streams: int) -> None:
        """Be a copy that is copied once more for each of the streams that this process reads at the same time."""

    def bind_stream(self, world: World) -> None:
        """Be such a copy, which reads the share of that place in the world."""


class SharedList(DataPipe[T_co]):
    """A pipe whose items are one list, made once and shared by its copies.

    Copies that read a part of it take that by number, so that the whole is not walked through for each of them.
    """

    def urls(self) -> list[T_co]:
        """All items of this pass, which the caller must not change."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.urls())


class StatefulPipe(DataPipe[T_co]):
    """A pipe that knows where it is in what it hands out."""

    _loaded: Any = None  # with which the next pass begins

    def state_dict(self) -> Any:
        """Where this is in what it hands out: plain JSON, after the last item."""
        return self._state() if self._loaded is None else self._loaded

    def load_state_dict(self, state: Any) -> None:
        """Let the next pass go on where that state was taken."""
        self._loaded = state

    def _state(self) -> Any:
        raise NotImplementedError

    def _take_loaded(self) -> Any:
        """The state with which the pass begins, or ``None``; the next one begins anew."""
        state, self._loaded = self._loaded, None
        return state


class OneForOne(DataPipe[T_co]):
    """A pipe that hands out one item for each it takes: state and length are its source's."""

    needs_source_state = True
    source_datapipe: IterDataPipe[Any]

    def state_dict(self) -> Any:
        """Where this is in what it hands out: plain JSON, after the last item."""
        return state_of(self.source_datapipe)

    def load_state_dict(self, state: Any) -> None:
        """Let the next pass go on where that state was taken."""
        load_state(self.source_datapipe, state)

    def warm_up(self) -> Iterator[None]:
        return warm_up(self.source_datapipe)

    def __len__(self) -> int:
        return len(self.source_datapipe)  # TypeError where it has none, as for torch's pipes
