"""Large sets of keys, and the search in them: of the wanted keys in those of shards, and of the keys of two shard sets.

Keys are found by sorted 64-bit hashes, and their text is compared. A key takes its characters, 8 bytes, and 12 more for
the search (``benchmarks/bench_selection_plan.py``); a Python set of strings takes about 100.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.arguments import check
from ...core.urls import RemoteUrl
from ...formats.key_index import KeyIndex
from ..listing.url_table import StringColumn

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def key_column(keys: Iterable[Any], source: str = "keys") -> StringColumn:
    """Collect keys; a key may be there repeatedly.

    Args:
        keys: texts.
        source: where they are from, as errors show it.

    Raises:
        TypeError: for a key that is no ``str``.
        ValueError: for one that is no Unicode.
    """
    column = StringColumn()
    for key in keys:
        if not isinstance(key, str):
            advice = "Keys are texts: '000017', not 17." if key is not None else "Take out the rows without a key."
            raise check.marked(
                TypeError(f"{source}: a key must be str such as 'train/000017', got {check.shown(key)}. {advice}")
            )
        try:
            column.append(key)
        except UnicodeEncodeError as error:
            raise check.marked(ValueError(f"{source}: no member can have the name {key!r}: {error}.")) from error
    return column


class KeyNumbers:
    """Finds the numbers of keys. Hashes are Python's, and differ between processes: this is not sent to others.

    Args:
        keys: the first one has the number 0.
    """

    def __init__(self, keys: StringColumn) -> None:
        self._keys, hashes = keys, _hashes(keys)
        self._order = np.argsort(hashes, kind="stable").astype(np.uint32 if len(hashes) < 1 << 32 else np.int64)
        self._sorted = hashes[self._order]

    def find(self, keys: Sequence[str]) -> Ints:
        """Return the number of each of these keys, the smallest one of a repeated key; -1 if it is not there."""
        found = np.full(len(keys), -1)
        if len(self._sorted):
            hashes = _hashes(keys)
            places = np.searchsorted(self._sorted, hashes)
            known = np.flatnonzero(self._sorted[np.minimum(places, len(self._sorted) - 1)] == hashes)
            found[known] = [
                first if self._keys[first] == keys[at] else self._first(keys[at], place + 1)
                for at, place, first in zip(
                    known.tolist(), places[known].tolist(), self._order[places[known]].tolist(), strict=True
                )
            ]
        return found

    def _first(self, key: str, place: int) -> int:
        """Return the number of a key among those with its hash, from a place on; -1 if it is none of them."""
        while place < len(self._sorted) and self._sorted[place] == self._sorted[place - 1]:
            number = int(self._order[place])
            if self._keys[number] == key:
                return number
            place += 1
        return -1

    def repeated(self) -> Iterator[tuple[int, int]]:
        """Yield the number of each key that was there before, after the smallest number of that key."""
        same_hash = np.flatnonzero(self._sorted[1:] == self._sorted[:-1]) + 1
        for number in self._order[same_hash].tolist():
            first = int(self.find([self._keys[number]])[0])
            if first != number:
                yield first, number


def _hashes(keys: Sequence[str]) -> Ints:
    return np.fromiter(map(hash, keys), np.int64, len(keys))


class KeySearch:
    """Finds keys of shards among the wanted ones, and remembers which were found.

    Args:
        wanted: the keys.
    """

    def __init__(self, wanted: StringColumn) -> None:
        self._wanted, self._numbers = wanted, KeyNumbers(wanted)
        self._found = np.zeros(len(wanted), np.bool_)
        for _, number in self._numbers.repeated():  # found once
            self._found[number] = True
        self.num_wanted = self.num_missing

    def find(self, keys: Sequence[str]) -> Bools:
        """Return whether each of these keys is wanted; shape ``(len(keys),)``."""
        numbers = self._numbers.find(keys)
        are_wanted = numbers >= 0
        self._found[numbers[are_wanted]] = True
        return are_wanted

    @property
    def num_missing(self) -> int:
        """Number of keys that were not found so far."""
        return len(self._found) - int(self._found.sum())

    def missing(self) -> Iterator[str]:
        """Yield the keys that were not found so far."""
        return (self._wanted[number] for number in np.flatnonzero(~self._found).tolist())


class KeyTable:
    """The keys of a shard set, with the byte ranges of each sample, in its order.

    Args:
        indexes: of the shards.
        members: extensions to select; ``None`` for all. Samples that have none of them are not part of the table.

    Attributes:
        urls: of the shards.
        keys: of the samples.
        extensions: of the selected members.
        num_without: samples that have none of the selected members.
        firsts: number of each shard's first sample, and the number of samples; shape ``(num_shards + 1,)``.
    """

    def __init__(self, indexes: Iterable[tuple[RemoteUrl, KeyIndex]], members: Collection[str] | None = None) -> None:
        self.urls: list[RemoteUrl] = []
        self.keys, self.extensions, self.num_without, firsts = StringColumn(), set[str](), 0, [0]
        columns: list[list[Ints]] = [[np.zeros(0, np.int64)] for _ in range(3)]
        for url, index in indexes:
            chosen = [at for at, name in enumerate(index.extensions) if members is None or name in members]
            self.extensions.update(index.extensions[at] for at in chosen)
            # Adjacent members are one range
            starts, stops, counts = index.ranges(np.isin(index.members, chosen))
            has_any = counts > 0
            for key in compress(index.keys, has_any.tolist()):
                self.keys.append(key)
            self.num_without += int((~has_any).sum())
            self.urls.append(url)
            firsts.append(len(self.keys))
            for column, values in zip(columns, (starts, stops, counts[has_any]), strict=True):
                column.append(values)
        self._starts, self._stops, num_ranges = map(np.concatenate, columns)
        self.firsts, self._range_ends = np.array(firsts), np.cumsum(num_ranges)
        self._numbers = KeyNumbers(self.keys)

    def __len__(self) -> int:
        return len(self.keys)

    def shards_of(self, samples: Ints) -> Ints:
        """Return the number of the shard of each sample."""
        return np.searchsorted(self.firsts, samples, side="right") - 1

    def ranges(self, samples: Ints) -> tuple[Ints, Ints, Ints]:
        """Return number of ranges of each sample; and first byte and end of each of these ranges."""
        ends = self._range_ends[samples]
        counts = ends - np.where(samples > 0, self._range_ends[samples - 1], 0)
        at = np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)
        return counts, self._starts[at], self._stops[at]

    def repeated(self) -> tuple[int, int] | None:
        """Return two samples that have the same key; ``None`` if all keys are different."""
        return next(self._numbers.repeated(), None)

    def find(self, lead: KeyTable) -> Ints:
        """Return the sample with the key of each sample of another table, or -1."""
        found = [np.zeros(0, np.int64)]
        for first, last in zip(lead.firsts.tolist(), lead.firsts[1:].tolist(), strict=False):
            found.append(self._numbers.find(lead.keys[first:last]))
        return np.concatenate(found)
