"""Reading an object through the cache on disk: what is there sends no GET, what comes is kept."""

from __future__ import annotations

import logging
import threading

from ...core.urls import redact
from ...errors import StorageError, TransientStorageError
from ...storage.registry import Answer, Store, single_chunk
from .disk_cache import CacheEntryWriter, DiskCache
from .entry import CachedFile, DamagedError

_log = logging.getLogger("torchdata_remote")


class CachedObject:
    """One object of a store, read from the cache if it is there, or else kept as it comes.

    Without an etag nothing is kept, because nobody could tell later which version it was.

    Args:
        store: where it comes from.
        cache: where it is kept.
        url: of the object.
        size: as the listing told it, in bytes; ``None`` asks the store.
        etag: as the listing told it; ``None`` asks the store.
        keep: whether it is read as a whole.
        server: tells it in the cache from an object of the same URL on another server.
    """

    def __init__(
        self,
        store: Store,
        cache: DiskCache,
        url: str,
        size: int | None,
        etag: str | None,
        *,
        keep: bool = True,
        server: str = "",
    ) -> None:
        self._store, self._cache, self._url = store, cache, url
        self._name = f"{server}\n{url}" if server else url
        self._listed, self._keep = (size, etag), keep
        self._lock = threading.RLock()  # of threads that fetch parts
        self._looked = self._closed = self._served = False
        self._hit: CachedFile | None = None
        self._filling: CacheEntryWriter | None = None
        self._num_bytes, self._etag = 0, ""

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """As the store's ``read``."""
        with self._lock:
            if not self._looked:
                self._look(path)
                if self._closed:  # meanwhile
                    self._hit = self._filling = None
        view = self._kept(start, end)
        if view is not None:
            return Answer(start, start + len(view), self._num_bytes, self._etag, single_chunk(view))
        answer = self._store.read(path, start, end, etag or self._etag or None)
        accepted = etag is None or answer.etag is None or answer.etag == etag  # whoever reads takes no other
        if accepted and (answer.etag, answer.total_bytes) != (self._etag, self._num_bytes):
            self._filling = None  # it may be another version
        elif accepted and self._num_bytes == 0:
            self.keep(0, memoryview(b""))
        return answer

    def _kept(self, start: int, end: int | None) -> memoryview | None:
        """The bytes, if they are in the cache and are what was kept there."""
        hit = self._hit
        if hit is None:
            return None
        try:
            view = hit.view(start, end)
        except (DamagedError, EOFError, OSError) as error:
            _log.warning("%s is damaged in the cache, and fetched: %s (%s)", redact(self._url), error, hit.path)
            self._drop(hit)
            return None
        with self._lock:
            self._served = True
            return None if self._hit is None else view  # another thread has found damage

    def _drop(self, hit: CachedFile) -> None:
        """Remove the object from the cache. If nothing of it was handed on, keep what comes instead."""
        hit.remove()
        with self._lock:
            if self._hit is hit:
                self._hit = None
                if not self._served and not self._closed:
                    self._begin_to_keep()

    def distrust(self) -> bool:
        """Remove an object whose bytes are not right although they are what was kept.

        Returns:
            Whether it was in the cache: then other bytes come when they are read again.
        """
        hit = self._hit
        if hit is not None:
            _log.warning("%s is damaged in the cache, and fetched (%s)", redact(self._url), hit.path)
            self._drop(hit)
        return self._served

    def _look(self, path: str) -> None:
        size, etag = self._listed
        if etag is None or size is None:
            etag, size = self._ask(path)
        self._looked = True
        if etag is None or size is None:
            _log.info("%s is not kept in the cache: its server tells no etag or no size", redact(self._url))
            return
        self._etag, self._num_bytes = etag, size
        self._hit = self._cache.find(self._name, size, etag)
        if self._hit is None:
            self._begin_to_keep()

    def _begin_to_keep(self) -> None:
        if self._keep:
            try:
                self._filling = self._cache.fill(self._name, self._num_bytes, self._etag)
            except OSError as error:
                self._cannot_keep(error)

    def _ask(self, path: str) -> tuple[str | None, int | None]:
        try:
            entry = self._store.stat(path)
        except TransientStorageError:
            raise
        except StorageError:
            return None, None  # signed for GET alone, perhaps; the GET will tell
        return entry.etag, entry.size

    def keep(self, start: int, piece: memoryview) -> None:
        """Take bytes from ``start`` on that were read and found right; each byte once."""
        filling = self._filling
        if filling is not None:
            try:
                filling.write(start, piece)
            except OSError as error:
                self._cannot_keep(error)

    def _cannot_keep(self, error: OSError) -> None:
        self._filling = None
        self._cache.complain(f"{redact(self._url)} is not kept in the cache: {error}")

    def close(self) -> None:
        """Let go of the file. Safe in a finalizer, and while other threads read."""
        self._closed = True
        self._hit = self._filling = None
