"""Base of the pipes that count the items which they hand on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ...core.iter_datapipe import IterDataPipe
from .chain import Snapshot, load_state, snapshots_of, state_of, warm_up
from .datapipe import StatefulPipe

T_co = TypeVar("T_co", covariant=True)


class CountedPipe(StatefulPipe[T_co]):
    """Base of a pipe that hands on items unchanged; its state is that of its source, and how many were handed on.

    A subclass begins ``__iter__`` with ``_begin``, and counts in ``_num_passed``.

    Args:
        source_datapipe: that is read.
    """

    needs_source_state = True
    state_fields = ("passed", "at")
    state_counts = ("passed",)

    def __init__(self, source_datapipe: IterDataPipe[T_co]) -> None:
        super().__init__()
        self.source_datapipe = source_datapipe
        self._num_passed = 0

    def _begin(self) -> int:
        """Start a pass: return how many items were handed on before the state was saved."""
        state = self._take_loaded()
        self._num_passed = 0 if state is None else state["passed"]
        return self._num_passed

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        load_state(self.source_datapipe, state["at"])

    def warm_up(self) -> Iterator[None]:
        return warm_up(self.source_datapipe)

    def _state(self) -> Any:
        return {"passed": self._num_passed, "at": state_of(self.source_datapipe)}

    def snapshots(self) -> Callable[[], Snapshot]:
        of_source = snapshots_of(self.source_datapipe)

        def take() -> Snapshot:
            num_passed, at = self._num_passed, of_source()
            return lambda: {"passed": num_passed, "at": at()}

        return take
