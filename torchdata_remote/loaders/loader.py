"""The loader of batches: in processes, by torchdata's ``StatefulDataLoader``, or in a thread of this one."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import islice
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from ..core import arguments as check
from ..core.arguments import explained, whole, whole_or_none
from ..core.frameworks import LIGHTNING_LINE, missing_line, warn_of_missing_line
from ..core.processes import num_processors_of_rank
from ..core.progress import waiting
from ..core.rank_exchange import in_group, made_by_each
from ..core.tracebacks import brief
from ..core.workers import ended_on_error, start_fork_server, unbroken
from ..errors import RemoteDataError, StateError
from .batch_thread import BatchesAhead, BatchThread
from .device_copies import BatchCopies, device_of
from .loader_options import BatchOptions, torchdata_options, without_warning_of_vitals
from .rank_exchange import compared_first, merged_in_group, states_of_all
from .ranks_together import ended_together, num_batches_of_rank
from .resumable import Resumable
from .state.state_format import ALL_RANKS, State, begin_next_epoch, make_state, merge_states, states_in
from .stream_counts import end_together
from .torchdata_iterator import Position, next_worker_in, position_of, started, state_of_workers
from .trainers.accelerate import Accelerated

_MAX_SEED = (1 << 63) - 1
_MOST_KEPT = 16  # positions of a pass, until trained() is called
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
    "equalize",
)


@explained
class StatefulLoader(Accelerated, StatefulDataLoader[Any]):  # type: ignore[misc]  # torchdata 0.9 has no types
    """What :func:`stateful_loader` returns: ``StatefulDataLoader`` with a state of its own.

    Args:
        dataset: the chain.
        state_of_all_ranks: whether ``state_dict`` exchanges the ranks' states; ``None`` does not, and warns.
        list_once: whether all epochs read the listing of the first one.
        list_in_rank_0: whether rank 0 lists for all ranks.
        equalize: whether all ranks end a pass after the same number of batches.
        **options: of ``StatefulDataLoader``.
    """

    dataset: Resumable
    own_options: tuple[str, ...] = ()

    def __init__(
        self,
        dataset: Resumable,
        *,
        state_of_all_ranks: bool | None = None,
        list_once: bool = False,
        list_in_rank_0: bool = False,
        equalize: bool = True,
        **options: Any,
    ) -> None:
        with without_warning_of_vitals():
            super().__init__(dataset, snapshot_every_n_steps=1, **torchdata_options(dataset, options))
        if self.num_workers > 0:
            start_fork_server(self.multiprocessing_context)
        self.generator = torch.Generator()  # of worker seeds; torch would draw from the global random state
        if state_of_all_ranks is not None:
            state_of_all_ranks = check.flag("state_of_all_ranks", state_of_all_ranks)
        self.state_of_all_ranks = state_of_all_ranks
        self.equalize = check.flag("equalize", equalize)
        self.was_told = False  # that ranks have different numbers of batches
        dataset.listings.once = check.flag("list_once", list_once)
        dataset.listings.in_rank_0 = check.flag("list_in_rank_0", list_in_rank_0)
        dataset.batch_options = BatchOptions.of(self)
        dataset.read_by_workers, dataset.expected_workers = None, max(1, self.num_workers)
        self._latest: weakref.ref[Any] | None = None  # the batches of the latest pass
        self._epoch, self._first_worker = -1, 0  # of the latest pass; its first worker has that worker's streams
        self._is_pending = False  # whether no batch was asked for since it was started
        # Number of batches and position after them, of the pass that was started since a state was loaded
        self._kept: deque[tuple[int, Position]] = deque()
        self._num_trained: int | None = None  # of its batches; None where each that was handed out counts
        self._compared = False  # whether ranks have compared what they read since the last state was loaded
        self._missing_line: str | None = None  # of a script whose framework reads ahead
        self._warned = False

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch; one of this epoch that was begun, without a batch, goes on."""
        if not (self._is_pending and epoch == self._epoch):  # trainers call this after iter()
            self.dataset.set_epoch(epoch)
            self._kept = deque()

    def trained(self, num_batches: int) -> None:
        """Count the batches of this pass that were trained on: the state is that after them.

        For a training that reads batches ahead, such as by Ray's ``prepare_data_loader``: call it after each step. From
        the first call on, a batch that was handed out counts only when it is named here. Where more than 15 batches are
        read ahead, call ``trained(0)`` before the first pass.

        Args:
            num_batches: since the pass was started, from 0. A resumed pass begins with 0, too.

        Raises:
            ValueError: if the pass has handed out fewer batches, or if a larger number was named before.
        """
        num_batches = whole("trained: num_batches", num_batches, at_least=0)
        kept = self._kept
        if not kept and num_batches:
            raise ValueError(f"trained({num_batches}): no pass has begun. Call it after a step, with a number from 1.")
        if kept and not kept[0][0] <= num_batches <= kept[-1][0]:
            raise ValueError(
                f"trained({num_batches}): this pass has handed out {kept[-1][0]} batches, and positions are known from "
                f"{kept[0][0]} on. Count from the start of the pass; to read far ahead, call trained(0) before it."
            )
        self._num_trained = num_batches
        if kept:
            self._position()

    def _position(self) -> Position:
        kept = self._kept
        if self._num_trained is None:
            return kept[-1 - self._num_ahead][1]
        while len(kept) > 1 and kept[1][0] <= self._num_trained:
            kept.popleft()
        return kept[0][1]

    def state_dict(self) -> State:
        """The state of this rank after the last batch that was handed out: plain JSON.

        After the end of a pass it is the start of the next epoch. ``merge_states`` merges the states of all ranks. See
        :meth:`trained` for batches that are read ahead.

        With ``state_of_all_ranks``, every rank has to call this, and each gets the state of all ranks: one ``str`` of
        JSON under the key ``"all_ranks"``.
        """
        if not self._warned and self._num_trained is None and self._missing_line is not None:
            self._warned = True
            warn_of_missing_line(self._missing_line)
        elif not self._warned and self.state_of_all_ranks is None and in_group(self.dataset.world()):
            self._warned = True
            warnings.warn(
                "state_dict() returns the state of this rank, and a checkpoint that stores one rank's would lose the "
                "others. Pass state_of_all_ranks=True to the loader, for torch.distributed.checkpoint, Fabric, Ray "
                f"Train and checkpoints of rank 0, and add {LIGHTNING_LINE}; False says that each rank stores its own.",
                RuntimeWarning,
                stacklevel=2,
            )
        if not self.state_of_all_ranks:
            return self.rank_state()
        return {ALL_RANKS: merged_in_group(self.dataset.world(), self.rank_state)}

    def rank_state(self) -> State:
        """The state of this rank, also where ``state_dict`` exchanges those of all ranks."""
        if not self._kept:
            return self._with_next_worker(self.dataset.state_dict(), self.dataset.first_worker)
        return self._state_at(*self._position())

    def end_workers(self) -> None:
        """End the worker processes; the next pass starts new ones."""
        self._iterator = None

    def _state_at(self, finished: bool, position: Any) -> State:
        num_workers = self.num_workers
        state, next_worker = (
            state_of_workers(position, self._first_worker, num_workers) if num_workers > 0 else (position(), 0)
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

    def load_merged(self, merged: State) -> None:
        """Load a state that contains all streams of this rank, without an exchange between ranks."""
        self.dataset.load_state_dict(merged)
        self.dataset.first_worker = next_worker_in(merged, self.dataset.world(), self.num_workers)
        self._kept, self._compared = deque(), False

    def __iter__(self) -> Iterator[Any]:
        dataset, self._missing_line = self.dataset, missing_line()
        epoch, first_worker, resumed = dataset.next_epoch, dataset.first_worker, dataset.loaded is not None
        before = None if self._latest is None else self._latest()
        is_open = before is not None and before.gi_frame is not None
        if resumed or epoch != self._epoch + 1 or is_open:
            self._iterator = None  # its workers would read another epoch, or have a pass that goes on
        self.generator.manual_seed((torch.initial_seed() + epoch) & _MAX_SEED)
        try:
            with dataset.listing_made(epoch, self.num_workers):  # workers have taken it when the block ends
                lengths = dataset.lengths_of_pass(self.num_workers)
                batches = self._started()
        except BaseException as error:
            self._iterator = None  # workers have ended, with their positions
            if isinstance(error, RemoteDataError):
                raise brief(error)  # noqa: B904  # the same error
            raise
        capture = None if self.num_workers > 0 else dataset.captures_of_pass()
        if self.num_workers > 0:
            dataset.pass_begun()
        position = partial(position_of, batches, capture)
        kept = deque([(0, position())])
        checked = ended_together(self, self._checked(batches, position, resumed=resumed), lengths, resumed=resumed)
        passed = self._tracked(ended_on_error(checked, batches, self.end_workers), position, kept)
        self._latest = weakref.ref(passed)
        self._epoch, self._first_worker, self._is_pending = epoch, first_worker, True
        self._kept, self._num_trained = kept, None if self._num_trained is None else 0
        return self.for_accelerator(unbroken(passed))

    def _started(self) -> Iterator[Any]:
        """Start the iterator of a pass."""
        return started(self, super().__iter__)

    def _tracked(
        self, batches: Iterator[Any], position: Callable[[], Position], kept: deque[tuple[int, Position]]
    ) -> Generator[Any, None, None]:
        """The batches of a pass; the position after each is stored with it, wherever the next one is interrupted."""
        self._is_pending, number = False, 0
        for number, batch in enumerate(batches, 1):
            if len(kept) == _MOST_KEPT and self._num_trained is None:
                kept.popleft()
            # The last step, of one instruction: no signal comes between it and the consumer
            kept.append((number, position()))
            yield batch
        kept.append((number, (True, position()[1])))

    def _checked(self, batches: Iterator[Any], position: Callable[[], Position], *, resumed: bool) -> Iterator[Any]:
        """The batches; before the first one, ranks compare what they read."""
        # Ranks that need not end together compare in the first pass and after a load only: later they would deadlock.
        if not in_group(self.dataset.world()) or (self._compared and not end_together(self.dataset.pipe)):
            return batches
        return compared_first(self.dataset.world(), batches, partial(self._what_is_read, position, resumed=resumed))

    def _what_is_read(self, position: Callable[[], Position], *, resumed: bool) -> tuple[dict[str, Any], Any]:
        self._compared, state = True, self._state_at(*position())
        reads = {"chain": state["chain"], "number of streams": state["num_streams"], "epoch": self._epoch}
        return {**reads, "position where they resume": resumed}, state["listing"]

    def __bool__(self) -> bool:
        return True  # also without a length

    def __len__(self) -> int:
        """Batches of an epoch, in this rank; ``TypeError`` if their number is not known before they are read."""
        slots = self.dataset.world().slots_of_ranks(self.num_workers)
        lengths = iter(self.dataset.share_lengths([slot for of_rank in slots for slot in of_rank]))
        return num_batches_of_rank(self, dict(enumerate(list(islice(lengths, len(of_rank))) for of_rank in slots)))

    def rest(self) -> Resumable:
        """A copy of the dataset at the position of :meth:`state_dict`, of which this rank's rest can be counted."""
        rest, state = copy(self.dataset), self.rank_state()
        rest.load_state_dict(state)
        rest.first_worker = next_worker_in(state, rest.world(), self.num_workers)
        return rest

    def num_batches_left(self) -> int:
        """Batches that this rank has left after the state. Collective.

        Raises:
            StateError: in all ranks, if the chain has no length.
        """
        world = self.dataset.world()

        def count() -> list[int]:
            return self.rest().lengths_left(world.workers(self.num_workers))

        return num_batches_of_rank(self, made_by_each(world, "count the samples left", count, of_rank=StateError))

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy continues from here; a started process, as by ``ddp_spawn``, starts the next pass of this one."""
        return reduced(self, self.rank_state() if self._kept and get_spawning_popen() is None else None)


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
