"""Error responses: HTTP status and a message that says what to do; nothing of them shows where the root is."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse as StarletteJSONResponse

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

T = TypeVar("T")
CLOSE = {"Connection": "close"}  # the rest of the body is not read
AGAIN = {"Retry-After": "1"}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_STATUSES: list[tuple[type[Exception], int]] = [  # the first that fits
    (ObjectNotFoundError, 404),
    (ObjectExistsError, 412),
    (ObjectChangedError, 412),
    (AccessDeniedError, 403),
    (TransientStorageError, 503),
    (StorageError, 502),
    (RemoteDataError, 400),
]
_log = logging.getLogger("torchdata_remote")


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


class Stopping:
    """Whether the service is being stopped, for long work in threads, which an event loop cannot cancel."""

    is_set = False

    def during(self, items: Iterable[T]) -> Iterator[T]:
        """Iterate over items until the service is being stopped. Raises ``Problem`` 503 then."""
        for item in items:
            if self.is_set:
                raise Problem(503, "The service is being stopped. Send the request again.", {"Retry-After": "5"})
            yield item


class JSONResponse(StarletteJSONResponse):
    """A JSON document that ends with a line feed, so that a shell's prompt is on a line of its own."""

    def render(self, content: Any) -> bytes:
        """Serialize the document."""
        return super().render(content) + b"\n"


def problem_of(error: Exception, root_url: str) -> Problem | None:
    """Return the response for an error of the store or an archive; ``None`` for a defect of this program.

    Args:
        error: that a request ended with.
        root_url: of the datasets, which messages do not show.
    """
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        there = "There is nothing here. GET /openapi.json lists all paths."
        return Problem(error.status_code, there if error.status_code == 404 else error.detail, error.headers)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return Problem(507, "The service's disk is full. Delete something, or give it a larger one.")
        cause = cause.__cause__
    if not isinstance(error, RemoteDataError):
        return None
    status = (
        400 if isinstance(error, ShardReadError) else next(code for kind, code in _STATUSES if isinstance(error, kind))
    )
    if isinstance(error, TransientStorageError) and not root_url.startswith("file://"):
        return Problem(status, "The bucket of the service does not respond. Send the request again.", AGAIN)
    return Problem(status, without_root(str(error), root_url))


def error_response(error: Exception, request: str, root_url: str) -> JSONResponse:
    """Make the response for an error. A defect of this program is logged, and what a message does not show.

    Args:
        error: that a request ended with.
        request: its method and path, for the log.
        root_url: of the datasets.
    """
    problem = problem_of(error, root_url)
    if problem is None:
        _log.error("%s failed", request, exc_info=error)
        return JSONResponse({"error": "Internal error of the service. See its log."}, 500)
    if problem.message != str(error) and not isinstance(error, HTTPException):
        _log.warning("%s: %d: %s", request, problem.status, error)
    return JSONResponse({"error": problem.message}, problem.status, problem.headers)


def without_root(message: str, root_url: str) -> str:
    """Return a message whose URLs and paths below the root begin with the name of a dataset.

    >>> without_root("file:///srv/hosted/pets/1.jpg: no such file. /srv/hosted is empty.", "file:///srv/hosted/")
    "pets/1.jpg: no such file. the service's root is empty."
    """
    for root in (root_url, root_url.removeprefix("file://")):
        message = message.replace(root, "").replace(root[:-1] or root, "the service's root")
    return message
