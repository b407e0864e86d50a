"""Counters and progress of transfers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
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
        self._start_s, self._lock = time.monotonic(), threading.RLock()
        self._counts: Counter[str] = Counter()
        self._total_files = self._total_bytes = 0

    def __enter__(self) -> TransferCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def set_total(self, num_files: int, num_bytes: int) -> None:
        """Set the size of the source."""
        self._total_files, self._total_bytes = num_files, num_bytes
        self.report()

    def add(self, **counts: int) -> None:
        """Count what was done.

        Args:
            **counts: ``files`` that were copied, their ``num_bytes``; ``unchanged`` files, their ``existing_bytes``,
                which need not be copied, and ``removed`` files.
        """
        with self._lock:
            self._counts.update(counts)

    def report(self) -> None:
        """Report the progress."""
        done = self._counts
        num_files, num_bytes = done["files"] + done["unchanged"], done["num_bytes"] + done["existing_bytes"]
        now = TransferProgress(num_files, self._total_files, num_bytes, self._total_bytes)
        if self._on_progress is not None:
            self._on_progress(now)
        self._bar.note(f"{now.num_files:,}/{now.total_files:,} files")
        self._bar.set(now.num_bytes, now.total_bytes)

    def result(self, *, num_foreign: int) -> Transferred:
        """Return the result."""
        done, elapsed_s = self._counts, time.monotonic() - self._start_s
        return Transferred(done["files"], done["num_bytes"], done["unchanged"], done["removed"], num_foreign, elapsed_s)
