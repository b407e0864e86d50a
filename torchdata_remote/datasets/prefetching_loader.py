"""``PrefetchingLoader``: torch's ``DataLoader`` with prefetching across batches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, NoReturn

import torch
from torch.utils.data import DataLoader, DistributedSampler
from typing_extensions import TypeVar

from ..core import arguments as check
from ..core.arguments import converted, explained, seed_of, unknown_option, whole
from ..core.collating import collate_samples
from ..core.frameworks import missing_line, warn_of_missing_line
from ..core.partition import EqualizeMode
from ..core.rank_exchange import digest, in_group, made_by_each
from ..core.workers import start_fork_server, unbroken
from ..core.world import World, detect_world, place_in, require_world
from ..errors import StateError, UnequalListingError, UnsplitError
from ._epoch import Epoch, read
from ._map_style import MapStyle
from ._orders import SamplerOrder, SplitOrder

T = TypeVar("T", default=Any)
Order = SplitOrder | SamplerOrder

_VERSION = 2
_OF_WORKERS = ("in_order", "multiprocessing_context", "pin_memory", "pin_memory_device", "prefetch_factor", "timeout")
_PASSED_ON = (*_OF_WORKERS, "worker_init_fn")
"""Options that are ``DataLoader``'s only."""


class _OwnOrder(DistributedSampler[Any]):
    """Stands for the order of a loader without a sampler. Trainers such as Ray's do not split it again.

    Args:
        loader: whose order it is.
    """

    def __init__(self, loader: PrefetchingLoader[Any]) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the loader's next pass."""
        self._loader.set_epoch(epoch)

    def __iter__(self) -> NoReturn:
        raise StateError(
            "PrefetchingLoader: another loader, which a trainer has built from its sampler, would read the epoch, and "
            "the position in it would be unknown. Iterate the PrefetchingLoader itself; to resume, load its state."
        )


class _Pass:
    """Counts the batches that a pass has yielded.

    Args:
        order: of the batches.
        num_trained: how many were trained on; ``None`` counts each that was yielded.
    """

    def __init__(self, order: Order, num_trained: int | None) -> None:
        self.order, self.num_trained, self.num_batches, self.ended = order, num_trained, 0, False


