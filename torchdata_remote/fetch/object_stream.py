"""Read an object, or a view of shards, as a sequential binary file while it is downloaded."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from functools import partial

from ..core.shard_view import split_view_url
from ..core.urls import LineRange, RemoteUrl, redact, split_sample_range
from ..errors import StorageError
from ..formats.nested import is_archive_name
from .cache.cached_object import CachedObject
from .engine import Download, Lane, Part
from .ranges import ObjectReader
from .sample_ranges import wanted_bytes
from .views import SelectedSamples, ViewDownload, selected_in

_NOTHING = memoryview(b"")


class ObjectDownload(Download):
    """One object, or a range of it.

    Attributes:
        reader: of its bytes.

    Args:
        lane: downloads it.
        url: a ``RemoteUrl`` brings size and etag.
        start: the first byte to read.
        stop: the byte after the last one to read; ``sys.maxsize`` for the object's end.
        checked: whether checksums that a manifest has are verified: parts are whole blocks then.
    """

    def __init__(self, lane: Lane, url: str, start: int, stop: int, *, checked: bool) -> None:
        self._start, self._end, self.reader = start, stop, lane.reader(url)
        reader, block_bytes = self.reader, 1
        if checked and isinstance(url, RemoteUrl) and url.checksums is not None:
            reader.checksums, block_bytes = url.checksums, url.checksums.block_bytes
        super().__init__(lane, start, stop, reader.size, block_bytes)
        self.url, cache, self._cached = reader.url, lane.running.cache, None
        self.mapped, self.may_be_small = reader.store.maps_files, not is_archive_name(reader.path)  # a shard is large
        if cache is not None and not self.mapped:
            whole, server = (start, stop) == (0, sys.maxsize), lane.session.storage_options.for_url(url).server()
            self._cached = CachedObject(
                reader.store, cache, self.url, reader.listed_size, reader.etag, keep=whole, server=server
            )
            reader.send, reader.on_damage = self._cached.read, self._cached.distrust

    def fetch(self, request: None, part: Part) -> None:
        at, cached = part.start, self._cached
        for piece in self.reader.pieces(at, part.end, on_found=partial(self._found, part)):
            if cached is not None:
                cached.keep(at, piece)
            # Parts of checked blocks may begin before the first byte, and end behind the last one
            part.pieces.put(piece[max(0, self._start - at) : max(0, self._end - at)])
            at += len(piece)

    def _found(self, part: Part, size: int, end: int) -> None:
        if (size, end) != (self.size, part.end):
            self.lane.learn(self, part, size, end)

    def place_of(self, byte: int) -> tuple[ObjectReader, int, int]:
        """Return the reader of a byte, the byte's place there, and the end of the bytes that follow it there."""
        return self.reader, byte, sys.maxsize

    def close(self) -> None:
        super().close()
        self.reader.closed = True
        if self._cached is not None:
            self._cached.close()


