"""Convert the errors of transports to those of this package; the tables are in ``error_tables``."""

from __future__ import annotations

import concurrent.futures
import contextlib
import email.utils
import re
import sys
import time
from collections.abc import Callable, Iterator

from ..core.urls import AZURE, GS, HTTP, S3, redact, redact_text
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
from .network_errors import details_of, network_error, refused_by_proxy, unusable_response
from .protocol import RangeNotSatisfiableError, UnsupportedRequestError, WrongRegionError

Table = Callable[..., Exception]
_NOT_FOUND = {"NoSuchKey", "NoSuchBucket", "NotFound"}
_TRANSIENT_CODES = {
    *("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "ConditionalRequestConflict"),
    *("ThrottlingException", "KMS.ThrottlingException"),
}
_TRANSIENT_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_OVERLOADED_STATUSES = {429, 503}
_UNSUPPORTED_CODES, _UNSUPPORTED_STATUSES = {"NotImplemented", "MethodNotAllowed"}, {405, 501}
_REGION_CODES = {"AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"}
_DENIED_ADVICE = {
    "KMS": "The object is encrypted: its key of KMS must be enabled, and the credentials need kms:Decrypt for it, or "
    "kms:GenerateDataKey to write.",
    "InvalidAccessKeyId": "This store does not know the access key. Check 'key', and that endpoint_url is its server.",
    "SignatureDoesNotMatch": "The secret is not that of the access key: check 'secret', also for a missing character.",
}
_MOST_SAID = 500  # characters
_EXPIRED_CODES = {
    "ExpiredToken",
    "ExpiredTokenException",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
    "RequestExpired",
}
_WITH_QUERY = re.compile(r"https?://[^\s'\"<>()]+\?")  # such as where a response redirects to
_REFUSED_FILE = re.compile("permission|denied|not allowed|forbidden", re.IGNORECASE)
_NO_LOGIN = "No authentication methods available"  # paramiko's SSHException
_FTP_REPLY = re.compile(r"(\d{3})\b")
_DENIED = {
    "DefaultCredentialsError",
    "AuthenticationException",
    "AuthenticationError",
    "ClientAuthenticationError",
    "RefreshError",
}
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
        details = details_of(error)
        may_be_signed = _WITH_QUERY.search(details) is not None and url.partition("://")[0] not in S3
        if url != redact(url) or details != redact_text(details) or may_be_signed:
            raise converted from None  # the transport's message may contain what is cut from the URL
        raise converted from error


def to_package_error(table: Table, error: Exception, url: str, **options: bool) -> Exception:
    """Convert an error of a transport."""
    known = table(error, url, **options)
    converted = known if isinstance(known, RemoteDataError) else from_unknown(error, url)
    converted.args = (redact_text(str(converted)),)  # such as the address of a proxy, with its password
    return converted


def with_source(error: Exception, source: str) -> str:
    """Return the message of an error of access with the sentence that says where the credentials are from, once."""
    return str(error) if source in str(error) else f"{error} {source}"


def from_unknown(error: Exception, url: str) -> Exception:
    """Convert an exception that no table contains, by its HTTP status, its class, or its message."""
    shown = redact(url)
    what = f"{type(error).__name__}: {error}"
    names = {kind.__name__ for kind in type(error).__mro__}
    status = _status_of(error) or _status_of(error.__cause__)
    ftp = _FTP_REPLY.match(str(error)) if "error_perm" in names else None
    if status is not None and status >= 300:
        return from_status(status, "", url)
    if (ftp and ftp[1] == "550" and _REFUSED_FILE.search(str(error))) or _NO_LOGIN in str(error):
        return AccessDeniedError(f"{shown}: access denied ({what}). Check the credentials and their rights.", url=shown)
    if ftp and ftp[1] == "550":
        return ObjectNotFoundError(f"{shown}: no such object ({what}).", url=shown)
    if names & _DENIED or (ftp and ftp[1] == "530"):
        return AccessDeniedError(f"{shown}: access denied ({what}). Check the credentials.", url=shown)
    if names & {"error_reply", "error_proto", "NoDataConnectionError"}:  # replies of ftp that are out of order
        return unusable_response(url, what)
    if (
        ftp is None
        and not isinstance(error, _PROGRAMMING_ERRORS)
        and (isinstance(error, _TRANSIENT) or _is_network_error(error))
    ):
        return network_error(url, what, details_of(error))
    return StorageError(f"{shown}: {what}. The transport failed in a way that a retry does not change.", url=shown)


def _status_of(error: BaseException | None) -> int | None:
    """HTTP status of an error, in the attribute that its library uses."""
    response = getattr(error, "response", None)
    for holder, name in ((error, "status"), (error, "status_code"), (error, "code"), (response, "status_code")):
        found = getattr(holder, name, None)
        if isinstance(found, int) and 100 <= found <= 599:
            return int(found)
    return None


def _is_network_error(error: Exception) -> bool:
    return any(_NETWORK_PACKAGE.fullmatch(kind.__module__.partition(".")[0]) for kind in type(error).__mro__)


def from_status(
    status: int,
    code: str,
    url: str,
    *,
    writing: bool = False,
    retry_after: str | None = None,
    region: str | None = None,
    said: str = "",
) -> Exception:
    """Make the error for an HTTP status and S3's error code.

    Args:
        status: of the response.
        code: such as ``SlowDown``, or empty.
        url: of the request.
        writing: whether the request would have written an object.
        retry_after: the header, if the transport shows it.
        region: of the bucket, if the store says so.
        said: the store's own words.
    """
    url, said = redact(url), " ".join(said.split())[:_MOST_SAID].rstrip(".")
    message = f"{url}: the store answered {status} {code}".rstrip() + (f": {said}." if said else ".")
    is_s3 = url.partition("://")[0] in S3
    if code in _EXPIRED_CODES:
        return ExpiredCredentialsError(f"{message} Renew the credentials, and check this machine's clock.", url=url)
    if code in _TRANSIENT_CODES or status in _TRANSIENT_STATUSES:
        transient = TransientStorageError(message, url=url)
        transient.overloaded = status in _OVERLOADED_STATUSES
        transient.retry_after_s = _seconds(retry_after)
        return transient
    if status == 407:
        return refused_by_proxy(url)
    if status == 404 or code in _NOT_FOUND:
        return ObjectNotFoundError(f"{url}: {_missing(code, url)}", url=url)
    if status in (401, 403) or code.startswith("KMS."):
        return _denied(message, code, said, url)
    if code in _REGION_CODES or (status in (301, 307) and is_s3):
        where = "another region" if region is None else f"the region {region}"
        return WrongRegionError(
            f"{message} The bucket is in {where}: pass storage_options={{'region': {region or '...'!r}}}, or set "
            "AWS_DEFAULT_REGION. For another server than AWS, check endpoint_url.",
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
    if status == 400 and not code and is_s3:
        message += " It gives no reason. Check the region, the session token, and endpoint_url."
    return StorageError(message, url=url)


def _missing(code: str, url: str) -> str:
    scheme, _, below = url.partition("://")
    if code == "NoSuchBucket":
        return (
            f"no such bucket: {below.partition('/')[0]!r}. Check its spelling, and that endpoint_url (storage_options, "
            "AWS_ENDPOINT_URL or ~/.aws/config; none means AWS) is the server that has it."
        )
    return "no such object: the server answered 404. Check host and path." if scheme in HTTP else "no such object."


def _denied(message: str, code: str, said: str, url: str) -> StorageError:
    if code == "InvalidObjectState":
        return StorageError(f"{message} The object is archived: restore it (aws s3api restore-object).", url=url)
    advice = "KMS" if code.startswith("KMS.") or "kms:" in said else code
    return AccessDeniedError(f"{message} {_DENIED_ADVICE.get(advice) or _denied_advice(url)}", url=url)


def _denied_advice(url: str) -> str:
    if url.partition("://")[0] in HTTP:
        return "Check the path, and whether a signed URL has expired or the server asks for a login."
    if url.partition("://")[0] not in S3 | GS | AZURE:
        return "Check the credentials in storage_options, and their rights."
    return (
        "Check the credentials (storage_options or the AWS environment) and their rights; a public bucket needs "
        "storage_options={'anon': True}."
    )


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
