"""Numbered keys by their hashes, sorted: 12 bytes for each key.

Two keys may have one hash, so those that are found here have to be compared. Hashes are Python's, and differ between
processes: none of this is sent to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def hashes_of(keys: Iterable[str], number: int) -> Ints:
    """Return the hash of each key; shape ``(number,)``."""
    return np.fromiter(map(hash, keys), np.int64, number)


class SortedHashes:
    """Finds the numbers of keys by their hashes.

    Args:
        hashes: of the keys; the first one has the number 0.
    """

    def __init__(self, hashes: Ints) -> None:
        self._order = np.argsort(hashes, kind="stable").astype(np.uint32 if len(hashes) < 1 << 32 else np.int64)
        self._sorted = hashes[self._order]

    def places(self, hashes: Ints) -> Ints:
        """Return where the keys with each of these hashes begin, for :meth:`numbers_at`; -1 if there are none."""
        if not len(self._sorted):
            return np.full(len(hashes), -1)
        at = np.searchsorted(self._sorted, hashes)
        return np.where(self._sorted[np.minimum(at, len(self._sorted) - 1)] == hashes, at, -1)

    def first_numbers(self, places: Ints) -> Ints:
        """Return the smallest number at each place; -1 for -1."""
        if not len(self._sorted):
            return places
        return np.where(places >= 0, self._order[places].astype(np.int64), -1)

    def numbers_at(self, place: int) -> Iterator[int]:
        """Yield the numbers of the keys that have the hash at a place, in ascending order."""
        hashed = self._sorted[place]
        while place < len(self._sorted) and self._sorted[place] == hashed:
            yield int(self._order[place])
            place += 1

    def shared(self) -> Iterator[list[int]]:
        """Yield the numbers of the keys that have one hash, wherever they are several."""
        same = self._sorted[1:] == self._sorted[:-1]
        first_of_run = same & ~np.append(False, same[:-1])
        for place in np.flatnonzero(first_of_run).tolist():
            yield list(self.numbers_at(place))
