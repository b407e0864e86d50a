"""``PrefetchingLoader``: torch's ``DataLoader`` with prefetching across batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic

from torch.utils.data import DataLoader
from typing_extensions import TypeVar

from ..core.arguments.amounts import whole
from ..core.arguments.calls import explained
from ..core.frameworks.read_ahead import missing_line, warn_of_missing_line
from ..core.partition import EqualizeMode
from ..core.unbroken import unbroken
from ..core.world import World, detect_world, place_in
from ._epoch import Batched
from ._loader_options import TORCH_OPTIONS, check_options, collate_of, equalize_mode
from ._loader_state import LoaderState, Order
from ._rank_comparison import RankComparison
from ._rank_sampler import RankSampler
from ._sampler_follower import SamplerFollower, seeds_of
from ._sampler_order import SamplerOrder, set_epoch_of_sampler
from ._split_order import SplitOrder, refuse_generator
from ._start_epoch import start_epoch

T = TypeVar("T", default=Any)


@explained
class PrefetchingLoader(Generic[T]):
    """Yield the batches of torch's ``DataLoader`` in the same order, prefetching the next ones.

    ``DataLoader`` sends a worker one batch at a time, so the files of the next batch cannot be requested during the
    current one. Here each worker knows its batches of the epoch, and prefetches across them.

    **Several ranks** without a sampler split one order, which is determined by seed and epoch. All ranks together read
    every item once, and have the same number of batches; the last one or two may be shorter in some ranks. With single
    items (``batch_size=1`` or ``None``), or fewer items than ranks, this may be impossible: an error that asks for
    ``equalize``. With a process group, ranks compare items, seed, epoch and position before each pass, so all
    of them have to start it; pass ``world=World()`` to a loader that only one rank reads.

    **Each pass is an epoch**, counted from 0, from ``set_epoch`` or from a loaded state. Without a sampler
    ``state_dict`` is the same in all ranks at the same step, so save one of them. Any number of ranks and workers can
    resume from it, with any batch size. With a sampler, the same world can resume, if the sampler yields the same order
    again, which is checked. ``shuffle=True`` in a single process requires ``seed`` to be resumed.

    Args:
        dataset: :class:`RemoteFiles`, :class:`RemoteImageFolder` or :class:`ShardedDataset`.
        batch_size: items per batch of one rank; ``None`` for single items.
        shuffle: a new order each epoch.
        seed: of that order. ``None`` means torch's generator in a single process, and 0 with several ranks.
        sampler: the order, as finitely many indices. Ranks do not split it, unless it is a ``DistributedSampler``.
        batch_sampler: the batches, as lists of indices; like ``sampler``.
        num_workers: number of processes; 0 fetches and decodes in threads of this one.
        collate_fn: from a list of items to a batch; torch's default.
        drop_last: drop the last batch if it is shorter; without a sampler, in all ranks.
        equalize: gives ranks the same number of items: ``drop`` drops up to ``world_size - 1`` items, different ones
            each epoch; ``repeat`` repeats up to as many.
        world: of this rank; ``None`` asks torch. ``World()`` gives each rank all items.
        generator: of the order.
        **options: of ``DataLoader``: ``pin_memory``, ``timeout``, ``worker_init_fn``, ``prefetch_factor``,
            ``multiprocessing_context``. Workers are started for each epoch.

    Raises:
        UnsplitError: when iteration starts, if ranks would have different numbers of batches, or if several ranks
            shuffle by a ``generator``, which may differ between ranks.
        StateError: when iteration starts, if the loaded state has another order or number of items; or, like
            UnequalListingError, if the ranks would not split the same order of the same items.

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
        checked = check_options(
            dataset, shuffle=shuffle, seed=seed, generator=generator, drop_last=drop_last,
            samplers={"sampler": sampler, "batch_sampler": batch_sampler}, equalize=equalize, world=world,
            num_workers=num_workers, batch_size=batch_size, collate_fn=collate_fn, options=options,
        )  # fmt: skip
        self.dataset, self.num_workers, self._options = dataset, checked.num_workers, checked.options
        self._loader: DataLoader[Any] = DataLoader(  # validates these arguments; never iterated
            dataset,  # type: ignore[arg-type]
            shuffle=checked.shuffle if seed is None else None,
            batch_sampler=batch_sampler,  # type: ignore[arg-type]  # any sequence works
            batch_size=checked.batch_size, num_workers=checked.num_workers, drop_last=checked.drop_last,
            sampler=sampler, collate_fn=collate_of(collate_fn, checked.batch_size), generator=generator,
            **checked.options,
        )  # fmt: skip
        self._generator, self._equalize = generator, equalize_mode(equalize)
        self._shuffle, self._drop_last, self._world = bool(checked.shuffle), checked.drop_last, world
        self._comparison = RankComparison(dataset, divided=not self._has_sampler)
        self._missing_line: str | None = None  # of a script whose framework reads ahead
        self._state = LoaderState(len(dataset), shuffle=self._shuffle, seed=checked.seed, has_sampler=self._has_sampler)

    @property
    def sampler(self) -> Any:
        """The sampler. It has ``set_epoch`` if ranks split an order, or if it is a ``DistributedSampler``."""
        if not self._is_divided():
            return self._loader.sampler
        # Ray's wrapper copies vars(self), and training loops access the sampler of the wrapper.
        sampler = vars(self)["sampler"] = RankSampler(self, self._next_order, self._state.read_elsewhere, single=True)
        return sampler

    @property
    def batch_sampler(self) -> Any:
        """The sampler of batches; ``None`` for single items."""
        if self._loader.batch_sampler is None or not self._is_divided():
            return self._loader.batch_sampler
        return RankSampler(self, self._next_order, self._state.read_elsewhere, single=False)

    def __getattr__(self, name: str) -> Any:
        if name in TORCH_OPTIONS and "_loader" in vars(self):  # trainers read them
            return getattr(self._loader, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass and of the sampler; a loaded state of another epoch is dropped."""
        self._state.set_epoch(epoch)
        if self._has_sampler:
            set_epoch_of_sampler(self._loader, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was yielded, as plain JSON.

        After the last batch nothing is left of the epoch; after the end of the pass it is the start of the next epoch.
        See :meth:`trained` for batches that are read ahead.

        Raises:
            StateError: if a trainer has built another loader from this one's samplers, whose position is unknown.
        """
        start: dict[str, Any] = {"order": None}
        if self._is_divided() or not (self._has_sampler or self._shuffle):
            start = {
                "shuffle": self._shuffle,
                "seed": self._seed(self._current_world()),
                "items_done": 0,
                "moved": [0, 0],
            }
        if self._missing_line is not None and not self._state.counts_trained:
            warn_of_missing_line(self._missing_line)
            self._missing_line = None
        return self._state.state_dict(start)

    def trained(self, num_batches: int) -> None:
        """Count the batches of this pass that were trained on: the state is that after them.

        For a training that reads batches ahead, as by Ray's ``prepare_data_loader``: call it after each step. From the
        first call on, a batch that was yielded counts only when it is named here.

        Args:
            num_batches: since the pass was started, from 0. A resumed pass begins with 0, too.

        Raises:
            ValueError: if the pass has yielded fewer batches.
        """
        self._state.trained(whole("trained: num_batches", num_batches, at_least=0))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume the next pass from a state, without reading again what is done.

        Args:
            state_dict: of :meth:`state_dict`; without a sampler that of any rank, the same in each rank.

        Raises:
            StateError: if it is not a state of this class; when the pass starts, if dataset or order differ.
        """
        self._state.load_state_dict(state_dict)

    def num_batches_left(self) -> int:
        """Number of batches of the next pass in this rank."""
        return self._next_order().num_left()

    def __len__(self) -> int:
        """Number of batches of a complete epoch in this rank."""
        current = self._state.current
        return (self._next_order() if current is None or current.ended else current.order).num_in_epoch()

    def __iter__(self) -> Iterator[T]:
        self._missing_line = missing_line()
        try:
            order, changes = self._next_order(), self._state.changes
            loader, seeds = self._loader, seeds_of(self._generator)
            follower = SamplerFollower(loader.sampler, loader.batch_sampler)
            start = partial(start_epoch, self.dataset, loader, seeds, follower, self._options)
            batches = None  # nothing is drawn before the first batch, as in DataLoader
            if self.num_workers > 0:
                batches = start(order)
                follower.draw((loader.prefetch_factor or 0) * self.num_workers)
        except Exception as error:
            self._comparison.require_alike(self._current_world(), None, error)
            raise
        return unbroken(self._pass(order, changes, batches, start))

    def _pass(
        self, order: Order, changes: int, batches: Iterator[T] | None, start: Callable[[Order], Iterator[T]]
    ) -> Iterator[T]:
        """Start the pass at its first batch: Lightning drops iterators, and sets the epoch after it has created one."""
        try:
            if changes != self._state.changes and (batches is None or isinstance(order, SplitOrder)):
                order, batches = self._next_order(), None
            started = start(order) if batches is None else batches
        except Exception as error:
            self._comparison.require_alike(self._current_world(), order, error)
            raise
        self._comparison.require_alike(self._current_world(), order)
        yield from self._state.start_pass(order).counted(started)

    def _current_world(self) -> World:
        return place_in(self._world, detect_world())

    def _seed(self, world: World) -> int | None:
        """Seed of the order that ranks split; ``None`` if it is not shuffled, or shuffled by torch's generator."""
        if not self._shuffle or self._has_sampler:
            return None
        return 0 if self._state.seed is None and world.world_size > 1 else self._state.seed

    def _is_divided(self) -> bool:
        """Whether the order is a ``SplitOrder``, not that of a sampler of torch."""
        world = self._current_world()
        return not self._has_sampler and (world.world_size > 1 or self._seed(world) is not None)

    def _next_order(self) -> Order:
        """Return the order of the next pass."""
        world, loader = self._current_world(), self._loader
        seed = self._seed(world)
        if self._has_sampler or (self._shuffle and seed is None):
            return SamplerOrder(loader, *self._state.start_of_sampler())
        refuse_generator(self._generator if self._shuffle else None, world.world_size)
        options: dict[str, Any] = {"seed": seed, "drop_last": self._drop_last, "equalize": self._equalize}
        epoch, start, batch_size = self._state.next_epoch, self._state.start_of_split(), loader.batch_size or 1
        return SplitOrder(len(self.dataset), world, batch_size, epoch=epoch, start=start, **options)
