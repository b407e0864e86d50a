"""A large set of keys, and the search of shards' keys in it.

The set takes the characters of its keys and 8 bytes for each; the search, which one plan makes and drops, 13 bytes more
(``benchmarks/bench_selection_plan.py``). A Python set of strings takes about 100.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.arguments import check
from ..listing.url_table import StringColumn
from .sorted_hashes import SortedHashes, hashes_of


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
            raise check.marked(
                TypeError(f"{source}: a key must be str such as 'train/000017', got {check.shown(key)}. {_advice(key)}")
            )
        try:
            column.append(key)
        except UnicodeEncodeError as error:
            raise check.marked(ValueError(f"{source}: no member can have the name {key!r}: {error}.")) from error
    return column


def _advice(key: Any) -> str:
    if key is None:
        return "Take out the rows without a key."
    return "Decode it." if isinstance(key, bytes) else "Keys are texts: '000017', not 17."


class KeySearch:
    """Finds keys of shards among the wanted ones, and remembers which were found.

    Args:
        wanted: the keys.
    """

    def __init__(self, wanted: StringColumn) -> None:
        self._wanted = wanted
        self._hashes = SortedHashes(hashes_of(wanted, len(wanted)))
        self._found = np.zeros(len(wanted), np.bool_)
        for numbers in self._hashes.shared():  # a key that is there repeatedly is found once
            seen: set[str] = set()
            for number in numbers:
                self._found[number] = wanted[number] in seen
                seen.add(wanted[number])
        self.num_wanted = len(wanted) - int(self._found.sum())

    def find(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return whether each of these keys is wanted; shape ``(len(keys),)``."""
        chosen = np.zeros(len(keys), np.bool_)
        places = self._hashes.places(hashes_of(keys, len(keys)))
        for number in np.flatnonzero(places >= 0).tolist():
            chosen[number] = self._is_wanted(keys[number], int(places[number]))
        return chosen

    def _is_wanted(self, key: str, place: int) -> bool:
        for number in self._hashes.numbers_at(place):
            if self._wanted[number] == key:
                self._found[number] = True
                return True
        return False

    @property
    def num_missing(self) -> int:
        """Number of keys that were not found so far."""
        return len(self._found) - int(self._found.sum())

    def missing(self) -> Iterator[str]:
        """Yield the keys that were not found so far."""
        return (self._wanted[number] for number in np.flatnonzero(~self._found).tolist())
