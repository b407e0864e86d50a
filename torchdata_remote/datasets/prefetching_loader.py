"""``PrefetchingLoader``: torch's ``DataLoader``, which fetches the next batches while the current one is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from torch.utils.data import DataLoader

from ..core.frameworks.lightning_loops import current_fit_loop, epoch_ends, num_untrained_of
from ..core.frameworks.lightning_resume import set_progress
from ..core.frameworks.untrained_batches import current_wrappers
from ..core.partition import EqualizeMode
from ..core.world import World, detect_world, place_in
from ._drawn_order import drawn
from ._epoch import Batched
from ._loader_options import OF_TORCH, check_options
from ._loader_state import LoaderState, Order
from ._rank_comparison import RankComparison
from ._rank_sampler import RankSampler
from ._sampler_follower import SamplerFollower, seeds_of
from ._sampler_order import SamplerOrder, set_epoch_of_sampler
from ._split_order import SplitOrder, refuse_generator

T = TypeVar("T")


class PrefetchingLoader(Generic[T]):
    """The batches that torch's ``DataLoader`` gives, in the same order, the next ones fetched meanwhile.

    For :class:`RemoteFiles`, :class:`RemoteImageFolder` and :class:`ShardedDataset`.

    ``DataLoader`` tells a worker one batch after the other, so that what the next one needs cannot be asked for while
    this one comes. Here each worker knows which batches of the epoch are its own, and fetches ahead. Take it where
    batches are wanted as fast as possible; with ``DataLoader``, as many workers hide as many waits.

    **Several ranks** without a sampler divide one order, which depends on seed and epoch only. All ranks together read
    every item once, and each has as many batches: where the number of items is not divisible, the last batch or the
    last two are shorter in some ranks than in others. Where a batch is one item (``batch_size=1`` or ``None``), or
    there are fewer items than ranks, that is impossible and an error that asks for ``equalize``. With a process group,
    ranks compare items, seed, epoch and place before the first batch of each pass, so all of them have to begin it;
    pass ``world=World()`` to a loader that one rank alone reads.

    **Each pass is an epoch**, from 0, or as ``set_epoch`` or a loaded state tells. Without a sampler ``state_dict`` is
    the same in all ranks, which must be at the same step, so save one of them. Any number of ranks and workers resumes
    from it, with any batch size. With a sampler the same world resumes, if the sampler gives the same order again,
    which is compared. ``shuffle=True`` in a single process needs ``seed`` to be resumed.

    Args:
        dataset: one of this package's.
        batch_size: items in a batch of one rank; ``None`` for single items.
        shuffle: a new order each epoch.
        seed: of that order. ``None`` takes torch's random numbers in a single process, as ``DataLoader`` does, and 0
            for several ranks, as ``DistributedSampler`` does.
        sampler: the order, as numbers of items; it must come to an end. Ranks are then not divided any more: torch's
            ``DistributedSampler`` gives each a share, ``SequentialSampler`` or ``RandomSampler`` all items.
        batch_sampler: the batches, as lists of numbers; as ``sampler``.
        num_workers: processes; 0 fetches and decodes in threads of this one.
        collate_fn: from a list of items to a batch; torch's own by default.
        drop_last: leave out the last batch if it is short; without a sampler, in all ranks.
        equalize: gives ranks equally many items: ``drop`` leaves out fewer items than there are ranks, others in each
            epoch; ``repeat`` reads as few twice.
        world: this rank's place; ``None`` asks torch. ``World()`` gives each rank all items.
        generator: of the order.
        **options: others of ``DataLoader``: ``pin_memory``, ``timeout``, ``worker_init_fn``, ``prefetch_factor``,
            ``multiprocessing_context``. Workers are started for each epoch, as by default.

    Raises:
        UnsplitError: when iteration begins, if some ranks would have more batches than others; or if several ranks
            shuffle by a ``generator``, which may differ from rank to rank.
        StateError: when iteration begins, if the loaded state is of another order or number of items; or, as also
            UnequalListingError, if the ranks would not divide one order of the same items.

    Example:
        >>> import fsspec
        >>> from torchdata_remote import RemoteFiles
        >>> fsspec.filesystem("memory").pipe({f"/tales/{number}.txt": b"x" * number for number in range(5)})
        >>> loader = PrefetchingLoader(RemoteFiles("memory://tales/"), batch_size=2, collate_fn=len)
        >>> len(loader), list(loader)
        (3, [2, 2, 1])
        >>> share = PrefetchingLoader(loader.dataset, batch_size=2, collate_fn=len, world=World(rank=1, world_size=2))
        >>> batches = iter(share)
        >>> next(batches)
        2
        >>> loader.load_state_dict(share.state_dict())
        >>> list(loader)
        [2]
    """

    def __init__(
        self,
        dataset: Batched,
        batch_size: int | None = 1,
        *,
        shuffle: bool | None = None,
        seed: int | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], T] | None = None,
        drop_last: bool = False,
        equalize: EqualizeMode | str | None = None,
        world: World | None = None,
        generator: Any = None,
        **options: Any,
    ) -> None:
        self._has_sampler = sampler is not None or batch_sampler is not None
        check_options(
            dataset, shuffle=shuffle, seed=seed, generator=generator, has_sampler=self._has_sampler,
            equalize=equalize, world=world, options=options,
        )  # fmt: skip
        self.dataset, self.num_workers = dataset, num_workers
        self._loader: DataLoader[Any] = DataLoader(  # which checks all of this, and is never iterated
            dataset,  # type: ignore[arg-type]
            batch_size=batch_size,
            shuffle=shuffle if seed is None else None,
            sampler=sampler,
            batch_sampler=batch_sampler,  # type: ignore[arg-type]  # any sequence does
            num_workers=num_workers,
            collate_fn=collate_fn,
            drop_last=drop_last,
            generator=generator,
            **options,
        )
        self._generator, self._options = generator, options
        self._shuffle, self._drop_last, self._world = bool(shuffle), drop_last, world
        self._equalize = None if equalize is None else EqualizeMode(equalize)
        self._comparison = RankComparison(dataset, divided=not self._has_sampler)
        self._state = LoaderState(len(dataset), shuffle=self._shuffle, seed=seed, has_sampler=self._has_sampler)

    @property
    def sampler(self) -> Any:
        """The sampler, which has ``set_epoch`` where ranks divide an order, or it is a ``DistributedSampler``."""
        if not self._is_divided():
            return self._loader.sampler
        # Ray's wrapper copies what is in vars() here, and training loops ask it for the sampler.
        sampler = vars(self)["sampler"] = RankSampler(self, self._next_order, self._state.read_elsewhere, single=True)
        return sampler

    @property
    def batch_sampler(self) -> Any:
        """The sampler of batches; ``None`` for single items."""
        if self._loader.batch_sampler is None or not self._is_divided():
            return self._loader.batch_sampler
        return RankSampler(self, self._next_order, self._state.read_elsewhere, single=False)

    def __getattr__(self, name: str) -> Any:
        if name in OF_TORCH and "_loader" in vars(self):  # trainers read them
            return getattr(self._loader, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch, also of the sampler; a loaded state of another epoch is dropped."""
        self._state.set_epoch(epoch)
        if self._has_sampler:
            set_epoch_of_sampler(self._loader, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, after the batch that was handed out last: plain JSON.

        After the last batch nothing is left of the epoch; when the pass has ended, it is the beginning of the next one.
        A batch that Ray Train's wrapper has read ahead counts as not handed out.

        Raises:
            StateError: if a trainer has built another loader of this one's samplers, whose place is not known here.
        """
        begun: dict[str, Any] = {"order": None}
        if self._is_divided() or not (self._has_sampler or self._shuffle):
            begun = {"shuffle": self._shuffle, "seed": self._seed(self._place()), "items_done": 0, "moved": [0, 0]}
        return self._state.state_dict(begun, num_untrained_of(self))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass go on there, without reading what is done.

        Args:
            state_dict: as :meth:`state_dict` gave it; without a sampler that of any rank, the same in each rank.

        Raises:
            StateError: if it is no state of this class; when the pass begins, if it fits neither dataset nor order.
        """
        self._state.load_state_dict(state_dict)
        if (loop := current_fit_loop(self)) is not None:
            if epoch_ends(loop) and state_dict["batches_done"]:
                self.set_epoch(state_dict["epoch"] + 1)
            set_progress(loop, self)

    def num_batches_left(self) -> int:
        """Batches of the next pass in this rank."""
        return self._next_order().num_left()

    def __len__(self) -> int:
        """Batches of the epoch in this rank, those done included; for Lightning, which asks once, of a whole one."""
        if current_fit_loop(self) is not None:
            return self._next_order().num_in_epoch()
        current = self._state.current
        return len(self._next_order() if current is None or current.ended else current.order)

    def __iter__(self) -> Iterator[T]:
        try:
            order, changes = self._next_order(), self._state.changes
            loader, seeds, options = self._loader, seeds_of(self._generator), self._options
            followed = SamplerFollower(loader.sampler, loader.batch_sampler)
            begin = partial(drawn, dataset=self.dataset, loader=loader, seeds=seeds, followed=followed, options=options)
            batches = None  # nothing is drawn before the first batch, as by DataLoader
            if self.num_workers > 0:
                batches = begin(order)
                followed.draw((loader.prefetch_factor or 0) * self.num_workers)
        except Exception as error:
            self._comparison.require_alike(self._place(), None, error)
            raise
        return self._pass(order, changes, batches, begin)

    def _pass(
        self, order: Order, changes: int, batches: Iterator[T] | None, begin: Callable[[Order], Iterator[T]]
    ) -> Iterator[T]:
        """Begins with the first batch only: Lightning drops iterators, and sets the epoch of one that it has made."""
        try:
            if changes != self._state.changes and (batches is None or isinstance(order, SplitOrder)):
                order, batches = self._next_order(), None
            begun = begin(order) if batches is None else batches
        except Exception as error:
            self._comparison.require_alike(self._place(), order, error)
            raise
        self._comparison.require_alike(self._place(), order)
        yield from self._state.begin(order, current_wrappers()).counted(begun)

    def _place(self) -> World:
        return place_in(self._world, detect_world())

    def _seed(self, world: World) -> int | None:
        """Of the order that ranks divide; ``None`` if it is not shuffled, or by torch's random numbers."""
        if not self._shuffle or self._has_sampler:
            return None
        return 0 if self._state.seed is None and world.world_size > 1 else self._state.seed

    def _is_divided(self) -> bool:
        """Whether the order is one that torch's samplers do not give."""
        world = self._place()
        return not self._has_sampler and (world.world_size > 1 or self._seed(world) is not None)

    def _next_order(self) -> Order:
        """The order of the next pass, from where it begins."""
        world, loader = self._place(), self._loader
        seed = self._seed(world)
        if self._has_sampler or (self._shuffle and seed is None):
            return SamplerOrder(loader, *self._state.start_of_sampler())
        refuse_generator(self._generator if self._shuffle else None, world.world_size)
        how: dict[str, Any] = {"seed": seed, "drop_last": self._drop_last, "equalize": self._equalize}
        epoch, start, batch_size = self._state.next_epoch, self._state.start_of_split(), loader.batch_size or 1
        return SplitOrder(len(self.dataset), world, batch_size, epoch=epoch, start=start, **how)
