"""The loader of batches: in processes, by torchdata's ``StatefulDataLoader``, or in a thread of this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from ..core.arguments import check
from ..core.arguments.amounts import whole, whole_or_none
from ..core.arguments.calls import explained
from ..core.frameworks import lightning_loops, lightning_resume
from ..core.frameworks.call_stack import callers
from ..core.frameworks.loader_length import num_batches
from ..core.frameworks.untrained_batches import Snapshot, UntrainedBatches
from ..core.notices.progress_bar import waiting
from ..core.processes.processors import num_processors_of_rank
from ..core.processes.worker_errors import ended_on_error
from ..core.rank_exchange import in_group
from ..core.unbroken import unbroken
from ..core.world import World
from .batch_thread import BatchesAhead, BatchThread
from .device_copies import BatchCopies, device_of
from .loader_options import BatchOptions, torchdata_options, without_warning_of_vitals
from .rank_exchange import compared_first, merged_in_group, states_of_all
from .resumable import Resumable
from .state.state_format import ALL_RANKS, CYCLED, State, begin_next_epoch, make_state, merge_states, states_in
from .stream_counts import end_together
from .torchdata_iterator import Position, next_worker_in, position_of, started, state_of_workers
from .trainers.accelerate import Accelerated
from .unequal_ranks import require_equal_batches, warning_of_unequal_ranks

_MAX_SEED = (1 << 63) - 1
_COPIED = (
    "batch_size",
    "num_workers",
    "drop_last",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "prefetch_factor",
    "persistent_workers",
    "state_of_all_ranks",
)


@explained
class StatefulLoader(Accelerated, StatefulDataLoader[Any]):  # type: ignore[misc]  # torchdata 0.9 has no types
    """What :func:`stateful_loader` returns: ``StatefulDataLoader`` with a state of its own.

    Args:
        dataset: the chain.
        state_of_all_ranks: whether ``state_dict`` exchanges the ranks' states.
        list_once: whether all epochs read the listing of the first one.
        list_in_rank_0: whether rank 0 lists for all ranks.
        **options: of ``StatefulDataLoader``.
    """

    dataset: Resumable
    own_options: tuple[str, ...] = ()

    def __init__(
        self,
        dataset: Resumable,
        *,
        state_of_all_ranks: bool = False,
        list_once: bool = False,
        list_in_rank_0: bool = False,
        **options: Any,
    ) -> None:
        with without_warning_of_vitals():
            super().__init__(dataset, snapshot_every_n_steps=1, **torchdata_options(dataset, options))
        self.generator = torch.Generator()  # of worker seeds; torch would draw from the global random state
        self.state_of_all_ranks = check.flag("state_of_all_ranks", state_of_all_ranks)
        dataset.listings.once = check.flag("list_once", list_once)
        dataset.listings.in_rank_0 = check.flag("list_in_rank_0", list_in_rank_0)
        dataset.batch_options = BatchOptions.of(self)
        dataset.read_by_workers, dataset.expected_workers = None, max(1, self.num_workers)
        self._epoch, self._first_worker = -1, 0  # of the latest pass; its first worker has that worker's streams
        self._has_pass = False  # whether a pass was started since a state was loaded
        self._is_pending = False  # whether no batch was asked for since it was started
        self._position: list[Position] = [(False, None)]  # after its last batch; torch's __setattr__ can be interrupted
        self._num_passes = 0
        self._compared = False  # whether ranks have compared what they read since the last state was loaded
        self._untrained = UntrainedBatches()

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch; one of this epoch that was begun, without a batch, goes on."""
        if not (self._is_pending and epoch == self._epoch):  # trainers call this after iter()
            self.dataset.set_epoch(epoch)
            self._has_pass, self._state_before = False, None

    def state_dict(self) -> State:
        """The state of this rank after the last batch that was handed out: plain JSON.

        After the end of a pass it is the start of the next epoch. ``merge_states`` merges the states of all ranks.

        With ``state_of_all_ranks``, every rank has to call this, and each gets the state of all ranks: one ``str`` of
        JSON under the key ``"all_ranks"``. Without the option the result is the same if the caller is a framework that
        asks every rank and stores one answer: ``torch.distributed.checkpoint``, Accelerate, Lightning, Fabric.

        Batches that Lightning or Ray Train has prefetched, and not trained on, count as not handed out.
        """
        if not (self.state_of_all_ranks or _stores_one_for_all_ranks()):
            return self.rank_state()
        cycled = {CYCLED: True} if lightning_loops.is_cycled(self) else {}
        return {ALL_RANKS: merged_in_group(self.dataset.world(), self.rank_state), **cycled}

    def rank_state(self) -> State:
        """The state of this rank, also where ``state_dict`` exchanges those of all ranks."""
        if self._state_before is not None:
            return dict(self._state_before)
        if not self._has_pass:
            return self._with_next_worker(self.dataset.state_dict(), self.dataset.first_worker)
        state = self._untrained.state() or self._captured(self._position[0])()
        loop = lightning_loops.current_fit_loop(self)
        ended = loop is not None and lightning_loops.epoch_ends(loop) and not self._untrained.is_all_of_pass()
        return self._of_next_epoch(state) if ended and state["epoch"] == self._epoch else state

    def snapshot(self) -> Snapshot:
        """Capture the position of this rank at little cost; the returned function makes the state of it."""
        before = self._state_before  # where Accelerate has prefetched a batch
        return self._captured(self._position[0]) if before is None else partial(dict, before)

    def snapshot_before_pass(self) -> Snapshot:
        """Capture the position at which the next pass starts."""
        return partial(dict, self._state_before_pass())

    def end_workers(self) -> None:
        """End the worker processes; the next pass starts new ones."""
        self._iterator = None

    def _captured(self, position_of_pass: Position) -> Snapshot:
        finished, position = position_of_pass
        finished = finished and not lightning_loops.epoch_outlasts(self)
        return partial(self._state_at, position, self._first_worker, finished=finished)

    def _state_at(self, position: Any, first_worker: int, *, finished: bool) -> State:
        num_workers = self.num_workers
        state, next_worker = (
            state_of_workers(position, first_worker, num_workers) if num_workers > 0 else (position(), 0)
        )
        return self._of_next_epoch(state) if finished else self._with_next_worker(state, next_worker)

    def _of_next_epoch(self, state: State) -> State:
        shares = [self.dataset.share(world) for world in self.dataset.world().workers(self.num_workers)]
        own = {number for _, numbers in shares for number in numbers}
        return begin_next_epoch(state, shares[0][0], own, keep_listing=self.dataset.listings.once)

    def _with_next_worker(self, state: State, next_worker: int) -> State:
        world = self.dataset.world()
        turns = [[world.rank, world.world_size, self.num_workers, next_worker]]
        return make_state(
            state["chain"], state["listing"], state["epoch"], state["num_streams"], state["streams"], turns
        )

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Let the next pass continue where all ranks were.

        With a process group, each rank calls this with the states that it has: its own, those of several ranks, none
        at all (``[]``), or all of them. The states are exchanged.

        Args:
            state_dict: a result of :meth:`state_dict` or ``merge_states``, or a list of them.

        Raises:
            StateError: if a state is missing, or does not fit this chain.
        """
        self.load_merged(merge_states(states_of_all(self.dataset.world(), partial(states_in, state_dict))))
        self._untrained.is_cycled = isinstance(state_dict, Mapping) and CYCLED in state_dict
        if (loop := lightning_loops.current_fit_loop(self)) is not None:
            require_equal_batches(self, partial(lightning_resume.set_progress, loop, self))

    def load_merged(self, merged: State) -> None:
        """Load a state that contains all streams of this rank, without an exchange between ranks."""
        self.dataset.load_state_dict(merged)
        self.dataset.first_worker = next_worker_in(merged, self.dataset.world(), self.num_workers)
        self._has_pass, self._compared, self._state_before = False, False, None

    def __iter__(self) -> Iterator[Any]:
        self._follow_lightning()
        self._untrained.start_pass(self._state_before_pass)
        dataset = self.dataset
        epoch, first_worker, loaded = dataset.next_epoch, dataset.first_worker, dataset.loaded
        if self.num_workers > 0 and (dataset.loaded is not None or epoch != self._epoch + 1):
            self.end_workers()  # which would read another epoch
        self.generator.manual_seed((torch.initial_seed() + epoch) & _MAX_SEED)
        try:
            with dataset.listing_made(epoch, self.num_workers):  # workers have taken it when the block ends
                batches = self._started()
                warned = warning_of_unequal_ranks(
                    self, epoch, loaded, is_first=self._num_passes == 0 or loaded is not None
                )
        except BaseException:
            self._iterator = None  # workers have ended, with their positions
            raise
        if self.num_workers > 0:
            dataset.pass_begun()
        position, self._num_passes = position_of(batches, dataset), self._num_passes + 1
        checked = warned(self._checked(batches, resumed=loaded is not None))
        passed = self.for_accelerator(unbroken(self._tracked(checked, batches, self._num_passes)))
        self._epoch, self._first_worker, self._has_pass, self._is_pending = epoch, first_worker, True, True
        self._position[0] = position
        return passed

    def _started(self) -> Iterator[Any]:
        """Start the iterator of a pass."""
        return started(self, super().__iter__)

    def _follow_lightning(self) -> None:
        """Load the state that Lightning's training loop expects of this pass, or warn that there is none."""
        if (loop := lightning_loops.current_fit_loop(self)) is None:
            return
        if (pending := lightning_resume.take_pending_state(loop, self)) is not None:
            self.load_state_dict(pending)
        elif self._has_pass and not self._position[0][0] and (first := self._untrained.first):
            if self._untrained.is_all_of_pass():
                self.load_merged(first)  # Lightning starts a pass twice
        elif self._num_passes == 0 and self.dataset.loaded is None and lightning_loops.resumes_in_mid_epoch(loop):
            lightning_resume.warn_of_repeated_samples("stateful_loader(pipe)")

    def _state_before_pass(self) -> State:
        state = self.rank_state()
        return self._of_next_epoch(state) if self._has_pass and state["epoch"] < self.dataset.next_epoch else state

    def _tracked(self, checked: Iterator[Any], batches: Any, number: int) -> Iterator[Any]:
        """The batches of a pass; the position after each is stored with it, wherever the next one is interrupted."""
        self._is_pending = False
        for batch in ended_on_error(checked, batches, self.end_workers):
            position = position_of(batches, self.dataset)
            self._untrained.add(self, partial(self._captured, position))
            if number == self._num_passes:
                self._position[0] = position  # the last step: no signal comes between it and the consumer
            yield batch
        if number == self._num_passes:
            self._position[0] = position_of(batches, self.dataset)

    def _checked(self, batches: Iterator[Any], *, resumed: bool) -> Iterator[Any]:
        """The batches; before the first one, ranks compare what they read."""
        # Ranks that need not end together compare in the first pass and after a load only: later they would deadlock.
        if not in_group(self.dataset.world()) or (self._compared and not end_together(self.dataset)):
            return batches
        return compared_first(self.dataset.world(), batches, partial(self._what_is_read, batches, resumed=resumed))

    def _what_is_read(self, batches: Any, *, resumed: bool) -> tuple[dict[str, Any], Any]:
        self._compared, state = True, self._captured(position_of(batches, self.dataset))()
        reads = {"chain": state["chain"], "number of streams": state["num_streams"], "epoch": self._epoch}
        return {**reads, "position where they resume": resumed}, state["listing"]

    def __len__(self) -> int:
        """Batches of an epoch, in this rank; ``TypeError`` if the chain has no length (``equalize_ranks`` has one)."""
        return self._num_batches(self.dataset.share_lengths)

    def num_batches_left(self) -> int:
        """Batches that this rank has in the pass that continues from the loaded state.

        Raises:
            TypeError: if the chain has no length.
        """
        return self._num_batches(self.dataset.lengths_left)

    def _num_batches(self, lengths_of: Callable[[list[World]], list[int]]) -> int:
        workers = self.dataset.world().workers(self.num_workers)
        return num_batches(lengths_of(workers), self.batch_size, drop_last=self.drop_last)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy continues from here; a started process, as by ``ddp_spawn``, starts the next pass of this one."""
        return reduced(self, self.rank_state() if self._has_pass and get_spawning_popen() is None else None)


def reduced(loader: Any, state: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Make the result of ``StatefulLoader.__reduce__``: the generator inside torchdata's loader cannot be pickled.

    Args:
        loader: to copy. The copy starts workers of its own.
        state: with which the copy starts; ``None`` if the dataset has it.
    """
    options = {name: getattr(loader, name) for name in (*_COPIED, *loader.own_options)}
    if loader.num_workers > 0:
        options["multiprocessing_context"] = loader.multiprocessing_context.get_start_method()
    listings = loader.dataset.listings
    options.update(list_once=listings.once, list_in_rank_0=listings.in_rank_0)
    return _rebuilt, (type(loader), loader.dataset, options, state)


