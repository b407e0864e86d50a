"""``mix_report``: what a mixture has drawn from each source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from ..core import arguments as check
from ..core.arguments import explained
from ..errors import StateError
from .state.state_format import ALL_RANKS


@dataclass(frozen=True)
class MixPhase:
    """Samples that a mixture drew by the same weights.

    Args:
        start: number of samples of all ranks before it, counted as in the schedule of ``mix``.
        weights: name -> weight, of the sources with a weight above 0.
        drawn: name -> number of samples.
    """

    start: int
    weights: dict[str, float]
    drawn: dict[str, int]


@dataclass(frozen=True)
class MixReport:
    """What a mixture has drawn from each source in an epoch, returned by :func:`mix_report`.

    Args:
        phases: in their order. A phase begins where weights change: by a schedule, or after a state was loaded.
        restarts: name -> how often the source was begun again, in the stream (a reader's share) that has begun it most
            often.
    """

    phases: tuple[MixPhase, ...]
    restarts: dict[str, int]

    @property
    def drawn(self) -> dict[str, int]:
        """Name -> number of samples, in all phases."""
        return _summed(phase.drawn for phase in self.phases)


@explained
def mix_report(state: Any) -> MixReport:
    """Count what a mixture has drawn from each source, by its state.

    Counted are the samples since the start of the epoch that were drawn when the state was saved. With a
    ``shuffle_samples`` behind the mixture they include those in its buffer. A stream whose epoch has ended has no
    counts, so take the state before the last batch of an epoch. Samples that releases without this report have drawn
    are not counted.

    Args:
        state: of a loader or a ``Resumable``; or a list of the states of all ranks.

    Returns:
        A report of all streams in the state: of all ranks, if it is the result of ``merge_states`` or a list. Of a
        mixture within a mixture only the outer one is reported.

    Raises:
        StateError: if it is not a state, or not one of a chain with ``mix``.

    Example:
        >>> from torchdata_remote import Resumable, mix
        >>> cats, dogs = [IterableWrapper(range(9)).sharding_filter_rank() for _ in range(2)]
        >>> pipe = mix({"cats": (cats, 1), "dogs": (dogs, 3)}, seed=2, stop=8)
        >>> data = Resumable(pipe)
        >>> items = iter(data)
        >>> [next(items) for _ in range(7)]
        [0, 1, 2, 3, 4, 0, 5]
        >>> report = mix_report(data.state_dict())
        >>> report.drawn, report.restarts, report.phases[0].weights
        ({'cats': 1, 'dogs': 6}, {'cats': 0, 'dogs': 0}, {'cats': 1.0, 'dogs': 3.0})
    """
    found = list(_mixtures(state))
    if not found and "Mixed(" not in json.dumps(state, default=repr):  # streams that have not begun have no counts
        raise StateError(f"mix_report: expected the state_dict() of a chain with mix(), got {check.shown(state)}.")
    rows = [row for mixture in found for row in mixture["phases"]]
    phases: list[MixPhase] = []
    for start, weights, drawn, _ in sorted(rows, key=itemgetter(0)):
        if phases and phases[-1].weights == weights:  # of another stream
            last = phases.pop()
            phases.append(MixPhase(last.start, weights, _summed([last.drawn, drawn])))
        else:
            phases.append(MixPhase(start, dict(weights), dict(drawn)))
    restarts: dict[str, int] = {}
    for name, count in (pair for mixture in found for pair in mixture["restarts"].items()):
        restarts[name] = max(count, restarts.get(name, 0))
    return MixReport(tuple(phases), restarts)


def _mixtures(state: Any) -> Iterator[Mapping[str, Any]]:
    """Find the marks of the outermost mixture of each stream in a state: the last one of its chain."""
    if isinstance(state, Mapping):
        if "marks" in state:
            marks = {number: mark for number, _, mark in state["marks"] if isinstance(mark, Mapping)}
            if marks:
                yield marks[max(marks)]
        else:
            for name, value in state.items():
                yield from _mixtures(json.loads(value) if name == ALL_RANKS else value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _mixtures(value)


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    summed: dict[str, int] = {}
    for names in counts:
        for name, count in names.items():
            summed[name] = summed.get(name, 0) + count
    return summed
