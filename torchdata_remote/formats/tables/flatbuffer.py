"""Numbers of Arrow's metadata that pyarrow does not expose: where record batches are, and how many rows each has.

Source: "Arrow Columnar Format", section "Serialization and Interprocess Communication (IPC)", with its files
``Message.fbs`` and ``File.fbs``, and "FlatBuffers internals".
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_CONTINUATION = 0xFFFFFFFF
_BLOCK = np.dtype([("offset", "<i8"), ("head_bytes", "<i4"), ("padding", "<i4"), ("body_bytes", "<i8")])
_VERSION, _SCHEMA, _DICTIONARIES, _RECORD_BATCHES = 0, 1, 2, 3  # fields of Footer
_HEADER_TYPE, _HEADER, _BODY_BYTES = 1, 2, 3  # fields of Message
SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3  # types of a header
# A Message before the buffer of its header: where it is, its vtable (bytes, bytes of the table, place of three fields),
# and the table (distance to the vtable, version, type of the header, distance to the header)
_HEADED = struct.Struct("<I HHHHH 2x iHBx I 4x")


class Message(NamedTuple):
    """The head of a message: its type, the rows of a record batch (0 for others), and the bytes after the head."""

    kind: int
    num_rows: int
    body_bytes: int


def head_bytes_at(data: bytes | memoryview) -> tuple[int, int]:
    """Return where the metadata of a message begins, and their length, from its first 8 bytes; 0 at the end."""
    (first,) = struct.unpack_from("<I", data)
    if first != _CONTINUATION:
        return 4, int(first)  # before Arrow 0.15
    (length,) = struct.unpack_from("<i", data, 4)
    if length < 0:
        raise ValueError(f"a message of {length} bytes")
    return 8, int(length)


def parse_message(data: bytes | memoryview) -> Message:
    """Parse the head of a message, with its length before it."""
    begin, length = head_bytes_at(data)
    table = _Table(memoryview(data)[begin : begin + length])
    kind, header = table.number(_HEADER_TYPE, "<B"), table.table(_HEADER)
    num_rows = header.number(0, "<q") if kind == RECORD_BATCH and header is not None else 0
    body_bytes = table.number(_BODY_BYTES, "<q")
    if num_rows < 0 or body_bytes < 0:
        raise ValueError(f"a message of {num_rows:,} rows in {body_bytes:,} bytes")
    return Message(kind, num_rows, body_bytes)


def parse_blocks(footer: bytes) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
    """Return the blocks of the dictionaries and of the record batches; shape ``(num_blocks,)``, as ``_BLOCK``."""
    table = _Table(memoryview(footer))
    return table.blocks(_DICTIONARIES), table.blocks(_RECORD_BATCHES)


def schema_message(footer: bytes) -> bytes:
    """Return the schema of a footer as a message of its own.

    That of the footer counts: polars writes none at the beginning of a file that a reader of streams takes.
    """
    table = _Table(memoryview(footer))
    schema = table.place(_SCHEMA)
    if schema is None:
        raise ValueError("a footer without a schema")
    vtable, message = 4, 16
    header = _HEADED.size - (message + 8) + schema
    head = _HEADED.pack(
        message, 10, 12, 4, 6, 8, message - vtable, table.number(_VERSION, "<h") & 0xFFFF, SCHEMA, header
    )
    data = head + footer + bytes(-len(footer) % 8)
    return struct.pack("<Ii", _CONTINUATION, len(data)) + data


class _Table:
    """A table of a FlatBuffer. Offsets outside of it raise ``struct.error`` or ``ValueError``.

    Args:
        data: the complete buffer.
        at: where the table begins; ``None`` for the root.
    """

    def __init__(self, data: memoryview, at: int | None = None) -> None:
        self._data = data
        self._at = struct.unpack_from("<I", data)[0] if at is None else at
        self._fields = self._at - struct.unpack_from("<i", data, self._at)[0]
        if self._fields < 0:
            raise ValueError("a table outside of its buffer")
        (self._fields_bytes,) = struct.unpack_from("<H", data, self._fields)

    def _field(self, field: int) -> int | None:
        """Return where a field is, ``None`` if it has its default."""
        entry = 4 + 2 * field
        if entry + 2 > self._fields_bytes:
            return None
        (offset,) = struct.unpack_from("<H", self._data, self._fields + entry)
        return self._at + offset if offset else None

    def number(self, field: int, kind: str) -> int:
        at = self._field(field)
        return 0 if at is None else int(struct.unpack_from(kind, self._data, at)[0])

    def place(self, field: int) -> int | None:
        """Return where the table or vector is that a field refers to."""
        at = self._field(field)
        return None if at is None else at + int(struct.unpack_from("<I", self._data, at)[0])

    def table(self, field: int) -> _Table | None:
        at = self.place(field)
        return None if at is None else _Table(self._data, at)

    def blocks(self, field: int) -> npt.NDArray[np.void]:
        at = self.place(field)
        if at is None:
            return np.zeros(0, _BLOCK)
        (count,) = struct.unpack_from("<I", self._data, at)
        return np.frombuffer(self._data, _BLOCK, count, at + 4)
