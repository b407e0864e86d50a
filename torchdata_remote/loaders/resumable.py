"""A chain that can stop anywhere and go on, in any world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from ..core.frameworks.lightning import warn_where_no_state_is_resumed
from ..core.frameworks.loader_length import told_length
from ..core.frameworks.second_split import refuse_second_split, second_splitter
from ..core.iter_datapipe import IterDataPipe
from ..core.parent_watch import WatchedWhenUnpickled, end_worker_with_trainer
from ..core.world import World, detect_world, place_in
from ..errors import StateError
from ..fetch.listing.source_argument import pipe_of
from ..pipes.base.chain import all_pipes, describe
from .listing.listings import Listings
from .listing.packed_listing import Listed
from .state.state_format import State, check_same, check_state, make_state, state_of_rank
from .stream_copies import ChainTemplate, check_resumable, is_sharded
from .stream_counts import number_of_streams, require_equal_shares, warn_of_memory
from .stream_pass import EpochRun, Stream, place_of
from .trainers.accelerate import refuse_skipping
from .worker_mark import WorkerMark


class Resumable(WatchedWhenUnpickled, IterableDataset[Any]):
    """A chain of pipes as a plain ``IterableDataset`` with ``state_dict()`` and ``load_state_dict()``.

    The chain is run as ``num_streams`` streams, each a copy of it that reads its own share of the shards in an order of
    its own. Streams are dealt over the slots (ranks x workers): stream *v* to slot ``v % num_slots``. A slot hands out
    an item of each of its streams by turns, always of the one that has handed out least. So the state belongs to
    streams: it can be loaded in any world of up to ``num_streams`` slots, and each stream goes on byte for byte.

    State is plain JSON: where the chain was after the last item that was handed out. It holds no samples and no
    credentials.

    Each pass is a new epoch, from 0. A ``DataLoader`` whose workers are not persistent begins each pass with copies of
    this, which know of no earlier one: call ``set_epoch``, or use ``stateful_loader``, which does.

    Args:
        pipe: the chain; more than one stream need ``sharding_filter_rank`` in it. It is copied, and left as it is.
        num_streams: in the whole world; ``None`` takes as many as slots. To resume in other worlds choose a number that
            their numbers of slots divide, such as 24 or 240. Each stream has buffers of its own: of
            ``shuffle_samples(buffer_size)`` there are ``num_streams / num_slots`` in each slot. Of ``async_prefetch``
            all streams of a process share one ``max_buffer_bytes``; each has one part at the least.

    Raises:
        StateError: for a chain with pipes that cannot be resumed; names what to use instead.

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
        pipe_of(pipe, of="Resumable", holds="samples")
        check_resumable(pipe)
        if num_streams is not None and num_streams < 1:
            raise ValueError(f"num_streams must be at least 1, got {num_streams}")
        self.pipe = pipe
        self.chain = [describe(found) for found in all_pipes(pipe)]  # what each pipe is, sources first
        self.num_streams = num_streams
        self.listings = Listings()
        self.expected_workers = 1  # of a loader that has not started them
        self.read_by_workers: WorkerMark | None = WorkerMark()  # None where a loader asks its workers for their state
        self.first_worker = 0  # of a loader: which one's streams the first worker has in the next pass
        self._world: World | None = None  # of the process that sent this to a worker
        self._next_epoch = 0
        self._loaded: State | None = None
        self._loaded_streams: int | None = None  # how many there were in the state that was loaded last
        self._pass: EpochRun | None = None  # that began last
        self._known_lengths: dict[tuple[Any, ...], list[int]] = {}

    def world(self) -> World:
        """This process' place: as ``sharding_filter_rank(world=...)`` tells it, else as torch does."""
        detected = detect_world()
        if self._world is not None and get_worker_info() is not None:
            detected = place_in(self._world, detected)
        given = (pipe.world for pipe in all_pipes(self.pipe) if hasattr(type(pipe), "current_world"))
        return place_in(next(given, None), detected)

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass."""
        if self._loaded is not None:
            return int(self._loaded["epoch"])
        return self._next_epoch + (self._pass is not None and self._pass.has_begun_epoch(self._next_epoch))

    @property
    def loaded(self) -> State | None:
        """The state with which the next pass begins."""
        return self._loaded

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch; a loaded state of another epoch is dropped."""
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        self._refuse_second_split()  # trainers call this in each rank, before they read
        self._next_epoch = epoch
        if self._pass is not None and not self._pass.is_about_to_begin(epoch):
            self._pass = None
        if self._loaded is not None and self._loaded["epoch"] != epoch:
            self._loaded, self.first_worker = None, 0

    def state_dict(self) -> State:
        """Where this slot's streams are, after the item that was handed out last: plain JSON.

        After the last item it tells that nothing is left of this epoch.

        Raises:
            StateError: after a pass that ended by an error; or where workers of a plain ``DataLoader`` have read their
                copies, of which this one knows nothing.
        """
        if self.read_by_workers is not None:
            self.read_by_workers.require_unset()
        if self._pass is not None and self._loaded is None:
            now = self._pass
            return make_state(self.chain, now.listing, now.epoch, now.num_streams, now.state())
        num_streams, mine = self._share(self.world())
        places = self._places()
        streams = {number: place_of(number, places) for number in mine}
        listing = None if self._loaded is None else self._loaded["listing"]
        return make_state(self.chain, listing, self.next_epoch, num_streams, streams)

    def _places(self) -> dict[int, Any] | None:
        return None if self._loaded is None else dict(self._loaded["streams"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on where the streams were.

        Args:
            state: of all streams that this slot carries now; ``merge_states`` makes it of those of several slots.

        Raises:
            StateError: if it is of another version, chain, seed or number of streams. Another listing is noticed when
                the pass begins.
        """
        check_state(state)
        check_same("chain", state["chain"], self.chain, "Build the chain as it was, or begin anew.")
        if self.num_streams is not None:
            check_same("number of streams", state["num_streams"], self.num_streams, "Pass num_streams as it was.")
        self._loaded, self._loaded_streams = dict(state), state["num_streams"]

    def __iter__(self) -> Iterator[Any]:
        end_worker_with_trainer()
        if self.read_by_workers is not None:
            self.read_by_workers.set_in_worker()
        self._refuse_second_split()
        warn_where_no_state_is_resumed()
        state, epoch = self._loaded, self.next_epoch
        num_streams, mine = self._share(self.world())
        if num_streams > 1 and not is_sharded(self.pipe):
            raise StateError(
                f"{num_streams} streams would read the same: put sharding_filter_rank() behind the URLs of the chain."
            )
        require_equal_shares(self.pipe, num_streams, self.world().world_size)
        places = self._places()
        streams = [Stream(number, place_of(number, places)) for number in mine]
        warn_of_memory(self.pipe, len(streams))
        self.pass_begun()
        template = ChainTemplate(self.pipe, epoch, len(streams), self.listings.of(epoch))
        self._pass = EpochRun(template, epoch, num_streams, streams)
        return self._pass.items(None if state is None else state["listing"])

    def _refuse_second_split(self) -> None:
        refuse_skipping(self)
        if not any(getattr(pipe, "has_all_ranks", None) is True for pipe in all_pipes(self.pipe)):
            refuse_second_split(type(self).__name__, second_splitter())

    def pass_begun(self) -> None:
        """What was loaded holds for one pass, here or in the workers to which it was sent."""
        self._next_epoch, self._loaded, self.first_worker = self.next_epoch + 1, None, 0

    def _share(self, world: World) -> tuple[int, range]:
        """How many streams there are, and which of them a slot carries."""
        world = replace(world, worker=(world.worker + self.first_worker) % world.num_workers)
        wanted = self._loaded_streams if self.num_streams is None else self.num_streams
        num_streams = number_of_streams(world, wanted, self.expected_workers)
        return num_streams, range(world.slot, num_streams, world.num_slots)

    def __len__(self) -> int:
        return told_length(lambda num_workers: self.share_lengths(self.world().workers(num_workers)))

    def share_lengths(self, worlds: Sequence[World]) -> list[int]:
        """How many items slots hand out in an epoch; lists once for each epoch, however often this is asked.

        Raises:
            TypeError: if the chain does not tell.
        """
        question = (self.next_epoch, self._loaded_streams, self.expected_workers, self.first_worker, *worlds)
        if question not in self._known_lengths:
            of_epoch = {known: lengths for known, lengths in self._known_lengths.items() if known[0] == question[0]}
            self._known_lengths = {**of_epoch, question: self._lengths(worlds, {})}
        return list(self._known_lengths[question])

    def lengths_left(self, worlds: Sequence[World]) -> list[int]:
        """How many items slots hand out in the pass with which the loaded state goes on.

        Raises:
            TypeError: if the chain does not tell.
        """
        return self._lengths(worlds, self._places() or {})

    def _lengths(self, worlds: Sequence[World], places: Mapping[int, Any]) -> list[int]:
        template, lengths = ChainTemplate(self.pipe, 0, 1, self.listings.kept), []
        for world in worlds:
            num_streams, mine = self._share(world)
            streams = [Stream(number, places.get(number)) for number in mine]
            lengths.append(sum(stream.num_left(template, num_streams) for stream in streams))
        return lengths

    def list_now(self) -> None:
        """List in this process now: every pass, here and in the workers that this is sent to, reads these objects.

        So a loader of torch lists once in a job, too (``stateful_loader`` has ``list_once``).

        Raises:
            RemoteDataError: as ``list_remote`` does.
        """
        self.listings.keep(self._list())

    def listing_made(self, epoch: int, num_workers: int) -> AbstractContextManager[None]:
        """A loader that begins a pass does it within this block, so that its workers need not list."""
        return self.listings.made(self._list, self.world(), epoch, num_workers)

    def _list(self) -> Listed:
        return ChainTemplate(self.pipe, 0, 1).listed()

    def __getstate__(self) -> dict[str, Any]:
        self._refuse_second_split()
        warn_where_no_state_is_resumed()
        if get_worker_info() is not None:
            return {**vars(self), "_pass": None}
        loaded = None if self._loaded is None else state_of_rank(self._loaded, self.world())
        return {**vars(self), "_pass": None, "_world": detect_world(), "_loaded": loaded}
