"""Read an object through the disk cache: a hit sends no GET, a miss is stored while it is downloaded."""

from __future__ import annotations

import logging
import math
import threading

from ...core.notices.slow_notice import say
from ...core.object_version import same_etag
from ...core.urls import redact
from ...storage import Answer, ConditionalStore, Entry, LocalStore, Page, Store, single_chunk
from .disk_cache import DiskCache
from .files import SMALL_BYTES, CachedFile, CachedFileWriter, DamagedError

_log = logging.getLogger("torchdata_remote")


class CachedObject:
    """One object of a store, read from the cache, or stored there while it is downloaded.

    If its etag is not known, the version in the cache is confirmed by the first request. Without an etag nothing is
    cached, since the version of a cached object could not be verified.

    Args:
        store: of the object.
        cache: stores it.
        url: of the object.
        size: from the listing, in bytes; ``None`` if it is not known.
        etag: from the listing; ``None`` if it is not known.
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
        self._num_bytes, self._etag = size, etag
        self._version: str | None = None  # in the cache; mostly the etag
        self._lock = threading.RLock()  # shared by threads that fetch parts
        self._is_looked_up = self._closed = self._served = False
        self._keeps = self._stores = keep  # what is downloaded
        self._hit: CachedFile | None = None
        self._filling: CachedFileWriter | None = None
        self._pieces = dict[int, memoryview]()  # of a small object

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read a range as the store does, from the cache if possible."""
        answer = None
        with self._lock:
            if not self._is_looked_up:
                answer = self._look_up(path, start, end)
                self._is_looked_up = True
        if answer is None:
            view = self._cached_view(start, end)
            if view is not None:
                assert self._num_bytes is not None
                return Answer(start, start + len(view), self._num_bytes, self._etag, single_chunk(view))
            answer = self._store.read(path, start, end, etag)
        if self._stores:
            self._note_version(answer)
        return answer

    def find(self, path: str) -> Entry | None:
        """Find the object as the store does, for errors."""
        return self._store.find(path)

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """List as the store does, for errors. Stores without folders raise ``AttributeError``."""
        page: Page = self._store.list_after(prefix, recursive=recursive, after=after, limit=limit)  # type: ignore[attr-defined]
        return page

    def _look_up(self, path: str, start: int, end: int | None) -> Answer | None:
        """Find the object in the cache; return the response of the store if it sent one that has other bytes."""
        if isinstance(self._store, LocalStore):
            # A program may write to a file and then set its modification time back
            change = self._store.change_of(path)
            if self._etag is None:
                entry = self._store.stat(path)
                self._num_bytes, self._etag = entry.size, entry.etag
            self._version = f"{self._etag} {change}"
        else:
            self._version = self._etag
        hit = self._cache.find(self._name, self._num_bytes, self._version)
        if hit is None:
            return None
        answer = None
        if self._version is None:
            answer, is_same = self._confirm(hit, path, start, end)
            if not is_same:
                self._cache.drop(hit)
                return answer
            self._version = self._etag = hit.version
        self._num_bytes, self._stores = hit.size, False
        self._hit = None if self._closed else hit
        return None

    def _confirm(self, hit: CachedFile, path: str, start: int, end: int | None) -> tuple[Answer | None, bool]:
        """Ask the store whether the object still has the version that is cached: by the GET that would read it."""
        if isinstance(self._store, ConditionalStore):
            answer = self._store.read_if_changed(path, start, end, hit.version)
            return answer, answer is None
        entry = self._store.stat(path)
        return None, (entry.size, entry.etag) == (hit.size, hit.version)

    def _note_version(self, answer: Answer) -> None:
        """Learn the version from the first response; store nothing if it is not that of all of them."""
        with self._lock:
            is_same = self._num_bytes in (None, answer.total_bytes)
            if answer.etag is None:
                say_uncached(self._url)
            elif self._etag is None and is_same:
                self._etag = self._version = answer.etag
            self._num_bytes = answer.total_bytes if self._num_bytes is None else self._num_bytes
            if not is_same or answer.etag is None or not same_etag(answer.etag, self._etag):
                self._stop_storing()
        if answer.total_bytes == 0:
            self.keep(0, memoryview(b""))

    def _cached_view(self, start: int, end: int | None) -> memoryview | None:
        """Return the bytes from the cache; ``None`` on a miss, or if they are damaged."""
        hit = self._hit
        if hit is None:
            return None
        try:
            view = hit.read(start, end)
        except DamagedError as error:
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
                self._stores = self._keeps and not self._served and not self._closed

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

    def keep(self, start: int, piece: memoryview) -> None:
        """Store verified bytes from ``start`` on; each byte once."""
        if not self._stores:
            return
        assert self._num_bytes is not None
        assert self._version is not None
        try:
            if self._num_bytes <= SMALL_BYTES:
                self._collect(start, piece, self._num_bytes, self._version)
            else:
                self._write(start, piece, self._num_bytes, self._version)
        except OSError as error:
            self._stop_storing()
            self._cache.warn_once(f"{redact(self._url)} is not cached: {error}")

    def _collect(self, start: int, piece: memoryview, num_bytes: int, version: str) -> None:
        """Store a small object at once, when all of it is here."""
        if len(piece) < num_bytes:
            with self._lock:
                self._pieces[start] = piece
                if sum(map(len, self._pieces.values())) < num_bytes:
                    return
                piece = memoryview(b"".join(self._pieces[at] for at in sorted(self._pieces)))
        self._stop_storing()
        self._cache.put(self._name, version, piece)

    def _write(self, start: int, piece: memoryview, num_bytes: int, version: str) -> None:
        """Store a piece of a large object."""
        with self._lock:
            if self._filling is None and self._stores:
                self._filling = self._cache.fill(self._name, num_bytes, version)
                if self._filling is None or self._closed:  # by another thread
                    self._stop_storing()
            filling = self._filling
        if filling is not None and filling.write(start, piece):
            filling.commit()
            self._stop_storing()

    def _stop_storing(self) -> None:
        self._stores, self._filling = False, None
        self._pieces.clear()

    def close(self) -> None:
        """Release the file. Safe in a finalizer, and while other threads read."""
        self._closed, self._stores = True, False
        self._hit = self._filling = None


def say_uncached(url: str) -> None:
    """Warn, once for each host, of an object whose version is not known."""
    message = f"{redact(url)} is not cached: its server reports no etag or no size, by which a new version is seen."
    say("uncached", url, message, repeat_s=math.inf)
