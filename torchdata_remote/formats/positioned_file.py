"""Base of files that libraries read at any position."""

from __future__ import annotations

import io


class PositionedFile(io.RawIOBase):
    """A readable file with a position. A subclass reads from ``_at`` on, and moves it.

    Args:
        num_bytes: of the file.
    """

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self._num_bytes, self._at = num_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position; returns it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._num_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at
