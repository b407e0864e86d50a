"""``bucket``: batches of items of like length or size."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch

from ..core.arguments import check
from ..core.arguments.amounts import whole, whole_or_none
from ..core.arguments.scalars import float_of
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..errors import SampleError
from ..fetch.listing.source_argument import pipe_of
from ..formats.sample import describe_item
from .datapipe import DataPipe
from .env import Env
from .members import member_missing, member_of
from .passes import END, Pass, Window
from .threaded import called

T = TypeVar("T")

Batch = list[tuple[int, Any]]


class Buckets:
    """Items of a pass that are held, with their numbers, by bucket.

    Args:
        length_of: returns the length of an item, or what items of a batch have in common.
        boundaries: the last lengths of all buckets but the last one; ``None`` for a bucket for each.
        max_items: of a batch; ``None`` for no bound.
        max_tokens: of a batch, which is its number of items times the length of the longest; ``None`` for no bound.
    """

    def __init__(
        self,
        length_of: Callable[[Any], Any],
        boundaries: Sequence[float] | None,
        max_items: int | None,
        max_tokens: int | None,
    ) -> None:
        self._length_of, self._boundaries = length_of, boundaries
        self._max_items, self._max_tokens = max_items, max_tokens
        self._open: dict[Hashable, Batch] = {}
        self._longest: dict[Hashable, Any] = {}
        self._numbers: deque[int] = deque()  # of the items that were added; those at the front may have left
        self._held: dict[int, Hashable] = {}  # number -> bucket

    def restore(self, number: int, item: Any) -> None:
        """Add an item that was held when the state was saved."""
        self._put(number, item, *self._key_of(item))

    def add(self, number: int, item: Any) -> Iterator[Batch]:
        """Add an item, and yield the batches that are full now: without it, with it, or both in turn."""
        key, length = self._key_of(item)
        self._held[number] = key
        self._numbers.append(number)
        found = self._open.get(key)
        if found and self._max_tokens is not None:
            longest = max(length, self._longest[key])
            if longest * (len(found) + 1) > self._max_tokens:
                yield self._close(key)
        self._put(number, item, key, length, is_new=False)
        if self._is_full(key):
            yield self._close(key)

    def full(self) -> Iterator[Batch]:
        """Yield the batches that are full, after they were restored."""
        for key in list(self._open):
            if self._is_full(key):
                yield self._close(key)

    def oldest(self) -> int | None:
        """Number of the oldest item that is held."""
        while self._numbers and self._numbers[0] not in self._held:
            self._numbers.popleft()
        return self._numbers[0] if self._numbers else None

    def close_oldest(self) -> Batch:
        """Remove the batch with the oldest item."""
        oldest = self.oldest()
        assert oldest is not None
        return self._close(self._held[oldest])

    def numbers(self) -> tuple[int, ...]:
        """Numbers of all items that are held."""
        return tuple(self._held)

    def _key_of(self, item: Any) -> tuple[Hashable, Any]:
        length = self._length_of(item)
        return (length if self._boundaries is None else bisect_left(self._boundaries, length)), length

    def _put(self, number: int, item: Any, key: Hashable, length: Any, *, is_new: bool = True) -> None:
        if is_new:
            self._held[number] = key
            self._numbers.append(number)
        self._open.setdefault(key, []).append((number, item))
        if self._max_tokens is not None:
            self._longest[key] = max(length, self._longest.get(key, 0))

    def _is_full(self, key: Hashable) -> bool:
        num_items = len(self._open[key])
        if self._max_items is not None and num_items >= self._max_items:
            return True
        return self._max_tokens is not None and self._longest[key] * (num_items + 1) > self._max_tokens

    def _close(self, key: Hashable) -> Batch:
        self._longest.pop(key, None)
        batch = self._open.pop(key)
        for number, _ in batch:
            del self._held[number]
        return batch


@functional_datapipe("bucket")
class Bucket(DataPipe[list[T]]):
    """Group items of like length into batches (functional name: ``bucket``).

    Little is lost to padding then. An item waits in the bucket of its length until a batch of that bucket is full, at
    most until ``max_wait`` more items were read: then the batch is handed out as it is, smaller. So ``max_wait`` bounds
    the items in memory and what a resumed pass reads again, too. Within a batch items have the order of the source. At
    the end of a pass the batches that are not full are handed out, the one with the oldest item first.

    The state has the position of the source before the oldest item that is held, and one bit for each item since.

    Ranks get different numbers of batches, even after ``equalize_ranks``: as their lengths differ. For equal numbers
    chain ``repeat_epochs().bucket(...).take(n)``. There is no ``len``. The batches are lists, as those of ``batch``:
    chain ``collate`` or ``map``, and give the loader ``batch_size=None``.

    Args:
        source_datapipe: any items.
        batch_size: largest number of items of a batch; ``None`` if ``max_tokens`` bounds them.
        max_tokens: bound on the tokens of a padded batch: number of items times the length of the longest. An item that
            is longer is a batch of its own. ``None`` for no bound.
        length: name of the member of samples whose ``len`` counts, or a function that returns the length of an item;
            without ``boundaries`` and ``max_tokens`` it may return anything that can be a key of a dict, such as the
            size of an image. ``None`` for the ``len`` of the item.
        boundaries: increasing; the greatest length of each bucket: ``[128, 512]`` are the lengths to 128, 129 to 512,
            and more. ``None`` for a bucket for each length.
        max_wait: number of items.

    Yields:
        list: items.

    Raises:
        SampleError: if the length is no number where there has to be one.
        MissingMemberError: if a sample has no such member.
        Exception: of the function.

    Example:
        >>> words = IterableWrapper(["a", "ccc", "b", "dddd", "e"])
        >>> list(Bucket(words, 2, boundaries=[2]))
        [['a', 'b'], ['ccc', 'dddd'], ['e']]
    """

    changes_count = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[T],
        batch_size: int | None = None,
        *,
        max_tokens: int | None = None,
        length: str | Callable[[T], Any] | None = None,
        boundaries: Sequence[float] | None = None,
        max_wait: int = 1000,
    ) -> None:
        super().__init__()
        self.source_datapipe = pipe_of(source_datapipe, of="bucket", holds="items")
        self.batch_size = whole_or_none("batch_size", batch_size)
        self.max_tokens = whole_or_none("max_tokens", max_tokens)
        if self.batch_size is None and self.max_tokens is None:
            raise check.marked(TypeError("a batch has no bound: pass batch_size= or max_tokens=."))
        self.max_wait = whole("max_wait", max_wait, of="items")
        self.boundaries = None if boundaries is None else _increasing(boundaries)
        self._member = length if isinstance(length, str) else None
        self._function = None if self._member else check.function_or_none("length", length, example="num_tokens_of")

    def open(self, env: Env) -> Pass[list[T]]:
        buckets = Buckets(self._length_of, self.boundaries, self.batch_size, self.max_tokens)
        return _BucketPass(env.open(self.source_datapipe), buckets, self.max_wait)

    def _length_of(self, item: T) -> Any:
        if self._function is not None:
            length = called(self._function, item)
        elif self._member is not None:
            length = called(len, member_of(item, self._member, of=f"bucket(length={self._member!r})"))
        elif isinstance(item, Mapping):
            raise member_missing(item, "bucket: expected items that have a length", "length")
        else:
            length = called(len, item)
        if self.boundaries is None and self.max_tokens is None:
            return self._key(length, item)
        try:
            number = float_of(length)
        except OverflowError:
            number = None
        if number is None or number != number:
            raise SampleError(
                f"bucket: the length of {describe_item(item)} must be a number for boundaries= and max_tokens=, got "
                f"{check.shown(length)}."
            )
        return number

    def _key(self, length: Any, item: T) -> Any:
        """Return what items of a bucket have in common: as a key, by which equal ones are found."""
        if isinstance(length, torch.Tensor | np.ndarray):
            length = float_of(length)  # tensors are different keys, however equal they are
        if not _is_key(length):
            raise SampleError(
                f"bucket: the length of {describe_item(item)} must be a number, or another key of a dict such as a "
                "tuple, where there are no boundaries=."
            )
        return length

    def order_options(self) -> Mapping[str, Any]:
        return {
            "batch_size": self.batch_size,
            "max_tokens": self.max_tokens,
            "boundaries": self.boundaries,
            "max_wait": self.max_wait,
        }


class _BucketPass(Pass[list[T]]):
    """The position is that of the source before the oldest item that is held, and a bit for each item since."""

    def __init__(self, source: Pass[T], buckets: Buckets, max_wait: int) -> None:
        super().__init__(source)
        self._buckets, self._max_wait = buckets, max_wait
        self._saved: Any = (None, 0, "0")  # position of the source, items read since, bits of those that are held

    def items(self) -> Iterator[list[T]]:
        buckets, max_wait = self._buckets, self._max_wait
        start, num_read, bits = self._saved
        window, held = Window(self.sources[0], start), int(bits, 16)
        for number, item in enumerate(window.read_again(num_read, "bucket")):
            if held >> number & 1:
                buckets.restore(number, item)
        for batch in buckets.full():
            yield self._handed(batch, window)
        while True:
            while (oldest := buckets.oldest()) is not None and window.num_read - oldest >= max_wait:
                yield self._handed(buckets.close_oldest(), window)
            if (item := window.read()) is END:
                break
            if buckets.oldest() is None:
                window.release(window.num_read - 1)
            for batch in buckets.add(window.num_read - 1, item):
                yield self._handed(batch, window)
            del item
        while buckets.oldest() is not None:
            yield self._handed(buckets.close_oldest(), window)

    def _handed(self, batch: Batch, window: Window) -> list[T]:
        """Note the position after a batch, and return its items."""
        oldest = self._buckets.oldest()
        window.release(window.num_read if oldest is None else oldest)
        self._saved = window.position, window.num_read - window.oldest, (self._buckets.numbers(), window.oldest)
        return [item for _, item in batch]

    @property
    def position(self) -> Any:
        start, num_read, held = self._saved
        if not isinstance(held, str):
            numbers, oldest = held
            held = f"{sum(1 << (number - oldest) for number in numbers):x}"
        return start, num_read, held

    def seek(self, position: Any) -> None:
        self._saved = position
        self.sources[0].resume(position[0])


def _is_key(length: Any) -> bool:
    """Whether it is equal to itself, and can be found in a dict; NaN, NA, and a tuple with a list in it are not."""
    try:
        hash(length)
        return length is not None and bool(length == length)
    except (TypeError, ValueError, ArithmeticError):  # the last one for a signaling NaN of decimal
        return False


def _increasing(boundaries: Any) -> list[float]:
    numbers = None if isinstance(boundaries, str | bytes) else [float_of(bound) for bound in _listed(boundaries)]
    if numbers is None or not all(number is not None and number == number for number in numbers):
        expected = "boundaries must be a list of lengths such as [128, 512]"
        raise check.marked(TypeError(f"{expected}, got {check.shown(boundaries)}."))
    found = [number for number in numbers if number is not None]
    if not all(low < high for low, high in pairwise(found)):
        raise check.marked(ValueError(f"boundaries must be increasing, got {found}."))
    return found


def _listed(boundaries: Any) -> list[Any]:
    return list(boundaries) if hasattr(boundaries, "__iter__") else [None]
