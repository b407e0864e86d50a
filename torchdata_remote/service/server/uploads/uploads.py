"""Multipart uploads: each part is a temporary object, until all of them are received. Calls block unless async."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import Mapping

from anyio import CancelScope

from ....core.threads import NamedLocks
from ....errors import ObjectChangedError
from ....storage import ObjectWriter
from ..blocking import Lanes, run_blocking
from ..datasets.dataset_root import DatasetRoot
from ..datasets.digests import Digests, filled_file, publish_in_turn
from ..datasets.file_metadata import etag_of
from ..datasets.lifetimes import LiveFolder
from ..http.preconditions import allows_overwrite, require_digest, require_match, sha256_of
from ..limits import ServiceLimits
from ..problems import Problem
from .part_files import (
    adopt_part,
    boot_id,
    commit_part,
    create_part,
    keep_cut_part,
    parts_of,
    require_part_fits,
)
from .upload_parts import Part, Progress, Stored, Upload, progress_of, require_consistent

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
        boot = boot_id() if self._root.is_local else ""  # local parts are not synced, so a reboot may lose them
        name = hashlib.sha256("\0".join((dataset, path, upload_id, boot)).encode()).hexdigest()[:32]
        parts_folder = LiveFolder(self._root.work_folder(f"uploads/{dataset}/{name}"), folder.life)
        return Upload(dataset, folder, path, parts_folder)

    def progress(self, upload: Upload) -> Progress:
        """Return the received byte ranges.

        Raises:
            Problem: 404, if there are none.
        """
        parts = [part for part, _ in parts_of(self._root, upload)]
        if not parts:
            raise Problem(404, f"There is no such upload of {upload.path!r}: it never started, or is complete.")
        return progress_of(parts)

    def start_part(self, upload: Upload, part: Part) -> tuple[Part, ObjectWriter]:
        """Open a part for writing. A part without a total takes the one that another part stated.

        Raises:
            Problem: 409, if it contradicts the parts received before; 413, beyond the limits.
        """
        self._limits.require_file_bytes(max(part.end, part.total or 0))
        existing = [other for other, _ in parts_of(self._root, upload)]
        require_consistent(existing, part, self._limits.max_parts)
        if part.total is None:  # it may replace the part that stated the total
            part = part._replace(total=progress_of(existing).total)
        return part, create_part(self._root, upload, part, durable=not boot_id())

    async def keep_cut_part(self, upload: Upload, part: Part, pending: ObjectWriter, num_bytes: int) -> None:
        """Keep the bytes of a part that were received before its connection broke, if they fit to the others.

        Args:
            upload: that the part belongs to.
            part: as :meth:`start_part` returned it.
            pending: its bytes.
            num_bytes: that were received.
        """
        root, limit, lane = self._root, self._limits.max_parts, self._lanes.writing
        try:
            async with self._locks.held_in_loop(upload.parts_folder):
                await run_blocking(lambda: keep_cut_part(root, upload, part, pending, num_bytes, limit), lane)
        finally:
            await run_blocking(pending.abort)

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
        try:
            if not self._root.is_local:  # in a bucket it takes time
                is_committed = await run_blocking(lambda: commit_part(pending), self._lanes.writing)
            async with self._locks.held_in_loop(upload.parts_folder):
                if self._root.is_local:  # or another one could replace the part while it becomes the file
                    is_committed = await run_blocking(lambda: commit_part(pending), self._lanes.writing)
                return await self._finish(upload, part, before, is_committed, sha256, headers)
        except BaseException:
            with CancelScope(shield=True):
                await run_blocking(pending.abort)
            raise

    async def _finish(
        self,
        upload: Upload,
        part: Part,
        before: Stored | None,
        is_committed: bool,
        sha256: str,
        headers: Mapping[str, str],
    ) -> Stored | Progress:
        done = await run_blocking(lambda: self._add(upload, part, before, is_committed, sha256, headers))
        for _ in range(_MAX_ATTEMPTS):
            if done is not None:
                return done
            with contextlib.suppress(ObjectChangedError):  # a part was sent again
                return await self._complete(upload, part, sha256, headers)
            done = await run_blocking(lambda: self._missing(upload, part))
        raise Problem(503, "Parts are replaced continuously. Send the last one again.", {"Retry-After": "1"})

    def _add(
        self,
        upload: Upload,
        part: Part,
        before: Stored | None,
        is_committed: bool,
        sha256: str,
        headers: Mapping[str, str],
    ) -> Stored | Progress | None:
        """Add a committed part to its upload; ``None`` if no part is missing."""
        done = self._completed.get(upload.parts_folder)
        if done is before:  # else another request completed it, and this part was received twice
            done = self._completed_before(upload, part, sha256)
        if done is not None and sha256_of(headers.get("repr-digest")) not in (None, done.sha256):
            done = None  # this part is of another file
        if done is not None:
            self._root.store.remove_folder(upload.parts_folder)
            return done
        if is_committed:
            self._completed.pop(upload.parts_folder, None)
            require_part_fits(self._root, upload, part, self._limits.max_parts)
        return self._missing(upload, part if is_committed else None)

    def _missing(self, upload: Upload, part: Part | None) -> Progress | None:
        """Return the progress of an upload that contains a part; ``None`` if no part is missing."""
        parts = [one for one, _ in parts_of(self._root, upload)]
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

    async def _complete(self, upload: Upload, part: Part, sha256: str, headers: Mapping[str, str]) -> Stored:
        work, folder, lane = self._lanes.joining, upload.folder, self._lanes.writing
        pending, sha256 = await run_blocking(lambda: self._assemble(upload, part, sha256, headers), work)
        entry = await publish_in_turn(self._root, self._digests, pending, folder, upload.path, sha256, lane, headers)
        stored = self._completed[upload.parts_folder] = Stored(entry, sha256)
        while len(self._completed) > _MAX_COMPLETED:
            self._completed.popitem(last=False)
        await run_blocking(lambda: self._root.store.remove_folder(upload.parts_folder))
        return stored

    def _assemble(
        self, upload: Upload, part: Part, sha256: str, headers: Mapping[str, str]
    ) -> tuple[ObjectWriter, str]:
        """Make a file of complete parts; return it, ready to be published, and its digest. ``sha256`` is the part's."""
        found = self._root.find(upload.folder, upload.path)
        require_match(headers, None if found is None else etag_of(found))
        found_parts = parts_of(self._root, upload)
        now = progress_of([one for one, _ in found_parts])
        if now.received != [[0, now.total]]:
            raise ObjectChangedError(f"The parts of {upload.path!r:.200} are not the same as a moment ago.")
        overwrite = allows_overwrite(headers)
        if [one[:2] for one, _ in found_parts] == [part[:2]]:  # the only one: it becomes the file
            self._require_digest(upload, headers, sha256)
            adopted = adopt_part(self._root, found_parts[0][1], upload.folder, upload.path, overwrite=overwrite)
            if adopted is not None:
                return adopted, sha256
        self._limits.require_space(self._root.free_bytes(), sum(entry.size or 0 for _, entry in found_parts))
        chunks = (chunk for _, entry in found_parts for chunk in self._root.chunks(entry))
        pending, sha256 = filled_file(self._root, upload.folder, upload.path, chunks, overwrite=overwrite)
        try:
            self._require_digest(upload, headers, sha256)
        except Problem:
            pending.abort()
            raise
        return pending, sha256

    def _require_digest(self, upload: Upload, headers: Mapping[str, str], sha256: str) -> None:
        try:
            require_digest("Repr-Digest", headers.get("repr-digest"), sha256)
        except Problem:
            self._root.store.remove_folder(upload.parts_folder)
            raise

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
