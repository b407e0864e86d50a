"""``mix``: several chains in one, by weights that are constant or change with the number of samples."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import accumulate
from math import inf
from operator import itemgetter
from typing import Any, Literal, TypeVar

from ..core import arguments as check
from ..core.arguments import did_you_mean, explained, real, seed_of, whole
from ..core.iter_datapipe import IterDataPipe
from ..core.partition import uniforms
from ..core.world import detect_world
from ..errors import EmptyShareError
from ..fetch.listing.source_argument import pipe_of
from .chain import all_pipes, splits_of
from .datapipe import DataPipe, length_here
from .draws import of_pass
from .env import Env
from .passes import Pass
from .shares import Share
from .slots import length_of

T = TypeVar("T")
Points = dict[int, dict[str, float]]

# Draws need the sum of the weights, which a float has to hold
_LARGEST = 1e300


class Stop(str, Enum):
    """When a mixture ends. Each compares equal to its name as a ``str``."""

    FIRST_EXHAUSTED = "first_exhausted"
    """When an exhausted source is drawn."""
    ALL_EXHAUSTED = "all_exhausted"
    """When all sources are exhausted. A source that is exhausted is no longer drawn."""


class Mixed(DataPipe[T]):
    """A mixture of pipes, returned by :func:`mix`.

    Args:
        sources: name -> pipe.
        points: number of samples of all ranks -> weight of each source from there on. The first number is 0.
        seed: of the draws.
        stop: when it ends.
    """

    changes_count = uses_epoch = True

    def __init__(self, sources: Mapping[str, IterDataPipe[T]], points: Points, *, seed: int, stop: Stop | int) -> None:
        super().__init__()
        self.sources, self.stop, self.seed = dict(sources), stop, seed_of(seed)
        self.points = {start: points[start] for start in sorted(points)}
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
        splits = splits_of(self)
        return Share.of(splits[0].current_world() if splits else detect_world())

    def weights_at(self, position: int, names: Iterable[str]) -> tuple[int, dict[str, float], float] | None:
        """Return the weights by which one of these sources is drawn for a sample, or else for a later one.

        Args:
            position: of the sample, among those of all ranks.
            names: of the sources that are not exhausted.

        Returns:
            The first position of the weights, those above 0, and their end; ``None`` if nothing is drawn any more.
        """
        starts = list(self.points)
        for number in range(bisect_right(starts, position) - 1, len(starts)):
            weights = {name: weight for name, weight in self.points[starts[number]].items() if weight}
            if not weights.keys().isdisjoint(names):
                return starts[number], weights, [*starts, inf][number + 1]
        return None

    def order_options(self) -> Mapping[str, Any]:
        weights = {"weights": self.points[0]} if len(self.points) == 1 else {"schedule": self.points}
        stop = self.stop.value if isinstance(self.stop, Stop) else self.stop
        # A state is also loaded where weights differ, or sources were added: the numbers of pipes show which are theirs
        pipes = {name: len(all_pipes(pipe)) for name, pipe in self.sources.items()}
        return {**weights, "seed": self.seed, "stop": stop, "pipes": pipes}

    def length(self, env: Env) -> int:
        """Count the samples of a share, if the mixture stops at a number, or where all sources are exhausted."""
        if self.stop is Stop.ALL_EXHAUSTED and all(self.points[max(self.points)].values()):
            return sum(length_of(pipe, env) for pipe in self.sources.values())
        if isinstance(self.stop, Stop):
            raise TypeError("mix has a length only if it stops at a number of samples, or reads all of its sources")
        share = self.share_of(env)
        if self.stop < share.count:
            raise EmptyShareError(
                f"mix stops at {self.stop} samples, so some of {share.count} readers would have none."
            )
        return share.amount(self.stop, env.number_of(self), env.epoch)

    __len__ = length_here


class _Source:
    """One source of a mixture in a pass.

    Args:
        name: key in the mapping of sources.
        pipe: its chain.
        env: of the mixture.
    """

    def __init__(self, name: str, pipe: Any, env: Env) -> None:
        self.name, self._pipe, self._env = name, pipe, env
        self.num_passes = 0  # how often it was restarted
        self.has_items = self.exhausted = False
        self._pass: Pass[Any] | None = None
        self._at: Any = None  # from which the pass resumes; ``None`` for its start

    def seek(self, num_passes: int, position: Any) -> None:
        """Continue from a position."""
        self.num_passes, self._at, self.has_items = num_passes, position, position is not None

    def items(self) -> Iterator[Any]:
        """Open the pass over the source, once."""
        if self._pass is None:
            self._pass = self._env.within(self.num_passes).open(self._pipe)
            self._pass.resume(self._at)
            self._items = iter(self._pass)
        return self._items

    def start(self) -> None:
        """Send the first requests."""
        self.items()
        assert self._pass is not None
        self._pass.start()

    def restart(self) -> None:
        """Begin the next pass over this source."""
        if not self.has_items:
            self._env.within(self.num_passes).require_items(f"mix: {self.name!r}")
        self.close()
        self.num_passes, self._at, self.has_items = self.num_passes + 1, None, False

    def close(self) -> None:
        """End the pass, and keep its position."""
        if self._pass is not None:
            self._at = self.position[-1]
            self._pass.close()
            self._pass = None

    @property
    def position(self) -> list[Any]:
        is_read = self._pass is not None and self.has_items
        return [self.name, self.num_passes, self._pass.position if is_read else self._at]  # type: ignore[union-attr]


class _MixedPass(Pass[Any]):
    """The position has the numbers of draws and samples, the sources that are not exhausted, and the phases.

    A phase is a row: its start among the samples of all ranks, of which each share has one in turn; weights; number of
    samples of each source; and number of draws before it. The last one is the current one.
    """

    def __init__(self, pipe: Mixed[Any], env: Env) -> None:
        super().__init__()
        self._pipe, self._env, self._share = pipe, env, pipe.share_of(env)
        self._num_draws = self._num_passed = 0
        self._phases: list[list[Any]] = []
        self._members = [_Source(name, source, env) for name, source in pipe.sources.items()]
        self._start = 0 if isinstance(pipe.stop, Stop) else env.epoch[0] * pipe.stop
        # The phases up to the point where a saved pass was are repeated by a pass that resumes before it
        path, point = env.marks.resumed.get(env.number_of(pipe), ((), None))
        self._replay: Any = point if point is not None and path == env.epoch else {"draws": 0, "phases": []}

    def seek(self, position: Any) -> None:
        self._num_draws, self._num_passed = position["draws"], position["passed"]
        self._phases = [[start, weights, dict(counts), draws] for start, weights, counts, draws in position["phases"]]
        rows = {name: row for name, *row in position["sources"]}
        for member in self._members:
            if member.name in rows:
                member.seek(*rows[member.name])
            else:  # exhausted, or added to the mixture since
                member.exhausted = bool(self._phases) and member.name in self._phases[-1][2]

    def start(self) -> None:
        for source in self._phase()[0]:
            source.start()

    def items(self) -> Iterator[Any]:
        pipe, says_pass = self._pipe, self._env.says_pass
        max_samples = inf if isinstance(pipe.stop, Stop) else pipe.length(self._env)
        draws = uniforms(self._num_draws, pipe.seed, *self._env.seeds, *self._share.key)
        while self._num_passed < max_samples:
            drawn_from, weights, end = self._phase()
            if not drawn_from:
                return
            *bounds, total = accumulate(weights)
            end, counts = min(end, max_samples), self._phases[-1][2]
            while self._num_passed < end:
                source = drawn_from[bisect_right(bounds, next(draws) * total)]
                self._num_draws += 1
                for item in source.items():
                    source.has_items = True
                    counts[source.name] += 1
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
        left, count = [source for source in self._members if not source.exhausted], self._share.count
        first = self._start + self._share.number  # position of the first sample of this slot
        position = first + self._num_passed * count
        end: float = self._num_passed + 1
        if self._num_draws < self._replay["draws"]:
            rows = self._replay["phases"]
            start, weights, *_ = rows[max(0, bisect_right(rows, self._num_draws, key=itemgetter(3)) - 1)]
        else:
            found = self._pipe.weights_at(position, [source.name for source in left])
            if found is None:
                return [], [], 0
            start, weights, end = found
            end = end if end == inf else max(0, -((first - end) // count))
            start = max(start, self._start)
            if not position - count < start <= position:  # it has not begun in all ranks since the sample before
                start = position
            for source in left:
                if self._pipe.weights_at(position, [source.name]) is None:
                    source.close()
        if not self._phases or self._phases[-1][1] != weights:
            self._phases.append([start, weights, {source.name: 0 for source in self._members}, self._num_draws])
        drawn_from = [source for source in left if source.name in weights]
        return drawn_from, [weights[source.name] for source in drawn_from], end

    @property
    def position(self) -> Any:
        mark = self.mark
        del mark["restarts"]
        return {**mark, "sources": [source.position for source in self._members if not source.exhausted]}

    @property
    def mark(self) -> Any:
        phases = [[start, weights, dict(counts), draws] for start, weights, counts, draws in self._phases]
        restarts = {source.name: source.num_passes for source in self._members}
        return {"draws": self._num_draws, "passed": self._num_passed, "phases": phases, "restarts": restarts}

    def close(self) -> None:
        super().close()
        for source in self._members:
            source.close()


@explained
def mix(
    sources: Mapping[str, tuple[IterDataPipe[T], float]] | Mapping[str, IterDataPipe[T]],
    *,
    schedule: Mapping[int, Mapping[str, float]] | None = None,
    seed: int = 0,
    stop: Stop | Literal["first_exhausted", "all_exhausted"] | int = Stop.FIRST_EXHAUSTED,
) -> Mixed[T]:
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
        SampleError: by a pass, if a source that is restarted has no items.
        ValueError: without sources, for a weight that is not positive, for a schedule without 0, with an unknown name
            or a number at which all weights are 0, or if the data-parallel groups differ.

    Example:
        >>> cats, dogs = IterableWrapper(["cat"] * 2), IterableWrapper(["dog"] * 6)
        >>> list(mix({"cats": (cats, 1), "dogs": (dogs, 3)}, seed=1))
        ['dog', 'dog', 'dog', 'cat', 'dog', 'dog', 'cat', 'dog']
        >>> list(mix({"cats": cats, "dogs": dogs}, schedule={0: {"cats": 1}, 2: {"dogs": 1}}, stop=5))
        ['cat', 'cat', 'dog', 'dog', 'dog']
    """
    given: Any = sources
    has_weights = schedule is None
    expected = f"sources must be a dict {{name: {'(pipe, weight)' if has_weights else 'pipe'}}}"
    if not isinstance(given, Mapping) or not given:
        raise check.marked(TypeError(f"{expected}, got {check.shown(given)}."))
    pipes: dict[str, IterDataPipe[T]] = {}
    weights: dict[str, float] = {}
    points = {0: weights} if schedule is None else _points(schedule, given)
    for name, value in given.items():
        is_pair = isinstance(value, tuple | list)
        if not isinstance(name, str) or is_pair is not has_weights or (is_pair and len(value) != 2):
            raise check.marked(TypeError(f"{expected}, got {check.shown(value)} under {name!r}."))
        pipe, weight = value if is_pair else (value, 1)
        weights[name] = _weight(f"the weight of {name!r}", weight, positive=True)
        pipes[name] = pipe_of(pipe, of="mix", holds="samples")
    stop = check.choice("stop", stop, Stop) if isinstance(stop, str) else whole("stop", stop, of="samples")
    _check_sources(pipes, stop, points)
    return Mixed(pipes, points, seed=seed, stop=stop)


