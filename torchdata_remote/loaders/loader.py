"""``StatefulLoader``: torchdata's ``StatefulDataLoader``, with a state that fits any number of workers and ranks."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from ..core.frameworks.lightning import (
    current_fit_loop,
    epoch_ends,
    goes_on_without,
    has_begun_again,
    resumes_in_mid_epoch,
    set_progress,
    take_state_left,
    warn_of_repeated_samples,
)
from ..core.frameworks.loader_length import num_batches
from ..core.frameworks.read_ahead import ReadAhead, TakeState
from ..core.rank_exchange import in_group
from ..core.world import World
from ..errors import StateError
from .batches_left import require_equal_batches
from .copies import reduced
from .rank_exchange import compared_first, merged_in_group, states_of_all
from .resumable import Resumable
from .state.all_ranks import AGAIN, ALL_RANKS, given_states
from .state.state_format import State, begin_next_epoch, merge_states
from .stream_counts import end_together
from .trainers.accelerate import Accelerated
from .trainers.checkpoint_callers import stores_one_for_all_ranks

_MAX_SEED = (1 << 63) - 1


class StatefulLoader(Accelerated, StatefulDataLoader[Any]):  # type: ignore[misc]  # torchdata 0.9 has no types
    """What :func:`stateful_loader` returns: ``StatefulDataLoader`` with a state of its own.

    Args:
        dataset: the chain.
        state_of_all_ranks: whether ``state_dict`` exchanges the ranks' states.
        list_once: whether all epochs read what the first one has listed.
        list_in_rank_0: whether rank 0 lists for all ranks.
        **options: of ``StatefulDataLoader``.
    """

    dataset: Resumable

    def __init__(
        self,
        dataset: Resumable,
        *,
        state_of_all_ranks: bool = False,
        list_once: bool = False,
        list_in_rank_0: bool = False,
        **options: Any,
    ) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata calls it, torch 2.13 warns
            super().__init__(dataset, snapshot_every_n_steps=1, **options)
        self.generator = torch.Generator()  # of the workers' seeds; without it torch takes from the global one
        self.state_of_all_ranks = state_of_all_ranks
        dataset.listings.once, dataset.listings.in_rank_0 = list_once, list_in_rank_0
        dataset.read_by_workers, dataset.expected_workers = None, max(1, self.num_workers)
        self._epoch, self._first_worker = -1, 0  # of the pass that has begun: which one's streams its first worker has
        self._begun = False  # whether there is one, and nothing was loaded since
        self._batches: weakref.ref[Any] | None = None  # of that pass
        self._kept: tuple[bool, Any] = (False, None)  # where they were when they ended or were dropped
        self._num_passes = 0
        self._compared = False  # whether ranks have, since the last state was loaded
        self._read_ahead = ReadAhead()

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch."""
        self.dataset.set_epoch(epoch)
        self._begun, self._state_before = False, None

    def state_dict(self) -> State:
        """Where this rank is, after the batch that was handed out last: plain JSON.

        When the pass has ended, it is the beginning of the next epoch. ``merge_states`` makes one of all ranks' states.

        With ``state_of_all_ranks``, every rank has to call this, and each gets where all ranks are: one ``str`` of JSON
        under the key ``"all_ranks"``. It is the same, without the option, where a framework calls that asks every rank
        and stores one answer: ``torch.distributed.checkpoint``, Accelerate, Lightning, Fabric.

        Batches that Lightning or Ray Train has read ahead, and not trained on, count as not handed out.
        """
        if not (self.state_of_all_ranks or stores_one_for_all_ranks()):
            return self._state_of_this_rank()
        again = {AGAIN: True} if has_begun_again(self) else {}
        return {ALL_RANKS: merged_in_group(self.dataset.world(), self._state_of_this_rank), **again}

    def _state_of_this_rank(self) -> State:
        if self._state_before is not None:
            return dict(self._state_before)
        if not self._begun:
            return self._with_turn(self.dataset.state_dict(), self.dataset.first_worker)
        state = self._read_ahead.state() or self._take_state()()
        loop = current_fit_loop(self)
        ended = loop is not None and epoch_ends(loop) and not self._read_ahead.is_untouched()
        return self._next(state) if ended and state["epoch"] == self._epoch else state

    def _take_state(self) -> TakeState:
        """Note where the pass is now, at little cost."""
        # Trainers set loader._iterator to None when they stop, so it is not asked for.
        batches = None if self._batches is None else self._batches()
        finished, snapshot = self._kept if batches is None else self._place_in(batches)
        finished = finished and not goes_on_without(self)
        place = self.dataset.state_dict() if self.num_workers == 0 else snapshot
        return partial(self._state_at, place, self._first_worker, finished=finished)

    def _state_at(self, place: Any, first_worker: int, *, finished: bool) -> State:
        if self.num_workers == 0:
            state, next_worker = place, 0
        else:
            state = merge_states(worker["dataset_state"] for worker in place["_worker_snapshots"].values())
            next_worker = (first_worker + place["_last_yielded_worker_id"] + 1) % self.num_workers
        return self._next(state) if finished else self._with_turn(state, next_worker)

    def _next(self, state: State) -> State:
        return begin_next_epoch(state, keep_listing=self.dataset.listings.once)

    def _place_in(self, batches: Any) -> tuple[bool, Any]:
        """Whether the pass has ended, and what its workers have sent about where they were at the last batch."""
        return batches._finished, batches.state_dict()["_snapshot"] if self.num_workers > 0 else None

    def _with_turn(self, state: State, next_worker: int) -> State:
        world = self.dataset.world()
        return {**state, "turns": [[world.rank, world.world_size, self.num_workers, next_worker]]}

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Let the next pass go on where all ranks were.

        Where there is a process group, each rank calls this, with what it has: its own state, those of several ranks,
        none at all (``[]``), or all of them; they are exchanged.

        Args:
            state_dict: as :meth:`state_dict` or ``merge_states`` gave it; or a list of such.

        Raises:
            StateError: if a state is missing, or does not fit this chain.
        """
        self._load(merge_states(states_of_all(self.dataset.world(), partial(given_states, state_dict))))
        self._read_ahead.has_begun_again = isinstance(state_dict, Mapping) and AGAIN in state_dict
        if (loop := current_fit_loop(self)) is not None:
            require_equal_batches(self, partial(set_progress, loop, self))

    def _load(self, merged: State) -> None:
        self.dataset.load_state_dict(merged)
        world = self.dataset.world()
        for rank, world_size, num_workers, next_worker in merged.get("turns", []):
            if (rank, world_size, num_workers) == (world.rank, world.world_size, self.num_workers):
                self.dataset.first_worker = next_worker
        self._begun, self._compared, self._state_before = False, False, None

    def __iter__(self) -> Iterator[Any]:
        self._follow_lightning()
        self._read_ahead.begin(self._state_before_pass)
        dataset = self.dataset
        epoch, first_worker, resumed = dataset.next_epoch, dataset.first_worker, dataset.loaded is not None
        if self.num_workers > 0 and (dataset.loaded is not None or epoch != self._epoch + 1):
            self._iterator = None  # its workers would begin another epoch
        self.generator.manual_seed((torch.initial_seed() + epoch) & _MAX_SEED)
        try:
            with dataset.listing_made(epoch, self.num_workers):  # workers have begun when the block ends
                batches = super().__iter__()
        except BaseException:
            self._iterator = self._batches = None  # its workers are gone, and it forgot where they were
            raise
        if self.num_workers > 0:
            dataset.pass_begun()
        self._epoch, self._first_worker, self._begun = epoch, first_worker, True
        self._batches, self._kept = weakref.ref(batches), self._place_in(batches)
        self._num_passes += 1
        checked = self._checked(batches, resumed=resumed)
        return self.for_accelerator(self._with_place_kept(checked, batches, self._num_passes))

    def _follow_lightning(self) -> None:
        """Begin the pass that its training loop is about to begin."""
        if (loop := current_fit_loop(self)) is None:
            return
        if (left := take_state_left(loop, self)) is not None:
            self.load_state_dict(left)
        elif self._begun and not self._kept[0] and self._read_ahead.first and self._read_ahead.is_untouched():
            self._load(self._read_ahead.first)  # it asks twice
        elif self._num_passes == 0 and self.dataset.loaded is None and resumes_in_mid_epoch(loop):
            warn_of_repeated_samples("stateful_loader(pipe)")

    def _state_before_pass(self) -> State | None:
        try:
            state = self._state_of_this_rank()
        except StateError:  # the pass before has failed
            return None
        return self._next(state) if self._begun and state["epoch"] < self.dataset.next_epoch else state

    def _with_place_kept(self, checked: Iterator[Any], batches: Any, number: int) -> Iterator[Any]:
        """The batches of a pass; its place outlives them."""
        try:
            for batch in checked:
                self._read_ahead.handed_out(self, self._take_state)
                yield batch
        finally:
            if number == self._num_passes:
                self._kept = self._place_in(batches)

    def _checked(self, batches: Iterator[Any], *, resumed: bool) -> Iterator[Any]:
        """The batches; before the first one, ranks compare what they read.

        Ranks that need not end together compare in the first pass and after a load only: later they would deadlock.
        """
        if not in_group(self.dataset.world()) or (self._compared and not end_together(self.dataset.pipe)):
            return batches
        return compared_first(self.dataset.world(), batches, partial(self._what_is_read, resumed=resumed))

    def _what_is_read(self, *, resumed: bool) -> tuple[dict[str, Any], Any]:
        self._compared, state = True, self._state_of_this_rank()
        reads = {"chain": state["chain"], "number of streams": state["num_streams"], "epoch": self._epoch}
        return {**reads, "place where they resume": resumed}, state["listing"]

    def __len__(self) -> int:
        """Batches of an epoch, in this rank.

        Raises:
            TypeError: if the chain does not tell its length, as ``equalize_ranks`` does.
        """
        return self._num_batches(self.dataset.share_lengths)

    def num_batches_left(self) -> int:
        """Batches of the pass with which the loaded state goes on, in this rank.

        Raises:
            TypeError: if the chain does not tell its length.
        """
        return self._num_batches(self.dataset.lengths_left)

    def _num_batches(self, lengths_of: Callable[[list[World]], list[int]]) -> int:
        workers = self.dataset.world().workers(self.num_workers)
        return num_batches(lengths_of(workers), self.batch_size, drop_last=self.drop_last)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy goes on where this is; a process that is started, as by ``ddp_spawn``, begins this one's next pass."""
        return reduced(self, self._state_of_this_rank() if self._begun and get_spawning_popen() is None else None)
