"""Error responses: HTTP status and a message that says what to do; nothing of them shows where the root is."""

from __future__ import annotations

import errno
import functools
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from starlette.responses import JSONResponse as StarletteJSONResponse

from ...core.urls import LOCAL, join_url, split_url
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
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
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


class ServiceStoppedError(Exception):
    """Long work was ended because the service is being stopped."""


class Stopping:
    """Whether the service is being stopped, for long work in threads, which an event loop cannot cancel."""

    is_set = False

    def check(self) -> None:
        """Raise ``ServiceStoppedError`` if the service is being stopped."""
        if self.is_set:
            raise ServiceStoppedError("The service is being stopped.")

    def during(self, items: Iterable[T]) -> Iterator[T]:
        """Iterate over items until the service is being stopped. Raises ``ServiceStoppedError`` then."""
        for item in items:
            self.check()
            yield item


class JSONResponse(StarletteJSONResponse):
    """A JSON document that ends with a line feed, so that a shell's prompt is on a line of its own."""

    def render(self, content: Any) -> bytes:
        """Serialize the document."""
        return super().render(content) + b"\n"


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


def error_response(error: Exception, request: str, root_url: str) -> JSONResponse:
    """Make the response for an error. A defect of this program is logged, and what a message may not show.

    Args:
        error: that a request ended with.
        request: its method and path, for the log.
        root_url: of the datasets, which messages do not show.
    """
    problem = problem_of(error)
    if problem is None:
        _log.error("%s failed", request, exc_info=error)
        return JSONResponse({"error": "Internal error of the service. See its log."}, 500)
    shown = without_root(problem.message, root_url)
    if shown != problem.message:
        level = logging.WARNING if problem.status >= 500 else logging.INFO
        _log.log(level, "%s: %d: %s", request, problem.status, problem.message)
    return JSONResponse({"error": shown}, problem.status, problem.headers)


def without_root(message: str, root_url: str) -> str:
    """Return a message whose URLs and paths below the root begin with the name of a dataset.

    Args:
        message: of an error, with absolute URLs and paths.
        root_url: URL of the root.

    >>> without_root("file:///srv/hosted/pets/1.jpg: no such file. /srv/hosted is empty.", "/srv/hosted")
    "pets/1.jpg: no such file. the service's root is empty."
    """
    return _pattern(root_url).sub(lambda found: "" if found["below"] else "the service's root", message)


@functools.lru_cache(maxsize=16)
def _pattern(root_url: str) -> re.Pattern[str]:
    scheme, bucket, path = split_url(root_url)
    spellings = {root_url.rstrip("/"), join_url(scheme, bucket, path).rstrip("/")}
    if scheme in LOCAL:
        paths = {path.rstrip("/"), os.path.realpath(path)}
        spellings |= paths | {f"{local}://{each}" for each in paths for local in LOCAL}
    known = "|".join(re.escape(each) for each in sorted(spellings, key=len, reverse=True) if each.strip("/"))
    # not a part of a longer path or name; the characters before a path are those of a sentence
    return re.compile(rf'(?<![\w./-])(?:{known})(?:(?P<below>/(?=[^\s\'"]))|/?(?![\w./-])|(?=\.(?:\s|$)))')
