"""Responses with a file, or a range of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ...errors import ObjectChangedError
from ...storage import Entry
from ...storage.dataset_service.protocol import digest_field
from .blocking import run_blocking
from .context import ServiceContext
from .dataset_root import CHUNK_BYTES
from .file_metadata import etag_of, last_modified
from .names import disposition
from .preconditions import byte_range, is_not_modified, range_applies, wants_digest
from .problems import Problem

_OCTETS = "application/octet-stream"


async def send_file(request: Request, context: ServiceContext, name: str, path: str) -> Response:
    """Respond to GET or HEAD of a file. A small one is read in one call, since each switch of threads costs time."""

    def answer() -> Response:
        return _answer(request, context, context.root.stat(context.root.folder(name), path), path)

    def is_hashed() -> bool:
        return context.digests.cached(context.root.stat(context.root.folder(name), path)) is not None

    with replaced_is_503():
        if wants_digest(request.headers.get("want-repr-digest")) and not await run_blocking(is_hashed):
            async with context.in_turn.held_in_loop(("digest", name, path)):  # the first request stores it for others
                return await run_blocking(answer, context.lanes.hashing)
        return await run_blocking(answer)


def _answer(request: Request, context: ServiceContext, entry: Entry, path: str) -> Response:
    etag, size = etag_of(entry), entry.size
    assert size is not None
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff"}
    modified = last_modified(entry)
    if modified is not None:
        headers["Last-Modified"] = modified
    if is_not_modified(request.headers, etag):
        return Response(status_code=304, headers=headers)
    wanted = byte_range(request.headers.get("range"), size) if range_applies(request.headers, etag) else None
    if wants_digest(request.headers.get("want-repr-digest")):
        headers["Repr-Digest"] = digest_field(context.digests.sha256(entry))
    start, end = wanted or (0, size)
    headers |= {"Content-Disposition": disposition(path), "Content-Length": str(end - start)}
    if wanted is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    status = 200 if wanted is None else 206
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=_OCTETS)
    chunks = context.root.chunks(entry, start, end)
    first = next(chunks, None)  # before the headers are sent, so that errors of reading set the status
    if end - start <= CHUNK_BYTES:
        return Response(b"".join([first or b"", *chunks]), status, headers, _OCTETS)
    return StreamingResponse(_all(first, chunks), status, headers, _OCTETS)


async def _all(first: memoryview | None, others: Iterator[memoryview]) -> AsyncIterator[bytes]:
    chunk = first
    while chunk is not None:
        yield bytes(chunk)
        chunk = await run_blocking(lambda: next(others, None))


@contextlib.contextmanager
def replaced_is_503() -> Iterator[None]:
    """Report a concurrent replacement as 503: the client set no condition that could fail with 412."""
    try:
        yield
    except ObjectChangedError:
        raise Problem(503, "A file was replaced during the request. Send it again.", {"Retry-After": "0"}) from None
