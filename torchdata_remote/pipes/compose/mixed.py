"""``Mixed``: the pipe that ``mix`` returns."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from itertools import accumulate
from typing import Any, TypeVar

from ...core.iter_datapipe import IterDataPipe
from ...core.permutation import uniforms
from ...core.world import World, detect_world
from ...errors import EmptyShareError
from ..base.chain import Snapshot, all_pipes, snapshots_of, take_together, warm_up
from ..base.datapipe import StatefulPipe
from ..base.epochs import PASS_STRIDE, SeededPipe, of_pass
from ..base.slots import share_of
from .mix_phases import PhaseRecord, Replay, gone_source, require_mixture
from .mix_schedule import Schedule, SlotSamples
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
        points: number of samples of all ranks -> name -> weight from there on.
        seed: of the draws.
        stop: when it ends.
    """

    needs_source_state = True
    repeats_sources = True
    state_fields, state_counts = ("draws", "passed", "sources"), ("draws", "passed")

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
        self._world: World | None = None
        self._num_draws = self._num_passed = 0
        self._members: list[MixSource] = []
        self._samples, self._record = SlotSamples(0, 0, 1), PhaseRecord()
        self._replay, self._replay_to = Replay(), None
        self._is_warm, self._epoch = False, 0

    def warm_up(self) -> Iterator[None]:
        state, self._epoch = self._take_loaded(), self._epochs.next_epoch()
        world, epoch = self._current_world(), self._epoch % PASS_STRIDE
        start = 0 if isinstance(self.stop, Stop) else epoch * int(self.stop)
        self._samples = SlotSamples(start, world.slot, world.num_slots)
        self._load({"draws": 0, "passed": 0, "sources": [], "phases": []} if state is None else state)
        self._replay, self._replay_to = Replay(self._replay_to), None
        self._is_warm = True
        drawn_from, _, _ = self._phase()
        return take_together(warm_up(self.sources[source.name]) for source in drawn_from)

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        if state is not None:
            require_mixture(state)

    def _load(self, state: Mapping[str, Any]) -> None:
        self._num_draws, self._num_passed = state["draws"], state["passed"]
        self._record = PhaseRecord(state["phases"])
        rows = {name: (num_passes, at) for name, num_passes, at in state["sources"]}
        known: Iterable[str] = self._record.drawn_before
        if gone := [name for name in (*known, *rows) if name not in self.sources]:
            raise gone_source(gone[0])
        self._members = []
        for name, pipe in self.sources.items():
            source = MixSource(name, pipe, *rows.get(name, (0, None)), self._record.drawn_before.get(name, 0))
            source.exhausted = name in known and name not in rows
            self._members.append(source if source.exhausted else source.open(self._epoch))

    def forget_start(self) -> None:
        super().forget_start()
        self._is_warm = False
        self._replay_to = None

    def __iter__(self) -> Iterator[T]:
        if not self._is_warm:
            self.warm_up()
        self._is_warm, members, world = False, self._members, self._current_world()
        max_samples = math.inf if isinstance(self.stop, Stop) else self._num_samples(world)
        draws = uniforms(self._num_draws, self.seed, self._epoch, world.slot)
        try:
            while self._num_passed < max_samples:
                drawn_from, weights, end = self._phase()
                if not drawn_from:
                    return
                *bounds, total = accumulate(weights)
                end = min(end, max_samples)
                while self._num_passed < end:
                    number = bisect_right(bounds, next(draws) * total)
                    self._num_draws += 1
                    source = drawn_from[number]
                    for item in source.items:
                        source.started = True
                        source.drawn += 1
                        self._num_passed += 1
                        yield of_pass(item, source.more) if source.more and self.marks_passes else item
                        break
                    else:
                        if self.stop is Stop.FIRST_EXHAUSTED:
                            return
                        if self.stop is Stop.ALL_EXHAUSTED:
                            source.exhausted = True
                            break
                        drawn_from[number] = self._restarted(source)
        finally:
            for source in members:
                source.end()

    def _phase(self) -> tuple[list[MixSource], list[float], float]:
        """Return the sources from which the next sample is drawn, their weights, and how long these hold.

        The phase begins if it is another one. Sources that are not drawn any more are closed.

        Returns:
            No sources at the end. The last value is the number of samples of this slot before the phase ends.
        """
        left = [source for source in self._members if not source.exhausted]
        if self._num_draws < self._replay.end:
            phase, end = self._replay.phase_at(self._num_draws), self._num_passed + 1.0
        else:
            position = self._samples.position(self._num_passed)
            found = self.schedule.phase_at(position, [source.name for source in left])
            if found is None:
                return [], [], 0
            phase, end = self._samples.begun(found[0], self._num_passed), self._samples.num_before(found[1])
            for source in left:
                if self.schedule.phase_at(position, [source.name]) is None:
                    source.close()
        if not self._record.holds(phase.weights):
            self._record.begin(phase, self._num_draws, self._drawn())
            for source in self._members:
                source.drawn = 0
        drawn_from = [source for source in left if source.name in phase.weights]
        return drawn_from, [phase.weights[source.name] for source in drawn_from], end

    def _restarted(self, source: MixSource) -> MixSource:
        again = source.restarted().open(self._epoch)
        self._members[self._members.index(source)] = again
        return again

    def _drawn(self) -> dict[str, int]:
        return {source.name: source.drawn for source in self._members}

    def _current_world(self) -> World:
        worlds = (pipe.current_world() for pipe in all_pipes(self) if hasattr(pipe, "current_world"))
        return self._world or next(worlds, None) or detect_world()

    def _num_samples(self, world: World) -> int:
        """Return this slot's share of the number of samples at which the mixture stops."""
        num_samples = int(self.stop)
        if num_samples < world.num_slots:
            raise EmptyShareError(
                f"mix stops at {num_samples} samples, so some of {world.num_slots} readers would have none."
            )
        return share_of(num_samples, world)

    def _state(self) -> Any:
        return {
            "draws": self._num_draws,
            "passed": self._num_passed,
            "sources": [source.state() for source in self._members if not source.exhausted],
            "phases": self._record.snapshot(self._drawn())(),
        }

    def snapshots(self) -> Callable[[], Snapshot]:
        of_sources = {name: snapshots_of(pipe) for name, pipe in self.sources.items()}

        def take() -> Snapshot:
            draws, passed, phases = self._num_draws, self._num_passed, self._record.snapshot(self._drawn())
            sources = [source.snapshot(of_sources[source.name]) for source in self._members if not source.exhausted]
            return lambda: {
                "draws": draws,
                "passed": passed,
                "sources": [source() for source in sources],
                "phases": phases(),
            }

        return take

    def replay_point(self) -> Any:
        """Hook: where this pass is, further than the state if a pipe behind it keeps samples and reads them again.

        It is stored beside the state. Up to there, a pass that resumes draws by the weights of the state.
        """
        return {
            "draws": self._num_draws,
            "phases": self._record.snapshot(self._drawn())(),
            "restarts": {source.name: source.num_passes for source in self._members},
        }

    def replay_to(self, point: Any) -> None:
        """Hook: called with the point after a state was loaded; ``None`` if it has none."""
        self._replay_to = point

    def order_options(self) -> Mapping[str, Any]:
        points = self.schedule.points
        weights = {"weights": points[0]} if len(points) == 1 else {"schedule": points}
        stop = self.stop.value if isinstance(self.stop, Stop) else self.stop
        # A state is also loaded where weights differ, or sources were added: the numbers of pipes show which are theirs
        pipes = {name: len(all_pipes(pipe)) for name, pipe in self.sources.items()}
        return {**weights, "seed": self.seed, "stop": stop, "pipes": pipes}

    def bind_stream(self, world: World) -> None:
        super().bind_stream(world)
        self._world = world

    def __getstate__(self) -> Any:
        state = super().__getstate__()  # type: ignore[no-untyped-call]  # torch's
        # A copy is at the start of its next pass
        at_start = {"_num_draws": 0, "_num_passed": 0, "_members": [], "_record": PhaseRecord(), "_is_warm": False}
        return {**state, **at_start} if isinstance(state, dict) else state

    def __len__(self) -> int:
        if isinstance(self.stop, Stop):
            raise TypeError("mix has a length only if it stops at a number of samples.")
        return self._num_samples(self._current_world())
