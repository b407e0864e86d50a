"""An object as a stream: file-like, in order."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

from ..core.urls import redact
from .scheduler import PartScheduler


class ObjectStream(io.BufferedIOBase):
    """The bytes of one object, in order, while they arrive. Not seekable.

    It stays readable after the pipe that gave it went on or ended. ``parts()`` hands on what came without copying it.

    Args:
        fetcher: the engine that reads it.
        url: of the object; a ``RemoteUrl`` saves a request where it tells size and etag.
        number: of the object among those of its pipe; ``None`` where their order cannot be repeated.
        start: the first byte that is wanted.
        stop: behind the last byte that is wanted; ``None`` for all that follow.
    """

    def __init__(
        self, fetcher: PartScheduler, url: str, number: int | None = None, start: int = 0, stop: int | None = None
    ) -> None:
        self._released = True  # nothing to release if the URL cannot be opened
        self._fetcher, self.target = fetcher, fetcher.open(url, start, stop)
        self._released = False
        self.number = number
        self._piece_bytes = 0  # length of the current piece
        self._view = memoryview(b"")  # of the current piece, what is not yet read
        self._position = start
        self._at = self.target.first_byte  # where the next piece begins, which may be before what is wanted

    @property
    def url(self) -> str:
        """Where the bytes come from."""
        return self.target.url

    @property
    def first_byte(self) -> int:
        """The first byte that is handed on."""
        return self.target.start

    @property
    def last_byte(self) -> int | None:
        """Behind the last byte that is handed on; ``None`` for the object's end."""
        return self.target.stop

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
        self._piece_bytes = len(piece)
        if self._at < self.target.start or self.target.stop is not None:
            self._at += len(piece)
            piece = self._wanted(piece)
        self._view = piece
        return True

    def _wanted(self, piece: memoryview) -> memoryview:
        """Of a piece, what lies within ``start`` and ``stop``."""
        began = self._at - len(piece)
        stop = self._at if self.target.stop is None else min(self._at, self.target.stop)
        return piece[max(0, self.target.start - began) : max(0, stop - began)]

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
        """Bytes that come next, without moving on."""
        self._check_open()
        while not self._view and self._advance():
            pass
        return bytes(self._view[: max(size, 8192)])

    def readline(self, size: int | None = -1, /) -> bytes:
        left = sys.maxsize if size is None or size < 0 else size
        line = b""
        while left and not line.endswith(b"\n") and (head := self.peek()[:left]):
            length = head.find(b"\n") + 1 or len(head)
            line += self.read(length)
            left -= length
        return line

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
