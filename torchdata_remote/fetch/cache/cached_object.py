"""Read an object through the disk cache: a hit sends no GET, a miss is stored while it is downloaded."""

from __future__ import annotations

import logging
import math
import threading
from typing import Any

from ...core.notices import say
from ...core.urls import redact, same_etag
from ...storage import Answer, ConditionalStore, Store, single_chunk
from .disk_cache import DiskCache
from .files import CachedFile, CachedFileWriter, DamagedError

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
        self._store, self._cache, self._url, self._name = store, cache, url, f"{server}\n{url}"
        self._num_bytes, self._etag = size, etag
        self._lock = threading.RLock()  # shared by threads that fetch parts
        self._is_looked_up = store.maps_files  # local files are not cached
        self._stores = keep and not store.maps_files  # what is downloaded
        self._closed = False
        self._hit: CachedFile | None = None
        self._filling: CachedFileWriter | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)  # what the store says, for errors

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read a range as the store does, from the cache if possible."""
        answer, is_asked = None, False
        with self._lock:
            if not self._is_looked_up:
                is_asked = self._etag is None
                answer = self._look_up(path, start, end)  # again if it fails
                self._is_looked_up = True
            hit = self._hit
        if hit is not None:
            try:
                view = hit.read(start, end)
                chunks = single_chunk(view)
                return Answer(start, start + len(view), hit.size, self._etag, chunks, is_cached=not is_asked)
            except DamagedError as error:
                self._drop(hit, str(error))
        if answer is None:
            answer = self._store.read(path, start, end, etag)
        if self._stores:
            self._note_version(answer)
        return answer

    def _look_up(self, path: str, start: int, end: int | None) -> Answer | None:
        """Find the object in the cache; return the response of the store if it sent one that has other bytes."""
        hit = self._cache.find(self._name, self._num_bytes, self._etag)
        if hit is None:
            return None
        if self._etag is None:  # ask whether the object still has the version: by the GET that would read it
            if isinstance(self._store, ConditionalStore):
                answer = self._store.read_if_changed(path, start, end, hit.version)
                is_same = answer is None
            else:
                entry = self._store.stat(path)
                answer, is_same = None, (entry.size, entry.etag) == (hit.size, hit.version)
            if not is_same:
                self._cache.drop(hit.path)
                return answer
        self._etag, self._stores, self._hit = hit.version, False, hit
        return None

    def _note_version(self, answer: Answer) -> None:
        """Learn the version from the first response; store nothing if it is not that of all of them."""
        with self._lock:
            is_same = self._num_bytes in (None, answer.total_bytes) and same_etag(answer.etag, self._etag)
            if answer.etag is None:
                say_uncached(self._url)
            elif is_same:
                self._num_bytes, self._etag = answer.total_bytes, self._etag or answer.etag
            if answer.etag is None or not is_same:
                self._stop_storing()
        if answer.total_bytes == 0:
            self.keep(0, memoryview(b""))

    def _drop(self, hit: CachedFile, problem: str) -> None:
        """Remove a damaged object from the cache, where the next epoch stores it again."""
        _log.warning("%s is damaged in the cache, and fetched: %s (%s)", redact(self._url), problem, hit.path)
        self._cache.drop(hit.path)
        self._hit = None

    def distrust(self) -> bool:
        """Remove an object whose bytes are wrong although they match the cache's checksums.

        Returns:
            Whether it was read from the cache: then reading again returns the bytes of the store.
        """
        hit = self._hit
        if hit is not None:
            self._drop(hit, "it does not match the checksum of its manifest")
        return hit is not None

    def keep(self, start: int, piece: memoryview) -> None:
        """Store verified bytes from ``start`` on; each byte once."""
        if not self._stores:
            return
        num_bytes, version = self._num_bytes, self._etag
        assert num_bytes is not None
        assert version is not None
        try:
            with self._lock:
                if self._filling is None and self._stores:
                    self._filling = self._cache.fill(self._name, num_bytes, version)
                filling = self._filling
            if filling is None or self._closed or filling.write(start, piece):
                self._stop_storing()
        except OSError as error:
            self._stop_storing()
            self._cache.warn_once(self._name, str(error))

    def _stop_storing(self) -> None:
        self._stores, self._filling = False, None

    def close(self) -> None:
        """Release the file. Safe in a finalizer, and while other threads read."""
        self._closed = True
        self._stop_storing()
        self._hit = None


def say_uncached(url: str) -> None:
    """Warn, once for each host, of an object whose version is not known."""
    message = f"{redact(url)} is not cached: its server reports no etag or no size, by which a new version is seen."
    say("uncached", url, message, repeat_s=math.inf)
