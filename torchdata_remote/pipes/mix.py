"""``mix``: several chains in one, by weights that are constant or change with the number of samples."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import accumulate
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeVar, overload

from ..core.arguments import check
from ..core.arguments.amounts import real, whole
from ..core.arguments.calls import explained
from ..core.arguments.suggestions import did_you_mean
from ..core.iter_datapipe import IterDataPipe
from ..core.permutation import uniforms
from ..core.world import detect_world
from ..errors import EmptyShareError
from ..fetch.listing.source_argument import pipe_of
from .chain import all_pipes
from .datapipe import SeededPipe, length_here
from .draws import of_pass
from .env import Env
from .passes import Pass
from .shares import Share

T = TypeVar("T")


class Stop(str, Enum):
    """When a mixture ends. Each compares equal to its name as a ``str``."""

    FIRST_EXHAUSTED = "first_exhausted"
    """When an exhausted source is drawn."""
    ALL_EXHAUSTED = "all_exhausted"
    """When all sources are exhausted. A source that is exhausted is no longer drawn."""


class Phase(NamedTuple):
    """From ``start`` on, among the samples of all ranks, sources are drawn by these weights, each above 0."""

    start: int
    weights: dict[str, float]


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


class Mixed(SeededPipe[T]):
    """A mixture of pipes, returned by :func:`mix`.

    Args:
        sources: name -> pipe.
        points: number of samples of all ranks -> name -> weight from there on.
        seed: of the draws.
        stop: when it ends.
    """

    changes_count = True

    def __init__(
        self,
        sources: Mapping[str, IterDataPipe[T]],
        points: Mapping[int, Mapping[str, float]],
        *,
        seed: int,
        stop: Stop | int,
    ) -> None:
        super().__init__(seed)
        self.sources, self.schedule, self.stop = dict(sources), Schedule(points), stop
        if not isinstance(stop, Stop):
            self.is_endless = False

    def open(self, env: Env) -> Pass[T]:
        pass_ = _MixedPass(self, env)
        env.mark(self, pass_)
        return pass_

    def share_of(self, env: Env) -> Share:
        """The share of the samples that this pass has: that of its sources."""
        if env.share is not None:
            return env.share
        worlds = (pipe.current_world() for pipe in all_pipes(self) if hasattr(type(pipe), "current_world"))
        return Share.of(next(worlds, None) or detect_world())

    def order_options(self) -> Mapping[str, Any]:
        points = self.schedule.points
        weights = {"weights": points[0]} if len(points) == 1 else {"schedule": points}
        stop = self.stop.value if isinstance(self.stop, Stop) else self.stop
        # A state is also loaded where weights differ, or sources were added: the numbers of pipes show which are theirs
        pipes = {name: len(all_pipes(pipe)) for name, pipe in self.sources.items()}
        return {**weights, "seed": self.seed, "stop": stop, "pipes": pipes}

    def num_samples(self, env: Env) -> int:
        """Count the samples of a share, if the mixture stops at a number."""
        if isinstance(self.stop, Stop):
            raise TypeError("mix has a length only if it stops at a number of samples.")
        share = self.share_of(env)
        if self.stop < share.count:
            raise EmptyShareError(
                f"mix stops at {self.stop} samples, so some of {share.count} readers would have none."
            )
        return share.amount(self.stop, env.number_of(self), env.epoch)

    length = num_samples
    __len__ = length_here


class _Source:
    """One source of a mixture in a pass.

    Args:
        name: key in the mapping of sources.
        pipe: its chain.
        env: of the mixture.
        num_passes: how often it was restarted.
        position: from which it resumes; ``None`` for its start.
        drawn: number of samples that were drawn from it in this phase.
    """

    def __init__(self, name: str, pipe: Any, env: Env, num_passes: int, position: Any, drawn: int) -> None:
        self.name, self._pipe, self._env, self.num_passes, self.drawn = name, pipe, env, num_passes, drawn
        self._resumed, self._is_open, self.has_items, self.exhausted = position, False, position is not None, False

    def items(self) -> Iterator[Any]:
        """Open the pass over the source, once."""
        if not self._is_open:
            self.pass_ = self._env.within(self.num_passes).open(self._pipe)
            self.pass_.resume(self._resumed)
            self._is_open, self._items = True, iter(self.pass_)
        return self._items

    def start(self) -> None:
        """Send the first requests."""
        self.items()
        self.pass_.start()

    def restart(self) -> None:
        """Begin the next pass over this source."""
        if not self.has_items and not self._env.within(self.num_passes).may_be_empty:
            raise ValueError(f"mix: the source {self.name!r} is empty, so it cannot be restarted.")
        self.pass_.close()
        self.num_passes, self._resumed, self._is_open, self.has_items = self.num_passes + 1, None, False, False

    def close(self) -> None:
        """End the pass, and keep its position."""
        if self._is_open:
            self._resumed, self._is_open = self.position[-1], False
            self.pass_.close()

    @property
    def position(self) -> list[Any]:
        return [self.name, self.num_passes, self.pass_.position if self._is_open and self.has_items else self._resumed]


class _MixedPass(Pass[Any]):
    """The position has the numbers of draws and samples, the sources that are not exhausted, and the phases.

    A phase has its start, weights, number of samples of each source, and number of draws before it.
    """

    def __init__(self, pipe: Mixed[Any], env: Env) -> None:
        super().__init__()
        self._pipe, self._env, self._share = pipe, env, pipe.share_of(env)
        self._num_draws = self._num_passed = 0
        self._phases: list[list[Any]] = []  # the last one is the current one, without its numbers of samples
        self._members = [_Source(name, source, env, 0, None, 0) for name, source in pipe.sources.items()]
        start = 0 if isinstance(pipe.stop, Stop) else env.epoch[0] * pipe.stop
        self._samples = SlotSamples(start, self._share.number, self._share.count)
        # The phases up to the point where a saved pass was are repeated by a pass that resumes before it
        path, point = env.marks.resumed.get(env.number_of(pipe), ((), None))
        self._replay: Mapping[str, Any] = (
            point if point is not None and path == env.epoch else {"draws": 0, "phases": []}
        )

    def seek(self, position: Any) -> None:
        self._num_draws, self._num_passed = position["draws"], position["passed"]
        self._phases = [[start, weights, counts, draws] for start, weights, counts, draws in position["phases"]]
        known = self._phases[-1][2] if self._phases else {}
        rows = {name: (num_passes, at) for name, num_passes, at in position["sources"]}
        self._members = []
        for name, source in self._pipe.sources.items():
            num_passes, at = rows.get(name, (0, None))
            member = _Source(name, source, self._env, num_passes, at, known.get(name, 0))
            member.exhausted = name in known and name not in rows
            self._members.append(member)

    def start(self) -> None:
        for source in self._phase()[0]:
            source.start()

    def items(self) -> Iterator[Any]:
        pipe, says_pass = self._pipe, self._env.says_pass
        max_samples = math.inf if isinstance(pipe.stop, Stop) else pipe.num_samples(self._env)
        draws = uniforms(self._num_draws, pipe.seed, *self._env.seeds, *self._share.key)
        while self._num_passed < max_samples:
            drawn_from, weights, end = self._phase()
            if not drawn_from:
                return
            *bounds, total = accumulate(weights)
            end = min(end, max_samples)
            while self._num_passed < end:
                source = drawn_from[bisect_right(bounds, next(draws) * total)]
                self._num_draws += 1
                for item in source.items():
                    source.has_items = True
                    source.drawn += 1
                    self._num_passed += 1
                    yield of_pass(item, source.num_passes) if says_pass else item
                    break
                else:
                    if pipe.stop is Stop.FIRST_EXHAUSTED:
                        return
                    if pipe.stop is Stop.ALL_EXHAUSTED:
                        source.exhausted = True
                        break
                    source.restart()

    def _phase(self) -> tuple[list[_Source], list[float], float]:
        """Return the sources from which the next sample is drawn, their weights, and how long these hold.

        The phase begins if it is another one. Sources that are not drawn any more are closed.

        Returns:
            No sources at the end. The last value is the number of samples of this slot before the phase ends.
        """
        left = [source for source in self._members if not source.exhausted]
        if self._num_draws < self._replay["draws"]:
            rows = self._replay["phases"]
            at = max(0, bisect_right(rows, self._num_draws, key=itemgetter(3)) - 1)
            phase, end = Phase(*rows[at][:2]), self._num_passed + 1.0
        else:
            schedule, position = self._pipe.schedule, self._samples.position(self._num_passed)
            found = schedule.phase_at(position, [source.name for source in left])
            if found is None:
                return [], [], 0
            phase, end = self._samples.begun(found[0], self._num_passed), self._samples.num_before(found[1])
            for source in left:
                if schedule.phase_at(position, [source.name]) is None:
                    source.close()
        if not self._phases or self._phases[-1][1] != phase.weights:
            self._phases = [*self._ended(), [phase.start, phase.weights, {}, self._num_draws]]
            for source in self._members:
                source.drawn = 0
        drawn_from = [source for source in left if source.name in phase.weights]
        return drawn_from, [phase.weights[source.name] for source in drawn_from], end

    def _ended(self) -> list[list[Any]]:
        """The phases so far, with the numbers of samples that were drawn in each."""
        if not self._phases:
            return []
        *before, (start, weights, known, draws) = self._phases
        drawn = {source.name: source.drawn for source in self._members}
        # A phase of a state has the sources of its time
        return [*before, [start, weights, {name: drawn[name] for name in known or drawn}, draws]]

    @property
    def position(self) -> Any:
        return {
            "draws": self._num_draws,
            "passed": self._num_passed,
            "sources": [source.position for source in self._members if not source.exhausted],
            "phases": self._ended(),
        }

    @property
    def mark(self) -> Any:
        restarts = {source.name: source.num_passes for source in self._members}
        return {"draws": self._num_draws, "passed": self._num_passed, "phases": self._ended(), "restarts": restarts}

    def close(self) -> None:
        super().close()
        for source in self._members:
            source.close()


_Stop = Stop | Literal["first_exhausted", "all_exhausted"] | int


@overload
def mix(
    sources: Mapping[str, tuple[IterDataPipe[T], float]],
    *,
    schedule: None = None,
    seed: int = 0,
    stop: _Stop = Stop.FIRST_EXHAUSTED,
) -> Mixed[T]: ...


@overload
def mix(
    sources: Mapping[str, IterDataPipe[T]],
    *,
    schedule: Mapping[int, Mapping[str, float]],
    seed: int = 0,
    stop: _Stop = Stop.FIRST_EXHAUSTED,
) -> Mixed[T]: ...


@explained
def mix(
    sources: Mapping[str, Any],
    *,
    schedule: Mapping[int, Mapping[str, float]] | None = None,
    seed: int = 0,
    stop: Stop | Literal["first_exhausted", "all_exhausted"] | int = Stop.FIRST_EXHAUSTED,
) -> Mixed[Any]:
    """Mix several chains: each item is taken from one of them, drawn by weight.

    The draws are determined by seed, epoch and slot. Each source is shuffled and split separately, so each needs a
    ``sharding_filter_rank``, and an ``async_prefetch`` with a ``max_buffer_bytes`` of its own. Pipes after the mixture
    (``decode_sample``, ``batch``) apply to all sources.

    A state that was saved with other weights, or another schedule, can be loaded: the current ones hold from there on.

    Args:
        sources: name -> (pipe, weight). Weights are positive and relative to each other. With a ``schedule``:
            name -> pipe.
        schedule: number of samples -> name -> weight, for weights that change. Weights hold from that number of samples
            on, and the first number is 0. A source with the weight 0, or left out, is not drawn. Counted are the
            samples of all ranks together that the mixture hands out: since the start of the training, all epochs
            together, if ``stop`` is a number; otherwise since the start of the epoch.
        seed: any int.
        stop: when an epoch ends: ``Stop.FIRST_EXHAUSTED``, ``Stop.ALL_EXHAUSTED``, or a number of samples of all ranks
            together, for which exhausted sources are restarted, in another order.

    Returns:
        A pipe that yields the items of the sources.

    Raises:
        ValueError: without sources, for a weight that is not positive, for a schedule without 0, with an unknown name
            or a number at which all weights are 0, or if the data-parallel groups differ.

    Example:
        >>> cats, dogs = IterableWrapper(["cat"] * 2), IterableWrapper(["dog"] * 6)
        >>> list(mix({"cats": (cats, 1), "dogs": (dogs, 3)}, seed=1))
        ['dog', 'dog', 'dog', 'cat', 'dog', 'dog', 'cat', 'dog']
        >>> list(mix({"cats": cats, "dogs": dogs}, schedule={0: {"cats": 1}, 2: {"dogs": 1}}, stop=5))
        ['cat', 'cat', 'dog', 'dog', 'dog']
    """
    pipes, points = pipes_and_points(sources, schedule)
    stop = stop_of(stop)
    check_pipes(pipes, points, stop)
    return Mixed(pipes, points, seed=seed, stop=stop)


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
