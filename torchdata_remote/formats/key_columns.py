"""Collect keys and members of samples while a shard is written or read, without an object for each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np

from .key_index import Ints, KeyIndex

Names = tuple[str, ...]


class KeyColumns:
    """Keys and names of the members of samples, in their order: 4 bytes a sample besides its key.

    Args:
        extensions_of: returns the extensions of the members that have these names.
    """

    def __init__(self, extensions_of: Callable[[Names], Names]) -> None:
        self._extensions_of = extensions_of
        self._keys: list[str] = []
        self._layouts: dict[Names, int] = {}  # names of a sample's members -> number
        self._numbers = array("I")  # of each sample

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, keys: Sequence[str], names: Sequence[Names]) -> None:
        """Append samples.

        Args:
            keys: of the samples.
            names: of the members of each.
        """
        if not keys:
            return
        self._keys += keys
        number, layouts = self._layouts.setdefault, self._layouts
        first = number(names[0], len(layouts))
        if names.count(names[0]) == len(names):  # the usual case, in a fifth of the time
            self._numbers.extend(array("I", (first,)) * len(names))
        else:
            self._numbers.extend([number(one, len(layouts)) for one in names])

    def counts(self) -> Ints:
        """Return the number of members of each sample; shape ``(num_samples,)``."""
        widths = np.array(list(map(len, map(self._extensions_of, self._layouts))), np.int64)
        return np.asarray(widths[self._of_samples()], np.int64)

    def index(self, starts: Ints, sizes: Ints) -> KeyIndex:
        """Return the index of the samples.

        Args:
            starts: first byte of the data of each member; shape ``(num_members,)``.
            sizes: bytes of its data; shape ``(num_members,)``.
        """
        layouts, counts = list(map(self._extensions_of, self._layouts)), self.counts()
        extensions = {extension: number for number, extension in enumerate(dict.fromkeys(chain(*layouts)))}
        flat = _integers(extensions[extension] for layout in layouts for extension in layout)
        widths = _integers(map(len, layouts))
        layout_begins, sample_begins = np.cumsum(widths) - widths, np.cumsum(counts) - counts
        members = flat[np.repeat(layout_begins[self._of_samples()] - sample_begins, counts) + np.arange(counts.sum())]
        return KeyIndex(self._keys, counts, list(extensions), members, starts, sizes)

    def _of_samples(self) -> Ints:
        return np.array(self._numbers, np.int64)


def _integers(numbers: Iterable[int]) -> Ints:
    return np.array(list(numbers), np.int64)
