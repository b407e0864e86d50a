"""Convert the errors of transports to those of this package; the tables are in ``error_tables``."""

from __future__ import annotations

import concurrent.futures
import contextlib
import email.utils
import re
import sys
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
_TRANSIENT_CODES = {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "ConditionalRequestConflict"}
_TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504}
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
_PROTOCOL_ERROR = re.compile(
    r"BadStatusLine\(|[Bb]ad status line|InvalidHeader|unmatching values|Duplicate Content-Length|Invalid character in "
    r"Content-Length|Invalid header|WRONG_VERSION_NUMBER|wrong version number|RECORD_LAYER_FAILURE|InvalidContentType|"
    r"UnsupportedProtocol|Parse\(|ResponseParserError"
)
_FTP_REPLY = re.compile(r"(\d{3})\b")
_DENIED = {"AuthenticationException", "AuthenticationError", "ClientAuthenticationError", "RefreshError"}
_PROGRAMMING_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    NotImplementedError,
)
_TRANSIENT: tuple[type[BaseException], ...] = (OSError, EOFError, concurrent.futures.CancelledError)
if sys.version_info < (3, 11):
    # Classes of their own until Python 3.10, since then TimeoutError; asyncio takes 40 ms to import
    import asyncio

    _TRANSIENT = (*_TRANSIENT, asyncio.TimeoutError, concurrent.futures.TimeoutError)
_NETWORK_PACKAGE = re.compile(
    "aiohttp|asyncio|azure|botocore|fsspec|ftplib|gcsfs|google|h11|h2|http|httpcore|httpx|huggingface_hub|paramiko|"
    "requests|smbprotocol|socket|ssl|urllib|urllib3"
)
_known_hosts: set[str] = set()  # scheme and bucket or host, of those that have responded


@contextlib.contextmanager
def translate_errors(table: Table, url: str, **options: bool) -> Iterator[None]:
    """Raise what a transport raises in the block as this package's errors: no other exception leaves it.

    Args:
        table: converts the transport's exceptions; ``from_unknown`` converts those that it returns unchanged.
        url: of the request.
        options: of the table.
    """
    try:
        yield
    except (RemoteDataError, MemoryError):
        raise
    except Exception as error:
        converted = to_package_error(table, error, url, **options)
        if url != redact(url):
            raise converted from None  # the transport's message may contain the query that is cut from the URL
        raise converted from error


def to_package_error(table: Table, error: Exception, url: str, **options: bool) -> Exception:
    """Convert an error of a transport."""
    known = table(error, url, **options)
    return known if isinstance(known, RemoteDataError) else from_unknown(error, url)


def mark_host_known(url: str) -> None:
    """Record that the host of a URL has responded: its name exists, although a name server may fail later."""
    _known_hosts.add(_host_of(url))


def _host_of(url: str) -> str:
    """Scheme and bucket or host of a URL."""
    return "/".join(url.split("/", 3)[:3])


def network_error(url: str, what: str, details: str) -> StorageError:
    """Make the error for a request without a response, or with one that is not HTTP.

    A refused or reset connection is transient, and so is a name server that does not respond. A violation of the
    protocol may be the mistake of a proxy, and an unknown host name that of a host that is being set up: these are
    retried a few times only. A host that has responded once is never unknown.

    Args:
        url: of the request.
        what: the transport's message, without secrets.
        details: all texts of the transport's error, in which the cause is searched.
    """
    shown, what = redact(url), what.rstrip(".")
    if _CERTIFICATE.search(details):
        return StorageError(
            f"{shown}: {what}. The server's certificate is not trusted. Configure its "
            "authority (AWS_CA_BUNDLE for s3, SSL_CERT_FILE for http), and check host name and clock.",
            url=shown,
        )
    if _REDIRECTS.search(details):
        return StorageError(
            f"{shown}: {what}: too many redirects. Use the URL at which the object is stored.", url=shown
        )
    transient = TransientStorageError(f"{shown}: {what}.", url=shown)
    unknown_host = _UNKNOWN_HOST.search(details) is not None and _host_of(url) not in _known_hosts
    if unknown_host:
        transient.args = (f"{shown}: {what}. No such host: check the host name, or the endpoint.",)
    transient.likely_permanent = unknown_host or _PROTOCOL_ERROR.search(details) is not None
    return transient


