"""``bucket``: batches of items of like length or size."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from ..core.arguments import check
from ..core.arguments.amounts import whole, whole_or_none
from ..core.arguments.scalars import float_of
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..errors import SampleError, StateError
from ..fetch.listing.source_argument import pipe_of
from ..formats.sample import describe_item
from .base.buckets import Batch, Buckets
from .base.calls import called
from .base.chain import Snapshot
from .base.members import member_missing, member_of
from .base.window import END, Window, WindowedPipe

T = TypeVar("T")


@functional_datapipe("bucket")
class Bucket(WindowedPipe[list[T]]):
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

    state_fields = ("at", "read", "held")
    state_counts = ("read",)
    beginning: ClassVar[dict[str, Any]] = {"at": None, "read": 0, "held": "0"}

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
        super().__init__(pipe_of(source_datapipe, of="bucket", holds="items"))
        self.batch_size = whole_or_none("batch_size", batch_size)
        self.max_tokens = whole_or_none("max_tokens", max_tokens)
        if self.batch_size is None and self.max_tokens is None:
            raise check.marked(TypeError("a batch has no bound: pass batch_size= or max_tokens=."))
        self.max_wait = whole("max_wait", max_wait, of="items")
        self.boundaries = None if boundaries is None else _increasing(boundaries)
        self._member = length if isinstance(length, str) else None
        self._function = None if self._member else check.function_or_none("length", length, example="num_tokens_of")

    def __iter__(self) -> Iterator[list[T]]:
        state, window = self._begin()
        buckets = Buckets(self._length_of, self.boundaries, self.batch_size, self.max_tokens)
        held = int(state["held"], 16)
        for number, item in enumerate(window.read_again(state["read"])):
            if held >> number & 1:
                buckets.restore(number, item)
        for batch in buckets.full():
            yield self._handed(batch, buckets, window)
        while True:
            while (oldest := buckets.oldest()) is not None and window.num_read - oldest >= self.max_wait:
                yield self._handed(buckets.close_oldest(), buckets, window)
            if (item := window.read()) is END:
                break
            if buckets.oldest() is None:
                window.release(window.num_read - 1)
            for batch in buckets.add(window.num_read - 1, item):
                yield self._handed(batch, buckets, window)
            del item
        while buckets.oldest() is not None:
            yield self._handed(buckets.close_oldest(), buckets, window)

    def _handed(self, batch: Batch, buckets: Buckets, window: Window) -> list[T]:
        """Note the state after a batch, and return its items."""
        oldest = buckets.oldest()
        window.release(window.num_read if oldest is None else oldest)
        self._place.snapshot = partial(
            _state_of, window.position(), window.num_read - window.oldest, buckets.numbers(), window.oldest
        )
        return [item for _, item in batch]

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

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        held = state["held"]
        if not (isinstance(held, str) and re.fullmatch("[0-9a-f]+", held)) or int(held, 16) >> state["read"]:
            raise StateError(
                f"bucket: the state is damaged, held must have {state['read']:,} bits or fewer, got {held!r:.100}."
            )

    def order_options(self) -> Mapping[str, Any]:
        return {
            "batch_size": self.batch_size,
            "max_tokens": self.max_tokens,
            "boundaries": self.boundaries,
            "max_wait": self.max_wait,
        }


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


def _state_of(at: Snapshot, num_read: int, held: Sequence[int], oldest: int) -> Any:
    bits = sum(1 << (number - oldest) for number in held)
    return {"at": at(), "read": num_read, "held": f"{bits:x}"}
