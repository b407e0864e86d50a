"""What goes wrong, as an answer: a status, and a sentence that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from ...errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    RemoteDataError,
    ShardReadError,
    StorageError,
    TransientStorageError,
)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Problem(Exception):  # noqa: N818  # an answer, as RFC 9457 calls it; no caller of the package sees it
    """An answer that is not what was asked for.

    Args:
        status: of HTTP.
        message: what came, what was expected, what to do.
        headers: of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


def problem_of(error: Exception) -> Problem | None:
    """The answer for an error of the store or of an archive; ``None`` for a mistake in this program."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, ShardReadError):
        return Problem(400, str(error))
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return Problem(507, "The service's disk is full. Delete something, or give it a larger one.")
        cause = cause.__cause__
    if not isinstance(error, RemoteDataError):
        return None
    return Problem(_status(error), str(error), {"Retry-After": "1"} if isinstance(error, TransientStorageError) else {})


def _status(error: RemoteDataError) -> int:
    if isinstance(error, ObjectNotFoundError):
        return 404
    if isinstance(error, ObjectExistsError | ObjectChangedError):
        return 412
    if isinstance(error, AccessDeniedError):
        return 403
    return 503 if isinstance(error, TransientStorageError) else 502 if isinstance(error, StorageError) else 400