class ObjectStream(io.BufferedIOBase):
    """Reads one object in order while it is downloaded. It stays readable after its pipe has moved on or ended.

    Not seekable. Positions in a view, and in a part of one, are those of the whole view.

    Attributes:
        url: of what is read.
        number: as below.
        first_byte: the first byte that is read.
        last_byte: the byte after the last one that is read; ``None`` for the object's end.
        download: of its bytes.
        selected: of a view, what is compared with the samples that are found; other streams have no such attribute.

    Args:
        lane: downloads it.
        url: of an object or a view, or of some samples of it; a ``RemoteUrl`` with size and etag saves a request.
        number: of the object among those of its pipe; ``None`` if their order cannot be repeated.
        start: the first byte to read.

    Raises:
        UrlError: if a view has no such samples.
        ManifestError: if samples of a shard are wanted that has no index.
    """

    __slots__ = (
        "_is_closed",
        "_lane",
        "_piece_bytes",
        "_position",
        "_view",
        "download",
        "first_byte",
        "last_byte",
        "number",
        "selected",
        "url",
    )
    most_ahead = sys.maxsize
    """Bytes that the lane downloads."""

    selected: SelectedSamples
    download: ObjectDownload | ViewDownload

    def __init__(self, lane: Lane, url: str, number: int | None = None, start: int = 0) -> None:
        self._is_closed = True  # nothing to close if the URL cannot be opened
        whole, samples = split_sample_range(url)
        shard, view = split_view_url(whole)
        stop = None
        if view is not None:
            self.selected = selected_in(whole, samples)
            start, stop = max(start, int(self.selected.starts[0])), int(self.selected.starts[-1])
        elif isinstance(whole, LineRange):
            (shard,), (first, stop) = whole.shards, samples or (0, None)
            start = max(start, first)
        elif samples is not None:
            first, stop = wanted_bytes(whole, samples, lane.session.storage_options, lane.options.retry)
            start = max(start, first)
        end = min(sys.maxsize if stop is None else stop, start + self.most_ahead)
        if view is not None:
            self.download = lane.add(ViewDownload(lane, view, start, end))
        else:
            self.download = lane.add(ObjectDownload(lane, shard, start, end, checked=self.most_ahead == sys.maxsize))
        self._lane, self._piece_bytes = lane, 0  # length of the current piece
        self._describe(self.download.url, number, start, stop)

    def _describe(self, url: str, number: int | None, start: int, stop: int | None) -> None:
        self.url, self.number, self.first_byte, self.last_byte = url, number, start, stop
        self._position, self._is_closed = start, False
        self._view = _NOTHING  # the unread rest of the current piece

    @property
    def num_bytes(self) -> int | None:
        """Length of the object; ``None`` before the first response if the listing did not report it."""
        return self.download.size

    def place_of(self, byte: int) -> tuple[RemoteUrl, int]:
        """Return the object that has a byte of this stream, and where the byte is there."""
        reader, place, _ = self.download.place_of(byte)
        return reader.version, place

    def _advance(self) -> bool:
        """Make the next piece current; ``False`` at the end."""
        if self.download.closed:
            return False
        consumed_bytes, self._piece_bytes = self._piece_bytes, 0
        is_read = consumed_bytes and self._position == (self.last_byte or self.num_bytes)
        piece = None if is_read else self._lane.next_piece(self.download, consumed_bytes)
        if piece is None:
            self._lane.close(self.download)
            if self.most_ahead == sys.maxsize and self._position < (self.last_byte or self.num_bytes or 0):
                raise StorageError(f"{redact(self.url)} ended at byte {self._position:,}.", url=redact(self.url))
            return False
        self._piece_bytes = len(piece)
        self._view = piece
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"{redact(self.url)}: read from a closed stream.")

    def _fill(self) -> bool:
        """Let the current piece have bytes; ``False`` at the end."""
        self._check_open()
        while not self._view and self._advance():
            pass
        return bool(self._view)

    def _take(self, num_bytes: int) -> memoryview:
        piece = self._view[:num_bytes]
        self._view = self._view[len(piece) :] or _NOTHING
        self._position += len(piece)
        return piece

    def parts(self) -> Iterator[memoryview]:
        """Yield the rest of the object in consecutive pieces of any length, without a copy."""
        while self._fill():
            yield self._take(len(self._view))

    def whole(self) -> bytes:
        """Read the rest."""
        if self._fill() and self._position + len(self._view) == (self.last_byte or self.num_bytes):
            data = bytes(self._take(len(self._view)))  # one piece, as of a small object
            self._lane.close(self.download)
            return data
        return self.read()

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return b"".join(self.parts())
        self._check_open()
        pieces: list[memoryview] = []
        while size and self._fill():
            pieces.append(self._take(size))
            size -= len(pieces[-1])
        return b"".join(pieces)

    def read1(self, size: int = -1, /) -> bytes:
        self._fill()
        return bytes(self._take(len(self._view) if size < 0 else size))

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        if size is not None and 0 <= size < len(line):  # where pieces are short, Python passes over its limit
            self._view = memoryview(line[size:] + bytes(self._view))
            self._position -= len(line) - size
        return line if size is None or size < 0 else line[:size]

    def peek(self, size: int = 0, /) -> bytes:
        """Return the next bytes without advancing."""
        self._fill()
        return bytes(self._view[: max(size, 8192)])

    @property
    def closed(self) -> bool:
        """Whether the stream is closed."""
        return self._is_closed

    def find_num_bytes(self) -> int:
        """Return the length of the object; waits for the first response if the listing did not report it."""
        if self.num_bytes is None:
            self._fill()
        assert self.num_bytes is not None  # every response reports it
        return self.num_bytes

    def read_range(self, start: int, end: int) -> bytes:
        """Read bytes ``start`` to ``end`` (exclusive) by a separate request; the sequential position stays."""
        num_bytes, download = self.find_num_bytes(), self.download
        assert isinstance(download, ObjectDownload)  # readers of whole objects refuse views
        self._lane.require_own_process(self.url)
        first, last = start - start % download.block_bytes, min(end + -end % download.block_bytes, num_bytes)
        return download.reader.read(first, last)[start - first : end - first]

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed, self._view = True, _NOTHING
            self._lane.close(self.download)
