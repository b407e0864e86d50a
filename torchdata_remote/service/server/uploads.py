"""Receive bodies of requests, and uploads in parts: each part is a hidden file until all of them are there."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, BinaryIO, NamedTuple

import anyio
from starlette.requests import Request

from .context import Context, Dataset, Writer
from .problems import CLOSE, Problem, Stopping
from .requests import require_digest, sha256_of
from .root import CHUNK_BYTES, File
from .threads import run_blocking

MAX_PARTS = 10_000
_FORM_TYPES = {"multipart/form-data", "application/x-www-form-urlencoded"}
_PART = re.compile(r"(\d{20})-(\d{20})-(\d{20}|unknown)")


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


async def json_body(request: Request, max_bytes: int) -> object:
    """Return the JSON value of a small body; ``None`` if it is not JSON.

    Raises:
        Problem: 415, for another Content-Type; 413, if it is too large.
    """
    kind = _kind_of(request)
    if kind != "application/json":
        raise Problem(415, f"The body is {kind or 'of no type'}; expected application/json.")
    data = b"".join([chunk async for chunk in _chunks(request, max_bytes)])
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value


async def _chunks(request: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """Yield a body of at most ``max_bytes`` in chunks of about a MiB.

    Raises:
        Problem: 413, if it is too large; 408, if no byte arrives for ``idle_timeout_s``.
        ClientDisconnect: if the connection breaks.
    """
    idle_s, stream, is_end = Context.of(request).limits.idle_timeout_s, request.stream().__aiter__(), False
    received = 0
    while True:
        if max(received, _announced(request)) > max_bytes:
            raise Problem(413, f"The body may have {max_bytes:,} bytes at most.", CLOSE)
        if is_end:
            return
        waiting, chunk_bytes = list[bytes](), 0
        try:
            with anyio.fail_after(idle_s) as scope:
                while not is_end and chunk_bytes < CHUNK_BYTES:
                    piece = await anext(stream, None)
                    is_end = piece is None
                    waiting.append(piece or b"")
                    chunk_bytes += len(waiting[-1])
                    scope.deadline = anyio.current_time() + idle_s
        except TimeoutError:
            raise Problem(408, f"No byte of the body for {idle_s:g} s.", CLOSE) from None
        received += chunk_bytes
        if chunk_bytes:
            yield b"".join(waiting)


def _announced(request: Request) -> int:
    """Return the Content-Length, which the HTTP server has validated; 0 without one."""
    return int(request.headers.get("content-length", "0")[:19])


async def receive(request: Request, writer: Writer | BinaryIO, part_bytes: int | None = None) -> str:
    """Write a body while a thread hashes and writes what came before; return its hexadecimal SHA-256.

    Args:
        request: with the body.
        writer: of the file, which is not committed or closed here.
        part_bytes: that a part has to have; ``None`` for a whole file, whose Repr-Digest is compared.

    Raises:
        Problem: 413, 507 or 408 at the limits; 400, if a digest or ``part_bytes`` does not match.
    """
    context, digest, num_bytes = Context.of(request), hashlib.sha256(), 0
    writing: asyncio.Future[None] | None = None

    def write(data: bytes) -> None:
        context.limits.require_space(context.root.free_bytes(), len(data))
        digest.update(data)
        writer.write(data)

    try:
        context.limits.require_space(context.root.free_bytes(), _announced(request))
        async for chunk in _chunks(request, context.limits.max_file_bytes):
            num_bytes += len(chunk)
            if writing is not None:
                await writing
            writing = asyncio.ensure_future(run_blocking(partial(write, chunk), "write"))
    finally:
        if writing is not None:
            await writing  # its error counts more than that the client left
    if part_bytes not in (None, num_bytes):
        raise Problem(400, f"Content-Range: bytes first-last has {part_bytes:,} bytes, the body has {num_bytes:,}.")
    sha256 = digest.hexdigest()
    require_digest(request.headers, sha256, "Content-Digest", *(("Repr-Digest",) if part_bytes is None else ()))
    return sha256


@contextlib.asynccontextmanager
async def aborted_unless_committed(writer: Writer) -> AsyncIterator[None]:
    """Discard a file at the end of the block, if it is not committed."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await run_blocking(writer.abort)


class Part(NamedTuple):
    """Bytes ``start`` to ``end`` of a file of ``total`` bytes, ``None`` if no part says so."""

    start: int
    end: int
    total: int | None

    @property
    def name(self) -> str:
        """Name of its hidden file."""
        return f"{self.start:020d}-{self.end:020d}-" + ("unknown" if self.total is None else f"{self.total:020d}")

    def contradicts(self, other: Part) -> bool:
        """Whether both cannot be parts of one file: they overlap, or disagree about its size."""
        sizes = {self.total, other.total} - {None}
        overlaps = self.start < other.end and other.start < self.end
        return overlaps or len(sizes) > 1 or any(max(self.end, other.end) > size for size in sizes if size is not None)


