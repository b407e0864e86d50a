"""A position in an archive that arrives in parts of any length."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable


@runtime_checkable
class Skippable(Protocol):
    """Parts of an archive that can go on further behind."""

    def __iter__(self) -> Iterator[bytes | memoryview]:
        """The parts."""

    def jump(self, num_bytes: int) -> int:
        """Leave out the bytes that would come next; returns how many were there."""


class ByteReader:
    """Takes bytes in order. ``view`` is the part at hand and ``position`` the place in it; both may be read and moved.

    Args:
        parts: consecutive, of any length, empty ones included. Those that are :class:`Skippable` need not bring what is
            passed over.
        offset: of the first of these bytes.
    """

    def __init__(self, parts: Iterable[bytes | memoryview], offset: int = 0) -> None:
        self._jump = parts.jump if isinstance(parts, Skippable) else None
        self._parts = iter(parts)
        self.view = memoryview(b"")
        self.position = 0
        self.part_offset = offset  # of the part at hand

    @property
    def offset(self) -> int:
        """Where in the archive the next byte lies."""
        return self.part_offset + self.position

    def _next_part(self) -> bool:
        self.part_offset += len(self.view)
        self.view, self.position = memoryview(b""), 0  # before the next part comes, this one can go
        for part in self._parts:
            self.view = memoryview(part)
            if len(self.view):
                return True
        return False

    def take(self, num_bytes: int) -> bytes:
        """The next bytes, or fewer where the archive ends. No memory is taken before they come."""
        position, after = self.position, self.position + num_bytes
        if after <= len(self.view):
            self.position = after
            return self.view[position:after].tobytes()
        return join_chunks(self.pieces(num_bytes), num_bytes)

    def pieces(self, num_bytes: int) -> Iterator[memoryview]:
        """The next bytes as they come, or fewer where the archive ends."""
        while num_bytes > 0:
            piece = self.view[self.position : self.position + num_bytes]
            self.position += len(piece)
            num_bytes -= len(piece)
            if piece:
                yield piece
            del piece  # it would keep the part in memory until the next one has come
            if num_bytes and not self._next_part():
                return

    def skip(self, num_bytes: int) -> int:
        """Pass over bytes; returns how many were there."""
        if self._jump is None or num_bytes <= (here := len(self.view) - self.position):
            return sum(map(len, self.pieces(num_bytes)))
        passed = self._jump(num_bytes - here)
        self.part_offset += len(self.view) + passed
        self.view, self.position = memoryview(b""), 0
        return here + passed


def join_chunks(chunks: Iterator[bytes] | Iterator[memoryview], num_bytes: int) -> bytes:
    """Chunks of ``num_bytes`` in all, or fewer, as one; a list and ``join`` would take twice the memory.

    Room doubles up to just ``num_bytes``, so that a false claim takes no more than twice what came.
    """
    sink = io.BytesIO()
    halvings = max(0, num_bytes.bit_length() - 20)
    position = room = 0
    for chunk in chunks:
        while position + len(chunk) > room:
            room = -(-num_bytes >> halvings)
            halvings -= 1
            sink.seek(room - 1)
            sink.write(b"\0")
        sink.seek(position)
        position += sink.write(chunk)
        del chunk  # as above
    sink.truncate(position)
    return sink.getvalue()  # its buffer, not a copy
