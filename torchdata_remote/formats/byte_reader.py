"""Read consecutive bytes of an archive that arrives in parts of any length."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any


class ByteReader:
    """Reads bytes in order. ``view`` is the current part, ``position`` the offset in it; callers may change both.

    Args:
        parts: consecutive, of any length, empty ones included. If they have ``jump(num_bytes)``, which returns how many
            there were, skipped bytes are not downloaded.
        offset: of the first byte in the archive.
    """

    def __init__(self, parts: Iterable[bytes | memoryview], offset: int = 0) -> None:
        self._jump: Any = getattr(parts, "jump", None)
        self._parts = iter(parts)
        self.view = memoryview(b"")
        self.position = 0
        # Of the current part in the archive
        self.part_offset = offset

    @property
    def offset(self) -> int:
        """Offset of the next byte in the archive."""
        return self.part_offset + self.position

    def _next_part(self) -> bool:
        self.part_offset += len(self.view)
        # The current part is freed before the next one arrives
        self.view, self.position = memoryview(b""), 0
        for part in self._parts:
            self.view = memoryview(part)
            if len(self.view):
                return True
        return False

    def take(self, num_bytes: int) -> bytes:
        """Return the next bytes, or fewer if the archive ends. Memory is allocated as they arrive."""
        position, after = self.position, self.position + num_bytes
        if after <= len(self.view):
            self.position = after
            return self.view[position:after].tobytes()
        return join_chunks(self.pieces(num_bytes), num_bytes)

    def pieces(self, num_bytes: int) -> Iterator[memoryview]:
        """Yield the next bytes as they arrive, or fewer if the archive ends."""
        while num_bytes > 0:
            piece = self.view[self.position : self.position + num_bytes]
            self.position += len(piece)
            num_bytes -= len(piece)
            if piece:
                yield piece
            del piece  # or it would keep the part in memory until the next one arrives
            if num_bytes and not self._next_part():
                return

    def skip(self, num_bytes: int) -> int:
        """Skip bytes; return how many there were."""
        if self._jump is None or num_bytes <= (left := len(self.view) - self.position):
            return sum(map(len, self.pieces(num_bytes)))
        passed: int = self._jump(num_bytes - left)
        self.part_offset += len(self.view) + passed
        self.view, self.position = memoryview(b""), 0
        return left + passed


def join_chunks(chunks: Iterator[bytes] | Iterator[memoryview], num_bytes: int) -> bytes:
    """Join chunks of ``num_bytes`` in all, or fewer; a list and ``join`` would take twice the memory.

    The buffer doubles up to ``num_bytes`` exactly, so a false claim allocates at most twice the bytes that arrived.
    """
    sink = io.BytesIO()
    halvings = max(0, num_bytes.bit_length() - 20)
    position = capacity = 0
    for chunk in chunks:
        while position + len(chunk) > capacity:
            capacity = -(-num_bytes >> halvings)
            halvings -= 1
            sink.seek(capacity - 1)
            sink.write(b"\0")
        sink.seek(position)
        position += sink.write(chunk)
        del chunk  # as above
    sink.truncate(position)
    return sink.getvalue()  # its buffer, not a copy
