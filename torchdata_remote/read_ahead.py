"""What frameworks read ahead of the batches they train on, and the states of loaders before that."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .callers import callers
from .lightning_loops import current_fetcher, num_read_ahead

_RAY = ("ray.train.torch.train_loop_utils",)

State = dict[str, Any]
TakeState = Callable[[], State]


def current_readers() -> list[Any]:
    """What reads a batch ahead among the callers: Lightning's fetcher, and Ray's prepared loaders, one in another."""
    found = {id(caller): caller for caller in callers(*_RAY) if hasattr(caller, "next_batch")}
    fetcher = current_fetcher()
    return [*found.values()] if fetcher is None else [fetcher, *found.values()]


def num_ahead(readers: Sequence[Any]) -> int:
    """Batches that they have taken and not handed out."""
    return sum(map(_num_ahead_of, readers))


def _num_ahead_of(reader: Any) -> int:
    if hasattr(reader, "prefetch_batches"):
        return num_read_ahead(reader)
    return 0 if reader.next_batch is None else 1


def _may_be_ahead(reader: Any) -> bool:
    return getattr(reader, "length", None) is None  # Lightning's fetcher asks for the length, and needs not read ahead


class ReadAhead:
    """Where the passes of a loader were after each of the last batches.

    Keeps nothing where what iterates the loader is not known to read ahead.
    """

    def __init__(self) -> None:
        self._readers: list[Any] = []
        self._states: deque[TakeState] = deque()
        self._num_batches = 0  # of this pass
        self.first: State | None = None  # with which a framework has begun the pass

    def is_untouched(self) -> bool:
        """Whether a framework has begun the pass, and has trained on no batch of it."""
        return self.first is not None and self._num_batches == num_ahead(self._readers)

    def begin(self, take_first: Callable[[], State | None]) -> None:
        """A pass begins.

        Args:
            take_first: takes the state with which it does, if there is one.
        """
        before, self._readers, self._num_batches = self._readers, current_readers(), 0
        is_same = list(map(id, self._readers)) == list(map(id, before))
        # Each reads one batch ahead, and the state before that is kept, too
        self._states = deque(self._states if is_same else (), maxlen=len(self._readers) + 1)
        self.first = first = take_first() if self._readers else None
        if first is not None:
            if self._states:
                self._states.pop()  # after the last batch of the pass before
            self._states.append(lambda: first)

    def handed_out(self, take: Callable[[], TakeState]) -> None:
        """One more batch is handed out.

        Args:
            take: notes where the pass is after it.
        """
        self._num_batches += 1
        if any(map(_may_be_ahead, self._readers)):
            self._states.append(take())

    def state(self) -> State | None:
        """Where the pass is after the last batch that was trained on; ``None`` where that is the last one of all."""
        ahead = num_ahead(self._readers)
        return self._states[-1 - ahead]() if 0 < ahead < len(self._states) else None
