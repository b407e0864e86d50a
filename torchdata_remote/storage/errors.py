"""From what transports raise to what this package raises; the tables stand in ``_error_tables``."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import email.utils
import re
import time
from collections.abc import Callable, Iterator

from ..core.urls import redact
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
from .protocol import RangeNotSatisfiableError, UnsupportedRequestError

Table = Callable[..., Exception]
_NOT_FOUND = {"NoSuchKey", "NoSuchBucket", "NotFound"}
_PASSING_CODES = {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "ConditionalRequestConflict"}
_PASSING_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_OVERLOADED_STATUSES = {429, 503}
_UNSUPPORTED_CODES, _UNSUPPORTED_STATUSES = {"NotImplemented", "MethodNotAllowed"}, {405, 501}
_EXPIRED_CODES = {
    "ExpiredToken",
    "ExpiredTokenException",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
    "RequestExpired",
}


_CERTIFICATE = re.compile(r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|InvalidCertificate|CertificateError")
_REDIRECTS = re.compile(r"TooManyRedirects|too many redirects", re.IGNORECASE)
_UNKNOWN_HOST = re.compile(
    r"Name or service not known|No address associated with hostname|Name does not resolve|nodename nor servname|"
    r"getaddrinfo failed|Errno 1100[14]"
)
_NOT_HTTP = re.compile(
    r"BadStatusLine\(|[Bb]ad status line|InvalidHeader|unmatching values|Duplicate Content-Length|Invalid character in "
    r"Content-Length|Invalid header|WRONG_VERSION_NUMBER|wrong version number|RECORD_LAYER_FAILURE|InvalidContentType|"
    r"UnsupportedProtocol|Parse\(|ResponseParserError"
)
_FTP_REPLY = re.compile(r"(\d{3})\b")
_DENIED = {"AuthenticationException", "AuthenticationError", "ClientAuthenticationError", "RefreshError"}
_MISTAKES = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, NotImplementedError)
# asyncio's and concurrent.futures' own classes until Python 3.10
_PASSING = (OSError, EOFError, asyncio.TimeoutError, concurrent.futures.TimeoutError, concurrent.futures.CancelledError)
_NETWORKS = {
    "aiohttp",
    "asyncio",
    "azure",
    "botocore",
    "fsspec",
    "ftplib",
    "gcsfs",
    "google",
    "h11",
    "h2",
    "http",
    "httpcore",
    "httpx",
    "huggingface_hub",
    "paramiko",
    "requests",
    "smbprotocol",
    "socket",
    "ssl",
    "urllib",
    "urllib3",
}
_answered: set[str] = set()  # scheme and bucket or host


@contextlib.contextmanager
def translate_errors(table: Table, url: str, **options: bool) -> Iterator[None]:
    """Turn what a transport raises in the block into this package's errors: no other exception leaves it.

    Args:
        table: knows the transport's exceptions; what it returns unchanged is judged by ``from_unknown``.
        url: what is asked for.
        options: of the table.
    """
    try:
        yield
    except (RemoteDataError, MemoryError):
        raise
    except Exception as error:
        ours = to_package_error(table, error, url, **options)
        if url != redact(url):
            raise ours from None  # the transport's own words may show what is cut from the URL
        raise ours from error


def to_package_error(table: Table, error: Exception, url: str, **options: bool) -> Exception:
    """The error of this package for what a transport raised."""
    known = table(error, url, **options)
    return known if isinstance(known, RemoteDataError) else from_unknown(error, url)


def mark_host_known(url: str) -> None:
    """Remember that the host of a URL has answered: its name exists, whatever a name server says later."""
    _answered.add(_host_of(url))


def _host_of(url: str) -> str:
    """Scheme and bucket or host."""
    return "/".join(url.split("/", 3)[:3])


def network_error(url: str, what: str, details: str) -> StorageError:
    """The error for a request that got no answer, or one that is not HTTP.

    A refused or reset connection may pass, and so may a name server that does not answer. An answer against the
    protocol may come from a proxy that mixes something up, and an unknown host name from a host that is being set up:
    these are repeated a few times only. Once a host has answered, its name is known to exist.

    Args:
        url: what was asked for.
        what: the transport's words, without secrets.
        details: all that it said, by which the cause is found out.
    """
    shown, what = redact(url), what.rstrip(".")
    if _CERTIFICATE.search(details):
        return StorageError(
            f"{shown}: {what}. The server's certificate is not trusted. Make its authority known "
            "(AWS_CA_BUNDLE for s3, SSL_CERT_FILE for http), and see that host name and clock are right.",
            url=shown,
        )
    if _REDIRECTS.search(details):
        return StorageError(f"{shown}: {what}: too many redirects. Ask for the object where it is.", url=shown)
    passing = TransientStorageError(f"{shown}: {what}.", url=shown)
    unknown_host = _UNKNOWN_HOST.search(details) is not None and _host_of(url) not in _answered
    if unknown_host:
        passing.args = (f"{shown}: {what}. No such host: check the host name, or the endpoint.",)
    passing.likely_permanent = unknown_host or _NOT_HTTP.search(details) is not None
    return passing


def unusable_response(url: str, what: str) -> TransientStorageError:
    """The error for an answer that cannot be used; a proxy may have mixed something up, so it is asked for again."""
    error = TransientStorageError(f"{redact(url)}: {what}.", url=redact(url))
    error.likely_permanent = True
    return error


def from_unknown(error: Exception, url: str) -> Exception:
    """The error for an exception of a library that no table knows, by its status, its class, or its words."""
    shown = redact(url)
    what = f"{type(error).__name__}: {error}"
    names = {kind.__name__ for kind in type(error).__mro__}
    status = _status_of(error) or _status_of(error.__cause__)
    ftp = _FTP_REPLY.match(str(error)) if "error_perm" in names else None
    if status is not None and status >= 300:
        return from_status(status, "", url)
    if ftp and ftp[1] == "550":
        return ObjectNotFoundError(f"{shown}: no such object ({what}).", url=shown)
    if names & _DENIED or (ftp and ftp[1] == "530"):
        return AccessDeniedError(f"{shown}: access denied ({what}). Check the credentials.", url=shown)
    if names & {"error_reply", "error_proto"}:  # replies of ftp that came in another order than they were asked for
        return unusable_response(url, what)
    if ftp is None and not isinstance(error, _MISTAKES) and (isinstance(error, _PASSING) or _is_of_a_network(error)):
        return network_error(url, what, f"{error!r} {error} {error.__cause__!r}")
    return StorageError(
        f"{shown}: {what}. The transport failed in a way that repeating the request does not change.", url=shown
    )


def _status_of(error: BaseException | None) -> int | None:
    """Of an HTTP answer, wherever a library keeps it."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        response = response.get("ResponseMetadata", {})
        return int(response["HTTPStatusCode"]) if "HTTPStatusCode" in response else None
    for holder, name in ((error, "status"), (error, "status_code"), (error, "code"), (response, "status_code")):
        found = getattr(holder, name, None)
        if isinstance(found, int) and 100 <= found <= 599:
            return int(found)
    return None


def _is_of_a_network(error: Exception) -> bool:
    return any(kind.__module__.partition(".")[0] in _NETWORKS for kind in type(error).__mro__)


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
    if status in _UNSUPPORTED_STATUSES or code in _UNSUPPORTED_CODES:
        return UnsupportedRequestError(said, url=url)
    return StorageError(said, url=url)


def _seconds(retry_after: str | None) -> float | None:
    """Of a Retry-After header, which tells seconds or a date."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.strip().isdigit():
        return float(retry_after)
    try:
        date = email.utils.parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        return None
    return max(0.0, date.timestamp() - time.time())
