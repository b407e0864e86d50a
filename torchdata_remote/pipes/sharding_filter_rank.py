"""``sharding_filter_rank``: select the share of shards of one reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from ..core.arguments import check
from ..core.frameworks.second_split import refuse_second_split, second_splitter
from ..core.iter_datapipe import SHARDING_PRIORITIES, IterDataPipe, functional_datapipe
from ..core.partition import EqualizeMode, SamplePartition
from ..core.world import World, detect_world, place_in, require_world, world_from_sharding
from ..fetch.listing.source_argument import pipe_of
from .base.chain import all_pipes
from .base.datapipe import SharedList, StatefulPipe
from .base.epochs import EpochPipe, uncounted
from .base.sample_shares import counts_of, order_of, pieces_of, readers_of_streams


@functional_datapipe("sharding_filter_rank")
class ShardingFilterRank(EpochPipe[str], StatefulPipe[str]):
    """Pass on this slot's share of the shard URLs (functional name: ``sharding_filter_rank``).

    URL ``i`` goes to slot ``i % num_slots``, so all slots together read each URL once per epoch. The share is the same
    under ``DataLoader``, ``DataLoader2``, with ``RANK`` and ``WORLD_SIZE`` in the environment, and with an explicit
    ``world``. Shares may differ by one URL.

    With a manifest, which has the number of samples of each shard, there may be fewer shards than slots. Then shards
    are split by samples: the numbers of samples of two slots differ by at most one. A slot reads only its range of a
    shard, found by the index (``shard.tar.idx``). Put ``filter`` before this pipe: the URL of a range differs from that
    of its shard, and readers refuse a pass with a filter on such URLs.

    Args:
        source_datapipe: shard URLs, in the same order in every process.
        world: rank and worker of this reader. A world without workers applies to all workers of the rank. ``None`` asks
            torch when iteration starts, because DataLoader workers do not exist yet when the pipe is built. If several
            ranks read the same data, pass ``World.from_mesh(mesh, dp=...)`` or ``World.from_group(group)``.
        split: ``False`` yields all URLs to every reader: for intended repetition, or for URLs that are split already.
            Without this pipe several readers refuse to start (:class:`UnsplitError`).

    Yields:
        str: shard URLs in source order; a ``RemoteUrl`` may be limited to a range of samples.

    Raises:
        TypeError: if ``world`` is not a ``World``, but a ``DeviceMesh`` for example.
        ValueError: for a chain that is split already, or for ``world`` together with ``split=False``.
        SplitTwiceError: if a training framework splits the items again (Accelerate, the transformers Trainer).
        EmptyShareError: in every slot, before the first URL, if there are fewer URLs than slots and their numbers of
            samples are unknown, or fewer samples than slots.

    Example:
        >>> urls = IterableWrapper([f"s3://photos/{i}.tar" for i in range(5)])
        >>> list(ShardingFilterRank(urls, world=World(rank=1, world_size=2)))
        ['s3://photos/1.tar', 's3://photos/3.tar']
    """

    state_fields = ("next",)

    def __init__(self, source_datapipe: IterDataPipe[str], *, world: World | None = None, split: bool = True) -> None:
        super().__init__()
        pipe_of(source_datapipe, of="sharding_filter_rank")
        require_world(world)
        split = check.flag("split", split)
        if not split and world is not None:
            raise ValueError(
                f"sharding_filter_rank(split=False) yields all URLs to every reader, and {world!r} selects a share of "
                "them: pass one of the two. With world=World() each rank has all URLs, split over its workers."
            )
        if split and any(isinstance(pipe, ShardingFilterRank) for pipe in all_pipes(source_datapipe)):
            raise ValueError(
                "This chain is split already, and a share of a share would drop data: use sharding_filter_rank() once "
                "(stream_shards and stream_files contain it)."
            )
        self.source_datapipe = source_datapipe
        self.equalize: EqualizeMode | None = None
        self.num_samples: int | None = None  # of this slot, if shares are equal
        self.gives_parts = False  # whether shards are split in the last pass
        self.world = world
        self.split = split
        if not split:
            # torch treats a pipe with this method as one that splits, and refuses two of them in one chain. Without
            # it, a sharding_filter() after the reader is allowed.
            vars(self)["apply_sharding"] = None
        self._stream: World | None = None  # world of a copy that reads one stream
        self._orders: dict[tuple[int, int], SamplePartition] = {}  # (number of slots, epoch) -> order of one listing
        self._groups: dict[int, tuple[int, int]] = {}
        self._next = 0  # position in this share

    def is_shardable(self) -> bool:
        """Hook of torch: whether this pipe splits the chain."""
        return self.split

    def apply_sharding(
        self,
        num_of_instances: int,
        instance_id: int,
        sharding_group: SHARDING_PRIORITIES = SHARDING_PRIORITIES.DEFAULT,
    ) -> None:
        """Hook of torch's loaders: set the index of this copy of the chain among ``num_of_instances``."""
        if (sharding_group == SHARDING_PRIORITIES.DEFAULT) != (SHARDING_PRIORITIES.DEFAULT in self._groups):
            self._groups = {}  # set by another loader than before
        self._groups[sharding_group] = num_of_instances, instance_id

    @property
    def has_all_ranks(self) -> bool:
        """Whether each rank reads all data by intention: ``split=False``, or a world of one rank."""
        return not self.split or (self.world is not None and self.world.world_size == 1)

    def refuse_second_split(self) -> None:
        """Refuse to split if a training framework splits again.

        Raises:
            SplitTwiceError: names the framework and the alternative.
        """
        if not self.has_all_ranks:
            refuse_second_split(type(self).__name__, second_splitter())

    def __getstate__(self) -> Any:
        # DataLoader traverses a chain by this, in each rank, before it starts workers or reads.
        self.refuse_second_split()
        return super().__getstate__()  # type: ignore[no-untyped-call]  # torch's

    def share_equally(self, mode: EqualizeMode) -> None:
        """Give each slot the same number of samples, from the next pass on.

        Raises:
            ValueError: if another mode was set before, or ``split=False``.
        """
        if not self.split:
            raise ValueError(
                "sharding_filter_rank(split=False) yields everything to every reader, so there are no shares that "
                "equalize_ranks could make equal. Remove one of the two."
            )
        if self.equalize not in (None, mode):
            raise ValueError(f"This share is equalized already, by {self.equalize!r}: build a separate chain.")
        self.equalize = mode

    def knows_worker(self) -> bool:
        """Whether this share is that of one worker, even if a loader has not started the workers."""
        return self._stream is not None or (self.world is not None and self.world.num_workers > 1)

    def share_length(self, num_workers: int = 1) -> int:
        """Return the number of samples of each slot, if shares are equal.

        Args:
            num_workers: of a loader that has not started them yet.

        Raises:
            ManifestError: if the listing does not have the numbers of samples.
        """
        with uncounted(self.source_datapipe):
            urls = self._all_urls()
        here = self.current_world()
        world = replace(here, num_workers=here.num_workers * num_workers)
        return len(self._order(urls, world, 0)) // world.num_slots

    def samples_of_shares(self, num_shares: int, epoch: int) -> tuple[list[int], bool] | None:
        """Count the samples of each share of an epoch; ``None`` if the listing does not have the numbers.

        Returns:
            The numbers, and whether they are the same in any order of the shards.
        """
        if (counts := counts_of(self._all_urls())) is None:
            return None
        shares = (self._share(World(share, num_shares), epoch, 0) for share in range(num_shares))
        is_fixed = len(counts) < num_shares or len(set(counts)) == 1
        return [sum(counts_of(list(urls)) or ()) for urls in shares], is_fixed

    def current_world(self) -> World:
        """Return rank and worker of this reader."""
        return self._stream or place_in(self.world, world_from_sharding(self._groups, detect_world()))

    def __iter__(self) -> Iterator[str]:
        self.refuse_second_split()
        state = self._take_loaded()
        self._next = 0 if state is None else state["next"]
        epoch = self._epochs.next_epoch()
        for url in self._share(self.current_world(), epoch, self._next):
            self._next += 1
            yield url

    def _share(self, world: World, epoch: int, start: int) -> Iterator[str]:
        """Return the URLs of one slot, from index ``start`` of its share."""
        self.gives_parts = False
        if not self.split:
            return islice(self.source_datapipe, start, None)
        if self.equalize is not None:
            urls = self._all_urls()
            order = self._order(urls, world, epoch)
            self.num_samples = len(order) // world.num_slots
            return pieces_of(urls, islice(order.share(world.slot, world.num_slots), start, None))
        if isinstance(self.source_datapipe, SharedList):
            head = self.source_datapipe.urls()
            share: Iterator[str] = map(head.__getitem__, range(len(head))[world.slot :: world.num_slots][start:])
        else:
            source = iter(self.source_datapipe)
            head = list(islice(source, world.num_slots))
            share = islice(chain(head, source), world.slot + start * world.num_slots, None, world.num_slots)
        if len(head) >= world.num_slots or world.num_slots == 1:
            return share
        order = self._order(head, world, epoch)
        self.gives_parts = True
        return pieces_of(head, islice(order.share(world.slot, world.num_slots), start, None))

    def _all_urls(self) -> list[str]:
        source = self.source_datapipe
        return source.urls() if isinstance(source, SharedList) else list(source)

    def _order(self, urls: list[str], world: World, epoch: int) -> SamplePartition:
        """Order the samples of all slots. It is computed once for the streams of a process."""
        if self._stream is None:
            return order_of(urls, world, epoch, self.equalize)
        key = world.num_slots, epoch
        if key not in self._orders:
            for other in list(self._orders)[:-1]:  # concurrent streams are in at most two epochs
                del self._orders[other]
            streams = readers_of_streams(world.num_slots, self.world)
            self._orders[key] = order_of(urls, world, epoch, self.equalize, streams)
        return self._orders[key]

    def _state(self) -> Any:
        return {"next": self._next}

    def order_options(self) -> Mapping[str, Any]:
        return {} if self.split else {"split": False}

    def prepare_copy(self, num_streams: int) -> None:
        super().prepare_copy(num_streams)
        self._orders = {}

    def bind_stream(self, world: World) -> None:
        super().bind_stream(world)
        self._stream = world
