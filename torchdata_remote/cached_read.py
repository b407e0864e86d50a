"""Reading an object through the cache on disk: what is there sends no GET, what comes is kept."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator

from .cache import CachedFile, DiskCache, Filling
from .storage import Answer, Store, in_one

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
    """

    def __init__(self, store: Store, cache: DiskCache, url: str, size: int | None, etag: str | None) -> None:
        self._store, self._cache, self._url = store, cache, url
        self._listed = size, etag
        self._lock = threading.Lock()  # of threads that fetch parts; never of a finalizer
        self._looked = False
        self._hit: CachedFile | None = None
        self._filling: Filling | None = None
        self._num_bytes, self._etag = 0, ""

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """As the store's ``read``."""
        with self._lock:
            if not self._looked:
                self._look(path)
        hit, filling = self._hit, self._filling
        if hit is not None:
            end = self._num_bytes if end is None else min(end, self._num_bytes)
            return Answer(start, end, self._num_bytes, self._etag, in_one(hit.view(start, end)))
        answer = self._store.read(path, start, end, etag or self._etag or None)
        same = (answer.etag, answer.total_bytes) == (self._etag, self._num_bytes)
        if filling is None or not same or answer.start != start:
            return answer
        return answer._replace(chunks=self._kept(answer, filling))

    def _look(self, path: str) -> None:
        size, etag = self._listed
        if etag is None or size is None:
            entry = self._store.stat(path)
            etag, size = entry.etag, entry.size
        self._looked = True
        if etag is None or size is None:
            _log.info("%s is not kept in the cache: its server tells no etag or no size", self._url)
            return
        self._etag, self._num_bytes = etag, size
        self._hit = self._cache.find(self._url, size, etag)
        if self._hit is None:
            try:
                self._filling = self._cache.fill(self._url, size, etag)
            except OSError as error:
                self._cannot_keep(error)

    def _kept(self, answer: Answer, filling: Filling) -> Generator[memoryview, None, None]:
        at = answer.start
        try:
            for chunk in answer.chunks:
                if self._filling is filling:
                    try:
                        filling.write(at, chunk)
                    except OSError as error:
                        self._cannot_keep(error)
                at += len(chunk)
                yield chunk
        finally:
            answer.chunks.close()

    def _cannot_keep(self, error: OSError) -> None:
        self._filling = None
        _log.warning("%s is read, but not kept in the cache: %s", self._url, error)

    def close(self) -> None:
        """Let go of the file. Safe in a finalizer, and while other threads read."""
        self._hit = self._filling = None