def _points(schedule: Any, pipes: Mapping[str, Any]) -> Points:
    """Check a schedule. A source that a point does not name has the weight 0 there."""
    if not isinstance(schedule, Mapping) or not all(isinstance(weights, Mapping) for weights in schedule.values()):
        expected = "schedule must be a dict {number of samples: {name: weight}}"
        raise check.marked(TypeError(f"{expected}, got {check.shown(schedule)}."))
    points: Points = {}
    for number, weights in schedule.items():
        start = whole("schedule: the number of samples", number, at_least=0)
        points[start] = dict.fromkeys(pipes, 0.0)
        for name, weight in weights.items():
            if name not in pipes:
                known = did_you_mean(str(name), pipes) or f". The sources are {', '.join(map(repr, pipes))}."
                raise check.marked(ValueError(f"schedule: at {start:_} there is a weight for {name!r}{known}"))
            points[start][name] = _weight(f"schedule: the weight of {name!r} at {start:_}", weight, positive=False)
        if not any(points[start].values()):
            raise check.marked(ValueError(f"schedule: at {start:_} no source has a weight above 0."))
    if 0 not in points:
        raise check.marked(ValueError(f"schedule must have weights for 0, the start, got {sorted(points)!r:.100}."))
    return points


def _weight(name: str, value: Any, *, positive: bool) -> float:
    weight = float(real(name, value, positive=positive))
    if weight > _LARGEST:
        raise check.marked(ValueError(f"{name} must be at most {_LARGEST:.0e}, got {weight}."))
    return weight


