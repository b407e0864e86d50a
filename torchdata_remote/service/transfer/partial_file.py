"""A large file that is not complete, and beside it which of its ranges are there, for whoever goes on with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from ...errors import ObjectNotFoundError, StorageError
from .byte_ranges import Span, missing
from .destination import DestinationFolder


class PartialFile:
    """Ranges are written in any order, from several threads.

    Args:
        target: the folder.
        path: of the file, below it.
        ranges_path: of the file that tells of the ranges, a line for each.
        num_bytes: of the complete file.
    """

    def __init__(self, target: DestinationFolder, path: str, ranges_path: str, num_bytes: int) -> None:
        self._target, self.path, self._ranges_path, self._num_bytes = target, path, ranges_path, num_bytes

    def open(self) -> list[Span]:
        """Go on with what is there, or begin; returns what is missing."""
        there = self.ranges()
        if not there:
            self.remove()
            with self._target.new_file(self.path), self._target.new_file(self._ranges_path):
                pass
        return missing(there, self._num_bytes)

    def ranges(self) -> list[Span]:
        """Those that are there; none if anything is not as it was written."""
        try:
            with self._target.opened(self.path, os.O_RDONLY) as descriptor:
                size = os.fstat(descriptor).st_size
            with self._target.opened(self._ranges_path, os.O_RDONLY) as descriptor, open(os.dup(descriptor)) as file:
                lines = file.read().split("\n")[:-1]  # the last one is not complete, or empty
            spans = [(int(start), int(end)) for start, end in map(str.split, lines)]
        except (StorageError, ValueError):
            return []
        return spans if all(0 <= start < end <= size <= self._num_bytes for start, end in spans) else []

    def write(self, start: int, end: int, pieces: Iterable[memoryview]) -> None:
        """Write a range, and then that it is there. What a killed process wrote stays, since the kernel has it.

        What a crash of the machine loses, the digest of the whole file shows.
        """
        with self._target.opened(self.path, os.O_WRONLY) as descriptor:
            position = start
            for piece in pieces:
                written = 0
                while written < len(piece):
                    written += os.pwrite(descriptor, piece[written:], position + written)
                position += written
        with self._target.opened(self._ranges_path, os.O_WRONLY | os.O_APPEND) as descriptor:
            os.write(descriptor, b"%d %d\n" % (start, end))

    def remove_ranges(self) -> None:
        """The file is complete."""
        with contextlib.suppress(ObjectNotFoundError), self._target.at(self._ranges_path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def remove(self) -> None:
        """Begin anew, or leave nothing behind."""
        self.remove_ranges()
        with contextlib.suppress(ObjectNotFoundError), self._target.at(self.path) as (folder, name):
            os.unlink(name, dir_fd=folder)
