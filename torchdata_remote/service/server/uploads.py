"""Receive files: bodies of requests, and uploads in parts, of which each is a hidden file until all are received."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import anyio
from starlette.requests import ClientDisconnect, Request

from ...core.threads.named_locks import NamedLocks
from .headers import require_digest, sha256_of
from .limits import ServiceLimits
from .names import HEAD_BYTES
from .problems import CLOSE, Problem, Stopping
from .root import CHUNK_BYTES, Dataset, File, FileWriter, Root
from .threads import run_blocking

_SPACE_CHECK_BYTES = 64 << 20  # received between two checks of the disk
_MAX_DIGITS = 18
_FORM_TYPES = {"multipart/form-data", "application/x-www-form-urlencoded"}
_PART = re.compile(r"(\d{20})-(\d{20})-(\d{20}|unknown)")


class Received(NamedTuple):
    """A received body: its size, hexadecimal SHA-256, and first ``HEAD_BYTES``."""

    num_bytes: int
    sha256: str
    head: bytes


def _kind_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def require_file_body(request: Request) -> None:
    """Require that there is a body, and that it is the file itself, and not a form that contains it.

    Raises:
        Problem: 411, if none is announced, as by clients of HTTP/1.0 that just send it: their file would become empty.
            415, if it is a form.
    """
    if "content-length" not in request.headers and "transfer-encoding" not in request.headers:
        raise Problem(411, "The length of the body is missing. Send Content-Length, also for an empty file.", CLOSE)
    kind = _kind_of(request)
    if kind in _FORM_TYPES:
        raise Problem(
            415,
            f"The body is {kind}: a form, or bytes that curl -d has changed. Send the file as it is: curl -T FILE, or "
            "--data-binary @FILE with -H 'Content-Type: application/octet-stream'.",
        )


async def json_body(request: Request, limits: ServiceLimits, max_bytes: int) -> object:
    """Return the JSON value of a small body; ``None`` if it is not JSON.

    Raises:
        Problem: 415, for another Content-Type; 413, if it is too large.
    """
    kind = _kind_of(request)
    if kind != "application/json":
        raise Problem(415, f"The body is {kind or 'of no type'}; expected application/json.")
    body, data = Body(request, limits, max_bytes), bytearray()
    while chunk := await body.next_chunk():
        data += chunk
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value


class Body:
    """The body of a request, in chunks of about 1 MiB.

    Args:
        request: with the body.
        limits: of bytes and time.
        max_bytes: of a body that is no file.
    """

    def __init__(self, request: Request, limits: ServiceLimits, max_bytes: int | None = None) -> None:
        self._stream, self._limits, self._max_bytes = request.stream().__aiter__(), limits, max_bytes
        length = request.headers.get("content-length", "0")
        self.announced = int(length) if length.isdecimal() and len(length) <= _MAX_DIGITS else sys.maxsize
        self._require(self.announced if length != "0" else 0)
        self._num_bytes, self._is_cut = 0, False

    def _require(self, num_bytes: int) -> None:
        if self._max_bytes is None:
            self._limits.require_file_bytes(num_bytes, CLOSE)
        elif num_bytes > self._max_bytes:
            raise Problem(413, f"The body has more than {self._max_bytes:,} bytes.", CLOSE)

    async def next_chunk(self) -> bytes:
        """Return the next bytes; none at the end.

        Raises:
            Problem: 413, if the body is too large; 408, if no byte arrives for ``idle_timeout_s``.
            ClientDisconnect: if the connection breaks, after the bytes before it.
        """
        if self._is_cut:
            raise ClientDisconnect
        pieces: list[bytes] = []
        chunk_bytes, idle_s = 0, self._limits.idle_timeout_s
        try:
            with anyio.fail_after(idle_s) as scope:
                while chunk_bytes < CHUNK_BYTES and (piece := await anext(self._stream, None)) is not None:
                    pieces.append(piece)
                    chunk_bytes += len(piece)
                    scope.deadline = anyio.current_time() + idle_s
        except TimeoutError:
            raise Problem(408, f"No byte of the body for {idle_s:g} s.", CLOSE) from None
        except ClientDisconnect:
            if not chunk_bytes:
                raise
            self._is_cut = True
        self._num_bytes += chunk_bytes
        self._require(self._num_bytes)
        return b"".join(pieces)


class Receiver:
    """Writes a body into a file while a thread hashes and writes what came before. After an error it is aborted.

    Args:
        request: with the body.
        root: whose free space is checked.
        limits: of bytes, time and disk.

    Raises:
        Problem: 413 or 507, if the announced bytes are too many.
    """

    def __init__(self, request: Request, root: Root, limits: ServiceLimits) -> None:
        self._request, self._root, self._limits = request, root, limits
        self._digest, self._head = hashlib.sha256(), b""
        self.num_bytes = self._checked_bytes = 0
        self._body = Body(request, limits)
        limits.require_space(root.free_bytes(), self._body.announced)

    def promised_sha256(self) -> str | None:
        """Return the digest that the body is said to have. Raises ``Problem`` 400 if it cannot be parsed."""
        headers = self._request.headers
        return sha256_of(headers.get("content-digest")) or sha256_of(headers.get("repr-digest"))

    async def receive(
        self,
        writer: FileWriter,
        *,
        part_bytes: int | None = None,
        keep_cut: Callable[[int, str], object] | None = None,
    ) -> Received:
        """Receive the body.

        Args:
            writer: of the file. It is not committed here.
            part_bytes: that a part has to have; ``None`` for a whole file, whose Repr-Digest is compared.
            keep_cut: called with the number of bytes and their SHA-256, instead of an abort, if the connection breaks
                within a part.

        Raises:
            Problem: 413, 507 or 408 at the limits; 400, if a digest or ``part_bytes`` does not match.
        """
        try:
            await self._write_all(writer)
            received = Received(self.num_bytes, self._digest.hexdigest(), self._head)
            if part_bytes not in (None, received.num_bytes):
                raise Problem(400, f"Content-Range says {part_bytes:,} bytes, the body has {received.num_bytes:,}.")
            for header in ("Content-Digest", *(("Repr-Digest",) if part_bytes is None else ())):
                require_digest(header, self._request.headers.get(header), received.sha256)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                is_cut = isinstance(error, ClientDisconnect) or (isinstance(error, Problem) and error.status == 408)
                # Content-Digest is that of all bytes: the first ones alone cannot be checked
                if keep_cut and is_cut and "content-digest" not in self._request.headers:
                    await run_blocking(partial(keep_cut, self.num_bytes, self._digest.hexdigest()), "write")
                await run_blocking(writer.abort)
            raise
        return received

    async def _write_all(self, writer: FileWriter) -> None:
        writing: asyncio.Future[None] | None = None
        try:
            while chunk := await self._body.next_chunk():
                if writing is not None:
                    await writing
                if self.num_bytes - self._checked_bytes > _SPACE_CHECK_BYTES:
                    self._checked_bytes = self.num_bytes
                    self._limits.require_space(self._root.free_bytes(), 0)
                writing = asyncio.ensure_future(run_blocking(partial(self._write, writer, chunk), "write"))
        finally:
            if writing is not None:
                await writing  # its error counts more than that the client left

    def _write(self, writer: FileWriter, data: bytes) -> None:
        self._head = self._head or data[:HEAD_BYTES]
        self._digest.update(data)
        writer.write(data)
        self.num_bytes += len(data)


class Part(NamedTuple):
    """Bytes ``start`` to ``end`` of a file of ``total`` bytes, ``None`` if no part says so."""

    start: int
    end: int
    total: int | None

    @property
    def name(self) -> str:
        """Name of its hidden file. Names sort by the parts' first bytes."""
        return f"{self.start:020d}-{self.end:020d}-" + ("unknown" if self.total is None else f"{self.total:020d}")

    def contains(self, other: Part) -> bool:
        """Whether all bytes of another part are in this one."""
        return self.start <= other.start and other.end <= self.end


