"""Parts of multipart uploads: their types and their files."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from typing import NamedTuple

from ...errors import ObjectNotFoundError
from ...storage import Entry, LocalStore, LocalWriter, ObjectWriter
from .dataset_root import DatasetRoot
from .problems import Problem


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
    folder: str
    path: str
    parts_folder: str


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


def create_part(root: DatasetRoot, upload: Upload, part: Part, *, durable: bool) -> ObjectWriter:
    """Open a part for writing. A local one is not synced to disk unless ``durable``, or it is the whole file."""
    if isinstance(root.store, LocalStore):
        durable = durable or (part.start, part.end) == (0, part.total)
        path = upload.parts_folder + part.name
        return root.store.create(path, overwrite=True, durable=durable, sync_folder=False)
    return root.create_file(upload.parts_folder, part.name)


def cut_part(part: Part, pending: ObjectWriter, num_bytes: int) -> Part | None:
    """Shorten a part to the bytes that were received before its connection broke; ``None`` where that is impossible."""
    if not num_bytes or not isinstance(pending, LocalWriter):
        return None
    received = part._replace(end=part.start + num_bytes)
    pending.rename_to(received.name)
    return received


def adopt_part(root: DatasetRoot, part: Entry, folder: str, path: str, *, overwrite: bool) -> ObjectWriter | None:
    """Make the only part of an upload its file, without a copy; ``None`` where that is impossible.

    Raises:
        Problem: 409, as :meth:`DatasetRoot.create_file`.
    """
    if not isinstance(root.store, LocalStore) or not root.store.is_on_one_disk(part.path, folder):
        return None
    root.require_writable_path(folder, path)
    return root.store.adopt(part.path, folder + path, overwrite=overwrite)


def join_parts(root: DatasetRoot, parts: list[Entry], pending: ObjectWriter) -> str:
    """Write the bytes of all parts, and return their hexadecimal SHA-256. After an error ``pending`` is aborted."""
    digest = hashlib.sha256()
    try:
        for part in parts:
            for chunk in root.chunks(part):
                digest.update(chunk)
                pending.write(bytes(chunk))
    except BaseException:
        pending.abort()
        raise
    return digest.hexdigest()


@cache
def boot_id() -> str:
    """Identify the current boot of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def commit_part(pending: ObjectWriter) -> bool:
    """Commit a part; return ``False`` if its folder was removed: the upload is complete, or was discarded."""
    try:
        pending.commit()
    except ObjectNotFoundError:
        return False
    finally:
        pending.abort()
    return True
