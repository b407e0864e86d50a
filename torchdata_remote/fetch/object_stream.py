"""Read an object, or a view of shards, as a sequential binary file while it is downloaded."""

from __future__ import annotations

import io
import sys
from abc import abstractmethod
from collections.abc import Iterator

from ..core.urls import RemoteUrl, redact
from .downloads import ObjectDownload
from .engine import Lane
from .views import selected_in

_NOTHING = memoryview(b"")


class PieceStream(io.BufferedIOBase):
    """A sequential binary file over consecutive pieces of bytes. Not seekable.

    ``parts()`` yields the pieces without a copy.

    Attributes:
        url: of what is read.
        number: of it among the objects of its pipe; ``None`` if their order cannot be repeated.
        first_byte: the first byte that is read.
        last_byte: the byte after the last one that is read; ``None`` for the object's end.
    """

    __slots__ = ("_is_closed", "_position", "_view", "first_byte", "last_byte", "number", "url")

    def __init__(self, url: str, number: int | None, start: int, stop: int | None) -> None:
        self.url, self.number, self.first_byte, self.last_byte = url, number, start, stop
        self._position, self._is_closed = start, False
        self._view = _NOTHING  # the unread rest of the current piece

    @abstractmethod
    def _advance(self) -> bool:
        """Make the next piece current; ``False`` at the end."""

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"{redact(self.url)}: read from a closed stream.")

    def parts(self) -> Iterator[memoryview]:
        """Yield the rest of the object in consecutive pieces of any length, without a copy."""
        self._check_open()
        while self._view or self._advance():
            view, self._view = self._view, _NOTHING
            self._position += len(view)
            if view:
                yield view

    def whole(self) -> bytes:
        """Read the rest."""
        return self.read()

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
        """Return the next bytes without advancing."""
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

    @property
    def closed(self) -> bool:
        """Whether the stream is closed."""
        return self._is_closed

    def close(self) -> None:
        self._is_closed = True  # a slot: that of the base class would be an entry of a dictionary for each object


class ObjectStream(PieceStream):
    """Reads one object in order while it is downloaded. It stays readable after its pipe has moved on or ended.

    Args:
        lane: downloads it.
        url: of the object; a ``RemoteUrl`` with size and etag saves a request.
        number: of the object among those of its pipe; ``None`` if their order cannot be repeated.
        start: the first byte to read.
        stop: the byte after the last one to read; ``None`` for the object's end.
    """

    __slots__ = ("_lane", "_next_byte", "_piece_bytes", "_released", "download")

    def __init__(
        self, lane: Lane, url: str, number: int | None = None, start: int = 0, stop: int | None = None
    ) -> None:
        self._released, self._is_closed = True, False  # nothing to release if the URL cannot be opened
        self._lane, self.download = lane, lane.open(url, start, stop)
        self._released = False
        super().__init__(self.download.url, number, start, stop)
        self._piece_bytes = 0  # length of the current piece
        self._next_byte = self.download.first_byte  # of the next piece: parts of checked blocks may begin before start

    @property
    def num_bytes(self) -> int | None:
        """Length of the object; ``None`` before the first response if the listing did not report it."""
        return self.download.size

    def place_of(self, byte: int) -> tuple[RemoteUrl, int]:
        """Return the object that has a byte of this stream, and where the byte is there."""
        return self.download.place_of(byte)

    def _advance(self) -> bool:
        """Make the next piece current; ``False`` at the end."""
        if self._released:
            return False
        consumed_bytes, self._piece_bytes = self._piece_bytes, 0
        piece = self._lane.next_piece(self.download, consumed_bytes)
        if piece is None:
            self._release()
            return False
        self._piece_bytes = len(piece)
        if self._next_byte < self.first_byte or self.last_byte is not None:
            piece = self._cut_to_range(piece)
        self._view = piece
        return True

    def _cut_to_range(self, piece: memoryview) -> memoryview:
        start, end = self._next_byte, self._next_byte + len(piece)
        self._next_byte = end
        stop = end if self.last_byte is None else min(end, self.last_byte)
        return piece[max(0, self.first_byte - start) : max(0, stop - start)]

    def whole(self) -> bytes:
        """Read the rest of the object."""
        self._check_open()
        if self._view or not self._advance():
            return self.read()
        piece, self._view = self._view, _NOTHING
        self._position += len(piece)
        if self._position != self.num_bytes or self.last_byte is not None:
            return b"".join([piece, self.read()])
        self._release()
        return bytes(piece)

    def find_num_bytes(self) -> int:
        """Return the length of the object; waits for the first response if the listing did not report it."""
        self._check_open()
        while self.num_bytes is None and not self._view and self._advance():
            pass
        assert self.num_bytes is not None  # every response reports it
        return self.num_bytes

    def read_range(self, start: int, end: int) -> bytes:
        """Read bytes ``start`` to ``end`` (exclusive) by a separate request; the sequential position stays."""
        num_bytes, download = self.find_num_bytes(), self.download
        if not isinstance(download, ObjectDownload):
            raise io.UnsupportedOperation(f"{redact(self.url)} is read in order only.")
        self._lane.require_own_process(self.url)
        block = download.checksums.block_bytes if download.checksums is not None else 1
        first, last = start - start % block, min(end + -end % block, num_bytes)
        return b"".join(download.read_range(self._lane, first, last))[start - first : end - first]

    def _release(self) -> None:
        if not self._released:
            self._released = True
            self._view = _NOTHING
            self._lane.close(self.download)

    def close(self) -> None:
        super().close()
        self._release()


class ViewStream(ObjectStream):
    """Reads the bytes of selected samples in order. Positions are those of the whole view, also in a part of it.

    Args:
        lane: downloads it.
        url: of the view.
        number: of the view among the objects of its pipe; ``None`` if their order cannot be repeated.
        start: the first byte to read.
        samples: number of the first sample, and of the one after the last; ``None`` for all.

    Raises:
        UrlError: if the view has no such samples, or its URL was changed.
    """

    __slots__ = ("selected",)

    def __init__(self, lane: Lane, url: str, number: int | None, start: int, samples: tuple[int, int] | None) -> None:
        self._released, self._is_closed = True, False  # nothing to release if the URL is refused
        self.selected = selected_in(url, samples)
        super().__init__(lane, url, number, max(start, self.selected.first_byte), self.selected.last_byte)
