"""Files of the parts of uploads. All calls block."""

from __future__ import annotations

import contextlib
import re
from functools import cache

from ....errors import ObjectNotFoundError
from ....storage import Entry, LocalStore, LocalWriter, ObjectWriter
from ..datasets.dataset_root import DatasetRoot
from ..datasets.lifetimes import LiveFolder, LiveWriter
from ..problems import Problem
from .upload_parts import Part, Upload, require_consistent

_PART = re.compile(r"(\d{20})-(\d{20})-(\d{20}|unknown)")


def parts_of(root: DatasetRoot, upload: Upload) -> list[tuple[Part, Entry]]:
    """List the parts of an upload, sorted by their first bytes."""
    found = []
    for entry in root.files(upload.parts_folder):
        match = _PART.fullmatch(entry.path)
        if match is not None:
            total = None if match[3] == "unknown" else int(match[3])
            found.append(
                (Part(int(match[1]), int(match[2]), total), entry._replace(path=upload.parts_folder + entry.path))
            )
    return found


def drop_contained(root: DatasetRoot, upload: Upload, part: Part) -> list[Part]:
    """Remove the parts that this one contains; return those that are left."""
    left = []
    for other, entry in parts_of(root, upload):
        if part.contains(other) and other != part:
            root.store.delete(entry.path)
        else:
            left.append(other)
    return left


def require_part_fits(root: DatasetRoot, upload: Upload, part: Part, max_parts: int) -> None:
    """Drop the parts that this one contains; remove this one if it contradicts parts that were received meanwhile.

    Raises:
        Problem: 409 or 413, if it does.
    """
    try:
        require_consistent(drop_contained(root, upload, part), part, max_parts)
    except Problem:
        root.store.delete(upload.parts_folder + part.name)
        raise


def create_part(root: DatasetRoot, upload: Upload, part: Part, *, durable: bool) -> ObjectWriter:
    """Open a part for writing. A local one is not synced to disk unless ``durable``, or it is the whole file."""
    if isinstance(root.store, LocalStore):
        durable = durable or (part.start, part.end) == (0, part.total)
        path, life = upload.parts_folder + part.name, upload.parts_folder.life
        with life.used():
            return LiveWriter(root.store.create(path, overwrite=True, durable=durable, sync_folder=False), life)
    return root.create_file(upload.parts_folder, part.name)


def keep_cut_part(
    root: DatasetRoot, upload: Upload, part: Part, pending: ObjectWriter, num_bytes: int, max_parts: int
) -> None:
    """Commit the bytes of a part that were received before its connection broke, if they fit to the other parts."""
    received = _cut_part(part, pending, num_bytes)
    existing = [other for other, _ in parts_of(root, upload)]
    if received is not None and not any(other.contains(received) for other in existing):
        with contextlib.suppress(Problem, ObjectNotFoundError):
            require_consistent(existing, received, max_parts)
            pending.commit()
            drop_contained(root, upload, received)


def _cut_part(part: Part, pending: ObjectWriter, num_bytes: int) -> Part | None:
    """Shorten a part; ``None`` where that is impossible."""
    writer = pending.writer if isinstance(pending, LiveWriter) else pending
    if not num_bytes or not isinstance(writer, LocalWriter):
        return None
    received = part._replace(end=part.start + num_bytes)
    writer.rename_to(received.name)
    return received


def adopt_part(
    root: DatasetRoot, part: Entry, folder: LiveFolder, path: str, *, overwrite: bool
) -> ObjectWriter | None:
    """Make the only part of an upload its file, without a copy; ``None`` where that is impossible.

    Raises:
        Problem: 409, as :meth:`DatasetRoot.create_file`.
    """
    if not isinstance(root.store, LocalStore):
        return None
    with folder.life.used():
        root.require_writable_path(folder, path)
        writer = root.store.adopt(part.path, folder + path, overwrite=overwrite)
        return None if writer is None else LiveWriter(writer, folder.life)


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
