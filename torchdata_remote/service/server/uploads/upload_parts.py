"""Parts of multipart uploads: their types, and which fit together."""

from __future__ import annotations

import sys
from typing import NamedTuple

from ....storage import Entry
from ..datasets.lifetimes import LiveFolder
from ..problems import Problem


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

    def contains(self, other: Part) -> bool:
        """Whether all bytes of another part are in this one."""
        return self.start <= other.start and other.end <= self.end


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


def require_consistent(existing: list[Part], part: Part, max_parts: int) -> None:
    """Require that a part fits to the others of an upload. It replaces those that it contains.

    Raises:
        Problem: 409, if it contradicts them; 413, if they are too many.
    """
    others = [other for other in existing if not part.contains(other)]
    for other in others:
        if other.start < part.end and part.start < other.end:
            raise Problem(409, f"Bytes {part.start} to {part.end} overlap those from {other.start} to {other.end}.")
    totals = {one.total for one in [*others, part] if one.total is not None}
    if len(totals) > 1 or max(one.end for one in [*others, part]) > min(totals, default=sys.maxsize):
        raise Problem(409, f"Parts of this upload disagree about the file's size: {sorted(totals)} bytes.")
    if len(others) >= max_parts:
        raise Problem(413, f"More than {max_parts:,} parts. Make them larger.")
