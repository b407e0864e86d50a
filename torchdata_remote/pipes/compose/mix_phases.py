"""The phases of a pass over a mixture: from which sample on which weights held, and what was drawn by them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from ...errors import StateError
from ..base.datapipe import OtherStateError


class Phase(NamedTuple):
    """From ``start`` on, among the samples of all ranks, sources are drawn by these weights, each above 0."""

    start: int
    weights: dict[str, float]


Row = list[Any]
"""A phase in a state: start, weights, name -> number of samples that this slot drew, number of draws before it."""


def require_mixture(state: Mapping[str, Any]) -> None:
    """Check sources and phases of a state.

    Raises:
        StateError: if they are damaged.
    """
    sources, phases = state["sources"], state.get("phases") or []
    if not isinstance(sources, list) or not all(_is_source(row) for row in sources):
        raise _damaged("sources", "rows of name, number of passes and state", sources)
    if not isinstance(phases, list) or not all(_is_phase(row) for row in phases):
        raise _damaged("phases", "rows of start, weights, numbers drawn and draws", phases)


def gone_source(name: str) -> StateError:
    """Return the error for a state with a source that the mixture does not have."""
    return OtherStateError(
        f"mix: the state has the source {name!r}, which this mixture does not have. Keep it, with the weight 0 in a "
        "schedule."
    )


def _is_source(row: Any) -> bool:
    return isinstance(row, list | tuple) and len(row) == 3 and isinstance(row[0], str) and _is_count(row[1])


def _is_phase(row: Any) -> bool:
    if not (isinstance(row, list | tuple) and len(row) == 4 and _is_count(row[0]) and _is_count(row[3])):
        return False
    _, weights, drawn, _ = row
    return isinstance(weights, Mapping) and isinstance(drawn, Mapping) and all(map(_is_count, drawn.values()))


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _damaged(name: str, expected: str, found: object) -> StateError:
    return OtherStateError(f"mix: the state is damaged, {name} must be {expected}, got {found!r:.100}.")


class PhaseRecord:
    """What states contain of the phases.

    Args:
        rows: of a state; the last one is the current phase.
    """

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self._ended = list(rows[:-1])  # never changed in place: snapshots share it
        start, weights, self.drawn_before, self._draws = rows[-1] if rows else (0, {}, {}, 0)
        self._phase = Phase(start, weights)

    def holds(self, weights: Mapping[str, float]) -> bool:
        """Whether these are the weights of the current phase."""
        return self._phase.weights == weights

    def begin(self, phase: Phase, draws: int, drawn: Mapping[str, int]) -> None:
        """Begin a phase.

        Args:
            phase: that begins.
            draws: number of draws before it.
            drawn: from each source, in the phase that ends.
        """
        self._ended = self.snapshot(drawn)()
        self._phase, self._draws, self.drawn_before = phase, draws, {}

    def snapshot(self, drawn: Mapping[str, int]) -> Callable[[], list[Row]]:
        """Return a function that returns the rows as they are now.

        Args:
            drawn: in the current phase, from each source that the mixture has.
        """
        ended, (start, weights), before, draws = self._ended, self._phase, self.drawn_before, self._draws

        def rows() -> list[Row]:
            # A phase of a state has the sources of its time
            counts = {name: drawn.get(name, count) for name, count in before.items()} if before else drawn
            return [*ended, [start, weights, counts, draws]] if weights else ended

        return rows


class Replay:
    """The phases up to the point where a saved pass was: a pass that resumes before it repeats them.

    Args:
        point: of the saved pass; ``None`` to repeat nothing.
    """

    def __init__(self, point: Mapping[str, Any] | None = None) -> None:
        rows = [] if point is None else point["phases"]
        self.end = 0 if point is None else point["draws"]
        """Number of draws."""
        self._phases, self._starts = [Phase(*row[:2]) for row in rows], list(map(itemgetter(3), rows))

    def phase_at(self, draws: int) -> Phase:
        """The phase after so many draws."""
        return self._phases[max(0, bisect_right(self._starts, draws) - 1)]
