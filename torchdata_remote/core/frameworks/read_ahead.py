"""Batches that frameworks have taken and not trained on, and where loaders were before those."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .call_stack import callers
from .lightning import current_fetcher, current_progress, num_fetches, num_not_trained_on, set_begun_again

_RAY = ("ray.train.torch.train_loop_utils",)
_OF_LIGHTNING = 2  # one that its fetcher reads ahead, where it knows no length; one in a step that has not finished

State = dict[str, Any]
TakeState = Callable[[], State]


def current_wrappers() -> list[Any]:
    """Ray's prepared loaders among the callers, one in another, of which each reads a batch ahead."""
    return list({id(caller): caller for caller in callers(*_RAY) if hasattr(caller, "next_batch")}.values())


def num_ahead(wrappers: Sequence[Any]) -> int:
    """Batches that Ray's prepared loaders have taken and not handed out."""
    return sum(wrapper.next_batch is not None for wrapper in wrappers)


class ReadAhead:
    """Where the passes of a loader were after each of the last batches.

    Keeps nothing where what iterates the loader is not known to read ahead.
    """

    def __init__(self) -> None:
        self._fetcher: Any = None  # of Lightning
        self._wrappers: list[Any] = []  # of Ray
        self._progress: Any = None  # of Lightning's training loop
        self._states: deque[TakeState] = deque()
        self._num_batches = 0  # of this pass
        self._last_fetch = 0  # of Lightning, in which this loader has given a batch
        self.has_begun_again = False  # loaded: whether Lightning's epoch has had a whole pass before this one
        self.first: State | None = None  # with which a framework has begun the pass

    def _num_ahead(self) -> int:
        """Batches that were handed out, and that nothing was trained on."""
        ahead = num_ahead(self._wrappers)
        if self._fetcher is not None:
            num_without = max(0, num_fetches(self._fetcher) - self._last_fetch)
            ahead += max(0, num_not_trained_on(self._fetcher, self._progress) - num_without)
        return ahead

    def is_untouched(self) -> bool:
        """Whether a framework has begun the pass, and has trained on no batch of it."""
        return self.first is not None and self._num_batches == self._num_ahead()

    def begin(self, take_first: Callable[[], State | None]) -> None:
        """A pass begins.

        Args:
            take_first: takes the state with which it does, if there is one.
        """
        before, self._num_batches, self._last_fetch = [self._fetcher, *self._wrappers], 0, 0
        self._fetcher, self._wrappers = current_fetcher(), current_wrappers()
        self._progress = None if self._fetcher is None else current_progress(self._fetcher)
        readers = [self._fetcher, *self._wrappers]
        is_same = list(map(id, readers)) == list(map(id, before))
        most_ahead = len(self._wrappers) + (0 if self._fetcher is None else _OF_LIGHTNING)
        self._states = deque(self._states if is_same else (), maxlen=most_ahead + 1)
        self.first = first = take_first() if most_ahead else None
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
        if may_fail_in_step or self._wrappers or getattr(self._fetcher, "length", 0) is None:
            self._states.append(take())

    def state(self) -> State | None:
        """Where the pass is after the last batch that was trained on; ``None`` where that is the last one of all."""
        ahead = self._num_ahead()
        return self._states[-1 - ahead]() if 0 < ahead < len(self._states) else None
