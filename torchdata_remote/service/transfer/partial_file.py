"""An incomplete large file, and beside it a list of its complete ranges, by which the next pull resumes it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from ...core.files import EarlyWriteback
from ...errors import ObjectNotFoundError, StorageError
from .byte_ranges import Span, missing
from .destination import DestinationFolder


class PartialFile:
    """An incomplete file; ranges are written in any order, from several threads.

    Args:
        destination: the folder.
        path: of the file, below it.
        ranges_path: of the file that lists the ranges, a line for each.
        num_bytes: of the complete file.
    """

    def __init__(self, destination: DestinationFolder, path: str, ranges_path: str, num_bytes: int) -> None:
        self._destination, self.path, self._ranges_path, self._num_bytes = destination, path, ranges_path, num_bytes

    def open(self) -> list[Span]:
        """Open the file of an earlier pull, or create it; return the missing ranges."""
        existing = self.ranges()
        if not existing:
            self.remove()
            with self._destination.create(self.path), self._destination.create(self._ranges_path):
                pass
        return missing(existing, self._num_bytes)

    def ranges(self) -> list[Span]:
        """Return the complete ranges; none if the files are not as they were written."""
        try:
            with self._destination.open_existing(self.path, os.O_RDONLY) as descriptor:
                size = os.fstat(descriptor).st_size
            with (
                self._destination.open_existing(self._ranges_path, os.O_RDONLY) as descriptor,
                open(os.dup(descriptor)) as file,
            ):
                lines = file.read().split("\n")[:-1]  # the last line is empty, or incomplete
            spans = [(int(start), int(end)) for start, end in map(str.split, lines)]
        except (StorageError, ValueError):
            return []
        return spans if all(0 <= start < end <= size <= self._num_bytes for start, end in spans) else []

    def write(self, start: int, pieces: Iterable[memoryview]) -> None:
        """Write a range, and then record it; after an error, record what was written of it.

        Data that a killed process has written is kept by the kernel. Data that a crash of the machine loses is detected
        by the digest of the whole file.
        """
        position = start
        try:
            with self._destination.open_existing(self.path, os.O_WRONLY) as descriptor:
                writeback = EarlyWriteback(descriptor, start)
                for piece in pieces:
                    written = 0
                    while written < len(piece):
                        written += os.pwrite(descriptor, piece[written:], position + written)
                    position += written
                    writeback.wrote(written)
        finally:
            if position > start:
                with self._destination.open_existing(self._ranges_path, os.O_WRONLY | os.O_APPEND) as descriptor:
                    os.write(descriptor, b"%d %d\n" % (start, position))

    def remove_ranges(self) -> None:
        """Remove the list of ranges, of a complete file."""
        with contextlib.suppress(ObjectNotFoundError), self._destination.parent_of(self._ranges_path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def remove(self) -> None:
        """Remove both files."""
        self.remove_ranges()
        with contextlib.suppress(ObjectNotFoundError), self._destination.parent_of(self.path) as (folder, name):
            os.unlink(name, dir_fd=folder)