class Progress(NamedTuple):
    """Received byte ranges of an upload, merged, and the size of the file if it is known."""

    received: list[list[int]]
    total: int | None


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


class PartialUpload:
    """An upload in parts. All calls block.

    Args:
        dataset: of its file.
        path: of the file.
        upload_id: that the client chose.
        limits: of parts and bytes.
        locks: of this service. An upload is completed by one request at a time.
    """

    def __init__(self, dataset: Dataset, path: str, upload_id: str, limits: ServiceLimits, locks: NamedLocks) -> None:
        self._dataset, self._path, self._limits, self._locks = dataset, path, limits, locks
        self._id = hashlib.sha256(f"{upload_id} {path}".encode()).hexdigest()[:32]

    def _parts(self) -> list[Part]:
        found = filter(None, map(_PART.fullmatch, self._dataset.parts(self._id)))
        return [Part(int(one[1]), int(one[2]), None if one[3] == "unknown" else int(one[3])) for one in found]

    def _part_path(self, part: Part) -> str:
        return self._dataset.part_path(self._id, part.name)

    def progress(self) -> Progress:
        """Return the received byte ranges.

        Raises:
            Problem: 404, if there are none.
        """
        parts = self._parts()
        if not parts:
            raise Problem(404, f"There is no such upload of {self._path!r}: it never started, or is complete.")
        return progress_of(parts)

    def start(self, part: Part) -> tuple[Part, FileWriter]:
        """Open a part for writing. A part without a total takes the one that another part stated.

        Raises:
            Problem: 409, if it contradicts the parts received before; 413, beyond the limits.
        """
        self._limits.require_file_bytes(max(part.end, part.total or 0))
        self._dataset.require_writable(self._path)
        others = self._require_fits(part)
        if part.total is None:  # it may replace the part that stated the total
            part = part._replace(total=progress_of(others).total)
        return part, self._dataset.writer(self._part_path(part), {})

    def keep_cut(self, part: Part, writer: FileWriter, num_bytes: int, sha256: str) -> None:
        """Keep the bytes of a part that arrived before its connection broke, if they fit to the others."""
        received = part._replace(end=part.start + num_bytes)
        with self._locks.held(self._id), contextlib.suppress(Problem):
            if not num_bytes or not part.contains(received) or any(one.contains(received) for one in self._parts()):
                return
            self._require_fits(received)
            if writer.rename(self._part_path(received)):
                writer.commit(sha256)
                self._drop_contained(received)

    def finish(
        self, part: Part, writer: FileWriter, sha256: str, headers: Mapping[str, str], stopping: Stopping
    ) -> File | Progress:
        """Commit a part, and the file if no part is missing.

        Args:
            part: as :meth:`start` returned it.
            writer: of its bytes.
            sha256: of them, hexadecimal.
            headers: of the request, with preconditions and the digest of the whole file.
            stopping: ends the work with the service.

        Raises:
            Problem: 400, if the digest of the file differs; its parts are removed. 404, if the dataset was removed;
                409, if the part contradicts the others; 412, if a precondition does not hold.
        """
        with self._locks.held(self._id):
            done = self._completed_before(part, sha256, sha256_of(headers.get("repr-digest")))
            if done is not None:
                writer.abort()
                self._dataset.remove_parts(self._id)
                return done
            writer.commit(sha256)
            try:
                self._require_fits(part)
            except Problem:
                self._dataset.remove_part(self._id, part.name)
                raise
            self._drop_contained(part)
            parts = sorted(self._parts())
            now = progress_of(parts)
            if now.total is None or now.received != [[0, now.total]]:
                return now
            file = self._assemble(parts, sha256, headers, stopping)
            self._dataset.remove_parts(self._id)
            return file

    def _require_fits(self, part: Part) -> list[Part]:
        """Require that a part fits to those that it does not contain; return all others."""
        parts = [one for one in self._parts() if one != part]
        others = [one for one in parts if not part.contains(one)]
        for other in others:
            if other.start < part.end and part.start < other.end:
                raise Problem(409, f"Bytes {part.start} to {part.end} overlap those from {other.start} to {other.end}.")
        totals = {one.total for one in [*others, part] if one.total is not None}
        if len(totals) > 1 or max(one.end for one in [*others, part]) > min(totals, default=sys.maxsize):
            raise Problem(409, f"Parts of this upload disagree about the file's size: {sorted(totals)} bytes.")
        if len(others) >= self._limits.max_parts:
            raise Problem(413, f"More than {self._limits.max_parts:,} parts. Make them larger.")
        return parts

    def _drop_contained(self, part: Part) -> None:
        for other in self._parts():
            if part.contains(other) and other != part:
                self._dataset.remove_part(self._id, other.name)

    def _completed_before(self, part: Part, sha256: str, promised: str | None) -> File | None:
        """Return the file, if this upload was completed with this part before: its response may have been lost."""
        found = self._dataset.find(self._path)
        file = None if found is None else self._dataset.about(found)
        if file is None or file.by != self._id or part.total not in (None, file.size) or part.end > file.size:
            return None
        if promised not in (None, file.sha256):
            return None
        digest = hashlib.sha256()
        with contextlib.closing(self._dataset.open(self._path)) as opened:
            for chunk in opened.chunks(part.start, part.end, CHUNK_BYTES):
                digest.update(chunk)
        return file if digest.hexdigest() == sha256 else None

    def _assemble(self, parts: list[Part], sha256: str, headers: Mapping[str, str], stopping: Stopping) -> File:
        """Make a file of complete parts. ``sha256`` is that of the one that was received last."""
        dataset, path, promised = self._dataset, self._path, headers.get("repr-digest")
        if len(parts) == 1:
            self._require_digest(promised, sha256)
            adopted = dataset.adopt(self._part_path(parts[0]), path, headers, self._id)
            if adopted is not None:
                return adopted.commit(sha256)
        writer, digest = dataset.writer(path, headers, sha256=sha256_of(promised), by=self._id), hashlib.sha256()
        try:
            for part in parts:
                with contextlib.closing(dataset.open(self._part_path(part))) as opened:
                    for chunk in stopping.during(opened.chunks(0, opened.file.size, CHUNK_BYTES)):
                        digest.update(chunk)
                        writer.write(chunk)
            self._require_digest(promised, digest.hexdigest())
        except BaseException:
            writer.abort()
            raise
        return writer.commit(digest.hexdigest())

    def _require_digest(self, promised: str | None, sha256: str) -> None:
        try:
            require_digest("Repr-Digest", promised, sha256)
        except Problem:
            self._dataset.remove_parts(self._id)
            raise

    def discard(self) -> None:
        """Remove the parts."""
        with self._locks.held(self._id):
            self._dataset.remove_parts(self._id)


def upload_json(upload_id: str, progress: Progress) -> dict[str, Any]:
    """Describe an incomplete upload."""
    return {"upload": upload_id, **progress._asdict()}
