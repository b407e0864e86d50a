"""Responses with a file, or a range of it: all of it is of one version, whatever replaces the file meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import NamedTuple

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ....errors import ObjectChangedError
from ....storage import Entry
from ....storage.dataset_service.protocol import digest_field
from ..blocking import run_blocking
from ..context import ServiceContext
from ..datasets.cached_files import read_cached
from ..datasets.dataset_root import CHUNK_BYTES, STREAM_BYTES
from ..datasets.file_metadata import etag_of, last_modified
from ..datasets.names import disposition
from ..datasets.opened_files import OpenedFile, open_file, open_file_if_cached
from ..http.preconditions import byte_range, is_not_modified, range_applies, wants_digest
from ..problems import Problem

_OCTETS = "application/octet-stream"
_REQUEST_HEADERS = {b"if-match", b"if-none-match", b"if-range", b"range", b"want-repr-digest"}
_SEND_FILE = "http.response.pathsend"  # an extension of ASGI: the server reads the file, as fast as the client does


class _Span(NamedTuple):
    status: int
    headers: dict[str, str]
    start: int
    end: int


class FileResponse(Response):
    """Responds to GET or HEAD of a file.

    Args:
        context: of the application.
        name: of the dataset.
        path: of the file in it, as ``require_path`` returned it.
    """

    def __init__(self, context: ServiceContext, name: str, path: str) -> None:
        self._context, self._name, self._path = context, name, path
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        headers = {
            name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _REQUEST_HEADERS
        }
        opened = open_file_if_cached(self._context.root, self._name, self._path)
        with replaced_is_503():
            if opened is None:
                opened = await run_blocking(lambda: open_file(self._context.root, self._name, self._path))
            try:
                await self._respond(opened, headers, scope, receive, send)
            finally:
                opened.close()

    async def _respond(
        self, opened: OpenedFile, headers: Mapping[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        entry, digest = opened.entry, None
        if wants_digest(headers.get("want-repr-digest")):
            digest = await self._digest(entry)
        span = _span(headers, entry, self._path, digest)
        num_bytes = span.end - span.start
        if scope["method"] == "HEAD" or not num_bytes:
            await _send(send, span, b"")
        elif opened.descriptor is None:
            await self._stream(entry, span, scope, receive, send)
        elif num_bytes <= CHUNK_BYTES:
            await _send(send, span, await _read(opened.descriptor, span.start, span.end))
        elif (
            (span.start, span.end) == (0, entry.size)  # also where a reader asks for all of it by a range
            and _SEND_FILE in scope.get("extensions", ())
            and (path := self._context.sendable.path_of(opened.descriptor)) is not None
        ):
            await send({"type": "http.response.start", "status": span.status, "headers": _raw(span.headers)})
            await send({"type": _SEND_FILE, "path": path})
        else:
            pieces = _pieces(opened.descriptor, span.start, span.end)
            await StreamingResponse(pieces, span.status, span.headers)(scope, receive, send)

    async def _digest(self, entry: Entry) -> str:
        digests = self._context.digests
        cached = await run_blocking(lambda: digests.cached(entry))
        if cached is not None:
            return cached
        async with self._context.in_turn.held_in_loop(("digest", self._name, self._path)):  # the first one stores it
            return await run_blocking(lambda: digests.sha256(entry), self._context.lanes.hashing)

    async def _stream(self, entry: Entry, span: _Span, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what a store other than a local folder delivers."""
        chunks = self._context.root.chunks(entry, span.start, span.end, chunk_bytes=STREAM_BYTES)
        if span.end - span.start <= CHUNK_BYTES:
            await _send(send, span, await run_blocking(lambda: b"".join(chunks)))
            return
        pieces = await started(chunks)
        await StreamingResponse(pieces, span.status, span.headers)(scope, receive, send)


async def started(chunks: Iterator[bytes | memoryview]) -> AsyncIterator[bytes]:
    """Return an iterator over chunks that blocks no thread of the event loop.

    The first one is read before this returns, so that an error of reading sets the status of the response.
    """
    read = [await run_blocking(lambda: next(chunks, None))]  # emptied, so that it is not kept until the last one

    async def pieces() -> AsyncIterator[bytes]:
        while (chunk := read.pop()) is not None:
            piece = bytes(chunk)
            del chunk
            yield piece
            del piece
            read.append(await run_blocking(lambda: next(chunks, None)))

    return pieces()


def _span(request: Mapping[str, str], entry: Entry, path: str, sha256: str | None) -> _Span:
    """Return status and headers of the response, and which bytes of the file it has: none of an unmodified one."""
    etag, size = etag_of(entry), entry.size
    assert size is not None
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff", "Content-Type": _OCTETS}
    modified = last_modified(entry)
    if modified is not None:
        headers["Last-Modified"] = modified
    if is_not_modified(request, etag):
        return _Span(304, headers, 0, 0)
    wanted = byte_range(request.get("range"), size) if range_applies(request, etag) else None
    if sha256 is not None:
        headers["Repr-Digest"] = digest_field(sha256)
    start, end = wanted or (0, size)
    headers |= {"Content-Disposition": disposition(path), "Content-Length": str(end - start)}
    if wanted is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    return _Span(200 if wanted is None else 206, headers, start, end)


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


async def _send(send: Send, span: _Span, data: bytes | bytearray) -> None:
    await send({"type": "http.response.start", "status": span.status, "headers": _raw(span.headers)})
    await send({"type": "http.response.body", "body": data})


async def _read(descriptor: int, start: int, end: int) -> bytes | bytearray:
    """Read bytes of an open file, in a thread unless they are in memory."""
    data = read_cached(descriptor, start, end)
    return await run_blocking(lambda: _read_all(descriptor, start, end)) if data is None else data


def _read_all(descriptor: int, start: int, end: int) -> bytearray:
    data = bytearray()
    while start + len(data) < end:
        piece = os.pread(descriptor, end - start - len(data), start + len(data))
        if not piece:  # truncated in place, by another program
            raise ObjectChangedError("The file became shorter.", url="", etag=None)
        data += piece
    return data


async def _pieces(descriptor: int, start: int, end: int) -> AsyncIterator[bytes]:
    for at in range(start, end, STREAM_BYTES):
        yield bytes(await _read(descriptor, at, min(at + STREAM_BYTES, end)))


@contextlib.contextmanager
def replaced_is_503() -> Iterator[None]:
    """Report a concurrent replacement as 503: the client set no condition that could fail with 412."""
    try:
        yield
    except ObjectChangedError:
        raise Problem(503, "A file was replaced during the request. Send it again.", {"Retry-After": "0"}) from None
