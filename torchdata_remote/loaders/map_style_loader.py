"""``PrefetchingLoader``: a front of the one loader for map-style datasets, as a chain of their items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, get_worker_info

from ..core import arguments as check
from ..core.arguments import explained, seed_of, whole_or_none
from ..core.collating import collate_samples
from ..core.iter_datapipe import IterableWrapper
from ..core.partition import EqualizeMode, permutation_array
from ..core.processes import forks_by_default
from ..core.world import World, detect_world, place_in, require_world
from ..datasets.map_style import MapStyle, as_index
from ..errors import StateError
from ..pipes.datapipe import DataPipe
from ..pipes.env import Env
from ..pipes.passes import NumberedPass, Pass
from .fronts import stateful_loader
from .loader import StatefulLoader
from .resumable import Resumable


class _Order(list[Any]):
    """What a sampler has yielded for an epoch: a listing of one object, whose name is a digest."""

    def __str__(self) -> str:
        return f"the order of sampler or batch size {blake2b(repr(list(self)).encode(), digest_size=8).hexdigest()}"


class _Sampler:
    """A sampler that is read once a pass, in the process that starts it.

    Args:
        sampler: of items, or of batches.
        entry: makes one of these plain.
    """

    def __init__(self, sampler: Any, entry: Callable[[Any], Any]) -> None:
        self.sampler, self._entry = sampler, entry

    def __iter__(self) -> Iterator[_Order]:
        if get_worker_info() is not None:  # whose copy of the sampler may yield another order
            raise StateError("The order of the items could not be passed to the workers. Use num_workers=0.")
        yield _Order(map(self._entry, self.sampler))


@dataclass(eq=False, repr=False)
class MapStyleItems(DataPipe[Any]):
    """The items of a map-style dataset in the order of an epoch, dealt to streams, and fetched several batches ahead.

    Args:
        dataset: of the items.
        batch_size: how many are fetched at once; 0 for what is dealt: batches, which are handed out as lists.
        seed: of the orders.
        equalize: how all streams get equally many items.
        world: as for :func:`PrefetchingLoader`.
        listing: of a sampler's order; ``None`` for one by the seed and the epoch.
    """

    dataset: MapStyle
    batch_size: int
    seed: int | None
    equalize: str | None
    world: World | None
    listing: Any

    order_names = ("seed", "equalize", "names_digest")

    def __post_init__(self) -> None:
        self.has_all_ranks, self.shuffles_items = self.world == World(), self.seed is not None

    @property
    def names_digest(self) -> str:
        """Digest of the names of the items in their order."""
        return self.dataset.names_digest

    def current_world(self) -> World:
        """Return rank and worker of this reader."""
        return place_in(self.world, detect_world())

    def length(self, env: Env) -> int:
        """Count the items or batches of a share."""
        order = self._order(env) if self.listing is None else self.listing.iterable.sampler
        return len(self._share(range(len(order)), env))

    def open(self, env: Env) -> Pass[Any]:
        order = self._order(env) if self.listing is None else env.whole(self.listing)[0]
        pass_ = _ItemsPass(self, self._share(order, env))
        env.mark(self, pass_)
        return pass_

    def _order(self, env: Env) -> Any:
        """Return the numbers of the items of an epoch; with ``equalize`` as many for each stream."""
        count: int = env.share.count  # type: ignore[union-attr]  # of a loader
        return env.shared.once(id(self), (*env.epoch, count), lambda: self._made(count, *env.epoch))

    def _made(self, count: int, epoch: int) -> Any:
        size = len(self.dataset)
        # Without the roll the same items would be dropped or repeated in each epoch
        order = np.roll(np.arange(size), -epoch)
        if self.seed is not None:
            order = permutation_array(size, "items", self.seed, epoch)
        if self.equalize is not None:
            size = (size if self.equalize == "drop" else size + count - 1) // count * count
        return np.resize(order, size)

    def _share(self, order: Any, env: Env) -> Any:
        """Return what a stream has of an order."""
        share: Any = env.share
        own = order[share.number :: share.count]
        for cut in share.cuts:
            taken = cut.taken(env.number_of(self), env.epoch, len(own))
            part = own[taken:][cut.part :: cut.parts]
            own = part if cut.part else [*own[:taken], *part]
        return own


class _ItemsPass(NumberedPass[Any]):
    def __init__(self, pipe: MapStyleItems, share: Any) -> None:
        super().__init__()
        self._pipe, self._share = pipe, share

    def items(self) -> Iterator[Any]:
        own, size = self._share[self._next :], self._pipe.batch_size
        batches = (own[at : at + size] for at in range(0, len(own), size)) if size else own
        with closing(self._pipe.dataset.batches(batches)) as fetched:
            for batch in fetched:
                for item in batch if size else [batch]:
                    self._next += 1
                    yield item

    mark = NumberedPass.position


class _Sampled(Resumable):
    """A dataset whose sampler is told the epoch."""

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        found: Any = getattr(self.pipe.listing, "iterable", None)
        while (found := getattr(found, "sampler", None)) is not None:  # a sampler of batches has one of items
            if hasattr(found, "set_epoch"):
                found.set_epoch(epoch)


@explained
def PrefetchingLoader(  # noqa: N802  # it is called as the class that it was
    dataset: MapStyle,
    batch_size: int | None = 1,
    *,
    shuffle: bool = False,
    seed: int | None = None,
    sampler: Iterable[int] | None = None,
    batch_sampler: Iterable[Sequence[int]] | None = None,
    drop_last: bool = False,
    equalize: EqualizeMode | str | None = None,
    world: World | None = None,
    **options: Any,
) -> StatefulLoader:
    """Build a loader of batches of a map-style dataset that prefetches the next ones.

    torch's ``DataLoader`` sends a worker one batch at a time, so the files of the next batch cannot be requested during
    the current one. Here each worker knows its items of the epoch, and prefetches across batches. Without ``shuffle``,
    and with a sampler, a single rank has the batches of ``DataLoader`` in the same order, with any number of workers.

    **Several ranks** without a sampler split one order, which is determined by seed and epoch. Their shares differ by
    one item, without ``shuffle`` by one batch; ``equalize`` makes them equal. If some ranks have more batches, a
    shuffled epoch ends where the others end, and what is left out is said once; otherwise a warning names the ranks.
    Pass ``world=World()`` to a loader that only one rank reads.

    Epochs, states, and what ranks compare are those of :func:`stateful_loader`: ``merge_states`` or
    ``state_of_all_ranks`` has the position of all ranks, which any number of ranks and workers can resume, with
    ``shuffle`` also with another batch size. With a sampler, the same number of workers or more can resume, if the
    sampler yields the same order again, which is checked; each rank loads its own state.

    A loader that shuffles, or equalizes, deals items to the workers of all ranks, and each makes batches of its own;
    its last one may be shorter. Otherwise what is dealt are batches, and the loader's ``batch_size`` is ``None``.

    Args:
        dataset: :class:`RemoteFiles`, :class:`RemoteImageFolder` or :class:`ShardedDataset`.
        batch_size: items per batch of one rank; ``None`` for single items.
        shuffle: a new order each epoch.
        seed: of these orders; ``None`` is 0.
        sampler: the order, as finitely many indices. Ranks do not split it.
        batch_sampler: the batches, as lists of indices; like ``sampler``.
        drop_last: drop the last batch if it is shorter, with ``shuffle`` that of each worker.
        equalize: gives all workers of all ranks the same number of items: ``drop`` drops fewer items than there are
            workers, different ones each epoch, which without ``shuffle`` begins one item later each time; ``repeat``
            repeats as few.
        world: of this rank; ``None`` asks torch. ``World()`` gives each rank all items.
        **options: of :func:`stateful_loader`: ``num_workers``, ``collate_fn``, ``state_of_all_ranks``,
            ``prefetch_factor`` and others. Workers start as those of torch's ``DataLoader``.

    Raises:
        StateError: with the first batch, if the loaded state has another order or other items; or, like
            UnequalListingError, if the ranks would not split the same order of the same items.

    Example:
        >>> import fsspec
        >>> from torchdata_remote import RemoteFiles
        >>> fsspec.filesystem("memory").pipe({f"/tales/{number}.txt": b"x" * number for number in range(5)})
        >>> tales = RemoteFiles("memory://tales/")
        >>> loader = PrefetchingLoader(tales, batch_size=2, collate_fn=len)
        >>> len(loader), list(loader)
        (3, [2, 2, 1])
        >>> share = PrefetchingLoader(tales, batch_size=2, collate_fn=len, world=World(rank=1, world_size=2))
        >>> list(share)
        [2]
        >>> batches = iter(loader)
        >>> next(batches)
        2
        >>> loader.load_state_dict(loader.state_dict())
        >>> list(loader)
        [2, 1]
    """
    if not isinstance(dataset, MapStyle):
        raise TypeError(
            "PrefetchingLoader is for RemoteFiles, RemoteImageFolder and ShardedDataset, got a "
            f"{type(dataset).__name__}. A chain is read by stateful_loader(pipe), another dataset by DataLoader; "
            "for a subset of one of these, pass a sampler."
        )
    require_world(world)
    batch_size = whole_or_none("batch_size", batch_size)
    shuffle, drop_last = check.flag("shuffle", shuffle), check.flag("drop_last", drop_last)
    check.instance_or_none("sampler", sampler, Iterable, example="[2, 0, 1]")
    check.instance_or_none("batch_sampler", batch_sampler, Iterable, example="[[2, 0], [1]]")
    mode = None if equalize is None else check.choice("equalize", equalize, EqualizeMode).value
    order: Any = batch_sampler if sampler is None else sampler
    if seed is not None and not shuffle:
        raise check.marked(ValueError("seed= requires shuffle=True, without a sampler."))
    if order is not None and (shuffle or mode or world):
        raise check.marked(
            ValueError("A sampler selects what each rank reads: pass neither shuffle=, equalize= nor world= with it.")
        )
    if batch_sampler is not None and (sampler is not None or batch_size != 1 or drop_last):
        raise check.marked(
            ValueError("batch_sampler= makes the batches: pass neither sampler=, batch_size= nor drop_last= with it.")
        )
    if forks_by_default():  # as torch's loader
        options = {"multiprocessing_context": "fork", **options}
    seed, listing, num_ahead = seed_of(seed or 0) if shuffle else None, None, batch_size or 1
    if not (shuffle or mode):
        world, order = (world, range(len(dataset))) if order is None else (World(), order)
        if batch_sampler is None and batch_size is not None:
            order = BatchSampler(order, batch_size, drop_last)
        listing = IterableWrapper(_Sampler(order, as_index if batch_size is None else list), deepcopy=False)
        if batch_size is not None:
            options["collate_fn"] = options.get("collate_fn") or collate_samples
            num_ahead, batch_size, drop_last = 0, None, False
    items = MapStyleItems(dataset, num_ahead, seed, mode, world, listing)
    return stateful_loader(_Sampled(items), batch_size=batch_size, drop_last=drop_last, **options)
