"""Responses with a file, or a range of it: all of it is of one version, whatever replaces the file meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from email.utils import format_datetime
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ...errors import ObjectChangedError
from .bucket import OpenObject
from .context import Context, Opened
from .folder import read_cached
from .problems import Problem
from .requests import byte_range, disposition, is_not_modified
from .root import CHUNK_BYTES, STREAM_BYTES, File, date_of
from .threads import run_blocking

if sys.platform != "win32":
    import fcntl
    import resource

OCTETS = "application/octet-stream"
NO_SNIFF = {"X-Content-Type-Options": "nosniff"}
_REQUEST_HEADERS = {b"if-match", b"if-none-match", b"if-range", b"range", b"sec-fetch-site"}
_SEND_FILE = "http.response.pathsend"  # an extension of ASGI: the server reads the file, as fast as the client does

_DESCRIPTORS = "/proc/self/fd"
_MIN_NUMBERS, _MAX_NUMBER = 4096, 1 << 17
_OPEN_S: Final = 60.0
_MAX_OPEN = 1024


class _Span(NamedTuple):
    status: int
    headers: dict[str, str]
    start: int
    end: int


class FileResponse(Response):
    """Responds to GET or HEAD of a file; to GET of one in a bucket by a redirect, if the bucket's URLs can be signed.

    Args:
        context: of the application.
        name: of the dataset.
        path: of the file in it, as ``require_path`` returned it.
    """

    def __init__(self, context: Context, name: str, path: str) -> None:
        self._context, self._name, self._path = context, name, path
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        headers = {
            name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _REQUEST_HEADERS
        }
        root = self._context.root
        with replaced_is_503():
            opened: Opened | None = root.open_cached(self._name, self._path)
            if opened is None:
                opened = await run_blocking(lambda: root.open(self._name, self._path))
            with contextlib.closing(opened):
                await self._respond(opened, headers, scope, receive, send)

    async def _respond(
        self, opened: Opened, headers: Mapping[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        file = opened.file
        span = _span(headers, file)
        num_bytes = span.end - span.start
        is_for_bucket = headers.get("sec-fetch-site") != "same-origin"  # the page reads from its own host only
        if isinstance(opened, OpenObject) and is_for_bucket and num_bytes and scope["method"] == "GET":
            url = await run_blocking(opened.signed_url)
            if url is not None:
                there = {"Location": url, "Cache-Control": "no-store", "ETag": file.etag}
                await Response(status_code=307, headers=there)(scope, receive, send)
                return
        if scope["method"] == "HEAD" or not num_bytes:
            await _send(send, span, b"")
        elif num_bytes <= CHUNK_BYTES:
            data: bytes | bytearray | None = None
            if opened.descriptor is not None:
                data = read_cached(opened.descriptor, span.start, span.end)
            if data is None:
                data = await run_blocking(partial(_read, opened, span.start, span.end))
            await _send(send, span, data)
        elif (
            (span.start, span.end) == (0, file.size)  # also where a reader asks for all of it by a range
            and _SEND_FILE in scope.get("extensions", ())
            and opened.descriptor is not None
            and (path := _sendable.path_of(opened.descriptor)) is not None
        ):
            await send({"type": "http.response.start", "status": span.status, "headers": _raw(span.headers)})
            await send({"type": _SEND_FILE, "path": path})
        else:
            pieces = await started(opened.chunks(span.start, span.end, STREAM_BYTES))
            await StreamingResponse(pieces, span.status, span.headers)(scope, receive, send)


def _span(request: Mapping[str, str], file: File) -> _Span:
    """Return status and headers of the response, and which bytes of the file it has: none of an unmodified one."""
    headers = {"ETag": file.etag, "Accept-Ranges": "bytes", "Content-Type": OCTETS, **NO_SNIFF}
    modified = None if file.modified_s is None else _formatted(int(file.modified_s))
    if modified is not None:
        headers["Last-Modified"] = modified
    if is_not_modified(request, file.etag):
        return _Span(304, headers, 0, 0)
    wanted = byte_range(request.get("range"), file.size) if request.get("if-range", file.etag) == file.etag else None
    start, end = wanted or (0, file.size)
    headers |= {"Content-Disposition": disposition(file.path), "Content-Length": str(end - start)}
    if wanted is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.size}"
    return _Span(200 if wanted is None else 206, headers, start, end)


@lru_cache(1000)
def _formatted(modified_s: int) -> str | None:
    when = date_of(modified_s)
    return None if when is None else format_datetime(when, usegmt=True)


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


async def _send(send: Send, span: _Span, data: bytes | bytearray) -> None:
    await send({"type": "http.response.start", "status": span.status, "headers": _raw(span.headers)})
    await send({"type": "http.response.body", "body": data})


def _read(opened: Opened, start: int, end: int) -> bytes:
    return b"".join(opened.chunks(start, end, CHUNK_BYTES))


async def started(chunks: Iterator[bytes | memoryview]) -> AsyncIterator[bytes]:
    """Return an iterator over chunks that blocks no thread of the event loop.

    The first one is read before this returns, so that an error of reading sets the status of the response.
    """
    read: list[Any] = [await run_blocking(lambda: next(chunks, None))]  # emptied, so that a chunk is not kept

    async def pieces() -> AsyncIterator[bytes]:
        while (chunk := read.pop()) is not None:
            piece = bytes(chunk)
            del chunk
            yield piece
            del piece
            read.append(await run_blocking(lambda: next(chunks, None)))

    return pieces()


@contextlib.contextmanager
def replaced_is_503() -> Iterator[None]:
    """Report a concurrent replacement as 503: the client set no condition that could fail with 412."""
    try:
        yield
    except ObjectChangedError:
        raise Problem(503, "A file was replaced during the request. Send it again.", {"Retry-After": "0"}) from None


class SendableFiles:
    """Open files that the HTTP server opens once more by their descriptors, at an unknown moment.

    A descriptor that was closed before, and used again for another file, would be the wrong file. So the handed ones
    have numbers of their own, the upper half of all, which are used in turn, and are closed much later than needed.
    """

    _next = _num_open = 0

    def path_of(self, descriptor: int) -> str | None:
        """Return a path by which the server can open the same file within the next seconds.

        ``None`` if there is none: on other systems than Linux, without /proc, below a small limit of open files, for a
        file that may not be opened any more, and when hundreds have been handed over in the last seconds.
        """
        if sys.platform != "linux" or self._num_open >= _MAX_OPEN:
            return None
        first = own_descriptors()
        if first < _MIN_NUMBERS:
            return None
        try:
            number = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, first + self._next)
        except OSError:  # the last numbers are in use
            self._next = 0
            return None
        self._next = (number - first + 1) % (first - 1)
        self._num_open += 1
        asyncio.get_running_loop().call_later(_OPEN_S, self._close, number)
        path = f"{_DESCRIPTORS}/{number}"
        return path if os.access(path, os.R_OK) else None

    def _close(self, number: int) -> None:
        os.close(number)
        self._num_open -= 1


def own_descriptors() -> int:
    """Return how many descriptors are left for all other files and connections: the lower half, all of a few."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    half = _MAX_NUMBER if limit == resource.RLIM_INFINITY else min(_MAX_NUMBER, limit // 2)
    return half if half >= _MIN_NUMBERS else limit


_sendable = SendableFiles()
