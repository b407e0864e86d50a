"""Multipart uploads: each part is a temporary object, until all of them are received. Calls block unless async."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Mapping
from functools import cache

from ...core.threads.named_locks import NamedLocks
from ...errors import ObjectChangedError, ObjectNotFoundError
from ...storage import Entry, ObjectWriter
from .blocking import Lanes, run_blocking
from .dataset_root import DatasetRoot
from .digests import Digests, filled_file, publish_in_turn
from .file_metadata import etag_of
from .lifetimes import LiveFolder
from .limits import ServiceLimits
from .preconditions import allows_overwrite, require_digest, require_match
from .problems import Problem
from .upload_parts import Part, Progress, Stored, Upload, progress_of

_PART = re.compile(r"(\d{20})-(\d{20})-(\d{20}|unknown)")
_MAX_COMPLETED = 10_000
_MAX_ATTEMPTS = 10  # at joining the parts, while one of them is replaced


class Uploads:
    """All incomplete uploads of a root.

    Args:
        root: the datasets.
        digests: receives the digest of each file.
        limits: of parts and bytes.
        lanes: of the threads that complete uploads.
    """

    def __init__(self, root: DatasetRoot, digests: Digests, limits: ServiceLimits, lanes: Lanes) -> None:
        self._root, self._digests, self._limits, self._lanes = root, digests, limits, lanes
        self._locks = NamedLocks()  # by the folder of the parts: each upload is completed by one request at a time
        self._completed: OrderedDict[str, Stored] = OrderedDict()  # for clients that lost the last response

    def upload(self, dataset: str, folder: LiveFolder, path: str, upload_id: str) -> Upload:
        """Return the upload with an identifier that the client chose."""
        boot_id = _boot_id() if self._root.is_local else ""  # local parts are not synced, so a reboot may lose them
        name = hashlib.sha256("\0".join((dataset, path, upload_id, boot_id)).encode()).hexdigest()[:32]
        parts_folder = LiveFolder(self._root.work_folder(f"uploads/{dataset}/{name}"), folder.life)
        return Upload(dataset, folder, path, parts_folder)

    def _parts(self, upload: Upload) -> list[tuple[Part, Entry]]:
        found = []
        for entry in self._root.files(upload.parts_folder):
            match = _PART.fullmatch(entry.path)
            if match is not None:
                total = None if match[3] == "unknown" else int(match[3])
                found.append(
                    (Part(int(match[1]), int(match[2]), total), entry._replace(path=upload.parts_folder + entry.path))
                )
        return found

    def progress(self, upload: Upload) -> Progress:
        """Return the received byte ranges.

        Raises:
            Problem: 404, if there are none.
        """
        parts = [part for part, _ in self._parts(upload)]
        if not parts:
            raise Problem(404, f"There is no such upload of {upload.path!r}: it never started, or is complete.")
        return progress_of(parts)

    def start_part(self, upload: Upload, part: Part) -> tuple[Part, ObjectWriter]:
        """Open a part for writing. A part without a total takes the one that another part stated.

        Raises:
            Problem: 409, if it contradicts the parts received before; 413, beyond the limits.
        """
        if max(part.end, part.total or 0) > self._limits.max_file_bytes:
            raise Problem(413, f"A file may have {self._limits.max_file_bytes:,} bytes at most.")
        existing = [other for other, _ in self._parts(upload)]
        self._require_consistent(existing, part)
        if part.total is None:  # it may replace the part that stated the total
            part = part._replace(total=progress_of(existing).total)
        return part, self._root.create_part(upload.parts_folder, part.name, durable=not _boot_id())

    def _require_consistent(self, existing: list[Part], part: Part) -> None:
        others = [other for other in existing if other[:2] != part[:2]]
        for other in others:
            if other.start < part.end and part.start < other.end:
                raise Problem(409, f"Bytes {part.start} to {part.end} overlap those from {other.start} to {other.end}.")
        totals = {one.total for one in [*others, part] if one.total is not None}
        if len(totals) > 1 or max(one.end for one in [*others, part]) > min(totals, default=sys.maxsize):
            raise Problem(409, f"Parts of this upload disagree about the file's size: {sorted(totals)} bytes.")
        if len(others) >= self._limits.max_parts:
            raise Problem(413, f"More than {self._limits.max_parts:,} parts. Make them larger.")

    async def finish_part(
        self, upload: Upload, part: Part, pending: ObjectWriter, sha256: str, headers: Mapping[str, str]
    ) -> Stored | Progress:
        """Commit a part, and the file if no part is missing.

        Args:
            upload: that the part belongs to.
            part: as :meth:`start_part` returned it.
            pending: its bytes.
            sha256: of them, hexadecimal.
            headers: of the request, with preconditions and the digest of the whole file.

        Raises:
            Problem: 400, if the digest of the file differs; its parts are removed. 404, if the dataset was removed;
                409, if the part contradicts the others; 412, if a precondition does not hold.
        """
        before = self._completed.get(upload.parts_folder)
        is_committed = await run_blocking(lambda: _commit(pending), self._lanes.writing)
        async with self._locks.held_in_loop(upload.parts_folder):
            done = await run_blocking(lambda: self._add(upload, part, before, is_committed, sha256))
            for _ in range(_MAX_ATTEMPTS):
                if done is not None:
                    return done
                with contextlib.suppress(ObjectChangedError):  # a part was sent again
                    return await self._complete(upload, headers)
                done = await run_blocking(lambda: self._missing(upload, part))
        raise Problem(503, "Parts are replaced continuously. Send the last one again.", {"Retry-After": "1"})

    def _add(
        self, upload: Upload, part: Part, before: Stored | None, is_committed: bool, sha256: str
    ) -> Stored | Progress | None:
        """Add a committed part to its upload; ``None`` if no part is missing."""
        done = self._completed.get(upload.parts_folder)
        if done is before:  # else another request completed it, and this part was received twice
            done = self._completed_before(upload, part, sha256)
        if done is not None:
            self._root.store.remove_folder(upload.parts_folder)
            return done
        if is_committed:
            self._completed.pop(upload.parts_folder, None)
            self._keep_one_of_each_range(upload, part)
        return self._missing(upload, part if is_committed else None)

    def _missing(self, upload: Upload, part: Part | None) -> Progress | None:
        """Return the progress of an upload that contains a part; ``None`` if no part is missing."""
        parts = [one for one, _ in self._parts(upload)]
        with upload.folder.life.used():  # 404, if the parts were removed with the dataset
            if part not in parts:
                raise Problem(409, "The upload ended during the request. Send its parts again.")
        now = progress_of(parts)
        return None if now.total is not None and now.received == [[0, now.total]] else now

    def _completed_before(self, upload: Upload, part: Part, sha256: str) -> Stored | None:
        """Return the file of an upload that was completed with this part not long ago, if it is unchanged."""
        stored = self._completed.get(upload.parts_folder)
        if stored is None or self._root.find(upload.folder, upload.path) != stored.entry:
            return None
        entry = stored.entry
        if part.end > (entry.size or 0) or part.total not in (None, entry.size):
            return None
        digest = hashlib.sha256()
        for chunk in self._root.chunks(entry, part.start, part.end):
            digest.update(chunk)
        return stored if digest.hexdigest() == sha256 else None

    def _keep_one_of_each_range(self, upload: Upload, part: Part) -> None:
        """Of parts of the same range keep this one; remove this one if it contradicts parts received meanwhile."""
        existing = self._parts(upload)
        for other, entry in existing:
            if other[:2] == part[:2] and other != part:
                self._root.store.delete(entry.path)
        try:
            self._require_consistent([other for other, _ in existing], part)
        except Problem:
            self._root.store.delete(upload.parts_folder + part.name)
            raise

    async def _complete(self, upload: Upload, headers: Mapping[str, str]) -> Stored:
        pending, sha256 = await run_blocking(lambda: self._join(upload, headers), self._lanes.joining)
        folder, lane = upload.folder, self._lanes.writing
        entry = await publish_in_turn(self._root, self._digests, pending, folder, upload.path, sha256, lane, headers)
        stored = self._completed[upload.parts_folder] = Stored(entry, sha256)
        while len(self._completed) > _MAX_COMPLETED:
            self._completed.popitem(last=False)
        await run_blocking(lambda: self._root.store.remove_folder(upload.parts_folder))
        return stored

    def _join(self, upload: Upload, headers: Mapping[str, str]) -> tuple[ObjectWriter, str]:
        """Copy the parts into a file; return it, ready to be published, and its digest."""
        found = self._root.find(upload.folder, upload.path)
        require_match(headers, None if found is None else etag_of(found))
        found_parts = self._parts(upload)
        self._limits.require_space(self._root.free_bytes(), sum(entry.size or 0 for _, entry in found_parts))
        now = progress_of([part for part, _ in found_parts])
        if now.received != [[0, now.total]]:
            raise ObjectChangedError(f"The parts of {upload.path!r:.200} are not the same as a moment ago.")
        chunks = (chunk for _, entry in found_parts for chunk in self._root.chunks(entry))
        overwrite = allows_overwrite(headers)
        pending, sha256 = filled_file(self._root, upload.folder, upload.path, chunks, overwrite=overwrite)
        try:
            require_digest("Repr-Digest", headers.get("repr-digest"), sha256)
        except Problem:
            pending.abort()
            self._root.store.remove_folder(upload.parts_folder)
            raise
        return pending, sha256

    async def discard(self, upload: Upload) -> None:
        """Remove the parts of an upload."""
        async with self._locks.held_in_loop(upload.parts_folder):
            await run_blocking(lambda: self._root.store.remove_folder(upload.parts_folder))

    def remove_abandoned(self) -> None:
        """Remove the uploads whose last part is older than ``upload_lifetime_s``."""
        above = self._root.work_folder("uploads")
        for folder in {entry.path.rpartition("/")[0] for entry in self._root.files(above)}:
            with self._locks.held(f"{above}{folder}/"):  # a part that is added later is missed by finish_part
                parts = list(self._root.files(f"{above}{folder}/"))
                newest_s = max((entry.modified_s or time.time() for entry in parts), default=0.0)
                if folder and parts and newest_s < time.time() - self._limits.upload_lifetime_s:
                    self._root.store.remove_folder(f"{above}{folder}/")


def _commit(pending: ObjectWriter) -> bool:
    """Commit a part; ``False`` if its folder was removed: the upload is complete, or was discarded."""
    try:
        pending.commit()
    except ObjectNotFoundError:
        return False
    finally:
        pending.abort()
    return True


@cache
def _boot_id() -> str:
    """Identify the current boot of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