@explained
class PrefetchingLoader(Generic[T]):
    """Yield batches as torch's ``DataLoader``, prefetching the next ones.

    ``DataLoader`` sends a worker one batch at a time, so the files of the next batch cannot be requested during the
    current one. Here each worker knows its batches of the epoch, and prefetches across them. With the same sampler, or
    none, the batches are those of ``DataLoader`` in the same order; ``shuffle=True`` draws another random order.

    **Several ranks** without a sampler split one order, which is determined by seed and epoch. All ranks together read
    every item once, and have the same number of batches; the last one or two may be shorter in some ranks. With single
    items (``batch_size=1`` or ``None``), or fewer items than ranks, this may be impossible: an error that asks for
    ``equalize``. With a process group, ranks compare items, seed, epoch and position before each pass, so all
    of them have to start it; pass ``world=World()`` to a loader that only one rank reads.

    **Each pass is an epoch**, counted from 0, from ``set_epoch`` or from a loaded state. Without a sampler
    ``state_dict`` is the same in all ranks at the same step, so save one of them. Any number of ranks and workers can
    resume from it, with any batch size. With a sampler, the same world can resume, if the sampler yields the same order
    again, which is checked; each rank loads its own state.

    Args:
        dataset: :class:`RemoteFiles`, :class:`RemoteImageFolder` or :class:`ShardedDataset`.
        batch_size: items per batch of one rank; ``None`` for single items.
        shuffle: a new order each epoch.
        seed: of these orders. ``None`` means 0 with several ranks; in a single process, each epoch draws one from
            torch's generator, and its states have it.
        sampler: the order, as finitely many indices. Ranks do not split it, unless it is a ``DistributedSampler``.
        batch_sampler: the batches, as lists of indices; like ``sampler``.
        num_workers: number of processes; 0 fetches and decodes in threads of this one.
        collate_fn: from a list of items to a batch; torch's default.
        drop_last: drop the last batch if it is shorter; without a sampler, in all ranks.
        equalize: gives ranks the same number of items: ``drop`` drops up to ``world_size - 1`` items, different ones
            each epoch, which without ``shuffle`` begins one item later each time; ``repeat`` repeats up to as many.
        world: of this rank; ``None`` asks torch. ``World()`` gives each rank all items.
        generator: from which a single process draws the seeds, instead of torch's.
        **options: of ``DataLoader``: ``pin_memory``, ``timeout``, ``worker_init_fn``, ``prefetch_factor``,
            ``multiprocessing_context``. Workers are started for each epoch.

    Raises:
        UnsplitError: with the first batch, if ranks would have different numbers of batches, or if several ranks
            shuffle by a ``generator``, which may differ between ranks.
        StateError: with the first batch, if the loaded state has another order or number of items; or, like
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
        dataset: MapStyle[Any],
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
        for name in options:
            if name not in _PASSED_ON:
                known = [*inspect.signature(PrefetchingLoader).parameters][:-1]  # the last one are the options
                raise unknown_option("PrefetchingLoader", name, [*known, *_PASSED_ON])
        if not isinstance(dataset, MapStyle):
            raise TypeError(
                "PrefetchingLoader is for RemoteFiles, RemoteImageFolder and ShardedDataset, got a "
                f"{type(dataset).__name__}. A chain is read by stateful_loader(pipe), another dataset by DataLoader; "
                "for a subset of one of these, pass a sampler."
            )
        check.instance_or_none("sampler", sampler, Iterable, example="[2, 0, 1]")
        check.instance_or_none("batch_sampler", batch_sampler, Iterable, example="[[2, 0], [1]]")
        require_world(world)
        check.function_or_none("collate_fn", collate_fn, example="torch.utils.data.default_collate")
        check.instance_or_none("generator", generator, torch.Generator, example="torch.Generator()")
        self.dataset, self._world, self._generator = dataset, world, generator
        self._shuffle = bool(check.flag_or_none("shuffle", shuffle))
        self._seed = None if seed is None else seed_of(seed)
        self._equalize = None if equalize is None else check.choice("equalize", equalize, EqualizeMode)
        self._has_sampler = sampler is not None or batch_sampler is not None
        if seed is not None and (not self._shuffle or generator is not None or self._has_sampler):
            raise check.marked(ValueError("seed= requires shuffle=True, without a sampler and without a generator."))
        if self._has_sampler and (equalize is not None or world is not None):
            raise check.marked(
                ValueError("A sampler selects what each rank reads: pass neither equalize= nor world= with it.")
            )
        self._options = converted(options)
        own = converted({"batch_size": batch_size, "num_workers": num_workers, "drop_last": drop_last})
        self.num_workers = own["num_workers"]
        # Checks these arguments, and is never iterated
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            shuffle=self._shuffle if self._has_sampler else None,
            sampler=sampler if self._has_sampler else _OwnOrder(self),
            batch_sampler=batch_sampler,  # type: ignore[arg-type]  # any sequence works
            # torch's leaves single items as they are
            collate_fn=collate_samples if collate_fn is None and batch_size is not None else collate_fn,
            **own,
            **self._options,
        )
        if self.num_workers:
            start_fork_server(self._loader.multiprocessing_context)
        # Trainers ask for them; Ray's wrapper copies vars(self)
        self.sampler: Any = self._loader.sampler
        self.batch_sampler: Any = self._loader.batch_sampler
        self._epoch = 0  # of the next pass
        self._loaded: dict[str, Any] | None = None
        self._current: _Pass | None = None  # the last pass; None once a state was loaded or an epoch set
        self._counts_trained = False  # whether trained() was called
        self._missing_line: str | None = None  # of a script whose framework reads ahead

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):  # trainers read options of torch's loader
            return getattr(self._loader, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass and of the sampler; a loaded state of another epoch is dropped."""
        self._epoch, self._current = whole("set_epoch: epoch", epoch, at_least=0), None
        if self._loaded is not None and self._loaded["epoch"] != epoch:
            self._loaded = None
        if self._has_sampler:
            for sampler in (self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None)):
                if sampler is not None and hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that was yielded, as plain JSON.

        After the last batch nothing is left of the epoch; after the end of the pass it is the start of the next epoch.
        See :meth:`trained` for batches that are read ahead.
        """
        if self._missing_line is not None and not self._counts_trained:
            warn_of_missing_line(self._missing_line)
            self._missing_line = None
        current = self._current
        if current is not None:
            num_done = current.num_batches if current.num_trained is None else current.num_trained
            if num_done < current.num_batches or not current.ended:
                return self._state(current.order.epoch, current.order.position(num_done))
        return self._state(self._epoch, {"batches_done": 0}) if self._loaded is None else dict(self._loaded)

    def trained(self, num_batches: int) -> None:
        """Count the batches of this pass that were trained on: the state is that after them.

        For a training that reads batches ahead, as by Ray's ``prepare_data_loader``: call it after each step. From the
        first call on, a batch that was yielded counts only when it is named here.

        Args:
            num_batches: since the pass was started, from 0. A resumed pass begins with 0, too.

        Raises:
            ValueError: if the pass has yielded fewer batches.
        """
        num_batches = whole("trained: num_batches", num_batches, at_least=0)
        current, self._counts_trained = self._current, True
        num_yielded = 0 if current is None else current.num_batches
        if num_batches > num_yielded:
            raise ValueError(f"trained({num_batches}): this pass has yielded {num_yielded} batches.")
        if current is not None:
            current.num_trained = num_batches

    def _state(self, epoch: int, position: Mapping[str, Any]) -> dict[str, Any]:
        state = {"version": _VERSION, "epoch": epoch, **self._kind(), **position}
        return {**state, "digest": digest(state)}

    def _kind(self) -> dict[str, Any]:
        """What a loader that resumes has to have in common."""
        return {"num_items": len(self.dataset), "sampler": self._has_sampler, "shuffle": self._shuffle}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume the next pass from a state, without reading again what is done.

        Args:
            state_dict: of :meth:`state_dict`; without a sampler that of any rank, the same in each rank.

        Raises:
            StateError: if it is not a state of this class; when the pass starts, if dataset or order differ.
        """
        entries = dict(state_dict) if isinstance(state_dict, Mapping) else {}
        if entries.get("version") != _VERSION or entries.pop("digest", None) != digest(entries):
            raise StateError(
                f"Expected the state_dict() of a PrefetchingLoader, version {_VERSION} and unchanged (begin an epoch "
                f"without it by set_epoch(epoch)); got {type(state_dict).__name__}: {state_dict!r:.200}"
            )
        self._loaded, self._epoch, self._current = dict(state_dict), entries["epoch"], None

    def num_batches_left(self) -> int:
        """Number of batches of the next pass in this rank."""
        return len(self._next_order())

    def __len__(self) -> int:
        """Number of batches of a complete epoch in this rank."""
        return len(self._next_order(begun={}))

    def __iter__(self) -> Iterator[T]:
        self._missing_line = missing_line()
        return unbroken(self._pass())

    def _pass(self) -> Iterator[T]:
        """Start the pass at its first batch: Lightning drops iterators, and sets the epoch after it has created one."""
        order, batches = self._started()
        current = self._current = _Pass(order, 0 if self._counts_trained else None)
        self._epoch, self._loaded = order.epoch + 1, None
        for batch in batches:
            current.num_batches += 1
            yield batch
        current.ended = True

    def _started(self) -> tuple[Order, Iterator[T]]:
        """Draw the order of the next pass and start its workers, after a comparison with those of the other ranks."""
        started: list[Any] = []
        world = World() if self._has_sampler else self._current_world()

        def start() -> dict[str, Any]:
            # As DataLoader, which draws the seed of its workers before the order
            drawing = self._generator or torch.default_generator
            seeds = torch.Generator()
            seeds.set_state(drawing.get_state())
            _draw_seed(drawing)
            order = self._next_order(seed=self._seed_of_pass(world))
            epoch = Epoch(self.dataset, order.batches(), single=self.batch_sampler is None)
            options = {**self._options, "generator": seeds, "collate_fn": self._loader.collate_fn}
            started[:] = order, read(epoch, self.num_workers, options)
            if not in_group(world):
                return {}
            known = {field.name: getattr(order, field.name) for field in fields(SplitOrder) if field.name != "world"}
            return {"names": self.dataset.names_digest(), **known}

        found = made_by_each(world, "begin a pass of a PrefetchingLoader", start)
        first, expected = next(iter(found.items()))
        for rank, other in found.items():
            for name, value in other.items():
                if value != expected[name]:
                    kind = UnequalListingError if name in ("names", "num_items") else StateError
                    raise kind(
                        f"PrefetchingLoader: ranks {first} and {rank} would not split the same order, so samples would "
                        f"be lost or repeated: their {name} is {expected[name]!r} and {value!r}. Give every rank the "
                        "same options, epochs, state and items: wait until all files are written, or pass index= or a "
                        "manifest, which fixes the list of items."
                    )
        return started[0], started[1]

    def _current_world(self) -> World:
        return place_in(self._world, detect_world())

    def _seed_of_pass(self, world: World) -> int | None:
        if not self._shuffle:
            return None
        seed = self._seed
        if seed is None:
            seed = 0 if world.world_size > 1 else _draw_seed(self._generator)
        found: int = self._begun().get("seed", seed)
        return found

    def _begun(self) -> Mapping[str, Any]:
        """Return the loaded state of the middle of an epoch; nothing if there is none.

        Raises:
            StateError: if it has another order.
        """
        loaded = self._loaded
        if loaded is None or not loaded["batches_done"]:
            return {}
        seed = {} if self._seed is None else {"seed": self._seed}
        for name, here in {**self._kind(), **seed}.items():
            if loaded.get(name) != here:
                raise StateError(
                    f"PrefetchingLoader: the state has {name}={loaded.get(name)}, here it is {here}. Build dataset and "
                    f"loader as they were, or skip the rest of the epoch by set_epoch({loaded['epoch'] + 1})."
                )
        return loaded

    def _next_order(self, *, seed: int | None = None, begun: Mapping[str, Any] | None = None) -> Order:
        """Return the order of the next pass; without its seed, only its length is known."""
        begun = self._begun() if begun is None else begun
        batches_done, world = begun.get("batches_done", 0), self._current_world()
        if self._has_sampler:
            return SamplerOrder(self._loader, self._epoch, batches_done, begun.get("order"))
        if self._shuffle and self._generator is not None and world.world_size > 1:
            raise UnsplitError(
                f"PrefetchingLoader: {world.world_size} ranks shuffle by a generator, whose order may differ between "
                "ranks. Pass seed= instead; or a sampler, if each rank needs its own order."
            )
        return SplitOrder(
            len(self.dataset),
            world,
            self._loader.batch_size or 1,
            self._epoch,
            seed,
            self._loader.drop_last,
            self._equalize,
            # Of an order without a seed the last items would be dropped in each epoch
            begun.get("first", self._epoch if self._equalize is EqualizeMode.DROP else 0),
            begun.get("items_done", 0),
            batches_done,
        )


def _draw_seed(generator: torch.Generator | None) -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))
