"""Check the arguments of ``mix``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...core.arguments import check
from ...core.arguments.amounts import real, whole
from ...core.arguments.suggestions import did_you_mean
from ...core.iter_datapipe import IterDataPipe
from ...fetch.listing.source_argument import pipe_of
from ..base.chain import all_pipes
from .mixed import Mixed, Stop

_LARGEST = 1e300

Points = dict[int, dict[str, float]]


def pipes_and_points(sources: Any, schedule: Any) -> tuple[dict[str, IterDataPipe[Any]], Points]:
    """Check the sources and the schedule of :func:`mix`.

    Args:
        sources: name -> (pipe, weight); name -> pipe, if there is a schedule.
        schedule: number of samples -> name -> weight; ``None`` for constant weights.

    Returns:
        The pipes, and the weights of all of them from each number of samples on.

    Raises:
        TypeError, ValueError: for another form; says which one is expected.
    """
    expected = f"sources must be a dict {{name: {'(pipe, weight)' if schedule is None else 'pipe'}}}"
    if not isinstance(sources, Mapping):
        raise check.marked(TypeError(f"{expected}, got {check.a_kind(sources)}."))
    for name, given in sources.items():
        if not isinstance(name, str):
            raise check.marked(TypeError(f"{expected}, got the name {check.shown(name)}."))
        is_pair = isinstance(given, tuple | list) and len(given) == 2
        if schedule is None and not is_pair:
            shown = f"{len(given)} values" if isinstance(given, tuple | list) else check.a_kind(given)
            raise check.marked(TypeError(f"{expected}, got {shown} under {name!r}. Write (pipe, 1.0)."))
        if schedule is not None and isinstance(given, tuple | list):
            advice = "The weights are in schedule=: write the pipe alone."
            raise check.marked(TypeError(f"{expected}, got {len(given)} values under {name!r}. {advice}"))
    if schedule is None:
        points = {
            0: {name: _weight(f"the weight of {name!r}", pair[1], positive=True) for name, pair in sources.items()}
        }
    if not sources:
        raise check.marked(ValueError(f"{expected}, got nothing."))
    pipes = {
        name: pipe_of(given if schedule is not None else given[0], of="mix", holds="samples")
        for name, given in sources.items()
    }
    return pipes, points if schedule is None else _points(schedule, list(sources))


def _points(schedule: Any, names: list[str]) -> Points:
    """Check a schedule. A source that a point does not name has the weight 0 there."""
    expected = "schedule must be a dict {number of samples: {name: weight}}"
    if not isinstance(schedule, Mapping):
        raise check.marked(TypeError(f"{expected}, got {check.a_kind(schedule)}."))
    points: Points = {}
    for number, weights in schedule.items():
        start = whole("schedule: the number of samples", number, at_least=0)
        if start in points:
            raise check.marked(ValueError(f"schedule has weights for {start:_} twice."))
        if not isinstance(weights, Mapping):
            raise check.marked(TypeError(f"{expected}, got {check.a_kind(weights)} under {start:_}."))
        points[start] = dict.fromkeys(names, 0.0)
        for name, weight in weights.items():
            if name not in names:
                known = did_you_mean(str(name), names) or f". The sources are {', '.join(map(repr, names))}."
                raise check.marked(ValueError(f"schedule: at {start:_} there is a weight for {name!r}{known}"))
            points[start][name] = _weight(f"schedule: the weight of {name!r} at {start:_}", weight, positive=False)
        if not any(points[start].values()):
            raise check.marked(ValueError(f"schedule: at {start:_} no source has a weight above 0."))
    if 0 not in points:
        raise check.marked(ValueError(f"schedule must have weights for 0, the start, got {sorted(points)!r:.100}."))
    return points


def _weight(name: str, value: Any, *, positive: bool) -> float:
    weight = float(real(name, value, positive=positive))
    if weight == math.inf:
        raise check.marked(ValueError(f"{name} must be finite, got inf"))
    if weight > _LARGEST:  # draws need the sum of the weights, which a float has to hold
        raise check.marked(ValueError(f"{name} must be at most {_LARGEST:.0e}, got {weight}."))
    return weight


def stop_of(stop: Any) -> Stop | int:
    """Check when a mixture stops.

    Raises:
        TypeError, ValueError: if it is neither a number of samples nor an option of ``Stop``.
    """
    if not isinstance(stop, str) and not hasattr(stop, "__index__"):
        names = ", ".join(f"'{option.value}'" for option in Stop)
        raise check.marked(TypeError(f"stop must be a number of samples, or one of {names}, got {check.shown(stop)}."))
    return check.choice("stop", stop, Stop) if isinstance(stop, str) else whole("stop", stop)


def check_pipes(pipes: Mapping[str, IterDataPipe[Any]], points: Points, stop: Stop | int) -> None:
    """Check that the sources are chains of their own, split over the same ranks, none with a schedule in it.

    Raises:
        ValueError: if they are not, or if ranks that are to have equally many samples would not.
    """
    _require_one_group(pipes)
    if len({id(pipe) for pipe in pipes.values()}) < len(pipes):
        raise check.marked(
            ValueError(f"the sources {', '.join(map(repr, pipes))} share a pipe: build a chain for each.")
        )
    last = points[max(points)]
    for name, pipe in pipes.items():
        is_equal = any(getattr(type(found), "gives_equal_counts", False) for found in all_pipes(pipe))
        if is_equal and stop is Stop.ALL_EXHAUSTED and not last[name]:
            raise check.marked(
                ValueError(
                    f"the source {name!r} has equalize_ranks(), and its last weight is 0, so what is left of it "
                    "differs between ranks. Pass stop= a number of samples."
                )
            )
        if any(isinstance(found, Mixed) and len(found.schedule) > 1 for found in all_pipes(pipe)):
            raise check.marked(
                ValueError(
                    f"the source {name!r} is a mixture with a schedule, which counts the samples of the whole "
                    "training, and not those of one source. Mix all sources in one mixture, with a schedule."
                )
            )


def _require_one_group(pipes: Mapping[str, IterDataPipe[Any]]) -> None:
    worlds = {
        name: found.world
        for name, pipe in pipes.items()
        for found in all_pipes(pipe)
        if hasattr(type(found), "current_world")
    }
    groups = {None if world is None else world.group for world in worlds.values()}
    if len(groups) > 1:
        raise ValueError(
            "mix: its sources are split over different groups of ranks: "
            + "; ".join(f"{name!r}: world={world!r}" for name, world in worlds.items())
            + ". Pass the same world= to sharding_filter_rank() in each source."
        )
