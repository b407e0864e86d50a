"""Counters and progress of transfers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

from ...core.progress import Progress


@dataclass(frozen=True)
class Transferred:
    """Result of ``push`` or ``pull``.

    Args:
        num_files: that were copied.
        num_bytes: that were sent or fetched, without those that an earlier, interrupted run had copied.
        num_unchanged: files that existed with the same content.
        num_removed: files that the source lacks, and that were removed.
        num_foreign: files at the destination that the source lacks, and that were kept.
        elapsed_s: duration in seconds.
    """

    num_files: int = 0
    num_bytes: int = 0
    num_unchanged: int = 0
    num_removed: int = 0
    num_foreign: int = 0
    elapsed_s: float = 0.0


class TransferProgress(NamedTuple):
    """Progress of a transfer. What need not be copied counts as done.

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
    """Counts files and bytes; may be called from any thread.

    Args:
        on_progress: called by :meth:`report`, in its thread; ``None`` shows a progress bar.
        title: of the bar.
        shown: ``False`` shows no bar.
    """

    def __init__(self, on_progress: OnProgress | None, title: str, *, shown: bool) -> None:
        self._on_progress = on_progress
        self._bar = Progress(title, None, "B", shown=shown and on_progress is None)
        self._start_s = time.monotonic()
        self._lock = threading.RLock()
        self._total_files = self._total_bytes = 0
        self._done_files = self._done_bytes = 0
        self._num_files = self._num_bytes = self._num_unchanged = self._num_removed = 0

    def __enter__(self) -> TransferCounter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()

    def set_total(self, num_files: int, num_bytes: int) -> None:
        """Set the size of the source."""
        self._total_files, self._total_bytes = num_files, num_bytes
        self.report()

    def add_bytes(self, num_bytes: int) -> None:
        """Count bytes that were copied."""
        with self._lock:
            self._num_bytes += num_bytes
            self._done_bytes += num_bytes

    def add_existing(self, num_bytes: int) -> None:
        """Count bytes of a file that an earlier run copied; negative for bytes that must be copied again."""
        with self._lock:
            self._done_bytes += num_bytes

    def add_copied(self) -> None:
        """Count a file that was copied."""
        with self._lock:
            self._num_files += 1
            self._done_files += 1

    def add_unchanged(self, num_bytes: int) -> None:
        """Count a file that existed with the same content."""
        with self._lock:
            self._num_unchanged += 1
            self._done_files += 1
            self._done_bytes += num_bytes

    def add_removed(self) -> None:
        """Count a file that was removed."""
        with self._lock:
            self._num_removed += 1

    def report(self) -> None:
        """Report the progress."""
        now = TransferProgress(self._done_files, self._total_files, self._done_bytes, self._total_bytes)
        if self._on_progress is not None:
            self._on_progress(now)
        self._bar.note(f"{now.num_files:,}/{now.total_files:,} files")
        self._bar.set(now.num_bytes, now.total_bytes)

    def result(self, *, num_foreign: int) -> Transferred:
        """Return the result."""
        return Transferred(
            self._num_files,
            self._num_bytes,
            self._num_unchanged,
            self._num_removed,
            num_foreign,
            time.monotonic() - self._start_s,
        )
