"""The open batches of ``bucket``, and when they are full."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

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
