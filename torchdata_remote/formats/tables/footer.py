"""Read what says where the row groups of a file are: the footer of Parquet, the messages of Arrow's two formats.

pyarrow tells neither where record batches are nor how many rows each has, without reading them. Source: "Arrow Columnar
Format", section "Serialization and Interprocess Communication (IPC)", with its files ``Message.fbs`` and ``File.fbs``,
and "FlatBuffers internals".
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import RemoteDataError, ShardReadError

PARQUET, ARROW, STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"

_TAIL_BYTES = 64 << 10  # of the first request: most footers are shorter
_WINDOW_BYTES = 256 << 10  # of each request that looks for messages
_MAX_FOOTER_BYTES = 256 << 20
_BLOCK = np.dtype([("offset", "<i8"), ("head_bytes", "<i4"), ("padding", "<i4"), ("body_bytes", "<i8")])
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3  # kinds of messages

Read = Callable[[int, int], bytes]


class Footer(NamedTuple):
    """What the row groups of a file are found by.

    Args:
        kind: of the file: ``PARQUET``, ``ARROW`` or ``STREAM``.
        data: last bytes of the file, from the footer on; of a stream, the message of its schema.
        num_bytes: of the file.
        messages: of Arrow, int64 of shape ``(num_messages, 4)``: first byte, the byte after the last one, number of
            rows, and whether it is a record batch (1) or a dictionary (0).
    """

    kind: bytes
    data: bytes
    num_bytes: int
    messages: npt.NDArray[np.int64]

    @property
    def memory_bytes(self) -> int:
        """Bytes that it takes."""
        return len(self.data) + self.messages.nbytes


@contextlib.contextmanager
def reading(url: str, what: str) -> Iterator[None]:
    """Turn the errors of pyarrow, and those of damaged numbers, into a ``ShardReadError``.

    Args:
        url: of the file, as errors may show it.
        what: is read: ``"the footer"``.

    Raises:
        ShardReadError: names the file and what was read.
    """
    import pyarrow as pa

    try:
        yield
    except RemoteDataError:
        raise
    # What pyarrow raises of Python's own, and what numbers lead to that are wrong
    except (pa.ArrowException, OSError, ValueError, TypeError, LookupError, RuntimeError, MemoryError, OverflowError,
            struct.error) as error:  # fmt: skip
        raise ShardReadError(
            f"{url}: {what} cannot be read: {type(error).__name__}: {str(error).rstrip('.'):.500}. The upload was cut "
            "short, or the file is damaged: write it again, or pass on_bad_shard=skip_with_warning to read on.",
            url=url,
        ) from error


def read_footer(read: Read, num_bytes: int, url: str) -> Footer:
    """Read the footer of a Parquet or Arrow file, which differ in their last bytes.

    The last 64 KiB of a file are read first, and the rest of a longer footer then. Arrow files and streams also need
    the head of each record batch, which are read one after the other, by 256 KiB.

    Args:
        read: returns bytes from the first to the second number (exclusive).
        num_bytes: of the file.
        url: as errors may show it.

    Raises:
        ShardReadError: if it is neither, or damaged.
    """
    with reading(url, "the footer"):
        first = max(0, num_bytes - _TAIL_BYTES)
        tail = read(first, num_bytes)
        for kind in (PARQUET, ARROW):
            if tail.endswith(kind):
                length = int.from_bytes(tail[: -len(kind)][-4:], "little")
                total = length + 4 + len(kind)
                if not 0 < length <= min(num_bytes - 4 - 2 * len(kind), _MAX_FOOTER_BYTES):
                    raise ValueError(f"its length is given as {length:,} bytes, in a file of {num_bytes:,} bytes")
                rest = read(num_bytes - total, first) if total > len(tail) else b""
                data = (rest + tail)[-total:]
                found = [] if kind == PARQUET else _of_blocks(data, num_bytes, _windowed(read, num_bytes, first, tail))
                return Footer(kind, data, num_bytes, _messages(found))
        window = _windowed(read, num_bytes, first, tail)
        if (head := window(0, 8)).startswith(STREAM):
            found = list(_of_stream(window, num_bytes))
            return Footer(STREAM, window(*found[0][:2]), num_bytes, _messages(found[1:]))
    raise ShardReadError(
        f"{url} is neither a Parquet nor an Arrow file, is encrypted, or was cut short: it begins with {head!r} and "
        f"ends with {tail[-8:]!r}. Select the tables by a pattern, as list_remote(pattern='*.parquet').",
        url=url,
    )


def _messages(found: list[tuple[int, int, int, int]]) -> npt.NDArray[np.int64]:
    kept = [(start, stop, rows, kind == _BATCH) for start, stop, rows, kind in found]
    return np.array(kept, np.int64).reshape(-1, 4)


def _windowed(read: Read, num_bytes: int, first: int, data: bytes) -> Read:
    """Return a function that reads small ranges, forwards, by few requests. The bytes from the first on are known."""

    def window(start: int, stop: int) -> bytes:
        nonlocal first, data
        if not first <= start <= stop <= first + len(data):
            first, data = start, read(start, min(num_bytes, max(stop, start + _WINDOW_BYTES)))
        return data[start - first : stop - first]

    return window


def _of_blocks(footer: bytes, num_bytes: int, window: Read) -> list[tuple[int, int, int, int]]:
    """Return the messages that the footer of a file lists: first byte, end, rows and kind."""
    table, found = _Table(footer), []
    for kind in (_DICTIONARY, _BATCH):
        if not table.place(kind):  # both fields have the number of the kind
            continue
        at = table.place(kind) + table.number(kind, "<I")
        (count,) = struct.unpack_from("<I", footer, at)
        for start, head_bytes, _, body_bytes in np.frombuffer(footer, _BLOCK, count, at + 4).tolist():
            stop = start + head_bytes + body_bytes
            if min(start, head_bytes, body_bytes) < 0 or stop > num_bytes:
                raise ValueError(f"a record batch at bytes {start:,} to {stop:,} of {num_bytes:,}")
            found_kind, rows, _ = _parsed(window(start, start + head_bytes)) if kind == _BATCH else (kind, 0, 0)
            if found_kind != kind:
                raise ValueError(f"a message of type {found_kind} at byte {start:,}, where a record batch should be")
            found.append((start, stop, rows, kind))
    return found


def _of_stream(window: Read, num_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the messages of a stream: first byte, end, rows and kind. The first one is its schema."""
    start, kinds = 0, {_SCHEMA}
    while start < num_bytes:
        mark, length = struct.unpack("<4sI", window(start, min(num_bytes, start + 8)))
        if mark == STREAM and not length:
            return
        head_end = start + 8 + length
        if mark != STREAM or length > min(num_bytes, _MAX_FOOTER_BYTES):
            raise ValueError(f"{mark!r} and a length of {length:,} bytes at byte {start:,}, where a message should be")
        kind, rows, body_bytes = _parsed(window(start, head_end))
        stop = head_end + body_bytes
        if kind not in kinds or stop > num_bytes:
            raise ValueError(f"a message of type {kind} at bytes {start:,} to {stop:,} of {num_bytes:,}")
        yield start, stop, rows, kind
        start, kinds = stop, {_DICTIONARY, _BATCH}


