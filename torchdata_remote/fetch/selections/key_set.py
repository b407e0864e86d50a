"""A large set of keys, and the search of shards' keys in it.

The set takes the characters of its keys and 8 bytes for each; the search, which one plan makes and drops, 17 bytes more
(``benchmarks/bench_selection_plan.py``). A Python set of strings takes about 100.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.arguments import check
from ..listing.url_table import StringColumn


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

    Keys are found by Python's hashes, sorted, and then compared, since two keys may have one hash. Hashes differ
    between processes, so this is not sent to others.

    Args:
        wanted: the keys.
    """

    def __init__(self, wanted: StringColumn) -> None:
        self._wanted = wanted
        hashes = _hashes(wanted, len(wanted))
        self._order = np.argsort(hashes, kind="stable").astype(np.uint32 if len(hashes) < 1 << 32 else np.int64)
        self._hashes = hashes[self._order]
        del hashes
        self._found = np.zeros(len(wanted), np.bool_)
        for place in (np.flatnonzero(np.diff(self._hashes) == 0) + 1).tolist():
            self._found[place] = self._is_repeated(place)
        self.num_wanted = len(wanted) - int(self._found.sum())

    def _is_repeated(self, place: int) -> bool:
        """Whether the key at a place is there before it, too."""
        key, before = self._wanted[int(self._order[place])], place - 1
        while before >= 0 and self._hashes[before] == self._hashes[place]:
            if self._wanted[int(self._order[before])] == key:
                return True
            before -= 1
        return False

    def find(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return whether each of these keys is wanted; shape ``(len(keys),)``."""
        chosen = np.zeros(len(keys), np.bool_)
        if not len(self._hashes):
            return chosen
        hashes = _hashes(keys, len(keys))
        places = np.searchsorted(self._hashes, hashes)
        same = self._hashes[np.minimum(places, len(self._hashes) - 1)] == hashes
        for number in np.flatnonzero(same).tolist():
            chosen[number] = self._is_wanted(keys[number], int(places[number]))
        return chosen

    def _is_wanted(self, key: str, place: int) -> bool:
        of_key = self._hashes[place]
        while place < len(self._hashes) and self._hashes[place] == of_key:
            if self._wanted[int(self._order[place])] == key:
                self._found[place] = True
                return True
            place += 1
        return False

    @property
    def num_missing(self) -> int:
        """Number of keys that were not found so far."""
        return len(self._found) - int(self._found.sum())

    def missing(self) -> Iterator[str]:
        """Yield the keys that were not found so far."""
        return (self._wanted[int(self._order[place])] for place in np.flatnonzero(~self._found))


def _hashes(keys: Iterable[str], number: int) -> npt.NDArray[np.int64]:
    return np.fromiter(map(hash, keys), np.int64, number)
