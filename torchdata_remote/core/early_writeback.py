"""Start to write a file to disk before all of it is there."""

from __future__ import annotations

import os

_STEP_BYTES = 8 << 20


class EarlyWriteback:
    """Lets the kernel write a growing file to disk meanwhile, so that the sync at its end has less to wait for.

    Linux starts to write what ``POSIX_FADV_DONTNEED`` names, without waiting for it. Elsewhere this does nothing.

    Args:
        descriptor: of the file.
        start: first byte that is written.
    """

    def __init__(self, descriptor: int, start: int = 0) -> None:
        self._descriptor, self._start, self._end = descriptor, start, start

    def wrote(self, num_bytes: int) -> None:
        """Note that the next bytes were passed to the kernel."""
        self._end += num_bytes
        if self._end - self._start >= _STEP_BYTES and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, self._start, self._end - self._start, os.POSIX_FADV_DONTNEED)
            self._start = self._end
