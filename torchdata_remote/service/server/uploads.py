"""Files that come in parts: each part is a temporary object, until all of them are there. All calls block."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from functools import cache

from ...errors import ObjectChangedError, ObjectNotFoundError
from ...storage.registry import Entry, ObjectWriter
from .dataset_root import DatasetRoot
from .digests import Digests, publish
from .file_metadata import etag_of
from .limits import ServiceLimits
from .preconditions import may_replace, require_digest, require_match
from .problems import Problem
from .upload_parts import Part, Progress, Stored, Upload, progress_of

_PART = re.compile(r"(\d{20})-(\d{20})-(\d{20}|unknown)")
_MAX_COMPLETED = 10_000
_MAX_REPLACED = 10  # times, while parts are put together


class Uploads:
    """All uploads of a shelf that are not complete.

    Args:
        shelf: where files and parts lie.
        digests: is told of files.
        limits: of parts and bytes.
    """

    def __init__(self, shelf: DatasetRoot, digests: Digests, limits: ServiceLimits) -> None:
        self._shelf, self._digests, self._limits = shelf, digests, limits
        self._locks: dict[str, threading.RLock] = {}
        self._holders: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._completed: OrderedDict[str, Stored] = OrderedDict()  # for clients that did not get to know

    def upload(self, dataset: str, folder: str, path: str, upload_id: str) -> Upload:
        """The upload that a client calls so."""
        of_machine = _since_its_start() if self._shelf.is_local else ""  # local parts are not forced to the disk
        name = hashlib.sha256("\0".join((dataset, path, upload_id, of_machine)).encode()).hexdigest()[:32]
        return Upload(dataset, folder, path, self._shelf.hidden(f"uploads/{name}"))

    @contextlib.contextmanager
    def _held(self, upload: Upload) -> Iterator[None]:
        """Nobody else completes it."""
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
        for entry in self._shelf.files(upload.parts_folder):
            match = _PART.fullmatch(entry.path)
            if match is not None:
                total = None if match[3] == "unknown" else int(match[3])
                found.append(
                    (Part(int(match[1]), int(match[2]), total), entry._replace(path=upload.parts_folder + entry.path))
                )
        return found

    def progress(self, upload: Upload) -> Progress:
        """What is there.

        Raises:
            Problem: 404, if there is nothing.
        """
        parts = [part for part, _ in self._parts(upload)]
        if not parts:
            raise Problem(404, f"There is no such upload of {upload.path!r}: it was never begun, or is complete.")
        return progress_of(parts)

    def begin(self, upload: Upload, part: Part) -> tuple[Part, ObjectWriter]:
        """Begin a part, which from here on knows how large the file will be, if another one told it.

        Raises:
            Problem: 409, if it does not fit those that are there; 413, if there are too many or too many bytes.
        """
        if max(part.end, part.total or 0) > self._limits.max_file_bytes:
            raise Problem(413, f"A file may have {self._limits.max_file_bytes:,} bytes at most.")
        there = [other for other, _ in self._parts(upload)]
        self._require_fit(there, part)
        if part.total is None:  # it may replace the one that told it
            part = part._replace(total=progress_of(there).total)
        return part, self._shelf.begin_part(upload.parts_folder, part.name, durable=not _since_its_start())

    def _require_fit(self, there: list[Part], part: Part) -> None:
        others = [other for other in there if other[:2] != part[:2]]
        for other in others:
            if other.start < part.end and part.start < other.end:
                raise Problem(409, f"Bytes {part.start} to {part.end} overlap those from {other.start} to {other.end}.")
        totals = {one.total for one in [*others, part] if one.total is not None}
        if len(totals) > 1 or max(one.end for one in [*others, part]) > min(totals, default=sys.maxsize):
            raise Problem(409, f"Parts of this upload disagree about the file's size: {sorted(totals)} bytes.")
        if len(others) >= self._limits.max_parts:
            raise Problem(413, f"More than {self._limits.max_parts:,} parts. Make them larger.")

    def finish(
        self, upload: Upload, part: Part, pending: ObjectWriter, sha256: str, headers: Mapping[str, str]
    ) -> Stored | Progress:
        """Commit a part; the file if all parts are there, else what is there.

        Args:
            upload: whose part it is.
            part: that was begun.
            pending: its bytes.
            sha256: of them, hexadecimal.
            headers: of the request, with conditions and the digest of the whole file.

        Raises:
            Problem: 400, if the digest differs, and the parts are gone; 409, if the part does not fit the others; 412,
                if a condition does not hold.
        """
        before = self._completed.get(upload.parts_folder)
        try:
            pending.commit()
            is_there = True
        except ObjectNotFoundError:  # its folder was removed: the upload is complete, or was dropped
            is_there = False
        finally:
            pending.abort()
        with self._held(upload):
            done = self._completed.get(upload.parts_folder)
            if done is before:  # else another part completed it meanwhile, and this one was there or came twice
                done = self._completed_with(upload, part, sha256)
            if done is not None:
                self._shelf.store.remove_folder(upload.parts_folder)
                return done
            if not is_there:
                raise Problem(409, "The upload ended meanwhile. Send its parts again.")
            self._completed.pop(upload.parts_folder, None)
            self._fit(upload, part)
            for _ in range(_MAX_REPLACED):
                parts = self._parts(upload)
                now = progress_of([one for one, _ in parts])
                if now.total is None or now.received != [[0, now.total]]:
                    return now
                with contextlib.suppress(ObjectChangedError):  # a part came again
                    return self._complete(upload, [entry for _, entry in parts], headers)
        raise Problem(503, "Parts are replaced all the time. Send the last one again.", {"Retry-After": "1"})

    def _completed_with(self, upload: Upload, part: Part, sha256: str) -> Stored | None:
        """The file of an upload that was completed with this part not long ago, if it is that one still."""
        stored = self._completed.get(upload.parts_folder)
        if stored is None or self._shelf.find(upload.folder, upload.path) != stored.entry:
            return None
        entry = stored.entry
        if part.end > (entry.size or 0) or part.total not in (None, entry.size):
            return None
        digest = hashlib.sha256()
        for chunk in self._shelf.chunks(entry, part.start, part.end):
            digest.update(chunk)
        return stored if digest.hexdigest() == sha256 else None

    def _fit(self, upload: Upload, part: Part) -> None:
        """Compare a part with those that came while it did; only one of each range stays."""
        there = self._parts(upload)
        for other, entry in there:
            if other[:2] == part[:2] and other != part:
                self._shelf.store.delete(entry.path)
        try:
            self._require_fit([other for other, _ in there], part)
        except Problem:
            self._shelf.store.delete(upload.parts_folder + part.name)
            raise

    def _complete(self, upload: Upload, parts: list[Entry], headers: Mapping[str, str]) -> Stored:
        found = self._shelf.find(upload.folder, upload.path)
        require_match(headers, None if found is None else etag_of(found))
        self._limits.require_space(self._shelf.free_bytes(), sum(part.size or 0 for part in parts))
        stored = self._put_together(upload, parts, headers)
        self._completed[upload.parts_folder] = stored
        while len(self._completed) > _MAX_COMPLETED:
            self._completed.popitem(last=False)
        self._shelf.store.remove_folder(upload.parts_folder)
        return stored

    def _put_together(self, upload: Upload, parts: list[Entry], headers: Mapping[str, str]) -> Stored:
        digest = hashlib.sha256()
        folder = self._shelf.folder(upload.dataset)  # unless it is gone by now
        pending = self._shelf.begin(folder, upload.path, overwrite=may_replace(headers))
        try:
            for part in parts:
                for chunk in self._shelf.chunks(part):
                    digest.update(chunk)
                    pending.write(bytes(chunk))
            try:
                require_digest("Repr-Digest", headers.get("repr-digest"), digest.hexdigest())
            except Problem:
                self._shelf.store.remove_folder(upload.parts_folder)
                raise
        except BaseException:
            pending.abort()
            raise
        sha256 = digest.hexdigest()
        return Stored(publish(self._shelf, self._digests, pending, folder, upload.path, sha256, headers), sha256)

    def drop(self, upload: Upload) -> None:
        """Forget an upload."""
        with self._held(upload):
            self._shelf.store.remove_folder(upload.parts_folder)


@cache
def _since_its_start() -> str:
    """Tells this run of the machine from those before."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
