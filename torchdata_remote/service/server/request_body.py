"""The body of a request, on its way to a file."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request

from ...storage.registry import ObjectWriter
from .dataset_root import CHUNK_BYTES, DatasetRoot
from .limits import ServiceLimits
from .names import HEAD_BYTES
from .preconditions import require_digest
from .problems import Problem

T = TypeVar("T")
_LOOK_EVERY_BYTES = 64 << 20  # at the free space of the disk
_NOT_A_FILE = {"multipart/form-data", "application/x-www-form-urlencoded"}


class Received(NamedTuple):
    """A body that came: its bytes, hexadecimal SHA-256, and first ``HEAD_BYTES``."""

    num_bytes: int
    sha256: str
    head: bytes


async def in_thread(call: Callable[[], T]) -> T:
    """Call what blocks, beside the event loop."""
    return await anyio.to_thread.run_sync(call)


def require_file_body(request: Request) -> None:
    """A body is the file's bytes, and not a form that contains them.

    Raises:
        Problem: 415, if it is a form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _NOT_A_FILE:
        raise Problem(
            415,
            f"The body is {kind}: a form, or bytes that curl -d has changed. Send the file as it is: curl -T FILE, or "
            "--data-binary @FILE with -H 'Content-Type: application/octet-stream'.",
        )


async def receive_file(
    request: Request,
    pending: ObjectWriter,
    shelf: DatasetRoot,
    limits: ServiceLimits,
    *,
    num_bytes: int | None = None,
    whole: bool = False,
) -> Received:
    """Write a body into an object that was begun; it is aborted if anything goes wrong, and not committed.

    Args:
        request: whose body it is.
        pending: takes the bytes.
        shelf: whose disk is looked at.
        limits: of bytes, time and disk.
        num_bytes: how many there have to be, if that is known beforehand.
        whole: whether it is a whole file, of which Repr-Digest tells as well.

    Raises:
        Problem: 413, 507, 408 at the limits; 400, if the body is not what a digest or ``num_bytes`` say.
    """
    try:
        received = await _receive(request, pending, shelf, limits)
        if num_bytes is not None and received.num_bytes != num_bytes:
            raise Problem(400, f"Content-Range tells of {num_bytes:,} bytes, the body has {received.num_bytes:,}.")
        for header in ("Content-Digest", "Repr-Digest") if whole else ("Content-Digest",):
            require_digest(header, request.headers.get(header), received.sha256)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await in_thread(pending.abort)
        raise
    return received


async def _receive(request: Request, pending: ObjectWriter, shelf: DatasetRoot, limits: ServiceLimits) -> Received:
    limits.require_space(shelf.free_bytes(), announced_bytes(request, limits))
    digest, num_bytes, head, looked_at = hashlib.sha256(), 0, b"", 0

    def take(pieces: list[bytes]) -> None:
        data = b"".join(pieces)
        digest.update(data)
        pending.write(data)

    pieces: list[bytes] = []
    waiting_bytes = 0
    async for piece in pieces_of(request, limits):
        num_bytes, waiting_bytes = num_bytes + len(piece), waiting_bytes + len(piece)
        head += piece[: HEAD_BYTES - len(head)]
        if num_bytes > limits.max_file_bytes:
            raise _too_large(limits)
        if num_bytes - looked_at > _LOOK_EVERY_BYTES:
            looked_at = num_bytes
            limits.require_space(shelf.free_bytes(), 0)
        pieces.append(piece)
        if waiting_bytes >= CHUNK_BYTES:
            full, pieces, waiting_bytes = pieces, [], 0
            await in_thread(lambda full=full: take(full))  # type: ignore[misc]
    await in_thread(lambda: take(pieces))
    return Received(num_bytes, digest.hexdigest(), head)


async def pieces_of(request: Request, limits: ServiceLimits) -> AsyncIterator[bytes]:
    """A body as it comes.

    Raises:
        Problem: 408, if it stands still.
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


def announced_bytes(request: Request, limits: ServiceLimits) -> int:
    """What Content-Length tells; 0 without one.

    Raises:
        Problem: 413, if it is too much.
    """
    announced = int(request.headers.get("content-length", 0))  # the server has seen to it that it is a number
    if announced > limits.max_file_bytes:
        raise _too_large(limits)
    return announced


def _too_large(limits: ServiceLimits) -> Problem:
    return Problem(413, f"A file may have {limits.max_file_bytes:,} bytes at most.", {"Connection": "close"})
