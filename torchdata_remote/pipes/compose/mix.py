"""``mix``: several chains in one, by weights."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from itertools import accumulate
from typing import Any, Literal, TypeVar

from ...core.arguments import check
from ...core.arguments.amounts import whole
from ...core.arguments.calls import explained
from ...core.iter_datapipe import IterDataPipe
from ...core.permutation import uniforms
from ...core.world import World, detect_world
from ...errors import EmptyShareError
from ...fetch.listing.source_argument import pipe_of
from ..base.chain import Snapshot, all_pipes, snapshots_of, take_together, warm_up
from ..base.datapipe import StatefulPipe
from ..base.epochs import SeededPipe
from .mix_arguments import weights_of
from .mix_source import MixSource

T = TypeVar("T")


class Stop(str, Enum):
    """When a mixture ends. Each compares equal to its name as a ``str``."""

    FIRST_EXHAUSTED = "first_exhausted"
    """When an exhausted source is drawn."""
    ALL_EXHAUSTED = "all_exhausted"
    """When all sources are exhausted. A source that is exhausted is no longer drawn."""


class Mixed(SeededPipe[T], StatefulPipe[T]):
    """A mixture of pipes, returned by :func:`mix`.

    Args:
        sources: name -> pipe.
        weights: name -> weight.
        seed: of the draws.
        stop: when it ends.
    """

    needs_source_state = True
    state_fields = ("draws", "passed", "sources")

    def __init__(
        self,
        sources: Mapping[str, IterDataPipe[T]],
        weights: Mapping[str, float],
        *,
        seed: int,
        stop: Stop | int,
    ) -> None:
        super().__init__(seed)
        self.sources, self.weights, self.stop = dict(sources), dict(weights), stop
        self._world: World | None = None
        self._num_draws = self._num_passed = 0
        self._active: list[Any] = []
        self._is_warm, self._epoch = False, 0

    def warm_up(self) -> Iterator[None]:
        state, self._epoch = self._take_loaded(), self._epochs.next_epoch()
        starts: list[Any] = [[name, 0, None] for name in self.sources] if state is None else state["sources"]
        self._num_draws, self._num_passed = (0, 0) if state is None else (state["draws"], state["passed"])
        self._active = [
            MixSource(name, self.sources[name], num_passes, source_state).open(self._epoch)
            for name, num_passes, source_state in starts
        ]
        self._is_warm = True
        return take_together(warm_up(self.sources[source.name]) for source in self._active)

    def __iter__(self) -> Iterator[T]:
        if not self._is_warm:
            self.warm_up()
        self._is_warm = False
        active, epoch, world = self._active, self._epoch, self._current_world()
        max_samples = math.inf if isinstance(self.stop, Stop) else self._num_samples(world)
        bounds = self._bounds()
        draws = uniforms(self._num_draws, self.seed, epoch, world.slot)
        while active and self._num_passed < max_samples:
            number = bisect_right(bounds[:-1], next(draws) * bounds[-1])
            self._num_draws += 1
            source = active[number]
            for item in source.items:
                source.started = True
                self._num_passed += 1
                yield item
                break
            else:
                if self.stop is Stop.FIRST_EXHAUSTED:
                    return
                if self.stop is Stop.ALL_EXHAUSTED:
                    del active[number]
                    bounds = self._bounds()
                else:
                    active[number] = source.restarted().open(epoch)

    def _bounds(self) -> list[float]:
        return list(accumulate(self.weights[source.name] for source in self._active))

    def _current_world(self) -> World:
        worlds = (pipe.current_world() for pipe in all_pipes(self) if hasattr(pipe, "current_world"))
        return self._world or next(worlds, None) or detect_world()

    def _num_samples(self, world: World) -> int:
        """Return this slot's share of the number of samples at which the mixture stops."""
        num_samples, slot, num_slots = int(self.stop), world.slot, world.num_slots
        if num_samples < num_slots:
            raise EmptyShareError(
                f"mix stops at {num_samples} samples, so some of {num_slots} readers would have none."
            )
        return num_samples * (slot + 1) // num_slots - num_samples * slot // num_slots

    def _state(self) -> Any:
        return {
            "draws": self._num_draws,
            "passed": self._num_passed,
            "sources": [source.state() for source in self._active],
        }

    def snapshots(self) -> Callable[[], Snapshot]:
        of_sources = {name: snapshots_of(pipe) for name, pipe in self.sources.items()}

        def take() -> Snapshot:
            draws, passed = self._num_draws, self._num_passed
            sources = [source.snapshot(of_sources[source.name]) for source in self._active]
            return lambda: {"draws": draws, "passed": passed, "sources": [source() for source in sources]}

        return take

    def order_options(self) -> Mapping[str, Any]:
        stop = self.stop.value if isinstance(self.stop, Stop) else self.stop
        return {"weights": self.weights, "seed": self.seed, "stop": stop}

    def bind_stream(self, world: World) -> None:
        super().bind_stream(world)
        self._world = world

    def __getstate__(self) -> Any:
        state = super().__getstate__()  # type: ignore[no-untyped-call]  # torch's
        return {**state, "_active": [], "_is_warm": False} if isinstance(state, dict) else state

    def __len__(self) -> int:
        if isinstance(self.stop, Stop):
            raise TypeError("mix has a length only if it stops at a number of samples.")
        return self._num_samples(self._current_world())


@explained
def mix(
    sources: Mapping[str, tuple[IterDataPipe[T], float]],
    *,
    seed: int = 0,
    stop: Stop | Literal["first_exhausted", "all_exhausted"] | int = Stop.FIRST_EXHAUSTED,
) -> Mixed[T]:
    """Mix several chains: each item is taken from one of them, drawn by weight.

    The draws are determined by seed, epoch and slot. Each source is shuffled and split separately, so each needs a
    ``sharding_filter_rank``, and an ``async_prefetch`` with a ``max_buffer_bytes`` of its own. Pipes after the mixture
    (``decode_sample``, ``batch``) apply to all sources.

    Args:
        sources: name -> (pipe, weight). Weights are positive and relative to each other.
        seed: any int.
        stop: when an epoch ends: ``Stop.FIRST_EXHAUSTED``, ``Stop.ALL_EXHAUSTED``, or a number of samples of all ranks
            together, for which exhausted sources are restarted, in another order.

    Returns:
        A pipe that yields the items of the sources.

    Raises:
        ValueError: without sources, for a weight that is not positive, or if the data-parallel groups differ.

    Example:
        >>> cats, dogs = IterableWrapper(["cat"] * 2), IterableWrapper(["dog"] * 6)
        >>> list(mix({"cats": (cats, 1), "dogs": (dogs, 3)}, seed=1))
        ['dog', 'dog', 'dog', 'cat', 'dog', 'dog', 'cat', 'dog']
    """
    weights = weights_of(sources)
    given: Any = stop
    if not isinstance(given, str) and not hasattr(given, "__index__"):
        names = ", ".join(f"'{option.value}'" for option in Stop)
        raise check.marked(TypeError(f"stop must be a number of samples, or one of {names}, got {check.shown(stop)}."))
    stop = check.choice("stop", stop, Stop) if isinstance(stop, str) else whole("stop", stop)
    pipes = {name: pipe_of(pipe, of="mix", holds="samples") for name, (pipe, _) in sources.items()}
    _require_one_group(pipes)
    if len({id(pipe) for pipe in pipes.values()}) < len(pipes):
        raise check.marked(
            ValueError(f"the sources {', '.join(map(repr, pipes))} share a pipe: build a chain for each.")
        )
    return Mixed(pipes, weights, seed=seed, stop=stop)


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
