"""Read an object through the disk cache: a hit sends no GET, a miss is stored while it is downloaded."""

from __future__ import annotations

import logging
import math
import threading

from ...core.notices.slow_notice import say
from ...core.object_version import same_etag
from ...core.urls import redact
from ...errors import StorageError, TransientStorageError
from ...storage import Answer, Entry, LocalStore, Page, Store, single_chunk
from .disk_cache import DiskCache
from .files import CachedFile, CachedFileWriter, DamagedError

_log = logging.getLogger("torchdata_remote")


class CachedObject:
    """One object of a store, read from the cache, or stored there while it is downloaded.

    Without an etag nothing is cached, since the version of a cached object could not be verified.

    Args:
        store: of the object.
        cache: stores it.
        url: of the object.
        size: from the listing, in bytes; ``None`` asks the store.
        etag: from the listing; ``None`` asks the store.
        keep: whether to store it on a miss; requires that it is read as a whole.
        server: distinguishes objects of the same URL on several servers.
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
        self._lock = threading.RLock()  # shared by threads that fetch parts
        self._is_looked_up = self._closed = self._served = False
        self._stores = False  # what is downloaded
        self._hit: CachedFile | None = None
        self._filling: CachedFileWriter | None = None
        self._num_bytes, self._etag, self._version = 0, "", ""

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read a range as the store does, from the cache if possible."""
        with self._lock:
            if not self._is_looked_up:
                self._look_up(path)
                if self._closed:  # by another thread
                    self._stores, self._hit = False, None
        view = self._cached_view(start, end)
        if view is not None:
            return Answer(start, start + len(view), self._num_bytes, self._etag, single_chunk(view))
        answer = self._store.read(path, start, end, etag or self._etag or None)
        accepted = self._is_accepted(answer, etag)
        is_same = answer.etag is not None and same_etag(answer.etag, self._etag)
        if accepted and not (is_same and answer.total_bytes == self._num_bytes):
            self._stores, self._filling = False, None  # it may be another version
        elif accepted and self._num_bytes == 0:
            self.keep(0, memoryview(b""))
        return answer

    def find(self, path: str) -> Entry | None:
        """Find the object as the store does, for errors."""
        return self._store.find(path)

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """List as the store does, for errors. Stores without folders raise ``AttributeError``."""
        page: Page = self._store.list_after(prefix, recursive=recursive, after=after, limit=limit)  # type: ignore[attr-defined]
        return page

    def _is_accepted(self, answer: Answer, etag: str | None) -> bool:
        """Whether the caller uses a response: it refuses another etag, and another size than the listed one."""
        listed_size, _ = self._listed
        same_size = listed_size is None or answer.total_bytes == listed_size
        return same_size and same_etag(answer.etag, etag)

    def _cached_view(self, start: int, end: int | None) -> memoryview | None:
        """Return the bytes from the cache; ``None`` on a miss, or if they are damaged."""
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
        """Remove the object from the cache. If none of its bytes were used, store the next download."""
        self._cache.drop(hit)
        with self._lock:
            if self._hit is hit:
                self._hit = None
                self._stores = self._keep and not self._served and not self._closed

    def distrust(self) -> bool:
        """Remove an object whose bytes are wrong although they match the cache's checksums.

        Returns:
            Whether bytes of the cache were used: then reading again returns those of the store.
        """
        hit = self._hit
        if hit is not None:
            _log.warning("%s is damaged in the cache, and fetched (%s)", redact(self._url), hit.path)
            self._drop(hit)
        return self._served

    def _look_up(self, path: str) -> None:
        size, etag = self._listed
        if etag is None or size is None:
            etag, size = self._ask(path)
        self._is_looked_up = True
        if etag is None or size is None:
            url = redact(self._url)
            message = f"{url} is not cached: its server reports no etag or no size, by which a new version is noticed."
            say("uncached", url, message, repeat_s=math.inf)
            return
        self._etag, self._num_bytes = etag, size
        # A program may write to a file and then set its modification time back
        self._version = f"{etag} {self._store.change_of(path)}" if isinstance(self._store, LocalStore) else etag
        self._hit = self._cache.find(self._name, size, self._version)
        self._stores = self._keep and self._hit is None

    def _ask(self, path: str) -> tuple[str | None, int | None]:
        try:
            entry = self._store.stat(path)
        except TransientStorageError:
            raise
        except StorageError:
            return None, None  # perhaps signed for GET only; the GET will report an error
        return entry.etag, entry.size

    def keep(self, start: int, piece: memoryview) -> None:
        """Store verified bytes from ``start`` on; each byte once."""
        if not self._stores:
            return
        try:
            with self._lock:
                if self._filling is None and self._stores:
                    self._filling = self._cache.fill(self._name, self._num_bytes, self._version)
                    self._stores = self._filling is not None
                    if self._closed:  # by another thread
                        self._stores, self._filling = False, None
                filling = self._filling
            if filling is not None:
                filling.write(start, piece)
        except OSError as error:
            self._stop_filling(error)

    def _stop_filling(self, error: OSError) -> None:
        self._stores, self._filling = False, None
        self._cache.warn_once(f"{redact(self._url)} is not cached: {error}")

    def close(self) -> None:
        """Release the file. Safe in a finalizer, and while other threads read."""
        self._closed, self._stores = True, False
        self._hit = self._filling = None
