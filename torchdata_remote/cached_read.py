"""Reading an object through the cache on disk: what is there sends no GET, what comes is kept."""

from __future__ import annotations

import contextlib
import logging
import threading

from .cache import CachedFile, DiskCache, Filling
from .errors import StorageError, TransientStorageError
from .storage import Answer, Store, in_one
from .urls import redact

_log = logging.getLogger("torchdata_remote")


class CachedObject:
    """One object of a store, read from the cache if it is there, or else kept as it comes.

    Without an etag nothing is kept, because nobody could tell later which version it was.

    Args:
        store: where it comes from.
        cache: where it is kept.
        url: its name in the cache.
        size: as the listing told it, in bytes; ``None`` asks the store.
        etag: as the listing told it; ``None`` asks the store.
        keep: whether it is read as a whole.
    """

    def __init__(
        self, store: Store, cache: DiskCache, url: str, size: int | None, etag: str | None, *, keep: bool = True
    ) -> None:
        self._store, self._cache, self._url = store, cache, url
        self._listed, self._keep = (size, etag), keep
        self._lock = threading.RLock()  # of threads that fetch parts
        self._looked = self._closed = False
        self._hit: CachedFile | None = None
        self._filling: Filling | None = None
        self._num_bytes, self._etag = 0, ""

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """As the store's ``read``."""
        with self._lock:
            if not self._looked:
                self._look(path)
                if self._closed:  # meanwhile
                    self._hit = self._filling = None
        hit = self._hit
        if hit is not None:
            after = self._num_bytes if end is None else min(end, self._num_bytes)
            with contextlib.suppress(EOFError):  # somebody has shortened it
                return Answer(start, after, self._num_bytes, self._etag, in_one(hit.view(start, after)))
        answer = self._store.read(path, start, end, etag or self._etag or None)
        accepted = etag is None or answer.etag is None or answer.etag == etag  # whoever reads takes no other
        if accepted and (answer.etag, answer.total_bytes) != (self._etag, self._num_bytes):
            self._filling = None  # it may be another version
        return answer

    def _look(self, path: str) -> None:
        size, etag = self._listed
        if etag is None or size is None:
            etag, size = self._ask(path)
        self._looked = True
        if etag is None or size is None:
            _log.info("%s is not kept in the cache: its server tells no etag or no size", redact(self._url))
            return
        self._etag, self._num_bytes = etag, size
        self._hit = self._cache.find(self._url, size, etag)
        if self._hit is None and self._keep:
            try:
                self._filling = self._cache.fill(self._url, size, etag)
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
        self._cache.complain(f"{redact(self._url)} is read, but not kept in the cache: {error}")

    def close(self) -> None:
        """Let go of the file. Safe in a finalizer, and while other threads read."""
        self._closed = True
        self._hit = self._filling = None
