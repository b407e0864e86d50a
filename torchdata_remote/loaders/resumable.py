"""``Resumable``: a chain that can be stopped after any item and resumed in any world."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from ..core.arguments import explained, marked, whole, whole_or_none
from ..core.frameworks import length_for_caller, refuse_second_split
from ..core.iter_datapipe import IterDataPipe
from ..core.processes import end_worker_with_trainer
from ..core.workers import SentToWorkers, unbroken
from ..core.world import World, detect_world, place_in
from ..errors import StateError
from ..pipes.chain import all_pipes, describe
from ..pipes.shares import Share, marks_from_json
from ..pipes.split_guard import has_all_ranks
from .listings import Listed, Listings
from .loader_options import BatchOptions, require_chain
from .state.chain_options import with_mixture_of
from .state.state_format import ENDED, Row, State, check_same_chain, check_state, make_state
from .stream_counts import number_after_division, number_of_streams, require_equal_shares, warn_of_memory
from .stream_pass import Chain, EpochRun, Stream, check_resumable, is_sharded
from .worker_mark import WorkerMark


@explained
class Resumable(SentToWorkers, IterableDataset[Any]):
    """A chain of pipes as a plain ``IterableDataset`` with ``state_dict()`` and ``load_state_dict()``.

    The chain runs as ``num_streams`` streams. Each stream is a pass over the chain that reads its own share of the
    shards in its own order. Streams are assigned to the slots (ranks x workers): stream *v* to slot ``v % num_slots``.
    The next item of a slot is always of the stream that has handed out least. The state is stored per stream: any world
    can load it. Each stream continues byte for byte; where there are more slots than streams, what each has left is
    divided.

    The state is plain JSON: the position of the chain after the last item that was handed out. It contains no samples
    and no credentials.

    Each pass is a new epoch, from 0. A ``DataLoader`` whose workers are not persistent starts each pass with new copies
    of this object, which start at epoch 0: call ``set_epoch``, or use ``stateful_loader``, which does.

    Args:
        pipe: the chain; more than one stream needs ``sharding_filter_rank`` in it. It is not changed.
        num_streams: in the whole world; ``None`` takes one for each slot. To resume in other worlds choose a number
            that their numbers of slots divide, such as 24 or 240. Each stream has its own ``shuffle_samples`` buffer,
            so each slot has ``num_streams / num_slots`` of them. All streams of a process share the
            ``max_buffer_bytes`` of ``async_prefetch``; each has at least one part. An epoch that is resumed has the
            streams of its state.

    Raises:
        StateError: if a pipe of the chain cannot be resumed; names what to use instead.

    Example:
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://run/{shard}.tar", overwrite=True) as writer:
        ...     _ = [writer.write({"__key__": str(i), "cls": i}) for i in range(5)]
        >>> data = Resumable(IterableWrapper(["memory://run/0.tar"]).shard_tar_reader().to_tuple("__key__"))
        >>> samples = iter(data)
        >>> next(samples), next(samples)
        (('0',), ('1',))
        >>> state = data.state_dict()
        >>> data.load_state_dict(state)
        >>> list(data)
        [('2',), ('3',), ('4',)]
    """

    def __init__(self, pipe: IterDataPipe[Any], *, num_streams: int | None = None) -> None:
        require_chain(pipe)
        check_resumable(pipe)
        self.pipe = pipe
        self.chain = [describe(found) for found in all_pipes(pipe)]  # what each pipe is, sources first
        self.num_streams = whole_or_none("num_streams", num_streams)
        self.listings = Listings()
        self.expected_workers = 1  # of a loader that has not started them
        self.read_by_workers: WorkerMark | None = WorkerMark()  # None where a loader asks its workers for their state
        self.batch_options: BatchOptions | None = None  # of a loader
        self.first_worker = 0  # of a loader: which one's streams the first worker has in the next pass
        self._world: World | None = None  # of the process that sent this to a worker
        self._next_epoch = 0
        self.loaded: State | None = None  # with which the next pass starts
        self._loaded_streams: int | None = None  # how many there were in the state that was loaded last
        self.latest_pass: EpochRun | None = None  # in this process
        self._known_lengths: dict[tuple[Any, ...], list[int]] = {}

    def world(self) -> World:
        """The slot of this process: from ``sharding_filter_rank(world=...)``, else detected."""
        detected = detect_world()
        if self._world is not None and get_worker_info() is not None:
            detected = place_in(self._world, detected)
        explicit = (pipe.world for pipe in all_pipes(self.pipe) if hasattr(type(pipe), "current_world"))
        return place_in(next(explicit, None), detected)

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass."""
        if self.loaded is not None:
            return int(self.loaded["epoch"])
        return self._next_epoch + (self.latest_pass is not None and self.latest_pass.has_started(self._next_epoch))

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch; a loaded state of another epoch is dropped."""
        epoch = whole("set_epoch: epoch", epoch, at_least=0)
        self._refuse_second_split()  # trainers call set_epoch in each rank before they read
        self._next_epoch = epoch
        if self.latest_pass is not None and not self.latest_pass.is_pending(epoch):
            self.latest_pass = None
        if self.loaded is not None and self.loaded["epoch"] != epoch:
            self.loaded, self.first_worker = None, 0

    def state_dict(self) -> State:
        """The positions of this slot's streams after the last item that was handed out: plain JSON.

        After the last item of an epoch, all streams are marked as ended.

        Raises:
            StateError: after a pass that ended by an error; or if workers of a plain ``DataLoader`` have read their own
                copies, whose state this object does not have.
        """
        if self.read_by_workers is not None:
            self.read_by_workers.require_unset()
        if self.latest_pass is not None and self.loaded is None:
            return self.latest_pass.capture(self.chain)()
        num_streams, streams = self.streams(self.world())
        listing = None if self.loaded is None else self.loaded["listing"]
        rows = [stream.row() for stream in streams]
        return make_state(self.chain, listing, self.next_epoch, num_streams, rows)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass continue where the streams were.

        Args:
            state: of all streams that this slot reads now; ``merge_states`` merges the states of several slots.

        Raises:
            StateError: if it is of another version, chain or number of streams. The pass detects another listing.
        """
        check_state(state)
        loaded = with_mixture_of(self.chain, state)
        check_same_chain(loaded["chain"], self.chain)
        # Those that were divided have the number before with them, by which the next epoch is the same without a stop
        rows = [share for _, _, *shares in loaded["streams"] for share in shares]
        self.loaded, self._loaded_streams = loaded, rows[0][1] if rows else loaded["num_streams"]

    def __iter__(self) -> Iterator[Any]:
        end_worker_with_trainer()
        if self.read_by_workers is not None:
            self.read_by_workers.set_in_worker()
        self._refuse_second_split()
        state, epoch = self.loaded, self.next_epoch
        num_streams, streams = self.streams(self.world())
        if num_streams > 1 and not is_sharded(self.pipe):
            raise StateError(
                f"{num_streams} streams would read the same: put sharding_filter_rank() behind the URLs of the chain."
            )
        require_equal_shares(self.pipe, num_streams, self.world().world_size)
        warn_of_memory(self.pipe, len(streams))
        chain = Chain(self.pipe, epoch, len(streams), self.listings.of(epoch), self.batch_options)
        run = EpochRun(chain, num_streams, streams)
        run.listing = None if state is None else state["listing"]
        self.pass_begun(run)
        return unbroken(run.items(run.listing))

    def captures_of_pass(self) -> Callable[[], Callable[[], State]]:
        """Return a function that captures where the latest pass is, in any thread and whatever begins after it."""
        assert self.latest_pass is not None
        return partial(self.latest_pass.capture, self.chain)

    def _refuse_second_split(self) -> None:
        if not has_all_ranks(self.pipe):
            refuse_second_split(type(self).__name__)

    def pass_begun(self, run: EpochRun | None = None) -> None:
        """Drop the loaded state: it applies to one pass, here or in the workers to which it was sent."""
        self._next_epoch, self.loaded, self.first_worker, self.latest_pass = self.next_epoch + 1, None, 0, run

    def share(self, world: World) -> tuple[int, range]:
        """The number of streams, and those that a slot reads."""
        return self._share(world, self.loaded)

    def _share(self, world: World, loaded: State | None) -> tuple[int, range]:
        requested: int | None
        world = replace(world, worker=(world.worker + self.first_worker) % world.num_workers)
        if loaded is not None:  # its streams are divided where there are fewer than slots
            is_chosen = self.num_streams is not None
            requested = number_after_division(self.pipe, loaded["num_streams"], world, is_chosen=is_chosen)
        else:
            requested = self.num_streams or self._loaded_streams
            if self.num_streams in (None, self._loaded_streams) and requested is not None:
                fits = requested % world.num_slots == 0 if self.num_streams is None else requested >= world.num_slots
                requested = requested if fits else None
        num_streams = number_of_streams(world, requested, self.expected_workers)
        return num_streams, range(world.slot, num_streams, world.num_slots)

    def streams(self, world: World) -> tuple[int, list[Stream]]:
        """The number of streams, and those that a slot reads, at their places in the loaded state.

        Raises:
            StateError: if a stream is not in the state.
        """
        return self._streams_of(world, self.loaded)

    def _streams_of(self, world: World, loaded: State | None) -> tuple[int, list[Stream]]:
        num_streams, own = self._share(world, loaded)
        if loaded is None:
            return num_streams, [Stream(number, Share(number, num_streams)) for number in own]
        saved, rows = loaded["num_streams"], {row[0]: row for row in loaded["streams"]}
        return num_streams, [_divided(number, rows, saved, num_streams // saved) for number in own]

    def __len__(self) -> int:
        return length_for_caller(lambda num_workers: self.share_lengths(self.world().workers(num_workers)))

    def share_lengths(self, worlds: Sequence[World]) -> list[int]:
        """Count the items of slots in an epoch, without the loaded state. Lists at most once for each epoch.

        Raises:
            TypeError: if the chain has no length.
        """
        key = (self.next_epoch, self._loaded_streams, self.expected_workers, self.first_worker, *worlds)
        if key not in self._known_lengths:
            of_epoch = {known: lengths for known, lengths in self._known_lengths.items() if known[0] == key[0]}
            streams = [self._streams_of(world, None)[1] for world in worlds]
            self._known_lengths = {**of_epoch, key: self._lengths(streams)}
        return list(self._known_lengths[key])

    def lengths_left(self, worlds: Sequence[World]) -> list[int]:
        """Count the items of slots in the pass that continues from the loaded state.

        Raises:
            TypeError: if the chain has no length.
        """
        return self._lengths([self.streams(world)[1] for world in worlds])

    def lengths_of_pass(self, num_workers: int) -> Callable[[], list[list[int]]]:
        """Return a function that counts the items of each worker of each rank in the pass that starts now.

        Raises:
            TypeError: by that function, if the numbers are not known before the items are read.
        """
        epoch, slots_of_ranks = self.next_epoch, self.world().slots_of_ranks(num_workers)
        try:
            streams = [[self.streams(slot)[1] for slot in slots] for slots in slots_of_ranks]
        except StateError:  # of another rank, of which this process has no state
            streams = []

        def lengths() -> list[list[int]]:
            if not streams:
                raise TypeError("the states of other ranks are not in this process")
            chain = self._counted(epoch) if self.latest_pass is None else self.latest_pass.chain
            return [_lengths(chain, of_rank) for of_rank in streams]

        return lengths

    def _lengths(self, streams: Sequence[Sequence[Stream]]) -> list[int]:
        return _lengths(self._counted(self.next_epoch), streams)

    def _counted(self, epoch: int) -> Chain:
        """The chain with the listing of the latest pass, or of one that begins: list(loader) asks for the length then.

        Raises:
            TypeError: if it could not be listed. The pass raises that error, in all ranks.
        """
        latest = self.listings.latest if self.latest_pass is None else self.latest_pass.chain.outcome()
        if isinstance(latest, Exception):
            raise TypeError(f"The chain has no length: {latest}") from latest
        return Chain(self.pipe, epoch, 1, latest)

    def list_now(self) -> None:
        """List in this process now: every pass, here and in workers that are started later, reads these objects.

        With this, torch's ``DataLoader`` lists once in a job (``stateful_loader`` has ``list_once``).

        Raises:
            RemoteDataError: as ``list_remote`` does.
        """
        self.listings.keep(self._list())

    def listing_made(self, epoch: int, num_workers: int) -> AbstractContextManager[None]:
        """The context in which a loader starts a pass, so that its workers need not list."""
        return self.listings.made(self._list, self.world(), epoch, num_workers)

    def _list(self) -> Listed:
        return Chain(self.pipe, 0).listed()

    def __getstate__(self) -> dict[str, Any]:
        self._refuse_second_split()
        if get_worker_info() is not None:
            return {**vars(self), "latest_pass": None}
        return {**vars(self), "latest_pass": None, "_world": detect_world()}


def _lengths(chain: Chain, streams: Sequence[Sequence[Stream]]) -> list[int]:
    return [
        sum(chain.length(stream.share) - stream.num_passed for stream in of_slot if not stream.ended)
        for of_slot in streams
    ]


def _divided(number: int, rows: Mapping[int, Row], saved: int, parts: int) -> Stream:
    """Make a stream of a state, or a part of one where there are more slots than streams.

    Args:
        number: of the stream now.
        rows: number -> stream in the state.
        saved: number of streams in the state.
        parts: into which each is divided.
    """
    part, before = divmod(number, saved)
    if before not in rows:
        raise StateError(
            f"The state has no stream {before}: it is of one slot. Merge the states of all ranks by merge_states()."
        )
    _, place, *shares = rows[before]
    share = Share.from_json(shares[0]) if shares else Share(before, saved)
    if parts == 1:
        return Stream(number, share, place)
    marks = marks_from_json(place["marks"]) if isinstance(place, Mapping) else {}
    is_begun = part == 0 or place == ENDED
    passed = place["passed"] if isinstance(place, Mapping) else 0
    return Stream(number, share.divided(marks, parts, passed)[part], place if is_begun else None)


def twin_of(dataset: Resumable) -> Resumable:
    """Copy a dataset for another loader, with its kept listing: two loaders must not share one dataset's position."""
    twin = Resumable(dataset.pipe, num_streams=dataset.num_streams)
    twin.listings.keep_those_of(dataset.listings)
    return twin


def dataset_of(pipe: IterDataPipe[Any] | Resumable, num_streams: int | None) -> Resumable:
    """Make the dataset of a loader, from its arguments.

    Raises:
        ValueError: for a number of streams beside a ``Resumable``, which has its own.
    """
    if not isinstance(pipe, Resumable):
        return Resumable(pipe, num_streams=num_streams)
    if num_streams is not None:
        raise marked(
            ValueError("num_streams belongs to the Resumable that was passed: Resumable(pipe, num_streams=2).")
        )
    has_loader = pipe.read_by_workers is None
    return twin_of(pipe) if has_loader else pipe
