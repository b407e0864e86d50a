"""The shards of a map-style dataset and the places of their samples: tables of which a host has one copy."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.shared_columns import SharedColumns
from ..core.shared_memory import SharedMemory
from ..core.urls import RemoteUrl
from ..fetch.listing.url_table import UrlTable
from ..fetch.sample_table import Int64s
from ..formats.sample_index import ENTRY_BYTES, Offsets

_READ = b"\1"


class ShardTable(Sequence[RemoteUrl]):
    """Shards, without the checksums of their blocks, which single samples are not compared with.

    Args:
        shards: with sizes and numbers of samples.
    """

    def __init__(self, shards: Sequence[RemoteUrl]) -> None:
        counts = np.array([shard.num_samples or 0 for shard in shards], np.int64)
        sums = {
            "index_crc32s": _column(shard.index_crc32 for shard in shards),
            "keys_crc32s": _column(shard.keys_crc32 for shard in shards),
        }
        self._columns = SharedColumns({**UrlTable(shards).columns(), "counts": counts, **sums})
        self._view()

    def _view(self) -> None:
        columns = self._columns.columns
        self._urls, self.counts = UrlTable.view(columns), columns["counts"]
        self._sums = columns["index_crc32s"], columns["keys_crc32s"]

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        url = self._urls[index]
        crc32s = [None if column[index] < 0 else int(column[index]) for column in self._sums]
        return RemoteUrl(url, url.size, url.etag, None, int(self.counts[index]), None, *crc32s)

    def __getstate__(self) -> Mapping[str, Any]:
        if self._columns.share():  # a worker is being started
            self._view()
        return {"columns": self._columns}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._columns = state["columns"]
        self._view()


def _column(crc32s: Iterable[int | None]) -> Int64s:
    return np.array([-1 if crc32 is None else crc32 for crc32 in crc32s], np.int64)


class ShardOffsets:
    """The first byte of each sample, by shard, as far as they were read. Workers of a host read each index once.

    They write what they have read into :class:`SharedMemory`, which takes space from then on. It is created when the
    first of them is started or forked: a dataset that is read in one process needs none.

    Args:
        counts: number of samples of each shard.
        memory: of the process that starts this one.
    """

    def __init__(self, counts: Int64s, memory: SharedMemory | None = None) -> None:
        self._counts = counts
        self._ends = np.cumsum(counts + 1)  # an entry for each sample, and one for the end of the last one
        self._found: dict[int, Offsets] = {}
        self._flags_at = int(self._ends[-1]) * ENTRY_BYTES if len(counts) else 0
        self._memory = memory
        _alive[id(self)] = self

    def share(self) -> SharedMemory | None:
        """Return the memory that a new process is to have, with what this one has read; ``None`` if there is none."""
        if self._memory is None:
            self._memory = SharedMemory.create(self._flags_at + len(self._counts))
            for shard, offsets in list(self._found.items()):
                self[shard] = offsets
        return self._memory

    def __getitem__(self, shard: int) -> Offsets:
        return self._found[shard]

    def __contains__(self, shard: int) -> bool:
        """Whether the offsets of a shard were read, by this process or another one."""
        if shard in self._found:
            return True
        # Read by a call of the system, which orders it after the writing of the offsets
        if self._memory is None or self._memory.read(1, self._flags_at + shard) != _READ:
            return False
        self._found[shard] = self._mapped(self._memory, shard)
        return True

    def __setitem__(self, shard: int, offsets: Offsets) -> None:
        memory = self._memory
        if memory is not None and memory.write(np.ascontiguousarray(offsets, np.uint64), self._start(shard)):
            memory.write(_READ, self._flags_at + shard)
            offsets = self._mapped(memory, shard)
        self._found[shard] = offsets

    def _start(self, shard: int) -> int:
        return int(self._ends[shard] - self._counts[shard] - 1) * ENTRY_BYTES

    def _mapped(self, memory: SharedMemory, shard: int) -> Offsets:
        return np.frombuffer(memory.view(), np.uint64, int(self._counts[shard]) + 1, self._start(shard))

    def __reduce__(self) -> Any:
        memory = self.share() if SharedMemory.can_be_sent() else None
        return ShardOffsets, (self._counts, memory)

    def __deepcopy__(self, memo: object) -> ShardOffsets:
        return self


_alive: weakref.WeakValueDictionary[int, ShardOffsets] = weakref.WeakValueDictionary()


def _share_with_fork() -> None:
    for reference in _alive.valuerefs():
        offsets = reference()
        if offsets is not None:
            offsets.share()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_share_with_fork)
