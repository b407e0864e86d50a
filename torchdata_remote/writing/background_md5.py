"""MD5 in a background thread: it is the slowest step of writing an object."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial

from ..core.background import Worker

MAX_BEHIND_BYTES = 2 << 20

_SMALL_BYTES = 1 << 18  # are summed sooner than a thread is started


class BackgroundMd5:
    """MD5 of chunks, behind by 2 MiB at most. Its thread, which large chunks start, runs until ``end``."""

    def __init__(self) -> None:
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._worker: Worker[bytes, None] | None = None

    def update(self, chunk: bytes) -> None:
        """Append a chunk; wait while more than 2 MiB have not been summed."""
        if self._worker is None:
            if len(chunk) < _SMALL_BYTES:
                self._md5.update(chunk)
                return
            self._worker = Worker(partial(_update_all, self._md5.update), max_backlog=MAX_BEHIND_BYTES)
        self._worker.put(chunk, len(chunk))

    def end(self) -> str:
        """End the thread, and return the digest in hexadecimal."""
        if self._worker is not None:
            self._worker.end()
            self._worker.result()
        return self._md5.hexdigest()


def _update_all(update: Callable[[bytes], None], chunks: Iterator[bytes]) -> None:
    for chunk in chunks:
        update(chunk)
        del chunk  # or it would be held while the next one is waited for
