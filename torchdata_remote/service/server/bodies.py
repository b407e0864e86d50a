"""Receive bodies of requests, within limits of bytes, time and space."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import BinaryIO

import anyio
from starlette.requests import Request

from .context import Context, Writer
from .problems import CLOSE, Problem
from .requests import require_digest
from .root import CHUNK_BYTES
from .threads import run_blocking

_FORM_TYPES = {"multipart/form-data", "application/x-www-form-urlencoded"}


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


async def receive(request: Request, writer: Writer | BinaryIO) -> str:
    """Write a body while a thread hashes and writes what came before; return its hexadecimal SHA-256.

    Args:
        request: with the body.
        writer: of the file, which is not committed or closed here.

    Raises:
        Problem: 413, 507 or 408 at the limits; 400, if a digest does not match.
    """
    context, digest = Context.of(request), hashlib.sha256()
    writing: asyncio.Future[None] | None = None

    def write(data: bytes) -> None:
        context.limits.require_space(context.root.free_bytes(), len(data))
        digest.update(data)
        writer.write(data)

    try:
        context.limits.require_space(context.root.free_bytes(), _announced(request))
        async for chunk in _chunks(request, context.limits.max_file_bytes):
            if writing is not None:
                await writing
            writing = asyncio.ensure_future(run_blocking(partial(write, chunk), "write"))
    finally:
        if writing is not None:
            await writing  # its error counts more than that the client left
    require_digest(request.headers, digest.hexdigest())
    return digest.hexdigest()


@contextlib.asynccontextmanager
async def aborted_unless_committed(writer: Writer) -> AsyncIterator[None]:
    """Discard a file at the end of the block, if it is not committed."""
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await run_blocking(writer.abort)