def unusable_response(url: str, what: str) -> TransientStorageError:
    """Make the error for a response that cannot be used. It is retried, since it may be the mistake of a proxy."""
    error = TransientStorageError(f"{redact(url)}: {what}.", url=redact(url))
    error.likely_permanent = True
    return error


def from_unknown(error: Exception, url: str) -> Exception:
    """Convert an exception that no table contains, by its HTTP status, its class, or its message."""
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
    if names & {"error_reply", "error_proto"}:  # replies of ftp that are out of order
        return unusable_response(url, what)
    if (
        ftp is None
        and not isinstance(error, _PROGRAMMING_ERRORS)
        and (isinstance(error, _TRANSIENT) or _is_network_error(error))
    ):
        return network_error(url, what, f"{error!r} {error} {error.__cause__!r}")
    return StorageError(f"{shown}: {what}. The transport failed in a way that a retry does not change.", url=shown)


def _status_of(error: BaseException | None) -> int | None:
    """HTTP status of an error, in the attribute that its library uses."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        response = response.get("ResponseMetadata", {})
        return int(response["HTTPStatusCode"]) if "HTTPStatusCode" in response else None
    for holder, name in ((error, "status"), (error, "status_code"), (error, "code"), (response, "status_code")):
        found = getattr(holder, name, None)
        if isinstance(found, int) and 100 <= found <= 599:
            return int(found)
    return None


def _is_network_error(error: Exception) -> bool:
    return any(_NETWORK_PACKAGE.fullmatch(kind.__module__.partition(".")[0]) for kind in type(error).__mro__)


def from_status(
    status: int, code: str, url: str, *, writing: bool = False, retry_after: str | None = None
) -> Exception:
    """Make the error for an HTTP status and S3's error code.

    Args:
        status: of the response.
        code: such as ``SlowDown``, or empty.
        url: of the request.
        writing: whether the request would have written an object.
        retry_after: the header, if the transport shows it.
    """
    url = redact(url)
    message = f"{url}: the store answered {status} {code}".rstrip() + "."
    if code in _EXPIRED_CODES:
        return ExpiredCredentialsError(f"{message} Renew the credentials, and check this machine's clock.", url=url)
    if code in _TRANSIENT_CODES or status in _TRANSIENT_STATUSES:
        transient = TransientStorageError(message, url=url)
        transient.overloaded = status in _OVERLOADED_STATUSES
        transient.retry_after_s = _seconds(retry_after)
        return transient
    if status == 404 or code in _NOT_FOUND:
        missing = "bucket" if code == "NoSuchBucket" else "object"
        return ObjectNotFoundError(f"{url}: no such {missing}.", url=url)
    if status in (401, 403):
        return AccessDeniedError(
            f"{message} Check the credentials (storage_options or the AWS environment) and their rights; "
            "a public bucket needs storage_options={'anon': True}.",
            url=url,
        )
    if status == 412 and writing:
        return ObjectExistsError(f"{url} exists already, and is not overwritten without overwrite=True.", url=url)
    if status == 412:
        return ObjectChangedError(f"{url} was replaced while it was being read. List it again.", url=url)
    if status == 416:
        return RangeNotSatisfiableError(message, url=url)
    if status in _UNSUPPORTED_STATUSES or code in _UNSUPPORTED_CODES:
        return UnsupportedRequestError(message, url=url)
    return StorageError(message, url=url)


def _seconds(retry_after: str | None) -> float | None:
    """Parse a Retry-After header, which contains seconds or a date."""
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
