"""Error responses: HTTP status and a message that says what to do, and the errors of this package as such."""

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
from .stopping import ServiceStoppedError

MEANINGS = {  # for the OpenAPI document
    400: "the request is invalid",
    401: "the token is missing or wrong",
    403: "the path contains a symbolic link, or the request is from another site's page",
    404: "not found",
    408: "the body stalled",
    409: "conflict with what exists",
    411: "the request says nothing about a body",
    412: "a precondition does not hold",
    413: "too large",
    414: "path and query are too long",
    415: "the body is of an unsupported type",
    416: "the file has no such bytes",
    421: "a service without a token responds to localhost only",
    431: "a header is too long",
    502: "the store behind the service refused the request",
    503: "the store behind the service cannot be reached",
    507: "the disk is full",
}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Problem(Exception):  # noqa: N818  # a response, called so by RFC 9457; callers of the package never see it
    """An error response.

    Args:
        status: HTTP status.
        message: what was received, what was expected, what to do.
        headers: of the response.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


def problem_of(error: Exception) -> Problem | None:
    """Return the response for an error of the store or an archive; ``None`` for a defect of this program."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, ServiceStoppedError):
        return Problem(503, "The service is being stopped. Send the request again.", {"Retry-After": "5"})
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
