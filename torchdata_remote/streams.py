"""Objects as streams: file-like, in order, the next ones under way."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from typing import Any

from .errors import RemoteDataError
from .fetch import Fetcher
from .fetched_object import FetchedObject
from .options import FetchOptions, StorageOptions
from .urls import redact

_OBJECTS_AHEAD = 16  # times max_in_flight: enough for a consumer that takes a batch at a time


class ObjectStream(io.BufferedIOBase):
    """The bytes of one object, in order, while they arrive. Not seekable.

    It stays readable after the pipe that gave it went on or ended. ``parts()`` hands on what came without copying it.

    Args:
        fetcher: the engine that reads it.
        url: of the object; a ``RemoteUrl`` saves a request where it tells size and etag.
    """

    def __init__(self, fetcher: Fetcher, url: str) -> None:
        self._released = True  # nothing to release if the URL cannot be opened
        self._fetcher, self.target = fetcher, fetcher.open(url)
        self._released = False
        self._piece_bytes = 0  # length of the current piece
        self._view = memoryview(b"")  # of the current piece, what is not yet read
        self._position = 0

    @property
    def url(self) -> str:
        """Where the bytes come from."""
        return self.target.url

    @property
    def num_bytes(self) -> int | None:
        """Length of the object; ``None`` before the first answer where the listing did not tell."""
        return self.target.size

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{redact(self.url)}: read from a closed stream.")

    def _advance(self) -> bool:
        """Make the next piece current; ``False`` at the end."""
        if self._released:
            return False
        consumed_bytes, self._piece_bytes = self._piece_bytes, 0
        piece = self._fetcher.next_piece(self.target, consumed_bytes)
        if piece is None:
            self._release()
            return False
        self._view, self._piece_bytes = piece, len(piece)
        return True

    def parts(self) -> Iterator[memoryview]:
        """What is left of the object, in consecutive pieces of any length, without a copy."""
        self._check_open()
        while self._view or self._advance():
            view, self._view = self._view, memoryview(b"")
            self._position += len(view)
            if view:
                yield view

    def read(self, size: int | None = -1, /) -> bytes:
        self._check_open()
        limit = -1 if size is None else size
        pieces: list[memoryview] = []
        while limit and (self._view or self._advance()):
            piece = self._view if limit < 0 else self._view[:limit]
            self._view = self._view[len(piece) :]
            limit -= len(piece) if limit > 0 else 0
            self._position += len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    def read1(self, size: int = -1, /) -> bytes:
        while not self._view and self._advance():
            pass
        return self.read(len(self._view) if size < 0 else min(size, len(self._view)))

    def peek(self, size: int = 0, /) -> bytes:
        """Bytes that come next, without moving on; ``readline`` needs it to be fast."""
        self._check_open()
        while not self._view and self._advance():
            pass
        return bytes(self._view[: max(size, 8192)])

    def find_num_bytes(self) -> int:
        """Length of the object; waits for the first answer where the listing did not tell."""
        self._check_open()
        while self.num_bytes is None and not self._view and self._advance():
            pass
        assert self.num_bytes is not None  # every answer tells it
        return self.num_bytes

    def read_range(self, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end`` (exclusive), by a request of their own; what is read in order is not touched."""
        num_bytes, target = self.find_num_bytes(), self.target
        block = target.checksums.block_bytes if target.checksums is not None else 1
        first, last = start - start % block, min(end + -end % block, num_bytes)
        return b"".join(self._fetcher.read_range(target, first, last))[start - first : end - first]

    def _release(self) -> None:
        if not self._released:
            self._released = True
            self._view = memoryview(b"")
            self._fetcher.close_object(self.target)

    def close(self) -> None:
        self._release()
        super().close()


def stream_objects(
    urls: Iterable[str], options: FetchOptions, storage_options: StorageOptions
) -> Iterator[tuple[str, ObjectStream]]:
    """Each URL with a stream over its object, the next ones under way; in order, or as they are complete.

    Args:
        urls: pulled only from the thread that iterates.
        options: limits.
        storage_options: for the stores.
    """
    fetcher = Fetcher(options, storage_options)
    ahead: dict[FetchedObject, tuple[str, ObjectStream]] = {}  # in order
    try:
        source = iter(urls)
        ended: Exception | None = None
        num_ahead, most_ahead = 2 * options.max_in_flight, _OBJECTS_AHEAD * options.max_in_flight
        while True:
            while ended is None and (not ahead or (len(ahead) < num_ahead and fetcher.has_room())):
                try:
                    url = next(source)
                    stream = ObjectStream(fetcher, url)
                    ahead[stream.target] = url, stream
                except Exception as error:  # noqa: BLE001, PERF203  # what came before it is handed on first
                    ended = error
            num_ahead = min(num_ahead + 1, most_ahead)  # by and by, so that the first object need not wait for it
            if ahead:
                yield ahead.pop(next(iter(ahead)) if options.in_order else fetcher.next_ready())
            elif isinstance(ended, StopIteration):
                return
            elif ended is not None:
                raise ended
    finally:
        for _, stream in reversed(ahead.values()):  # the last first: none makes room for one that is closed next
            stream.close()
        fetcher.release()


def streams_of(
    items: Iterable[Any], options: FetchOptions, storage_options: StorageOptions
) -> Generator[tuple[str, Any], None, None]:
    """``(url, file_like)`` pairs as they come; bare URLs are opened here, ahead of time.

    Raises:
        RemoteDataError: if an item is neither.
    """
    source = iter(items)
    for first in source:
        if isinstance(first, str):
            yield from stream_objects(_only_urls(chain([first], source)), options, storage_options)
        else:
            yield from _only_pairs(chain([first], source))


def _only_urls(items: Iterable[Any]) -> Iterator[str]:
    for item in items:
        if not isinstance(item, str):
            raise RemoteDataError(f"Expected a URL, as before, got {type(item).__name__}: {item!r:.200}")
        yield item


def _only_pairs(items: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for item in items:
        if not (isinstance(item, tuple) and len(item) == 2 and hasattr(item[1], "read")):
            raise RemoteDataError(
                f"Expected a URL or a (url, file_like) pair, got {type(item).__name__}: {item!r:.200}"
            )
        yield item


def parts_of(url: str, stream: Any, piece_bytes: int = 1 << 20) -> Iterator[bytes | memoryview]:
    """The bytes of a file-like object in consecutive pieces; of an :class:`ObjectStream` without copying.

    Raises:
        RemoteDataError: if it was opened as text.
    """
    parts = getattr(stream, "parts", None)
    if parts is not None:
        yield from parts()
        return
    while piece := _read(url, stream, piece_bytes):
        yield piece


def _read(url: str, stream: Any, piece_bytes: int) -> bytes:
    try:
        piece = stream.read(piece_bytes)
    except UnicodeDecodeError as error:
        raise _opened_as_text(url) from error
    if isinstance(piece, str):
        raise _opened_as_text(url)
    data: bytes = piece
    return data


def _opened_as_text(url: str) -> RemoteDataError:
    return RemoteDataError(f"{redact(url)} was opened as text; open it with mode='rb'.", url=redact(url))
