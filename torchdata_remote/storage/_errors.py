"""From what transports raise to what this package raises; the tables stand in ``_error_tables``."""

from __future__ import annotations

import contextlib
import email.utils
import time
from collections.abc import Callable, Iterator

from ..errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    RemoteDataError,
    StorageError,
    TransientStorageError,
)
from ..urls import redact
from ._protocol import RangeNotSatisfiableError

_NOT_FOUND = {"NoSuchKey", "NoSuchBucket", "NotFound"}
_PASSING_CODES = {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "ConditionalRequestConflict"}
_PASSING_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_OVERLOADED_STATUSES = {429, 503}
_EXPIRED_CODES = {
    "ExpiredToken",
    "ExpiredTokenException",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
    "RequestExpired",
}


@contextlib.contextmanager
def translated(table: Callable[..., Exception], url: str, **options: bool) -> Iterator[None]:
    """Turn what a transport raises in the block into this package's errors, by one of the tables below.

    What a table does not know, such as a mistake in the program, goes through unchanged.
    """
    try:
        yield
    except RemoteDataError:
        raise
    except Exception as error:
        known = table(error, url, **options)
        if known is error:
            raise
        if url != redact(url):
            raise known from None  # the transport's own words may show what is cut from the URL
        raise known from error


def from_status(
    status: int, code: str, url: str, *, writing: bool = False, retry_after: str | None = None
) -> Exception:
    """The error for an HTTP status and S3's error code.

    Args:
        status: of the answer.
        code: such as ``SlowDown``, or empty.
        url: what was asked for.
        writing: whether the request would have made an object.
        retry_after: the header, if the transport shows it.
    """
    url = redact(url)
    said = f"{url}: the store answered {status} {code}".rstrip() + "."
    if code in _EXPIRED_CODES:
        return ExpiredCredentialsError(
            f"{said} Renew the credentials, and see that this machine's clock is right.", url=url
        )
    if code in _PASSING_CODES or status in _PASSING_STATUSES:
        passing = TransientStorageError(said, url=url)
        passing.overloaded = status in _OVERLOADED_STATUSES
        passing.retry_after_s = _seconds(retry_after)
        return passing
    if status == 404 or code in _NOT_FOUND:
        missing = "bucket" if code == "NoSuchBucket" else "object"
        return ObjectNotFoundError(f"{url}: no such {missing}.", url=url)
    if status in (401, 403):
        return AccessDeniedError(
            f"{said} Check the credentials (storage_options or the AWS environment) and their rights; "
            "a public bucket needs storage_options={'anon': True}.",
            url=url,
        )
    if status == 412 and writing:
        return ObjectExistsError(f"{url} exists already, and nothing is overwritten unless asked for.", url=url)
    if status == 412:
        return ObjectChangedError(f"{url} was replaced while it was being read. List it again.", url=url)
    if status == 416:
        return RangeNotSatisfiableError(said, url=url)
    return StorageError(said, url=url)


def _seconds(retry_after: str | None) -> float | None:
    """Of a Retry-After header, which tells seconds or a date."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.strip().isdigit():
        return float(retry_after)
    try:
        date = email.utils.parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    if date.tzinfo is None:
        return None
    return max(0.0, date.timestamp() - time.time())
