"""Data types of multipart uploads."""

from __future__ import annotations

from typing import NamedTuple

from ...storage import Entry
from .lifetimes import LiveFolder


class Part(NamedTuple):
    """First byte, byte after the last one, and size of the whole file if the part states it."""

    start: int
    end: int
    total: int | None

    @property
    def name(self) -> str:
        """Name of its temporary object. Names sort by the parts' first bytes."""
        total = "unknown" if self.total is None else f"{self.total:020d}"
        return f"{self.start:020d}-{self.end:020d}-{total}"


class Progress(NamedTuple):
    """Received byte ranges of an upload, merged, and the size of the file if it is known."""

    received: list[list[int]]
    total: int | None


class Upload(NamedTuple):
    """One upload: path of its file, and the folder of its parts."""

    dataset: str
    folder: LiveFolder
    path: str
    parts_folder: LiveFolder


class Stored(NamedTuple):
    """A stored file and its hexadecimal SHA-256."""

    entry: Entry
    sha256: str


def progress_of(parts: list[Part]) -> Progress:
    """Merge the byte ranges of parts.

    >>> progress_of([Part(4, 9, 12), Part(0, 4, None), Part(10, 12, None)])
    Progress(received=[[0, 9], [10, 12]], total=12)
    """
    received: list[list[int]] = []
    for part in sorted(parts):
        if received and part.start == received[-1][1]:
            received[-1][1] = part.end
        else:  # after a gap; or overlapping, if two were sent at once, and then the upload is never complete
            received.append([part.start, part.end])
    return Progress(received, next((part.total for part in parts if part.total is not None), None))
