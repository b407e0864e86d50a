"""Shares of the data: that of a stream, of which others may have got a part since its epoch began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..core.world import World

Path = tuple[int, ...]
"""The epoch, and within it the number of the pass of each pipe that reads its source several times."""


class Cut(NamedTuple):
    """A stream was divided: part 0 keeps what was taken until then, and all parts share the rest.

    Args:
        marks: number of a pipe -> pass in which it was, and what it had taken.
        part: which of the parts.
        parts: how many there are.
        passed: number of items of the stream that were handed out.
    """

    marks: Mapping[int, tuple[Path, Any]]
    part: int
    parts: int
    passed: int = 0

    def taken(self, number: int, path: Path, whole: int) -> int:
        """How many of ``whole`` items of a pass were taken when the stream was divided."""
        at, mark = self.marks.get(number, ((), 0))
        if at != path:
            return whole if path < at else 0
        return int(mark["passed"] if isinstance(mark, Mapping) else mark)


@dataclass(frozen=True)
class Share:
    """The part of the data that a stream reads: ``number`` of ``count``, of which others may have got some since.

    Args:
        number: of the share, from 0.
        count: of all shares of an epoch.
        cuts: the divisions since the epoch began.
    """

    number: int = 0
    count: int = 1
    cuts: tuple[Cut, ...] = ()

    @classmethod
    def of(cls, world: World) -> Share:
        """The share of a slot."""
        return cls(world.slot, world.num_slots)

    @property
    def key(self) -> tuple[int, ...]:
        """What random draws of a stream depend on: it stays that of the stream where others got a part of it."""
        return (self.number, *(number for cut in self.cuts if cut.part for number in (cut.part, cut.parts)))

    def amount(self, total: int, number: int, path: Path) -> int:
        """How many of ``total`` items this share has; all shares have the total together, and differ by one at most.

        >>> [Share(number, 4).amount(10, 0, (0,)) for number in range(4)]
        [2, 3, 2, 3]
        """
        own = part_of(total, self.number, self.count)
        for cut in self.cuts:
            taken = cut.taken(number, path, own)
            own = part_of(own - taken, cut.part, cut.parts) + (0 if cut.part else taken)
        return own

    def divided(self, marks: Mapping[int, tuple[Path, Any]], parts: int, passed: int = 0) -> list[Share]:
        """Divide the rest of this share, of which so many items were handed out."""
        return [replace(self, cuts=(*self.cuts, Cut(marks, part, parts, passed))) for part in range(parts)]

    def to_json(self) -> list[Any]:
        """Encode for a state."""
        return [self.number, self.count, *([marks_to_json(marks), *cut] for marks, *cut in self.cuts)]

    @classmethod
    def from_json(cls, saved: Sequence[Any]) -> Share:
        """Decode what ``to_json`` returned."""
        number, count, *cuts = saved
        return cls(number, count, tuple(Cut(marks_from_json(marks), *cut) for marks, *cut in cuts))


def part_of(total: int, number: int, count: int) -> int:
    """How many of ``total`` items one of ``count`` equal shares has."""
    return total * (number + 1) // count - total * number // count


def marks_to_json(marks: Mapping[int, tuple[Path, Any]]) -> list[Any]:
    """Encode the marks of the pipes of a stream for a state."""
    return [[number, list(path), mark] for number, (path, mark) in marks.items()]


def marks_from_json(saved: Sequence[Any]) -> dict[int, tuple[Path, Any]]:
    """Decode what :func:`marks_to_json` returned."""
    return {number: (tuple(path), mark) for number, path, mark in saved}


def seeds_of(path: Path) -> Path:
    """Return a path without zeros at its end, but for the epoch: what orders depend on.

    >>> seeds_of((3, 0)), seeds_of((0, 2, 0))
    ((3,), (0, 2))
    """
    while len(path) > 1 and not path[-1]:
        path = path[:-1]
    return path