def _rebuilt(loader_type: Callable[..., Any], dataset: Any, options: dict[str, Any], state: Any) -> Any:
    loader = loader_type(dataset, **options)
    if state is not None:
        loader.load_merged(state)
    return loader


@explained
class ThreadLoader(StatefulLoader):
    """What :func:`thread_loader` returns: a :class:`StatefulLoader` whose batches are made by a thread of this process.

    Args:
        dataset: the chain.
        num_threads: for the pipes that decode in threads; ``None`` for one for each processor of this rank.
        prefetch_batches: number of batches that are made ahead.
        device: to which batches are copied; ``None`` for none.
        **options: of :class:`StatefulLoader`.
    """

    own_options = ("num_threads", "prefetch_batches", "device")

    def __init__(
        self,
        dataset: Resumable,
        *,
        num_threads: int | None = None,
        prefetch_batches: int = 2,
        device: torch.device | str | int | None = None,
        **options: Any,
    ) -> None:
        num_threads = whole_or_none("num_threads", num_threads, at_least=0)
        if options.get("num_workers"):
            raise check.marked(
                ValueError("num_workers must be 0, because this loader has no processes; stateful_loader has them.")
            )
        self.prefetch_batches, self.device = whole("prefetch_batches", prefetch_batches), device_of(device)
        super().__init__(dataset, **options)
        self.num_threads = num_processors_of_rank() if num_threads is None else num_threads
        to_gpu = self.device is not None and self.device.type == "cuda"
        dataset.batch_options = BatchOptions.of(self, num_threads=self.num_threads, to_gpu=to_gpu)
        self._threads: list[BatchThread] = []  # of passes that may not have ended

    def _started(self) -> Iterator[Any]:
        self._join_stopped()
        copies = BatchCopies(self.device, pin_memory=self.pin_memory and torch.cuda.is_available())
        items = iter(self.dataset)
        capture = self.dataset.captures_of_pass()
        thread = BatchThread(items, self, copies, capture)
        self._threads.append(thread)
        return BatchesAhead(thread, copies, capture())

    def _join_stopped(self) -> None:
        """Wait for the passes that were left early, so that no two of them call the functions of the chain."""
        stopped = [thread for thread in self._threads if thread.is_stopping]
        with waiting("ending the pass before"):
            for thread in stopped:
                thread.join()
        self._threads = [thread for thread in self._threads if thread not in stopped]


_SAVERS = ("torch.distributed.checkpoint", "accelerate.checkpointing")


def _stores_one_for_all_ranks() -> bool:
    """Whether the caller is a framework that asks every rank for its state, and stores one answer for all of them."""
    return lightning_loops.asks_all_ranks() or any(True for _ in callers(*_SAVERS))
