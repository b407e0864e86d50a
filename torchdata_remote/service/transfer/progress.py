"""What was transferred, and how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Transferred:
    """What ``push`` or ``pull`` did.

    Args:
        num_files: that were copied.
        num_bytes: that were sent or fetched for them; without what an earlier, interrupted run had copied.
        num_unchanged: files that were there already, with the same content.
        num_removed: files that the source no longer has, and that were removed.
        num_foreign: files at the destination that the source does not have, and that were left alone.
        elapsed_s: seconds.
    """

    num_files: int = 0
    num_bytes: int = 0
    num_unchanged: int = 0
    num_removed: int = 0
    num_foreign: int = 0
    elapsed_s: float = 0.0


class TransferProgress(NamedTuple):
    """How far a transfer is. What need not be copied, because it is there already, counts as done.

    Args:
        num_files: that are done.
        total_files: of the source.
        num_bytes: that are done.
        total_bytes: of the source.
    """

    num_files: int
    total_files: int
    num_bytes: int
    total_bytes: int


OnProgress = Callable[[TransferProgress], object]


class TransferCounter:
    """Counts, in any thread.

    Args:
        on_progress: told of by :meth:`tell`, in the thread that calls it.
    """

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._began_s = time.monotonic()
        self._lock = threading.RLock()
        self._total_files = self._total_bytes = 0
        self._done_files = self._done_bytes = 0
        self._num_files = self._num_bytes = self._num_unchanged = self._num_removed = 0

    def expect(self, num_files: int, num_bytes: int) -> None:
        """The source has so much."""
        self._total_files, self._total_bytes = num_files, num_bytes
        self.tell()

    def moved(self, num_bytes: int) -> None:
        """So many bytes were copied."""
        with self._lock:
            self._num_bytes += num_bytes
            self._done_bytes += num_bytes

    def had(self, num_bytes: int) -> None:
        """So many bytes of a file were copied by an earlier run; or, if negative, will have to be copied again."""
        with self._lock:
            self._done_bytes += num_bytes

    def copied(self) -> None:
        """A file is complete."""
        with self._lock:
            self._num_files += 1
            self._done_files += 1

    def unchanged(self, num_bytes: int) -> None:
        """A file was there already."""
        with self._lock:
            self._num_unchanged += 1
            self._done_files += 1
            self._done_bytes += num_bytes

    def removed(self) -> None:
        """A file was removed."""
        with self._lock:
            self._num_removed += 1

    def tell(self) -> None:
        """Tell how far it is."""
        if self._on_progress is not None:
            self._on_progress(
                TransferProgress(self._done_files, self._total_files, self._done_bytes, self._total_bytes)
            )

    def result(self, *, num_foreign: int) -> Transferred:
        """What was done."""
        return Transferred(
            self._num_files,
            self._num_bytes,
            self._num_unchanged,
            self._num_removed,
            num_foreign,
            time.monotonic() - self._began_s,
        )
