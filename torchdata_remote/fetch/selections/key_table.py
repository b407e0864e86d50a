"""Columnar table of the keys of a shard set, with the byte ranges of each sample, and the search in it.

Keys are found by sorted 64-bit hashes, and their text is compared. It takes 52 bytes for each key, and its characters.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.urls import RemoteUrl
from ...formats.key_index import KeyIndex
from .sorted_hashes import SortedHashes, hashes_of

Ints = npt.NDArray[np.int64]


class KeyTable:
    """The keys of a set's shards, in their order. Shards are added, then :meth:`finish` is called.

    Args:
        members: extensions to select; ``None`` for all. Samples that have none of them are not part of the table.
    """

    def __init__(self, members: Collection[str] | None = None) -> None:
        self._members = members
        self.urls: list[RemoteUrl] = []
        self.extensions: set[str] = set()
        """Those of the selected members."""
        self.num_without = 0
        """Samples that have none of the selected members."""
        self._parts: dict[str, list[Any]] = {name: [] for name in ("text", "lengths", "hashes", "counts")}
        self._ranges: dict[str, list[Any]] = {"starts": [], "stops": []}
        self._num_samples: list[int] = []

    def add(self, url: RemoteUrl, index: KeyIndex) -> None:
        """Add the samples of a shard."""
        starts, stops, counts = self._selected(index)
        has_any = counts > 0
        keys: Any = index.keys
        if not has_any.all():
            self.num_without += int((~has_any).sum())
            keys = [keys[number] for number in np.flatnonzero(has_any)]
        text = "".join(f"{key}\0" for key in keys).encode("utf-8", "surrogateescape")
        data = np.frombuffer(text, np.uint8)
        self.urls.append(url)
        self._num_samples.append(len(keys))
        self._parts["text"].append(data)
        self._parts["lengths"].append(np.diff(np.flatnonzero(data == 0) + 1, prepend=0))
        self._parts["hashes"].append(hashes_of(keys, len(keys)))
        self._parts["counts"].append(counts[has_any])
        self._ranges["starts"].append(starts)
        self._ranges["stops"].append(stops)

    def _selected(self, index: KeyIndex) -> tuple[Ints, Ints, Ints]:
        """Return the byte ranges of the selected members, adjacent ones as one, and the number of each sample's."""
        numbers = [
            number for number, name in enumerate(index.extensions) if self._members is None or name in self._members
        ]
        self.extensions.update(index.extensions[number] for number in numbers)
        return index.ranges(np.isin(index.members, numbers))

    def finish(self) -> KeyTable:
        """Make the columns, and sort the hashes. Nothing can be added any more."""
        text, lengths, self.hashes, counts = (_joined(self._parts.pop(name)) for name in list(self._parts))
        self._text = text.astype(np.uint8)
        self._text_ends = np.cumsum(lengths)
        self._range_ends = np.cumsum(counts)
        self._starts, self._stops = (_joined(self._ranges.pop(name)) for name in list(self._ranges))
        self._shard_ends = np.cumsum(np.array(self._num_samples, np.int64))
        self._by_hash = SortedHashes(self.hashes)
        return self

    def __len__(self) -> int:
        return len(self.hashes)

    def samples_of(self, shard: int) -> tuple[int, int]:
        """Return the number of a shard's first sample, and of the one after its last."""
        end = int(self._shard_ends[shard])
        return end - self._num_samples[shard], end

    def shards_of(self, samples: Ints) -> Ints:
        """Return the number of the shard of each sample."""
        return np.searchsorted(self._shard_ends, samples, side="right")

    def key(self, sample: int) -> str:
        """Return the key of a sample."""
        start = int(self._text_ends[sample - 1]) if sample else 0
        return str(self._text[start : self._text_ends[sample] - 1].tobytes(), "utf-8", "surrogateescape")

    def ranges(self, samples: Ints) -> tuple[Ints, Ints, Ints]:
        """Return number of ranges of each sample; and first byte and end of each of these ranges."""
        ends = self._range_ends[samples]
        counts = ends - np.where(samples > 0, self._range_ends[samples - 1], 0)
        at = np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)
        return counts, self._starts[at], self._stops[at]

    def repeated(self) -> tuple[int, int] | None:
        """Return two samples that have the same key; ``None`` if all keys are different."""
        for samples in self._by_hash.shared():
            found: dict[str, int] = {}
            for sample in samples:
                other = found.setdefault(self.key(sample), sample)
                if other != sample:
                    return other, sample
        return None

    def find(self, others: KeyTable, first: int, last: int) -> Ints:
        """Return the sample with the key of each of samples ``first`` to ``last`` of another table, or -1."""
        places = self._by_hash.places(others.hashes[first:last])
        found = self._by_hash.first_numbers(places)
        candidates = np.flatnonzero(found >= 0)
        same = self._are_same(found[candidates], others, candidates + first)
        for number in candidates[~same].tolist():  # another key has the same hash
            key, same_hash = others.key(first + number), self._by_hash.numbers_at(int(places[number]))
            found[number] = next((sample for sample in same_hash if self.key(sample) == key), -1)
        return found

    def _are_same(self, samples: Ints, others: KeyTable, of_others: Ints) -> npt.NDArray[np.bool_]:
        """Whether the keys of two samples each are equal."""
        (begins, lengths), (other_begins, other_lengths) = self._place(samples), others._place(of_others)
        same: npt.NDArray[np.bool_] = lengths == other_lengths
        lengths = lengths[same]
        if not len(lengths):
            return same
        firsts = np.cumsum(lengths) - lengths
        within = np.arange(lengths.sum())
        texts = [
            text[within + np.repeat(begin[same] - firsts, lengths)]
            for text, begin in ((self._text, begins), (others._text, other_begins))
        ]
        same[same] = np.logical_and.reduceat(texts[0] == texts[1], firsts)
        return same

    def _place(self, samples: Ints) -> tuple[Ints, Ints]:
        """Return first byte and length, with its end mark, of the text of each key."""
        begins = np.where(samples > 0, self._text_ends[samples - 1], 0)
        return begins, self._text_ends[samples] - begins


def _joined(columns: list[Any]) -> Any:
    return np.concatenate(columns) if columns else np.zeros(0, np.int64)
