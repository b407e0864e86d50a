"""Members as binary files: what a reader hands out for members that are read only where they are needed."""

from __future__ import annotations

import io
import threading
from abc import abstractmethod
from typing import Any


class MemberFile(io.BufferedIOBase):
    """A member of a shard as a seekable, read-only binary file.

    ``bytes(file)`` gives the whole member and leaves the position. Threads may share a file: each call is atomic.

    Attributes:
        name: of the member, as its shard has it.
        size: in bytes.

    Args:
        name: of the member.
        size: in bytes.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self._position = 0
        self._lock = threading.RLock()

    @abstractmethod
    def _read_at(self, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop`` (exclusive), which are within the member. Called with the lock held."""

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name!r:.200}: read from a closed file.")

    def readable(self) -> bool:
        self._check_open()
        return True

    def seekable(self) -> bool:
        self._check_open()
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position, which may be beyond the end; return it.

        Raises:
            ValueError: for a position before the beginning, or another ``whence`` than 0, 1 and 2.
        """
        self._check_open()
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"seek: whence is 0, 1 or 2, got {whence!r}")
        with self._lock:
            base = (0, self._position, self.size)[whence]
            if base + offset < 0:
                raise ValueError(f"seek to {base + offset}, before the beginning of {self.name!r:.200}")
            self._position = base + offset
            return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes: ``size`` of them, or fewer at the end; all the rest for ``None`` or less than 0."""
        self._check_open()
        with self._lock:
            self._check_open()  # another thread may have closed it
            left = max(0, self.size - self._position)
            length = left if size is None or size < 0 else min(size, left)
            data = self._read_at(self._position, self._position + length) if length else b""
            self._position += length
            return data

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size)

    def __bytes__(self) -> bytes:
        self._check_open()
        with self._lock:
            self._check_open()
            return self._read_at(0, self.size) if self.size else b""

    def close(self) -> None:
        """Free what is in memory, after the call of another thread that reads. Reads raise ``ValueError`` then."""
        lock = getattr(self, "_lock", None)  # none, if the arguments were wrong
        if lock is not None:
            with lock:
                self._drop()
                super().close()

    @abstractmethod
    def _drop(self) -> None:
        """Free what is in memory. Called with the lock held."""

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.size:,} bytes"
        return f"<{type(self).__name__} {self.name!r:.200}, {state}>"


class BytesFile(MemberFile):
    """A member in memory, with the interface of one that is read where it is needed.

    Args:
        name: of the member.
        data: of the member.
    """

    def __init__(self, name: str, data: bytes) -> None:
        super().__init__(name, len(data))
        self._data = data

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return len(self._data)

    def _read_at(self, start: int, stop: int) -> bytes:
        return self._data if (start, stop) == (0, self.size) else self._data[start:stop]

    def _drop(self) -> None:
        self._data = b""

    def __getstate__(self) -> dict[str, Any]:
        self._check_open()
        return {**vars(self), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())
