"""``PrefetchingLoader``: torch's ``DataLoader``, which fetches the next batches while the current one is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..errors import UnsplitError
from ..world import detect_rank
from ._map_style import as_number
from ._sampler_follower import SamplerFollower

T = TypeVar("T")


class _Batched(Protocol):
    """A dataset of this package."""

    def __len__(self) -> int: ...

    def batches(self, batches: Iterable[Sequence[int]]) -> Iterator[list[Any]]:
        """The items of one batch after the other."""


class PrefetchingLoader(Generic[T]):
    """The batches that torch's ``DataLoader`` gives, in the same order, the next ones fetched meanwhile.

    For :class:`RemoteFiles`, :class:`RemoteImageFolder` and :class:`ShardedDataset`.

    ``DataLoader`` tells a worker one batch after the other, so that what the next one needs cannot be asked for while
    this one comes. Here each worker knows which batches of the epoch are its own, and fetches ahead. Take it where
    batches are wanted as fast as possible; with ``DataLoader``, as many workers hide as many waits.

    Args:
        dataset: one of this package's.
        batch_size: items in a batch; ``None`` for single items.
        shuffle: a new order each epoch.
        sampler: the order, as numbers of items; it must come to an end. Several ranks need one, or a ``batch_sampler``:
            torch's ``DistributedSampler``, by which each has its share, or ``SequentialSampler`` or ``RandomSampler``,
            by which each has all items.
        batch_sampler: the batches, as lists of numbers.
        num_workers: processes; 0 fetches and decodes in threads of this one.
        collate_fn: from a list of items to a batch; torch's own by default.
        drop_last: leave out the last batch if it is short.
        generator: of the order.
        **options: others of ``DataLoader``: ``pin_memory``, ``timeout``, ``worker_init_fn``, ``prefetch_factor``,
            ``multiprocessing_context``. Workers are started for each epoch, as by default.

    Raises:
        UnsplitError: when iteration begins, if there are several ranks and neither ``sampler`` nor ``batch_sampler``.

    Example:
        >>> import fsspec
        >>> from torchdata_remote import RemoteFiles
        >>> fsspec.filesystem("memory").pipe({f"/tales/{number}.txt": b"x" * number for number in range(5)})
        >>> loader = PrefetchingLoader(RemoteFiles("memory://tales/"), batch_size=2, collate_fn=len)
        >>> len(loader), list(loader)
        (3, [2, 2, 1])
    """

    def __init__(
        self,
        dataset: _Batched,
        batch_size: int | None = 1,
        *,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], T] | None = None,
        drop_last: bool = False,
        generator: Any = None,
        **options: Any,
    ) -> None:
        if not hasattr(dataset, "batches"):
            raise TypeError(
                f"PrefetchingLoader is for RemoteFiles, RemoteImageFolder and ShardedDataset, got a "
                f"{type(dataset).__name__}. For another dataset use DataLoader; for a part of one of these, a sampler."
            )
        if options.get("persistent_workers"):
            raise ValueError("persistent_workers: workers of a PrefetchingLoader are started for each epoch.")
        self.dataset, self.num_workers = dataset, num_workers
        self._loader: DataLoader[Any] = DataLoader(  # which checks all of this, and is never iterated
            dataset,  # type: ignore[arg-type]
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,  # type: ignore[arg-type]  # any sequence does
            num_workers=num_workers,
            collate_fn=collate_fn,
            drop_last=drop_last,
            generator=generator,
            **options,
        )
        self._generator, self._options = generator, options
        self._has_sampler = sampler is not None or batch_sampler is not None

    @property
    def sampler(self) -> Any:
        """The sampler; a ``DistributedSampler``'s ``set_epoch`` is called on it."""
        return self._loader.sampler

    @property
    def batch_sampler(self) -> Any:
        """The sampler of batches; ``None`` for single items."""
        return self._loader.batch_sampler

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[T]:
        if not self._has_sampler:
            _require_one_rank(self.dataset)
        loader, seeds = self._loader, _copied(self._generator)
        followed = SamplerFollower(loader.sampler, loader.batch_sampler)
        if self.num_workers == 0:
            return self._drawn_later(seeds, followed)  # as DataLoader, which draws nothing before the first batch
        batches = self._begun(seeds, followed)
        followed.draw((loader.prefetch_factor or 0) * self.num_workers)
        return followed.beside(batches)

    def _drawn_later(self, seeds: torch.Generator, followed: SamplerFollower) -> Iterator[T]:
        yield from followed.beside(self._begun(seeds, followed))

    def _begun(self, seeds: torch.Generator, followed: SamplerFollower) -> Iterator[T]:
        """The batches of an epoch whose order is drawn now."""
        loader = self._loader
        if loader.batch_sampler is None:
            batches: Iterable[Sequence[int]] = ([index] for index in loader.sampler)
        else:
            batches = loader.batch_sampler
        epoch = _Epoch(self.dataset, batches, loader.collate_fn, single=loader.batch_sampler is None)
        followed.rewind()
        return iter(
            DataLoader(
                epoch,
                batch_size=None,
                collate_fn=_unchanged,  # torch's own would make tensors of arrays
                num_workers=self.num_workers,
                generator=seeds,
                **self._options,
            )
        )


def _require_one_rank(dataset: _Batched) -> None:
    world_size = detect_rank()[1]
    if world_size > 1:
        raise UnsplitError(
            f"PrefetchingLoader: {world_size} ranks would each hand out all {len(dataset):,} items of the dataset. Use "
            "sampler=torch.utils.data.DistributedSampler(dataset), so that each rank has a share of its own, and call "
            "its set_epoch before each epoch; where several ranks read the same data, give it those of a data-parallel "
            "group: num_replicas=world.world_size, rank=world.rank. If each rank is to have all items, say so: "
            "sampler=torch.utils.data.SequentialSampler(dataset), or RandomSampler."
        )


def _unchanged(batch: T) -> T:
    """It was collated where it was made."""
    return batch


def _copied(generator: torch.Generator | None) -> torch.Generator:
    """A copy of the generator, which then is moved on as by a ``DataLoader`` that draws the seed of its workers.

    So orders and random transforms are those of a ``DataLoader``, which draws that seed before the order.
    """
    original = generator if generator is not None else torch.default_generator
    copy = torch.Generator()
    copy.set_state(original.get_state())
    torch.empty((), dtype=torch.int64).random_(generator=original)
    return copy


class _Epoch(IterableDataset[Any]):
    """The batches of an epoch, of which each worker takes its share: the worker of number w every W-th from w on.

    torch takes from the workers by turns, so that they come in order.
    """

    def __init__(
        self,
        dataset: _Batched,
        batches: Iterable[Sequence[int]],
        collate: Callable[[Any], Any],
        *,
        single: bool,
    ) -> None:
        self._dataset, self._collate, self._single = dataset, collate, single
        lists = list(map(list, batches))
        self._indices: NDArray[np.int64] = np.fromiter(
            (as_number(index) for batch in lists for index in batch), np.int64
        )
        self._ends: NDArray[np.int64] = np.cumsum([len(batch) for batch in lists], dtype=np.int64)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        mine = range(first, len(self._ends), step)
        for items in self._dataset.batches(self._batch(number) for number in mine):
            yield self._collate(items[0] if self._single else items)

    def _batch(self, number: int) -> list[int]:
        start = int(self._ends[number - 1]) if number else 0
        return [int(index) for index in self._indices[start : self._ends[number]]]
