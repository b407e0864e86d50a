"""States after the last batches of a loader, for frameworks that read batches ahead of those they train on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from ..callers import callers
from ..lightning_loops import current_fetcher, current_progress, num_fetches, num_not_trained_on, set_begun_again
from .states import State

_MOST_AHEAD = 1  # of Lightning where it knows no length, and of Ray Train's prepare_data_loader
_IN_STEP = 1  # a batch that Lightning has handed to a step which has not finished
_RAY = ("ray.train.torch.train_loop_utils",)

TakeState = Callable[[], State]


class ReadAhead:
    """Where the passes of a loader were after each of the last batches.

    Keeps nothing where what iterates the loader is not known to read ahead.
    """

    def __init__(self) -> None:
        self._fetcher: Any = None  # of Lightning
        self._ray: Any = None  # what reads ahead in Ray
        self._progress: Any = None  # of Lightning's training loop
        self._states: deque[TakeState] = deque(maxlen=_MOST_AHEAD + _IN_STEP + 1)
        self._num_batches = 0  # of this pass
        self._last_fetch = 0  # of Lightning, in which this loader has given a batch
        self.has_begun_again = False  # loaded: whether Lightning's epoch has had a whole pass before this one
        self.first: State | None = None  # with which a framework has begun the pass

    def _num_ahead(self) -> int:
        """Batches that were handed out, and that nothing was trained on."""
        if self._fetcher is not None:
            num_without = max(0, num_fetches(self._fetcher) - self._last_fetch)
            return max(0, num_not_trained_on(self._fetcher, self._progress) - num_without)
        return 0 if self._ray is None or self._ray.next_batch is None else 1

    def is_untouched(self) -> bool:
        """Whether a framework has begun the pass, and has trained on no batch of it."""
        return self.first is not None and self._num_batches == self._num_ahead()

    def begin(self, take_first: Callable[[], State | None]) -> None:
        """A pass begins.

        Args:
            take_first: takes the state with which it does, if there is one.
        """
        before, self._num_batches, self._last_fetch = (self._fetcher, self._ray), 0, 0
        self._fetcher = current_fetcher()
        self._ray = next((caller for caller in callers(*_RAY) if hasattr(caller, "next_batch")), None)
        self._progress = None if self._fetcher is None else current_progress(self._fetcher)
        reader = (self._fetcher, self._ray)
        if any(new is not old for new, old in zip(reader, before, strict=True)):
            self._states.clear()
        self.first = first = None if reader == (None, None) else take_first()
        if first is not None:
            if self._states:
                self._states.pop()  # after the last batch of the pass before
            self._states.append(lambda: first)

    def handed_out(self, loader: Any, take: Callable[[], TakeState]) -> None:
        """One more batch is handed out.

        Args:
            loader: which does.
            take: notes where the pass is after it.
        """
        self._num_batches += 1
        if self.has_begun_again:
            set_begun_again(loader)
            self.has_begun_again = False
        if self._fetcher is not None:
            self._last_fetch = num_fetches(self._fetcher) + 1
        may_fail_in_step = self._progress is not None
        if may_fail_in_step or self._ray is not None or getattr(self._fetcher, "length", 0) is None:
            self._states.append(take())

    def state(self) -> State | None:
        """Where the pass is after the last batch that was trained on; ``None`` where that is the last one of all."""
        num_ahead = self._num_ahead()
        return self._states[-1 - num_ahead]() if 0 < num_ahead < len(self._states) else None
