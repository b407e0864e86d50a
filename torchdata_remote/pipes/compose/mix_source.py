"""One source of a mixture, in a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ...core.iter_datapipe import IterDataPipe
from ...errors import StateError
from ..base.chain import Snapshot, forget_start, load_state, state_of
from ..base.epochs import set_epoch_of_pass


class MixSource:
    """One source in a pass.

    Args:
        name: key in the mapping of sources.
        pipe: its chain.
        num_passes: how often it was restarted.
        state: from which it resumes; ``None`` for its start.
        drawn: number of samples that were drawn from it in this phase.
    """

    def __init__(self, name: str, pipe: IterDataPipe[Any], num_passes: int, state: Any, drawn: int) -> None:
        self.name, self._pipe, self.num_passes, self._resume_from = name, pipe, num_passes, state
        self.items: Iterator[Any] = iter(())
        self.started = self.exhausted = False
        self.drawn = drawn
        self.more = 0  # by which the epoch of the source is larger

    def open(self, epoch: int) -> MixSource:
        """Start a pass. Each pass has its own order, also within an epoch."""
        self.more = set_epoch_of_pass(self._pipe, epoch, self.num_passes)
        forget_start(self._pipe)
        if self._resume_from is not None:
            load_state(self._pipe, self._resume_from)
        self.items = iter(self._pipe)
        return self

    def restarted(self) -> MixSource:
        """Return the next pass over this source."""
        if not self.started and self._resume_from is None:
            raise ValueError(f"mix: the source {self.name!r} is empty, so it cannot be restarted.")
        return MixSource(self.name, self._pipe, self.num_passes + 1, None, self.drawn)

    def end(self) -> None:
        """Give back threads and memory at the end of the pass."""
        getattr(self.items, "close", tuple)()

    def close(self) -> None:
        """End the pass of a source that is not drawn any more, and keep its position."""
        if self.started:
            try:
                self._resume_from = state_of(self._pipe)
            except StateError:  # it has no position to keep
                return
            self.started = False
            self.end()

    def state(self) -> list[Any]:
        return [self.name, self.num_passes, state_of(self._pipe) if self.started else self._resume_from]

    def snapshot(self, take: Callable[[], Snapshot]) -> Snapshot:
        name, num_passes, start = self.name, self.num_passes, self._resume_from
        at = take() if self.started else lambda: start
        return lambda: [name, num_passes, at()]
