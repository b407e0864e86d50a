"""MD5 in a thread of its own: it is the slowest of all that is done to an object's bytes."""

from __future__ import annotations

import hashlib
import queue
import threading

MAX_BEHIND_BYTES = 2 << 20

_SMALL_BYTES = 1 << 18  # are summed sooner than a thread is started


class BackgroundMd5:
    """MD5 of chunks, behind by 2 MiB at most. Whoever begins it ends it."""

    def __init__(self) -> None:
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._chunks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()  # bytes of each chunk
        self._behind_bytes = 0
        self._thread: threading.Thread | None = None

    def update(self, chunk: bytes) -> None:
        """Take the next chunk; waits while more than 2 MiB are to be summed."""
        if self._thread is None:
            if len(chunk) < _SMALL_BYTES:
                self._md5.update(chunk)
                return
            thread = threading.Thread(target=self._work, name="torchdata_remote", daemon=True)
            thread.start()
            self._thread = thread
        while self._behind_bytes > MAX_BEHIND_BYTES:
            self._behind_bytes -= self._done.get()
        self._behind_bytes += len(chunk)
        self._chunks.put(chunk)

    def _work(self) -> None:
        while (chunk := self._chunks.get()) is not None:
            self._md5.update(chunk)
            num_bytes = len(chunk)
            del chunk
            self._done.put(num_bytes)

    def end(self) -> str:
        """The digest; the thread is gone."""
        if self._thread is not None:
            self._chunks.put(None)
            self._thread.join()
        return self._md5.hexdigest()
