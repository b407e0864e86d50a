"""The objects of a page of a listing, one column for each field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from operator import lt
from typing import Any, overload

from .protocol import Entry


class EntryTable(Sequence[Entry]):
    """Objects of a listing, one list for each field of :class:`Entry`. An entry is made where it is asked for.

    Lists of strings and numbers cost Python's garbage collector nothing. A tuple or dictionary for each object is
    visited by it again and again, which took half of the time of a listing.

    Args:
        paths: of the objects.
        sizes: in bytes, or ``None``.
        etags: or ``None``.
        modified: when they were written, as the store sent it.
        seconds: converts an item of ``modified`` to seconds since 1970.
        keys: all that the page lists, if it has others than these objects, such as markers of folders.
    """

    __slots__ = ("_modified", "_seconds", "etags", "keys", "paths", "sizes")

    def __init__(
        self,
        paths: list[str],
        sizes: Sequence[int | None],
        etags: Sequence[str | None],
        modified: Sequence[Any],
        seconds: Callable[[Any], float | None],
        keys: list[str] | None = None,
    ) -> None:
        self.paths, self.sizes, self.etags = paths, sizes, etags
        self._modified, self._seconds = modified, seconds
        self.keys = paths if keys is None else keys

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> EntryTable:
        """Return a table of entries; a table unchanged."""
        if isinstance(entries, cls):
            return entries
        found = list(entries)
        return cls(
            [one.path for one in found],
            [one.size for one in found],
            [one.etag for one in found],
            [one.modified_s for one in found],
            _same,
        )

    def is_sorted(self) -> bool:
        """Whether all that the page lists is sorted, and nothing is listed twice."""
        return all(map(lt, self.keys, self.keys[1:]))

    def selected(self, are_selected: Sequence[object]) -> EntryTable:
        """Return a table of the objects for which a value is true. What the page lists remains the same."""
        if all(are_selected):
            return self
        return EntryTable(
            list(compress(self.paths, are_selected)),
            list(compress(self.sizes, are_selected)),
            list(compress(self.etags, are_selected)),
            list(compress(self._modified, are_selected)),
            self._seconds,
            self.keys,
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Entry]:
        return map(Entry, self.paths, self.sizes, self.etags, map(self._seconds, self._modified))

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> EntryTable: ...
    def __getitem__(self, index: int | slice) -> Entry | EntryTable:
        if isinstance(index, slice):
            columns = self.sizes[index], self.etags[index], self._modified[index]
            return EntryTable(self.paths[index], *columns, self._seconds)
        return Entry(self.paths[index], self.sizes[index], self.etags[index], self._seconds(self._modified[index]))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | EntryTable) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it has lists

    def __repr__(self) -> str:
        return f"EntryTable({list(self)!r})"


def _same(modified_s: float | None) -> float | None:
    return modified_s
