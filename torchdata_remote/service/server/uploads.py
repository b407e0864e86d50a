"""Multipart uploads: each part is a temporary object, until all of them are received. All calls block."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping

from ...errors import ObjectChangedError, ObjectNotFoundError
from ...storage import Entry, ObjectWriter
from .dataset_root import DatasetRoot
from .digests import Digests, publish
from .file_metadata import etag_of
from .limits import ServiceLimits
from .preconditions import allows_overwrite, require_digest, require_match
from .problems import Problem
from .upload_parts import (
    Part,
    Progress,
    Stored,
    Upload,
    adopt_part,
    boot_id,
    commit_part,
    create_part,
    cut_part,
    join_parts,
    progress_of,
    require_consistent,
)

_PART = re.compile(r"(\d{20})-(\d{20})-(\d{20}|unknown)")
_MAX_COMPLETED = 10_000
_MAX_ATTEMPTS = 10  # at joining the parts, while one of them is replaced


class Uploads:
    """All incomplete uploads of a root.

    Args:
        root: the datasets.
        digests: receives the digest of each file.
        limits: of parts and bytes.
    """

    def __init__(self, root: DatasetRoot, digests: Digests, limits: ServiceLimits) -> None:
        self._root, self._digests, self._limits = root, digests, limits
        self._locks: dict[str, threading.RLock] = {}
        self._holders: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._completed: OrderedDict[str, Stored] = OrderedDict()  # for clients that lost the last response

    def upload(self, dataset: str, folder: str, path: str, upload_id: str) -> Upload:
        """Return the upload with an identifier that the client chose."""
        boot = boot_id() if self._root.is_local else ""  # local parts are not synced, so a reboot may lose them
        name = hashlib.sha256("\0".join((dataset, path, upload_id, boot)).encode()).hexdigest()[:32]
        return Upload(dataset, folder, path, self._root.work_folder(f"uploads/{name}"))

    @contextlib.contextmanager
    def _locked(self, upload: Upload) -> Iterator[None]:
        """Hold the upload's lock, so that one thread at a time completes it."""
        key = upload.parts_folder
        with self._lock:
            lock = self._locks.setdefault(key, threading.RLock())
            self._holders[key] += 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                self._holders[key] -= 1
                if not self._holders[key]:
                    del self._holders[key], self._locks[key]

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
        require_consistent(existing, part, self._limits.max_parts)
        if part.total is None:  # it may replace the part that stated the total
            part = part._replace(total=progress_of(existing).total)
        return part, create_part(self._root, upload, part, durable=not boot_id())

    def keep_cut_part(self, upload: Upload, part: Part, pending: ObjectWriter, num_bytes: int) -> None:
        """Keep the bytes of a part that were received before its connection broke, if they fit to the others.

        Args:
            upload: that the part belongs to.
            part: as :meth:`start_part` returned it.
            pending: its bytes.
            num_bytes: that were received.
        """
        received = cut_part(part, pending, num_bytes)
        try:
            with self._locked(upload):
                existing = [other for other, _ in self._parts(upload)]
                if received is not None and not any(other.contains(received) for other in existing):
                    with contextlib.suppress(Problem, ObjectNotFoundError):
                        require_consistent(existing, received, self._limits.max_parts)
                        pending.commit()
                        self._drop_contained(upload, received)
        finally:
            pending.abort()

    def finish_part(
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
            Problem: 400, if the digest of the file differs; its parts are removed. 409, if the part contradicts the
                others; 412, if a precondition does not hold.
        """
        before = self._completed.get(upload.parts_folder)
        is_committed = False if self._root.is_local else commit_part(pending)  # in a bucket it takes time
        with self._locked(upload):
            if self._root.is_local:  # or another one could replace the part while it becomes the file
                is_committed = commit_part(pending)
            done = self._completed.get(upload.parts_folder)
            if done is before:  # else another thread completed it, and this part was received twice
                done = self._completed_before(upload, part, sha256)
            if done is not None:
                self._root.store.remove_folder(upload.parts_folder)
                return done
            if not is_committed:
                raise Problem(409, "The upload ended during the request. Send its parts again.")
            self._completed.pop(upload.parts_folder, None)
            self._require_part_fits(upload, part)
            for _ in range(_MAX_ATTEMPTS):
                parts = self._parts(upload)
                now = progress_of([one for one, _ in parts])
                if now.total is None or now.received != [[0, now.total]]:
                    return now
                with contextlib.suppress(ObjectChangedError):  # a part was sent again
                    known = sha256 if [one[:2] for one, _ in parts] == [part[:2]] else None
                    return self._complete(upload, [entry for _, entry in parts], headers, known)
        raise Problem(503, "Parts are replaced continuously. Send the last one again.", {"Retry-After": "1"})

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

    def _require_part_fits(self, upload: Upload, part: Part) -> None:
        """Remove the parts that this one contains; remove this one if it contradicts parts received meanwhile."""
        existing = self._drop_contained(upload, part)
        try:
            require_consistent(existing, part, self._limits.max_parts)
        except Problem:
            self._root.store.delete(upload.parts_folder + part.name)
            raise

    def _drop_contained(self, upload: Upload, part: Part) -> list[Part]:
        """Remove the parts that this one contains; return those that are left."""
        left = []
        for other, entry in self._parts(upload):
            if part.contains(other) and other != part:
                self._root.store.delete(entry.path)
            else:
                left.append(other)
        return left

    def _complete(self, upload: Upload, parts: list[Entry], headers: Mapping[str, str], sha256: str | None) -> Stored:
        """Publish the file of complete parts; ``sha256`` is that of the only part, if there is only one."""
        found = self._root.find(upload.folder, upload.path)
        require_match(headers, None if found is None else etag_of(found))
        self._limits.require_space(self._root.free_bytes(), sum(part.size or 0 for part in parts))
        folder = self._root.folder(upload.dataset)  # fails if it was removed meanwhile
        overwrite = allows_overwrite(headers)
        pending = None
        if sha256 is not None:
            self._require_digest(upload, headers, sha256)
            pending = adopt_part(self._root, parts[0], folder, upload.path, overwrite=overwrite)
        if sha256 is None or pending is None:
            pending = self._root.create_file(folder, upload.path, overwrite=overwrite)
            sha256 = join_parts(self._root, parts, pending)
            try:
                self._require_digest(upload, headers, sha256)
            except Problem:
                pending.abort()
                raise
        stored = Stored(publish(self._root, self._digests, pending, folder, upload.path, sha256, headers), sha256)
        self._completed[upload.parts_folder] = stored
        while len(self._completed) > _MAX_COMPLETED:
            self._completed.popitem(last=False)
        self._root.store.remove_folder(upload.parts_folder)
        return stored

    def _require_digest(self, upload: Upload, headers: Mapping[str, str], sha256: str) -> None:
        try:
            require_digest("Repr-Digest", headers.get("repr-digest"), sha256)
        except Problem:
            self._root.store.remove_folder(upload.parts_folder)
            raise

    def discard(self, upload: Upload) -> None:
        """Remove the parts of an upload."""
        with self._locked(upload):
            self._root.store.remove_folder(upload.parts_folder)
