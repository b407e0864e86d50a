"""Read small local files in the thread of their consumer, and large or slow ones as objects of other stores."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Generator, Iterator
from itertools import chain, islice

from ..core.local_view import MAP_FROM_BYTES
from ..core.notices.slow_notice import QUIET_S, Wait
from ..core.shard_view import is_view
from ..core.stats.counters import FETCH
from ..core.urls import LOCAL, RemoteUrl, split_sample_range, split_url
from ..storage import LocalStore, open_store, version_of
from .engine import Lane
from .object_stream import ObjectStream, PieceStream
from .session import FetchSession, connection_of

_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0)
# Longer than reading from the page cache takes, and no longer than a thread costs
_SLOW_S = 0.0005
_MAX_SLOW = 6
_FETCHED_IF_SLOW = 1024  # files that are fetched ahead by threads until the next one is read here again

_NOTHING = memoryview(b"")

Numbered = tuple[int, str, int]  # number of an object, its URL, the first byte to read


class LocalFiles:
    """Reads files at once, for one iteration, and notices when that takes long.

    Reading a small file from the page cache takes less time than to hand it to another thread. Files that take longer
    (a cold disk, a network mount) are fetched ahead by the threads of the session.

    Args:
        session: for what is not read here.
    """

    def __init__(self, session: FetchSession) -> None:
        self.session = session
        self._wait = Wait("", lambda: "The file system does not answer: is it a network mount?", quiet_s=QUIET_S)
        self._is_refused = False
        self._slow = 0  # two for each slow file, minus one for each other

    @property
    def are_slow(self) -> bool:
        """Whether threads should fetch the next files ahead."""
        return self._slow >= _MAX_SLOW

    def try_again(self) -> None:
        """Read files here again; one slow file is enough to stop it."""
        self._slow = _MAX_SLOW - 2

    def path_of(self, url: str) -> str | None:
        """Return the path of a file that may be read here; ``None`` for large files, and for all other objects."""
        if self._is_refused or is_view(url) or split_sample_range(url)[1] is not None:
            return None
        size, checksums = (url.size, url.checksums) if isinstance(url, RemoteUrl) else (None, None)
        if checksums is not None:
            return None
        scheme, _, path = split_url(url)
        if scheme not in LOCAL:
            return None
        session = self.session
        if session.reads_local_files is None:
            store, _ = open_store(url, session.storage_options, connection_of(session.options))
            session.reads_local_files = isinstance(store, LocalStore)
        if not session.reads_local_files:
            self._is_refused = True
            return None
        if size is None:
            with contextlib.suppress(OSError):
                status = os.stat(path)
                if not stat.S_ISREG(status.st_mode):  # opening a FIFO waits for a writer
                    return None
                size = status.st_size
        return path if size is None or size < MAP_FROM_BYTES else None

    def read(self, url: str, path: str) -> bytes | None:
        """Return the bytes of a file, or ``None`` if it cannot be read at once, for whatever reason."""
        began_s = time.perf_counter()
        self._wait.url, self._wait.since_s = url, time.monotonic()
        try:
            with self._wait:
                data = _read(url, path)
        except OSError:
            return None
        if data is not None:
            FETCH.worked(began_s, len(data), items=1, requests=1, wait=True)
            is_slow = time.perf_counter() - began_s > _SLOW_S
            self._slow = self._slow + 2 if is_slow else max(0, self._slow - 1)
        return data


def _read(url: str, path: str) -> bytes | None:
    listed, etag = (url.size, url.etag) if isinstance(url, RemoteUrl) else (None, None)
    file = os.open(path, _FLAGS)
    try:
        status = os.fstat(file)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode) or size >= MAP_FROM_BYTES or size != (size if listed is None else listed):
            return None
        if etag is not None and etag != version_of(status):
            return None
        data = os.read(file, size)
        return data if len(data) == size else None
    finally:
        os.close(file)


class FileStream(ObjectStream):
    """A small local file, read as a whole when its first byte is asked for.

    One that cannot be read at once becomes a stream of the session's threads, with their errors and retries.

    Args:
        files: reads it.
        url: of the file.
        path: of the file.
        number: of the file among those of its pipe; ``None`` if their order cannot be repeated.
    """

    __slots__ = ("_data", "_files", "_is_fetched", "_listed", "_path", "_size")

    def __init__(self, files: LocalFiles, url: str, path: str, number: int | None) -> None:
        self._files, self._listed, self._path = files, url, path
        PieceStream.__init__(self, str(url), number, 0, None)
        self._size = url.size if isinstance(url, RemoteUrl) else None
        self._data: bytes | None = None
        self._released, self._is_fetched, self._piece_bytes = True, False, 0

    @property
    def num_bytes(self) -> int | None:
        return self.download.size if self._is_fetched else self._size

    def whole(self) -> bytes:
        self._check_open()
        if self._position == 0 and self._load():
            assert self._data is not None
            self._position, self._view = len(self._data), _NOTHING
            return self._data
        return super().whole()

    def _load(self) -> bool:
        """Read the file, if it was not; returns whether it is here, or fetched by threads."""
        if self._data is None and not self._is_fetched:
            self._data = self._files.read(self._listed, self._path)
            if self._data is None:
                self._fetch()
            else:
                self._size, self._view = len(self._data), memoryview(self._data)
        return self._data is not None

    def _fetch(self) -> None:
        self._is_fetched = True
        lane = Lane(self._files.session)
        try:
            super().__init__(lane, self._listed, self.number)
        finally:
            lane.release()
        FETCH.add(items=1)

    def _advance(self) -> bool:
        if self._is_fetched:
            return super()._advance()
        if self._data is not None:  # all of it was the only piece
            return False
        return bool(self._view) if self._load() else super()._advance()

    def place_of(self, byte: int) -> tuple[RemoteUrl, int]:
        listed = self._listed
        return listed if isinstance(listed, RemoteUrl) else RemoteUrl(listed, self.num_bytes), byte

    def read_range(self, start: int, end: int) -> bytes:
        """Read bytes ``start`` to ``end`` (exclusive); the sequential position stays."""
        self._check_open()
        if not self._load():
            return super().read_range(start, end)
        assert self._data is not None
        return self._data[start:end]

    def close(self) -> None:
        self._data = b""
        super().close()


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
        if files.are_slow:
            files.try_again()
            return chain([item], islice(source, _FETCHED_IF_SLOW - 1)), source
        yield url, FileStream(files, url, path, number if in_order else None)
    return nothing, nothing