class PartialUpload:
    """An upload in parts. All calls block.

    Args:
        dataset: of its file.
        path: of the file.
        upload_id: that the client chose.
        context: with limits, and the locks of this service: an upload is completed by one request at a time.
    """

    def __init__(self, dataset: Dataset, path: str, upload_id: str, context: Context) -> None:
        self._dataset, self._path, self._shown, self._context = dataset, path, upload_id, context
        self._id = hashlib.sha256(f"{upload_id} {path}".encode()).hexdigest()[:32]

    def _parts(self) -> list[Part]:
        found = filter(None, map(_PART.fullmatch, self._dataset.parts(self._id)))
        parts = [Part(int(one[1]), int(one[2]), None if one[3] == "unknown" else int(one[3])) for one in found]
        return sorted(parts, key=lambda part: part.start)

    def as_json(self, parts: list[Part] | None = None) -> dict[str, Any]:
        """Describe what has arrived: byte ranges, merged, and the size of the file if it is known.

        Raises:
            Problem: 404, if there is nothing.
        """
        parts = self._parts() if parts is None else parts
        if not parts:
            raise Problem(404, f"There is no such upload of {self._path!r}: it never started, or is complete.")
        received: list[list[int]] = []
        for part in parts:
            if received and part.start == received[-1][1]:
                received[-1][1] = part.end
            else:
                received.append([part.start, part.end])
        total = next((part.total for part in parts if part.total is not None), None)
        return {"upload": self._shown, "received": received, "total": total}

    def start(self, part: Part) -> tuple[Part, Writer]:
        """Open a part for writing. One without a total takes that of the others.

        Raises:
            Problem: 409, if the file cannot be created; 413, beyond the limits.
        """
        self._context.limits.require_file_bytes(max(part.end, part.total or 0))
        self._dataset.require_writable(self._path)
        parts = self._parts()
        if len(parts) >= MAX_PARTS:
            raise Problem(413, f"More than {MAX_PARTS:,} parts. Make them larger.")
        total = self.as_json(parts)["total"] if parts else None
        if part.total is None and total is not None and part.end <= total:
            part = part._replace(total=total)
        return part, self._dataset.writer(self._dataset.part_path(self._id, part.name), {})

    def finish(self, part: Part, writer: Writer, sha256: str, headers: Mapping[str, str]) -> File | dict[str, Any]:
        """Commit a part, which replaces those that contradict it; and the file, if no part is missing.

        Args:
            part: as :meth:`start` returned it.
            writer: of its bytes.
            sha256: of them, hexadecimal.
            headers: of the request, with preconditions and the digest of the whole file.

        Raises:
            Problem: 400, if the digest of the file differs; its parts are removed. 404, if the dataset was removed;
                412, if a precondition does not hold.
        """
        with self._context.uploads.held(self._id):
            writer.commit(sha256)
            others = [one for one in self._parts() if one != part]
            self._dataset.remove_parts(self._id, [one.name for one in others if part.contradicts(one)])
            parts = [part, *(one for one in others if not part.contradicts(one))]
            parts.sort(key=lambda part: part.start)
            now = self.as_json(parts)
            if now["received"] != [[0, now["total"]]]:
                return now
            file = self._assembled(parts, headers, self._context.stopping)
            self._dataset.remove_parts(self._id, [one.name for one in parts])  # others may be arriving
            return file

    def _assembled(self, parts: list[Part], headers: Mapping[str, str], stopping: Stopping) -> File:
        dataset, digest = self._dataset, hashlib.sha256()
        writer = dataset.writer(self._path, headers, sha256_of(headers.get("repr-digest")))
        try:
            for part in parts:
                with contextlib.closing(dataset.open(dataset.part_path(self._id, part.name))) as opened:
                    for chunk in stopping.during(opened.chunks(0, opened.file.size, CHUNK_BYTES)):
                        digest.update(chunk)
                        writer.write(chunk)
            try:
                require_digest(headers, digest.hexdigest(), "Repr-Digest")
            except Problem:
                dataset.remove_parts(self._id)
                raise
            return writer.commit(digest.hexdigest())
        finally:
            writer.abort()

    def discard(self) -> None:
        """Remove the parts."""
        with self._context.uploads.held(self._id):
            self._dataset.remove_parts(self._id)