def _check_sources(pipes: Mapping[str, IterDataPipe[Any]], stop: Stop | int, points: Points) -> None:
    """Check that the sources are chains of their own, split over the same ranks, none with a schedule in it.

    Raises:
        ValueError: if they are not, or if ranks that are to have equally many samples would not.
    """
    names = ", ".join(map(repr, pipes))
    if len({id(pipe) for pipe in pipes.values()}) < len(pipes):
        raise check.marked(ValueError(f"the sources {names} share a pipe: build a chain for each."))
    worlds = {name: split.world for name, pipe in pipes.items() for split in splits_of(pipe)}
    if len({None if world is None else world.group for world in worlds.values()}) > 1:
        shown = "; ".join(f"{name!r}: world={world!r}" for name, world in worlds.items())
        raise check.marked(
            ValueError(f"its sources are split over different groups of ranks: {shown}. Pass the same world= to each.")
        )
    for name, pipe in pipes.items():
        found = all_pipes(pipe)
        is_equal = any(getattr(type(one), "gives_equal_counts", False) for one in found)
        if is_equal and stop is Stop.ALL_EXHAUSTED and not points[max(points)][name]:
            raise check.marked(
                ValueError(
                    f"the source {name!r} has equalize_ranks(), and its last weight is 0, so what is left of it "
                    "differs between ranks. Pass stop= a number of samples."
                )
            )
        if any(isinstance(one, Mixed) and len(one.points) > 1 for one in found):
            raise check.marked(
                ValueError(
                    f"the source {name!r} is a mixture with a schedule, which counts the samples of the whole "
                    "training, and not those of one source. Mix all sources in one mixture, with a schedule."
                )
            )
