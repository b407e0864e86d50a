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
    """Samples in the source's order. The members of a sample are added consecutively."""

    def __init__(self) -> None:
        self.names = StringColumn()  # of members: paths below the source
        self._objects, self._starts, self._sizes = array("q"), array("q"), array("q")
        self._firsts = array("q")  # index of each sample's first member
        self.urls = UrlTable()  # of objects

    def add_object(self, url: RemoteUrl) -> None:
        """Set the object of the members added next."""
        self.urls.append(url)

    def start_sample(self) -> None:
        """Start a new sample, for the members added next."""
        self._firsts.append(len(self.names))

    def add_member(self, name: str, start: int, size: int) -> None:
        """Add a member to the last sample, stored in the object added last."""
        self.names.append(name)
        self._objects.append(len(self.urls) - 1)
        self._starts.append(start)
        self._sizes.append(size)

    def move(self, sources: Mapping[int, int | None]) -> None:
        """Let members be stored where others are: number -> that of the other one.

        Members without another one are removed, and samples that then have none.
        """
        columns, places = self.columns(), np.arange(len(self.names))
        lengths = np.diff(columns["names.ends"], prepend=0)
        places[list(sources)] = [-1 if source is None else source for source in sources.values()]
        kept = places >= 0
        counts = np.diff(np.append(0, np.cumsum(kept))[self.firsts()])
        counts = counts[counts > 0]
        columns |= {name: columns[name][places[kept]] for name in ("objects", "starts", "sizes")}
        columns |= {"firsts": np.cumsum(counts) - counts, "names.ends": np.cumsum(lengths[kept])}
        columns["names.data"] = columns["names.data"][np.repeat(kept, lengths)]
        vars(self).update(vars(SampleTable.from_columns(columns, self.urls)))

    def __len__(self) -> int:
        return len(self._firsts)

    def firsts(self) -> Int64s:
        """Return the index of each sample's first member, and the number of members; shape ``(num_samples + 1,)``."""
        return np.append(np.frombuffer(self._firsts, np.int64), len(self.names))

    def _member_ranges(self, samples: Int64s) -> tuple[Int64s, Int64s]:
        """Return the first member of each of these samples, and their number; without a copy of the table."""
        firsts = np.frombuffer(self._firsts, np.int64)
        ends = np.full(len(samples), len(self.names))
        has_next = samples + 1 < len(firsts)
        ends[has_next] = firsts[samples[has_next] + 1]
        return firsts[samples], ends - firsts[samples]

    def sizes(self) -> Int64s:
        """Return the number of bytes of each member."""
        return np.frombuffer(self._sizes, np.int64)

    def first_names(self) -> Iterator[str]:
        """Yield the name of each sample's first member."""
        if np.array_equal(self.firsts(), np.arange(len(self.names) + 1)):  # one member each
            return iter(self.names)
        return map(self.names.__getitem__, self._firsts)

    def select(self, samples: Int64s) -> Members:
        """Return the members of these samples, in this order."""
        firsts, counts = self._member_ranges(samples)
        before = np.cumsum(counts) - counts
        members = np.arange(counts.sum()) + np.repeat(firsts - before, counts)
        objects = np.frombuffer(self._objects, np.int64)[members]
        used, objects = np.unique(objects, return_inverse=True)
        return Members(
            [self.urls[int(index)] for index in used],
            [self.names[int(member)] for member in members],
            objects,
            np.frombuffer(self._starts, np.int64)[members],
            self.sizes()[members],
            counts,
        )

    def columns(self) -> dict[str, Any]:
        """Return the arrays of :meth:`from_columns`: those of the samples and of the members' names."""
        columns: dict[str, Any] = {
            name.removeprefix("_"): np.frombuffer(getattr(self, name), np.int64) for name in _NUMBERS
        }
        return columns | self.names.columns("names")

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any], urls: Iterable[RemoteUrl]) -> SampleTable:
        """Restore a table from :meth:`columns` and the URLs of its objects."""
        table = cls()
        for name in _NUMBERS:
            setattr(table, name, array("q", columns[name.removeprefix("_")].tobytes()))
        table.names = StringColumn.view(columns, "names")
        table.urls = UrlTable(urls)
        return table


_NUMBERS = ("_objects", "_starts", "_sizes", "_firsts")
