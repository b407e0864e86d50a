"""Receive the body of a request into a file."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio
from starlette.requests import ClientDisconnect, Request

from ....storage import ObjectWriter
from ..blocking import run_blocking
from ..datasets.dataset_root import CHUNK_BYTES, DatasetRoot
from ..datasets.names import HEAD_BYTES
from ..http.preconditions import require_digest
from ..limits import ServiceLimits
from ..problems import Problem

_SPACE_CHECK_BYTES = 64 << 20  # received between two checks of the disk
_MAX_DIGITS = 18
_CLOSE = {"Connection": "close"}  # the rest of the body is not read
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
            _CLOSE,
        )
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORM_TYPES:
        raise Problem(
            415,
            f"The body is {kind}: a form, or bytes that curl -d has changed. Send the file as it is: curl -T FILE, or "
            "--data-binary @FILE with -H 'Content-Type: application/octet-stream'.",
        )


async def require_json_body(request: Request, limits: ServiceLimits, max_bytes: int) -> object:
    """Return the JSON value of a small body; ``None`` if it is not JSON.

    Raises:
        Problem: 415, for another Content-Type; 413, if it is too large.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, f"The body is {kind or 'of no type'}; expected application/json.")
    body, pieces = Body(request, limits, max_bytes), list[bytes]()
    while chunk := await body.next_chunk():
        pieces += chunk
    try:
        value: object = json.loads(b"".join(pieces))
    except (ValueError, RecursionError):
        return None
    return value


async def receive_file(
    request: Request,
    pending: ObjectWriter,
    root: DatasetRoot,
    limits: ServiceLimits,
    *,
    num_bytes: int | None = None,
    whole: bool = False,
    on_cut: Callable[[int], Awaitable[object]] | None = None,
) -> Received:
    """Write a body into an object that is open for writing. After an error it is aborted; it is not committed here.

    Args:
        request: with the body.
        pending: receives the bytes.
        root: whose free space is checked.
        limits: of bytes, time and disk.
        num_bytes: expected size, if it is known beforehand.
        whole: whether the body is a whole file, so that Repr-Digest applies.
        on_cut: called with the number of bytes, all of them written, if the connection breaks before there were more
            than ``num_bytes``; instead of an abort.

    Raises:
        Problem: 413, 507 or 408 at the limits; 400, if a digest or ``num_bytes`` does not match.
    """
    receiver = _Receiver(request, pending, root, limits)
    try:
        await receiver.run()
        received = receiver.received()
        if num_bytes is not None and received.num_bytes != num_bytes:
            raise Problem(400, f"Content-Range says {num_bytes:,} bytes, the body has {received.num_bytes:,}.")
        for header in ("Content-Digest", "Repr-Digest") if whole else ("Content-Digest",):
            require_digest(header, request.headers.get(header), received.sha256)
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            # Content-Digest is that of all bytes: the first ones alone cannot be checked
            is_checked = "content-digest" in request.headers
            written = receiver.written_bytes
            is_within = num_bytes is not None and written <= num_bytes
            if on_cut is not None and is_within and not is_checked and _is_cut(error):
                await on_cut(written)
            else:
                await run_blocking(pending.abort)
        raise
    return received


def _is_cut(error: BaseException) -> bool:
    """Whether a body ended early for a reason that says nothing against its bytes."""
    return isinstance(error, ClientDisconnect) or (isinstance(error, Problem) and error.status == 408)


class _Receiver:
    """Receives a body while a thread hashes and writes what came before."""

    def __init__(self, request: Request, pending: ObjectWriter, root: DatasetRoot, limits: ServiceLimits) -> None:
        self._request, self._pending, self._root, self._limits = request, pending, root, limits
        self._digest, self._head = hashlib.sha256(), b""
        self._num_bytes = self._checked_bytes = 0
        self.written_bytes = 0
        self._failure: Exception | None = None

    def received(self) -> Received:
        return Received(self._num_bytes, self._digest.hexdigest(), self._head)

    async def run(self) -> None:
        announced = content_length(self._request)
        self._limits.require_file_bytes(announced, _CLOSE)
        self._limits.require_space(self._root.free_bytes(), announced)
        body = Body(self._request, self._limits)
        chunk = await body.next_chunk()
        while chunk:
            if self._num_bytes + sum(map(len, chunk)) == announced:  # the last one: nothing to do meanwhile
                await self._write(chunk)
                chunk = await body.next_chunk()
                continue
            following: list[bytes] = []
            async with anyio.create_task_group() as tasks:  # which would raise errors of its tasks as a group
                tasks.start_soon(self._try_to_write, chunk)
                try:
                    following = await body.next_chunk()
                except (Problem, ClientDisconnect) as error:  # raised when the bytes before are written
                    self._failure = self._failure or error  # of writing: more counts than that the client left
            if self._failure is not None:
                raise self._failure
            chunk = following

    async def _try_to_write(self, pieces: list[bytes]) -> None:
        try:
            await self._write(pieces)
        except Exception as error:  # noqa: BLE001  # raised by run
            self._failure = error

    async def _write(self, pieces: list[bytes]) -> None:
        num_bytes = sum(map(len, pieces))
        self._num_bytes += num_bytes
        if self._num_bytes - self._checked_bytes > _SPACE_CHECK_BYTES:
            self._checked_bytes = self._num_bytes
            self._limits.require_space(self._root.free_bytes(), 0)
        if pieces:
            await run_blocking(lambda: self._write_and_hash(pieces))
        self.written_bytes += num_bytes

    def _write_and_hash(self, pieces: list[bytes]) -> None:
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._head = self._head or data[:HEAD_BYTES]
        self._digest.update(data)
        self._pending.write(data)


class Body:
    """The body of a request, in lists of pieces that are handled in one call of a thread.

    Args:
        request: with the body.
        limits: of bytes and time.
        max_bytes: of a body that is no file.
    """

    def __init__(self, request: Request, limits: ServiceLimits, max_bytes: int | None = None) -> None:
        self._stream, self._limits, self._max_bytes = request.stream().__aiter__(), limits, max_bytes
        self._num_bytes = 0
        self._is_cut = False

    async def next_chunk(self) -> list[bytes]:
        """Return the next pieces, of about 1 MiB in all; none at the end.

        Raises:
            Problem: 413, if the body is too large; 408, if no byte arrives for ``idle_timeout_s``.
            ClientDisconnect: if the connection breaks, after the pieces before it.
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
            raise Problem(408, f"No byte of the body for {idle_s:g} s.", _CLOSE) from None
        except ClientDisconnect:
            if not chunk_bytes:
                raise
            self._is_cut = True
        self._num_bytes += chunk_bytes
        if self._max_bytes is None:
            self._limits.require_file_bytes(self._num_bytes, _CLOSE)
        elif self._num_bytes > self._max_bytes:
            raise Problem(413, f"The body has more than {self._max_bytes:,} bytes.", _CLOSE)
        return pieces if chunk_bytes else []


def content_length(request: Request) -> int:
    """Return Content-Length; 0 without one.

    Raises:
        Problem: 400, if it is not a number.
    """
    text = request.headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise Problem(400, f"Content-Length is {text!r:.100}; expected a number.", _CLOSE)
    return int(text) if len(text) <= _MAX_DIGITS else sys.maxsize  # Python refuses to convert thousands of digits
