"""Weights of a mixture that change with the number of samples, and this slot's samples among those of all ranks."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .mix_phases import Phase


class Schedule:
    """Weights by phase.

    Args:
        points: number of samples of all ranks -> name of each source -> weight from there on. The first number is 0.
    """

    def __init__(self, points: Mapping[int, Mapping[str, float]]) -> None:
        self.points = {start: dict(points[start]) for start in sorted(points)}
        self._phases = [
            Phase(start, {name: weight for name, weight in weights.items() if weight})
            for start, weights in self.points.items()
        ]

    def __len__(self) -> int:
        return len(self._phases)

    def phase_at(self, position: int, names: Iterable[str]) -> tuple[Phase, float] | None:
        """Return the phase by whose weights one of these sources is drawn: that of a sample, or else a later one.

        Args:
            position: of the sample, among those of all ranks.
            names: of the sources that are not exhausted.

        Returns:
            The phase, and the position where it ends; ``None`` if all of them have the weight 0 from there on.
        """
        names, starts = set(names), list(self.points)
        for number in range(bisect_right(starts, position) - 1, len(self)):
            if not names.isdisjoint(self._phases[number].weights):
                return self._phases[number], starts[number + 1] if number + 1 < len(self) else math.inf
        return None


class SlotSamples(NamedTuple):
    """The samples of a slot, among those of all ranks: each slot has one of ``num_slots`` in turn.

    Args:
        start: number of samples of all ranks before this epoch.
        slot: of this reader.
        num_slots: of all readers.
    """

    start: int
    slot: int
    num_slots: int

    def position(self, passed: int) -> int:
        """Position of the sample that this slot hands out after ``passed`` others."""
        return self.start + passed * self.num_slots + self.slot

    def num_before(self, position: float) -> float:
        """Count the samples of this slot whose position is smaller."""
        if position == math.inf:
            return math.inf
        return max(0, -((self.start + self.slot - int(position)) // self.num_slots))

    def begun(self, phase: Phase, passed: int) -> Phase:
        """Let a phase start at the next sample, unless it has started in all ranks after the sample before it."""
        start, position = max(phase.start, self.start), self.position(passed)
        return Phase(start if position - self.num_slots < start <= position else position, phase.weights)
