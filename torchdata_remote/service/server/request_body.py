"""Receive the body of a request into a file."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import AsyncIterator
from typing import NamedTuple

import anyio
from starlette.requests import Request

from ...storage import ObjectWriter
from .blocking import run_blocking
from .dataset_root import CHUNK_BYTES, DatasetRoot
from .limits import ServiceLimits
from .names import HEAD_BYTES
from .preconditions import require_digest
from .problems import Problem

_SPACE_CHECK_BYTES = 64 << 20  # received between two checks of the disk
_MAX_DIGITS = 18
_FORM_TYPES = {"multipart/form-data", "application/x-www-form-urlencoded"}


class Received(NamedTuple):
    """A received body: its size, hexadecimal SHA-256, and first ``HEAD_BYTES``."""

    num_bytes: int
    sha256: str
    head: bytes


def require_file_body(request: Request) -> None:
    """Require that there is a body, and that it is the file itself, and not a form that contains it.

    Raises:
        Problem: 411, if none is announced, as by clients of HTTP/1.0 that just send it: their file would become empty.
            415, if it is a form.
    """
    if "content-length" not in request.headers and "transfer-encoding" not in request.headers:
        raise Problem(
            411,
            "The length of the body is missing. Send Content-Length, also for an empty file.",
            {"Connection": "close"},
        )
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORM_TYPES:
        raise Problem(
            415,
            f"The body is {kind}: a form, or bytes that curl -d has changed. Send the file as it is: curl -T FILE, or "
            "--data-binary @FILE with -H 'Content-Type: application/octet-stream'.",
        )


async def receive_file(
    request: Request,
    pending: ObjectWriter,
    root: DatasetRoot,
    limits: ServiceLimits,
    *,
    num_bytes: int | None = None,
    whole: bool = False,
) -> Received:
    """Write a body into an object that is open for writing. After an error it is aborted; it is not committed here.

    Args:
        request: with the body.
        pending: receives the bytes.
        root: whose free space is checked.
        limits: of bytes, time and disk.
        num_bytes: expected size, if it is known beforehand.
        whole: whether the body is a whole file, so that Repr-Digest applies.

    Raises:
        Problem: 413, 507 or 408 at the limits; 400, if a digest or ``num_bytes`` does not match.
    """
    try:
        received = await _receive(request, pending, root, limits)
        if num_bytes is not None and received.num_bytes != num_bytes:
            raise Problem(400, f"Content-Range says {num_bytes:,} bytes, the body has {received.num_bytes:,}.")
        for header in ("Content-Digest", "Repr-Digest") if whole else ("Content-Digest",):
            require_digest(header, request.headers.get(header), received.sha256)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await run_blocking(pending.abort)
        raise
    return received


async def _receive(request: Request, pending: ObjectWriter, root: DatasetRoot, limits: ServiceLimits) -> Received:
    limits.require_space(root.free_bytes(), content_length(request, limits))
    digest, num_bytes, head, checked_bytes = hashlib.sha256(), 0, b"", 0

    def write(pieces: list[bytes]) -> None:
        data = b"".join(pieces)
        digest.update(data)
        pending.write(data)

    pieces: list[bytes] = []
    pending_bytes = 0
    async for piece in body_pieces(request, limits):
        num_bytes, pending_bytes = num_bytes + len(piece), pending_bytes + len(piece)
        head += piece[: HEAD_BYTES - len(head)]
        if num_bytes > limits.max_file_bytes:
            raise _too_large(limits)
        if num_bytes - checked_bytes > _SPACE_CHECK_BYTES:
            checked_bytes = num_bytes
            limits.require_space(root.free_bytes(), 0)
        pieces.append(piece)
        if pending_bytes >= CHUNK_BYTES:
            full, pieces, pending_bytes = pieces, [], 0
            await run_blocking(lambda full=full: write(full))  # type: ignore[misc]
    await run_blocking(lambda: write(pieces))
    return Received(num_bytes, digest.hexdigest(), head)


async def body_pieces(request: Request, limits: ServiceLimits) -> AsyncIterator[bytes]:
    """Iterate over the body as it is received.

    Raises:
        Problem: 408, if no byte arrives for ``idle_timeout_s``.
    """
    stream = request.stream().__aiter__()
    while True:
        try:
            with anyio.fail_after(limits.idle_timeout_s):
                piece = await anext(stream, None)
        except TimeoutError:
            raise Problem(
                408, f"No byte of the body for {limits.idle_timeout_s:g} s.", {"Connection": "close"}
            ) from None
        if piece is None:
            return
        yield piece


def content_length(request: Request, limits: ServiceLimits) -> int:
    """Return Content-Length; 0 without one.

    Raises:
        Problem: 400, if it is not a number; 413, if it is too large.
    """
    text = request.headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise Problem(400, f"Content-Length is {text!r:.100}; expected a number.", {"Connection": "close"})
    announced = int(text) if len(text) <= _MAX_DIGITS else sys.maxsize  # Python refuses to convert thousands of digits
    if announced > limits.max_file_bytes:
        raise _too_large(limits)
    return announced


def _too_large(limits: ServiceLimits) -> Problem:
    return Problem(413, f"A file may have {limits.max_file_bytes:,} bytes at most.", {"Connection": "close"})
