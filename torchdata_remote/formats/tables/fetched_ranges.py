"""A file of which some ranges were fetched, for libraries that read files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from ..positioned_file import PositionedFile


class FetchedRanges(PositionedFile):
    """A readable file. What was not fetched is fetched when it is read.

    Args:
        ranges: that were fetched: first byte, and the byte after the last one; sorted.
        pieces: their bytes.
        num_bytes: of the file.
        fetch: reads other bytes.
    """

    def __init__(
        self,
        ranges: Sequence[tuple[int, int]],
        pieces: Sequence[memoryview],
        num_bytes: int,
        fetch: Callable[[int, int], bytes],
    ) -> None:
        super().__init__(num_bytes)
        self._ranges, self._pieces, self._fetch = ranges, pieces, fetch
        self._error: BaseException | None = None

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise the error of a fetch itself, and not what the library makes of it."""
        try:
            yield
        except Exception:
            if self._error is not None:
                raise self._error from None
            raise

    def read(self, size: int | None = -1) -> bytes:
        return bytes(self.read_buffer(size))

    def read_buffer(self, size: int | None = -1) -> bytes | memoryview:
        """Return the next bytes, without a copy if they were fetched: pyarrow calls this in place of ``read``."""
        start = min(self._at, self._num_bytes)
        self._at = stop = self._num_bytes if size is None or size < 0 else min(start + size, self._num_bytes)
        if start == stop:
            return b""
        for (first, last), piece in zip(self._ranges, self._pieces, strict=True):
            if first <= start and stop <= last:
                return piece[start - first : stop - first]
        try:
            return self._fetch(start, stop)
        except BaseException as error:
            self._error = error
            raise
