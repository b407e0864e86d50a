"""An object as a seekable file, for libraries that read parts of it."""

from __future__ import annotations

from ..core.options import RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..formats.positioned_file import PositionedFile
from ..storage import Connection, open_store


class RangedFile(PositionedFile):
    """Reads an object by one request for each ``read``.

    Args:
        url: of the object.
        options: for the store.
        retry: policy for transient faults.

    Raises:
        StorageError: if the object cannot be read.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/ranged/a", b"0123456789")
        >>> file = RangedFile("memory://ranged/a", StorageOptions(), RetryPolicy())
        >>> file.seek(-3, 2), file.read(2), file.tell(), file.read()
        (7, b'78', 9, b'9')
    """

    def __init__(self, url: str, options: StorageOptions, retry: RetryPolicy) -> None:
        self._url, self._retry = str(url), retry
        self._store, self._path = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
        # Without obstore, so that a process that only lists can be forked
        self._read_range = getattr(self._store, "read_without_obstore", self._store.read)
        entry = call_with_retries(lambda: self._store.stat(self._path), retry, url=self._url)
        super().__init__(entry.size or 0)
        self._etag = entry.etag

    def size(self) -> int:
        """Return the number of bytes, as pyarrow asks for it."""
        return self._num_bytes

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, fewer at the end."""
        start = self._at
        stop = self._num_bytes if size is None or size < 0 else min(start + size, self._num_bytes)
        if start >= stop:
            return b""
        data: bytes = call_with_retries(
            lambda: self._read_range(self._path, start, stop, self._etag).whole(), self._retry, url=self._url
        )
        self._at = start + len(data)
        return data

    def readall(self) -> bytes:
        return self.read()
