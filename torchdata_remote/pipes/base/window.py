"""Base of the pipes that hold items of their source, and read these again when they are resumed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, TypeVar

from ...core.iter_datapipe import IterDataPipe
from ...errors import StateError
from .chain import Snapshot, load_state, name_of, snapshots_of, warm_up
from .datapipe import StatefulPipe

T_co = TypeVar("T_co", covariant=True)

END: Any = object()


class Window:
    """The items of a source from the oldest one on that is in use, with the state of the source before each.

    Args:
        pipe: the source, with ``start`` loaded.
        start: state of the source before its first item; ``None`` for its beginning.
    """

    def __init__(self, pipe: IterDataPipe[Any], start: Any) -> None:
        self._pipe, self._take = pipe, snapshots_of(pipe)
        self._source = iter(pipe)
        self._before: deque[Snapshot] = deque([partial(_same, start)])  # of the items oldest to num_read
        self.oldest = 0  # number of the oldest item in use
        self.num_read = 0

    def read(self) -> Any:
        """Return the next item, or ``END``."""
        item = next(self._source, END)
        if item is not END:
            self.num_read += 1
            self._before.append(self._take())
        return item

    def read_again(self, num_items: int) -> Iterator[Any]:
        """Yield the items that were read before the state was saved.

        Raises:
            StateError: if there are fewer now.
        """
        for number in range(num_items):
            item = self.read()
            if item is END:
                raise StateError(
                    f"{name_of(self._pipe)} yielded {num_items:,} items before the state was saved, and {number:,} "
                    "now: what it reads, or a function of the chain, has changed."
                )
            yield item

    def release(self, oldest: int) -> None:
        """Forget the states before an item: those before it are not in use."""
        while self.oldest < oldest:
            self._before.popleft()
            self.oldest += 1

    def position(self) -> Snapshot:
        """Return a snapshot of the source before the oldest item in use."""
        return self._before[0]


def _same(state: Any) -> Any:
    return state


class Place:
    """Returns the state after the item that was handed out last; ``None`` before the first one.

    It is empty where the pipe is pickled or copied, because snapshots belong to a pass.
    """

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None

    def __reduce__(self) -> tuple[type[Place], tuple[()]]:
        return Place, ()


class WindowedPipe(StatefulPipe[T_co]):
    """Base of a pipe whose state is that of its source before the oldest item in use, under ``at``, and small numbers.

    Args:
        source_datapipe: that is read.
    """

    needs_source_state = True
    changes_count = True
    beginning: ClassVar[dict[str, Any]] = {"at": None}
    """State before the first item."""

    def __init__(self, source_datapipe: IterDataPipe[Any]) -> None:
        super().__init__()
        self.source_datapipe = source_datapipe
        self._place = Place()

    def _begin(self) -> tuple[Any, Window]:
        """Start a pass: return the state from which it starts, and its window."""
        state = self._take_loaded() or self.beginning
        self._place = Place()
        return state, Window(self.source_datapipe, state["at"])

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self._place = Place()
        if state["at"] is not None:
            load_state(self.source_datapipe, state["at"])

    def warm_up(self) -> Iterator[None]:
        return warm_up(self.source_datapipe)

    def _state(self) -> Any:
        snapshot = self._place.snapshot
        return dict(self.beginning) if snapshot is None else snapshot()

    def snapshots(self) -> Callable[[], Snapshot]:
        beginning = dict(self.beginning)
        return lambda: self._place.snapshot or partial(_same, beginning)