def _parsed(message: bytes) -> tuple[int, int, int]:
    """Parse the head of a message: its type, the rows of a record batch, and the bytes after the head."""
    # Before Arrow 0.15 there was no mark before the length
    data = message[8 if message.startswith(STREAM) else 4 :]
    table = _Table(data)
    kind, body_bytes = table.number(1, "<B"), table.number(3, "<q")
    rows = _Table(data, table.place(2)).number(0, "<q") if kind == _BATCH else 0
    if rows < 0 or body_bytes < 0:
        raise ValueError(f"a message of {rows:,} rows in {body_bytes:,} bytes")
    return kind, rows, body_bytes


class _Table:
    """A table of a FlatBuffer, to which an offset refers. Places outside of the buffer raise ``struct.error``."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at + struct.unpack_from("<I", data, at)[0]
        self._fields = self._at - struct.unpack_from("<i", data, self._at)[0]

    def place(self, field: int) -> int:
        """Return where a field is, 0 if it has its default."""
        entry = 4 + 2 * field
        if entry >= struct.unpack_from("<H", self._data, self._fields)[0]:
            return 0
        offset = int(struct.unpack_from("<H", self._data, self._fields + entry)[0])
        return self._at + offset if offset else 0

    def number(self, field: int, form: str) -> int:
        at = self.place(field)
        return int(struct.unpack_from(form, self._data, at)[0]) if at else 0
