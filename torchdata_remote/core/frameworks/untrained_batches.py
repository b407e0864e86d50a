"""Batches that a framework has taken and not trained on: count them, and resume before them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .call_stack import callers
from .lightning_loops import current_fetcher, current_progress, num_fetches, num_untrained
from .lightning_resume import mark_cycled

_RAY = ("ray.train.torch.train_loop_utils",)
_MOST_OF_LIGHTNING = 2  # one that its fetcher prefetches where the length is unknown, one in an unfinished step

State = dict[str, Any]
Snapshot = Callable[[], State]
"""A position that was captured at little cost; the call makes the state of it."""


def current_wrappers() -> list[Any]:
    """Ray's prepared loaders among the callers, nested in each other; each of them prefetches one batch."""
    return list({id(caller): caller for caller in callers(*_RAY) if hasattr(caller, "next_batch")}.values())


def num_ahead(wrappers: Sequence[Any]) -> int:
    """Count the batches that Ray's prepared loaders have prefetched."""
    return sum(wrapper.next_batch is not None for wrapper in wrappers)


class UntrainedBatches:
    """The positions of a loader after each of its last batches.

    Stores nothing unless the loader is iterated by a framework that prefetches batches or may fail within a step.
    """

    def __init__(self) -> None:
        self._fetcher: Any = None  # of Lightning
        self._wrappers: list[Any] = []  # of Ray
        self._progress: Any = None  # of Lightning's training loop
        self._snapshots: deque[Snapshot] = deque()
        self._num_batches = 0  # of this pass
        self._last_fetch = 0  # number of the fetch by Lightning for which this loader had a batch
        self.is_cycled = False  # whether the loaded state is of a second pass within one epoch of Lightning
        self.first: State | None = None  # with which a framework has started the pass

    def _num_untrained(self) -> int:
        ahead = num_ahead(self._wrappers)
        if self._fetcher is not None:
            num_without = max(0, num_fetches(self._fetcher) - self._last_fetch)
            ahead += max(0, num_untrained(self._fetcher, self._progress) - num_without)
        return ahead

    def is_all_of_pass(self) -> bool:
        """Whether a framework has started the pass and trained on no batch of it."""
        return self.first is not None and self._num_batches == self._num_untrained()

    def start_pass(self, first_state: Callable[[], State | None]) -> None:
        """Find the framework that starts a pass.

        Args:
            first_state: makes the state with which the pass starts, if there is one. Called only if it is needed.
        """
        before, self._num_batches, self._last_fetch = [self._fetcher, *self._wrappers], 0, 0
        self._fetcher, self._wrappers = current_fetcher(), current_wrappers()
        self._progress = None if self._fetcher is None else current_progress(self._fetcher)
        readers = [self._fetcher, *self._wrappers]
        is_same = list(map(id, readers)) == list(map(id, before))
        most = len(self._wrappers) + (0 if self._fetcher is None else _MOST_OF_LIGHTNING)
        self._snapshots = deque(self._snapshots if is_same else (), maxlen=most + 1)
        self.first = first = first_state() if most else None
        if first is not None:
            if self._snapshots:
                self._snapshots.pop()  # after the last batch of the pass before
            self._snapshots.append(lambda: first)

    def add(self, loader: Any, capture: Callable[[], Snapshot]) -> None:
        """Count one more batch that is about to be handed out.

        Args:
            loader: whose batch it is.
            capture: captures the position after this batch. Called only if it is needed.
        """
        self._num_batches += 1
        if self.is_cycled:
            mark_cycled(loader)
            self.is_cycled = False
        if self._fetcher is not None:
            self._last_fetch = num_fetches(self._fetcher) + 1
        may_fail_in_step = self._progress is not None
        if may_fail_in_step or self._wrappers or getattr(self._fetcher, "length", 0) is None:
            self._snapshots.append(capture())

    def state(self) -> State | None:
        """The state after the last batch that was trained on; ``None`` if that is the last one handed out."""
        ahead = self._num_untrained()
        return self._snapshots[-1 - ahead]() if 0 < ahead < len(self._snapshots) else None
