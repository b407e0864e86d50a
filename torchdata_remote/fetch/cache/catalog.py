"""What a cache contains, as far as this process knows, and what it has not yet told the others.

An exchange writes to the index what this process stored, read and lost, for many objects in one transaction, and reads
what other processes stored.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from ...core.notices.slow_notice import say
from .block_checksums import num_blocks
from .changes import Changes
from .index import CacheIndex
from .object_table import DROPPED, Entry, ObjectTable, check_entries
from .pack import Pack, open_pack
from .read_sample import ReadSample
from .space import PackSpace

_MAX_OBJECTS = 512  # stored or read between two exchanges
_EXCHANGES = 32  # at least, while as many bytes are read as the cache may hold
_MISS_S = 0.2  # at least between two exchanges because of misses
_PUBLISH_S = 0.2  # at most, until others know of an object
RETRY_S = 5.0  # after an exchange that failed

T = TypeVar("T")


class Catalog:
    """Thread-safe. No lock that a lookup needs is held during input or output.

    Args:
        index: of the cache.
        max_bytes: bound of the cache.
    """

    def __init__(self, index: CacheIndex, max_bytes: int) -> None:
        self._index, self._max_bytes = index, max_bytes
        self.space = PackSpace(index, max_bytes)
        self._table, self._crc32s = ObjectTable(), dict[int, tuple[int, ...]]()
        self._packs: weakref.WeakValueDictionary[int, Pack] = weakref.WeakValueDictionary()
        self._changes = Changes()
        self._abandoned: deque[int] = deque()  # packs; filled by finalizers
        self._last_batch, self._sample = 0, ReadSample(index, max_bytes)
        self._lock, self.exchanging = threading.RLock(), threading.RLock()
        self.problem = ""  # of the last exchange that failed; the error itself would keep what its frames refer to
        self.num_exchanges = 0
        self._exchanged_at = self._retry_at = self._published_at = 0.0
        self.exchange(lambda: None)

    def find(self, key: int, version: int, num_bytes: int) -> Entry | None:
        """Return where a version of an object is, and count that it is read."""
        with self._lock:
            changes = self._changes
            if self._sample.has(key):
                changes.sample.append((changes.read_bytes, key))
            changes.read_bytes += num_bytes
            changes.num_reads += 1
            entry = self._table.get(key)
            is_due = changes.num_reads >= _MAX_OBJECTS or changes.read_bytes * _EXCHANGES >= self._max_bytes
        is_missing = entry is None or entry.version != version
        if (is_due or (is_missing and time.monotonic() > self._exchanged_at + _MISS_S)) and self.may_exchange():
            self._try_exchange()
            with self._lock:
                entry = self._table.get(key)
        if entry is None or (entry.version == version and entry.size == num_bytes):
            return entry
        self.drop(entry)  # the object was replaced
        return None

    def may_exchange(self) -> bool:
        """Whether it is worth a try: no exchange has failed just before."""
        return time.monotonic() > self._retry_at

    def _try_exchange(self) -> None:
        """Exchange, unless another thread does, or it fails: then the changes are kept for the next one."""
        with contextlib.suppress(OSError):
            self._exchange_if_free(wait=False)

    def _exchange_if_free(self, *, wait: bool) -> None:
        if self.exchanging.acquire(blocking=wait):
            try:
                self._published_at = time.monotonic()
                self.exchange(lambda: None)
            finally:
                self.exchanging.release()

    def open(self, entry: Entry) -> tuple[Pack, Sequence[int]] | None:
        """Return the pack of an entry, and the checksums of the object; ``None`` if it was removed or damaged."""
        with self._lock:
            pack = self._packs.get(entry.pack)
            self._changes.used_packs.add(entry.pack)
        if pack is None:
            try:
                pack = open_pack(self._index.packs, entry.pack, self._index.user)
            except BlockingIOError:  # it is being removed
                return None
            except OSError:  # it was removed, or replaced
                with self._lock:
                    self._table.forget_pack(entry.pack)
                    self._changes.lost_packs.add(entry.pack)
                return None
            self.opened(pack)
        crc32s = (entry.crc32, *self._crc32s.get(entry.pack, ()))
        end = entry.offset + entry.size
        if end > os.fstat(pack.descriptor).st_size or len(crc32s) != max(1, num_blocks(entry.size)):
            say(
                "cache", self._index.packs, f"Objects in {pack.path} are damaged, and fetched again.", repeat_s=math.inf
            )
            self.drop(entry)
            return None
        return pack, crc32s

    def opened(self, pack: Pack) -> None:
        """Remember an open pack, as long as it is in use."""
        with self._lock:
            self._packs[pack.number] = pack

    def add(self, entry: Entry, crc32s: Sequence[int], *, alone: bool) -> None:
        """Add an object that was stored. Others see it after the next exchange.

        Args:
            entry: where it is.
            crc32s: of its blocks.
            alone: whether its pack has no other objects.
        """
        with self._lock:
            before = self._table.get(entry.key)
            if before is not None:
                self._changes.replaced[before.pack] += before.size
            self._table.add(entry)
            if len(crc32s) > 1:
                self._crc32s[entry.pack] = tuple(crc32s[1:])
            self._changes.entries.append((entry, crc32s, alone))

    def publish(self, *, at_once: bool) -> None:
        """Exchange: at once, or if many changes wait, or the last time is long ago. Otherwise they wait.

        Raises:
            OSError: if the index cannot be written.
        """
        if (at_once or self._is_due()) and self.may_exchange():
            self._exchange_if_free(wait=at_once)  # or each of many threads would wait for the one that exchanges

    def _is_due(self) -> bool:
        return len(self._changes.entries) >= _MAX_OBJECTS or time.monotonic() > self._published_at + _PUBLISH_S

    def drop(self, entry: Entry) -> None:
        """Drop an object that is damaged, or was replaced."""
        with self._lock:
            if self._table.get(entry.key) == entry:
                self._table.add(entry._replace(pack=DROPPED))
                self._changes.dropped.append(entry)
                self._changes.replaced[entry.pack] += entry.size

    def has_lost(self, pack: int) -> bool:
        """Whether the file of a pack was found missing or replaced."""
        return self._table.is_gone(pack)

    def abandon(self, pack: int) -> None:
        """Give up a pack of which the file was removed. Safe in a finalizer."""
        self._abandoned.append(pack)

    def exchange(self, inside: Callable[[], T]) -> T:
        """Exchange what changed with the index, and call a function in the same transaction.

        Raises:
            OSError: if the index cannot be written. The changes are kept for the next time.
        """
        with self.exchanging:
            with self._lock:
                changes, self._changes = self._changes, Changes()
            last_batch = self._last_batch
            while self._abandoned:
                changes.lost_packs.add(self._abandoned.popleft())
            try:
                with self._index.transaction():
                    self._pull()
                    self._push(changes)
                    result = inside()
            except BaseException as error:
                with self._lock:
                    self._changes.put_back(changes)
                self._last_batch = last_batch  # others use the numbers that this transaction gave
                if isinstance(error, OSError):  # and not Ctrl-C
                    self.problem, self._retry_at = str(error), time.monotonic() + RETRY_S
                raise
            finally:
                self.num_exchanges += 1
                self._exchanged_at = time.monotonic()
                self._forget_removed()
            return result

    def flush(self) -> None:
        """Exchange if there are changes.

        Raises:
            OSError: if the index cannot be written.
        """
        if self._changes:
            self.exchange(lambda: None)

    def publish_in_s(self) -> float | None:
        """In how many seconds to publish what is stored; ``None`` if others know of all of it."""
        return max(_PUBLISH_S, self._retry_at - time.monotonic()) if self._changes.entries else None

    def _forget_removed(self) -> None:
        with self._lock:
            for pack in self.space.removed:
                self._table.forget_pack(pack)
                self._crc32s.pop(pack, None)
            self.space.removed.clear()

    def _pull(self) -> None:
        batches = self._index.batches_after(self._last_batch)
        crc32s = {pack: struct.unpack(f"<{len(rest) // 4}I", rest) for _, pack, _, rest in batches if rest}
        check_entries([(pack, entries) for _, pack, entries, _ in batches])
        with self._lock:
            self._table.add_stored(*(entries for _, _, entries, _ in batches))
            self._crc32s |= crc32s
            if batches:
                self._last_batch = batches[-1][0]

    def _push(self, changes: Changes) -> None:
        with self._lock:  # what was stored again is not dropped
            changes.dropped = [entry for entry in changes.dropped if self._table.get(entry.key) is None]
        self._last_batch = max(self._last_batch, changes.write(self._index))
        self._sample.look(len(changes.sample), changes.read_bytes)
