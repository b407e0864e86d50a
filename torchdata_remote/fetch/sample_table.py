"""Columnar table of the byte ranges of all members of many samples, about 100 bytes per sample."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..core.urls import RemoteUrl
from .listing.url_table import StringColumn, UrlTable

Int64s = np.ndarray[Any, np.dtype[np.int64]]


class Members(NamedTuple):
    """The members of selected samples, in order.

    ``names``, ``objects``, ``starts``, ``sizes`` have one entry per member: its path below the source, the index of its
    object in ``urls``, the first byte of its data there, and their number. ``counts`` is the number of members of each
    sample.
    """

    urls: list[RemoteUrl]
    names: list[str]
    objects: Int64s
    starts: Int64s
    sizes: Int64s
    counts: Int64s


class SampleTable:
    """Samples in the source's order. The members of a sample are added consecutively.

    Attributes:
        names: of members: paths below the source.
        urls: of objects.
        moved: members that are stored where others are: number -> that of the other one; ``None`` if it is nowhere.
    """

    def __init__(self) -> None:
        self.names, self.urls = StringColumn(), UrlTable()
        self.moved: dict[int, int | None] = {}
        self._members = array("q")  # of each: number of its object, first byte and size there
        self._firsts = array("q", [0])

    def add_object(self, url: RemoteUrl) -> None:
        """Set the object of the members added next."""
        self.urls.append(url)

    def start_sample(self) -> None:
        """Start a new sample, for the members added next."""
        self._firsts.append(len(self.names))

    def add_member(self, name: str, start: int, size: int) -> None:
        """Add a member to the last sample, stored in the object added last."""
        self.names.append(name)
        self._members.extend((len(self.urls) - 1, start, size))
        self._firsts[-1] += 1

    def finish(self) -> None:
        """Do what ``moved`` says. Members that are nowhere are removed, and samples that then have none."""
        if not self.moved:
            return
        places, columns = np.arange(len(self.names)), self.names.columns("names")
        places[list(self.moved)] = [-1 if source is None else source for source in self.moved.values()]
        kept, lengths = places >= 0, np.diff(columns["names.ends"], prepend=0)
        data = columns["names.data"][np.repeat(kept, lengths)]
        self.names = StringColumn.view({"names.data": data, "names.ends": np.cumsum(lengths[kept])}, "names")
        self._firsts = _array(np.unique(np.append(0, np.cumsum(kept))[self.firsts()]))
        self._members = _array(self._columns()[places[kept]])

    def __len__(self) -> int:
        return len(self._firsts) - 1

    def firsts(self) -> Int64s:
        """Return the number of each sample's first member, and that of all members; shape ``(num_samples + 1,)``."""
        return np.frombuffer(self._firsts, np.int64)

    def _columns(self) -> Int64s:
        """Return object, first byte and size of each member; shape ``(num_members, 3)``."""
        return np.frombuffer(self._members, np.int64).reshape(-1, 3)

    def sizes(self) -> Int64s:
        """Return the number of bytes of each member."""
        return self._columns()[:, 2]

    def first_names(self) -> Iterator[str]:
        """Yield the name of each sample's first member."""
        return map(self.names.__getitem__, self._firsts[:-1])

    def select(self, samples: Int64s) -> Members:
        """Return the members of these samples, in this order."""
        firsts, counts = self.firsts()[samples], self.firsts()[samples + 1] - self.firsts()[samples]
        members = np.arange(counts.sum()) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
        objects, starts, sizes = self._columns()[members].T
        used, objects = np.unique(objects, return_inverse=True)
        urls = [self.urls[number] for number in used.tolist()]
        return Members(urls, list(map(self.names.__getitem__, members.tolist())), objects, starts, sizes, counts)

    def columns(self) -> dict[str, Any]:
        """Return the arrays of :meth:`from_columns`: those of the samples and of the members' names."""
        objects, starts, sizes = self._columns().T
        return {
            "firsts": self.firsts(),
            "objects": objects,
            "starts": starts,
            "sizes": sizes,
            **self.names.columns("names"),
        }

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any], urls: Iterable[RemoteUrl]) -> SampleTable:
        """Restore a table from :meth:`columns` and the URLs of its objects."""
        table = cls()
        table._firsts = _array(columns["firsts"])
        table._members = _array(np.column_stack([columns[name] for name in ("objects", "starts", "sizes")]))
        table.names = StringColumn.view(columns, "names")
        table.urls = UrlTable(urls)
        return table


def _array(numbers: Int64s) -> array[int]:
    return array("q", numbers.tobytes())
