"""Read small local files in the thread of their consumer, and large or slow ones as objects of other stores."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from itertools import chain, islice

from ..core.files import MAP_FROM_BYTES
from ..core.notices import Wait
from ..core.options import Backend
from ..core.shard_view import is_view
from ..core.stats import FETCH
from ..core.urls import LOCAL, RemoteUrl, split_sample_range, split_url
from ..storage import version_of
from .engine import Lane
from .object_stream import ObjectStream
from .session import FetchSession

# Longer than reading from the page cache takes, and no longer than a thread costs
_SLOW_S = 0.0005
_MAX_SLOW = 6
_FETCHED_IF_SLOW = 1024  # files that are fetched ahead by threads until the next one is read here again

Numbered = tuple[int, str, int]  # number of an object, its URL, the first byte to read


class LocalFiles:
    """Reads files at once, for one iteration, and notices when that takes long.

    Reading a small file from the page cache takes less time than to hand it to another thread. Files that take longer
    (a cold disk, a network mount) are fetched ahead by the threads of the session.

    Attributes:
        slow: two for each slow file, minus one for each other.

    Args:
        session: for what is not read here.
    """

    def __init__(self, session: FetchSession) -> None:
        self.session, self.slow = session, 0
        self._wait = Wait("", "The file system does not answer: is it a network mount?")

    def path_of(self, url: str) -> str | None:
        """Return the path of a file that may be read here; ``None`` for large files, and for all other objects."""
        if is_view(url) or split_sample_range(url)[1] is not None:
            return None
        scheme, _, path = split_url(url)
        if scheme not in LOCAL:
            return None
        session = self.session
        if session.options.backend is not Backend.AUTOMATIC or session.storage_options.for_url(url):
            return None  # which fsspec reads
        size, checksums = (url.size, url.checksums) if isinstance(url, RemoteUrl) else (None, None)
        if size is None and os.path.isfile(path):  # opening a FIFO waits for a writer
            size = os.path.getsize(path)
        return path if checksums is None and size is not None and size < MAP_FROM_BYTES else None

    def read(self, url: str, path: str) -> bytes | None:
        """Return the bytes of a file, or ``None`` if it cannot be read at once, for whatever reason."""
        began_s = time.perf_counter()
        self._wait.url = url
        size, etag = (url.size, url.etag) if isinstance(url, RemoteUrl) else (None, None)
        try:
            with self._wait, open(path, "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                if size not in (None, status.st_size) or etag not in (None, version_of(status)):
                    return None
                data = file.read(min(status.st_size, MAP_FROM_BYTES))
        except OSError:
            return None
        if len(data) != status.st_size:
            return None
        FETCH.worked(began_s, len(data), items=1, requests=1, wait=True)
        self.slow = self.slow + 2 if time.perf_counter() - began_s > _SLOW_S else max(0, self.slow - 1)
        return data


class FileStream(ObjectStream):
    """A small local file, read as a whole when its first byte is asked for.

    One that cannot be read at once becomes a stream of the session's threads, with their errors and retries.

    Args:
        files: reads it.
        url: of the file.
        path: of the file.
        number: of the file among those of its pipe; ``None`` if their order cannot be repeated.
    """

    __slots__ = ("_data", "_files", "_is_unread", "_listed", "_path")

    def __init__(self, files: LocalFiles, url: str, path: str, number: int | None) -> None:
        self._files, self._listed, self._path = files, url, path
        self._data: bytes | None = None
        self._is_unread = True
        self._describe(str(url), number, 0, None)

    def _load(self) -> bytes | None:
        """Read the file, if it was not; ``None`` if threads fetch it."""
        if self._is_unread:
            self._data = self._files.read(self._listed, self._path)
            if self._data is not None:
                self._is_unread = False
                self._view = memoryview(self._data)
                return self._data
            lane = Lane(self._files.session)
            try:
                super().__init__(lane, self._listed, self.number)
            finally:
                lane.release()
            self._is_unread = False
            FETCH.add(items=1)
        return self._data

    @property
    def num_bytes(self) -> int | None:
        if self._data is not None:
            return len(self._data)
        if not self._is_unread:
            return super().num_bytes
        return self._listed.size if isinstance(self._listed, RemoteUrl) else None

    def whole(self) -> bytes:
        self._check_open()
        data = self._load()
        if data is None:
            return super().whole()
        start, self._position, self._view = self._position, len(data), memoryview(b"")
        return data[start:]  # of all, the same object

    def _advance(self) -> bool:
        if self._is_unread and self._load() is not None:
            return bool(self._view)
        return self._data is None and super()._advance()

    def place_of(self, byte: int) -> tuple[RemoteUrl, int]:
        listed = self._listed
        return listed if isinstance(listed, RemoteUrl) else RemoteUrl(listed, self.num_bytes), byte

    def close(self) -> None:
        if self._data is None and not self._is_unread:
            super().close()
        self._is_closed, self._view = True, memoryview(b"")

    def read_range(self, start: int, end: int) -> bytes:
        """Read bytes ``start`` to ``end`` (exclusive); the sequential position stays."""
        self._check_open()
        data = self._load()
        return super().read_range(start, end) if data is None else data[start:end]


def stream_files(
    files: LocalFiles, source: Iterator[Numbered], *, in_order: bool
) -> Generator[tuple[str, FileStream], None, tuple[Iterator[Numbered], Iterator[Numbered]]]:
    """Yield streams of small local files, until an object has to be fetched.

    Args:
        files: reads them.
        source: of the objects.
        in_order: whether streams have numbers.

    Returns:
        The next objects, to be fetched by threads, and those after them, to be read here again.
    """
    nothing: Iterator[Numbered] = iter(())
    for item in source:
        number, url, start = item
        path = files.path_of(url) if start == 0 else None
        if path is None:
            return chain([item], source), nothing
        if files.slow >= _MAX_SLOW:
            files.slow = _MAX_SLOW - 2  # one slow file is enough to stop it again
            return chain([item], islice(source, _FETCHED_IF_SLOW - 1)), source
        yield url, FileStream(files, url, path, number if in_order else None)
    return nothing, nothing
