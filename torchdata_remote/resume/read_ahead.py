"""States after the last batches of a loader, for frameworks that read batches ahead of those they train on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ..callers import callers
from ..lightning_loops import current_fetcher, num_read_ahead
from .states import State

_MOST_AHEAD = 1  # of Lightning where it knows no length, and of Ray Train's prepare_data_loader
_RAY = ("ray.train.torch.train_loop_utils",)

TakeState = Callable[[], State]


def _current_reader() -> Any:
    """What reads ahead among the callers: Lightning's fetcher, Ray's prepared loader, or ``None``."""
    found = current_fetcher()
    return found or next((caller for caller in callers(*_RAY) if hasattr(caller, "next_batch")), None)


def _num_ahead(reader: Any) -> int:
    """Batches that it has taken and not handed out."""
    if reader is None:
        return 0
    if hasattr(reader, "prefetch_batches"):
        return num_read_ahead(reader)
    return 0 if reader.next_batch is None else 1


class ReadAhead:
    """Where the passes of a loader were after each of the last batches.

    Keeps nothing where what iterates the loader is not known to read ahead.
    """

    def __init__(self) -> None:
        self._reader: Any = None
        self._states: deque[TakeState] = deque(maxlen=_MOST_AHEAD + 1)
        self._num_batches = 0  # of this pass
        self.first: State | None = None  # with which a framework has begun the pass

    def is_untouched(self) -> bool:
        """Whether a framework has begun the pass, and has trained on no batch of it."""
        return self.first is not None and self._num_batches == _num_ahead(self._reader)

    def begin(self, take_first: Callable[[], State | None]) -> None:
        """A pass begins.

        Args:
            take_first: takes the state with which it does, if there is one.
        """
        before, self._reader, self._num_batches = self._reader, _current_reader(), 0
        if self._reader is not before:
            self._states.clear()
        self.first = first = None if self._reader is None else take_first()
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
        if self._reader is not None and getattr(self._reader, "length", None) is None:
            self._states.append(take())

    def state(self) -> State | None:
        """Where the pass is after the last batch that was trained on; ``None`` where that is the last one of all."""
        num_ahead = _num_ahead(self._reader)
        return self._states[-1 - num_ahead]() if 0 < num_ahead < len(self._states) else None
