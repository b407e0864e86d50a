"""The one table from what transports raise to what this package raises."""

from __future__ import annotations

import contextlib
import email.utils
import json
import re
import time
from collections.abc import Callable, Iterator

from urllib3.exceptions import HTTPError

from ..errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    RemoteDataError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from ..urls import redact
from ._protocol import MissingHeaderError, RangeNotSatisfiableError, RedirectWithoutPlaceError, UnsupportedRequestError

_STATUS = re.compile(r"status code: (\d{3})")
_KIND = re.compile(r"kind: (Timeout|Interrupted|Connect|Request|Decode)\b")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_SENTENCE = re.compile(r'\{"error":\s*"((?:[^"\\]|\\.)*)"')
_MAX_SENTENCE = 500
_NOT_FOUND = {"NoSuchKey", "NoSuchBucket", "NotFound"}
_PASSING_CODES = {"SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "ConditionalRequestConflict"}
_PASSING_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_OVERLOADED_STATUSES = {429, 503}
_UNSUPPORTED = {"NotImplemented", "MethodNotAllowed", 405, 501}
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
    if not _UNSUPPORTED.isdisjoint((status, code)):
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
    except ValueError:
        return None
    if date.tzinfo is None:
        return None
    return max(0.0, date.timestamp() - time.time())


def from_botocore(error: Exception, url: str, *, writing: bool = False) -> Exception:
    """The error for what botocore raised."""
    from botocore import exceptions as boto  # here: importing botocore costs a tenth of a second

    shown = redact(url)
    if isinstance(error, boto.ClientError):
        about = error.response.get("ResponseMetadata", {})
        code = str(error.response.get("Error", {}).get("Code", ""))
        return from_status(
            int(about.get("HTTPStatusCode", 0)),
            "" if code.isdigit() else code,
            url,
            writing=writing,
            retry_after=about.get("HTTPHeaders", {}).get("retry-after"),
        )
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError | boto.CredentialRetrievalError):
        return AccessDeniedError(
            f"{shown}: {error}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or "
            "storage_options={'key':, 'secret':}; a public bucket needs storage_options={'anon': True}.",
            url=shown,
        )
    if isinstance(error, boto.ParamValidationError):
        return UrlError(f"{shown}: {error}", url=shown)
    if isinstance(error, boto.HTTPClientError | boto.ConnectionError | boto.IncompleteReadError | HTTPError):
        return TransientStorageError(f"{shown}: {type(error).__name__}: {error}", url=shown)
    if isinstance(error, boto.BotoCoreError):
        return StorageError(f"{shown}: {type(error).__name__}: {error}", url=shown)
    return error


def from_obstore(error: Exception, url: str) -> Exception:
    """The error for what obstore raised. Its generic errors tell the cause in their text only."""
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    if status:
        return from_status(int(status[1]), code[1] if code else "", url)
    if "redirect without LOCATION" in text:
        return RedirectWithoutPlaceError(
            f"{redact(url)}: the bucket lies in another region, or elsewhere.", url=redact(url)
        )
    if "Header missing from response" in text:
        return MissingHeaderError(f"{redact(url)}: {text.partition(chr(10))[0]}.", url=redact(url))
    if type(error).__name__ in ("UnauthenticatedError", "PermissionDeniedError"):
        return AccessDeniedError(
            f"{redact(url)}: the credentials could not be had: {text.partition(chr(10))[0]}. Log in anew, or see the AWS "
            "environment.",
            url=redact(url),
        )
    if isinstance(error, OSError) or type(error).__module__ == "obstore.exceptions":
        cause = text.partition("\n")[0].partition(" - ")[2] or text.partition("\n")[0]
        kind = _KIND.search(text)
        cause += f" ({kind[1]})" if kind else ""
        return TransientStorageError(f"{redact(url)}: {cause.replace(url, redact(url))}.", url=redact(url))
    return error


def from_os(error: Exception, url: str, *, passing: bool) -> Exception:
    """The error for what a local or fsspec filesystem raised.

    Args:
        error: as raised.
        url: what was asked for.
        passing: whether an unknown ``OSError`` is worth a repetition, as on a network.
    """
    shown = redact(url)
    status = getattr(error, "status", None)  # aiohttp
    if isinstance(status, int):
        return from_status(status, "", url)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return ObjectNotFoundError(f"{shown}: no such object.", url=shown)
    if isinstance(error, PermissionError):
        return AccessDeniedError(f"{shown}: access denied: {error}.", url=shown)
    if isinstance(error, FileExistsError):
        return from_status(412, "", url, writing=True)
    if isinstance(error, EOFError):  # shorter than it was a moment ago
        return from_status(412, "", url)
    from_client = type(error).__module__.partition(".")[0] in ("aiohttp", "botocore", "asyncio", "urllib3")
    if isinstance(error, OSError) or from_client:
        kind = TransientStorageError if passing else StorageError
        return kind(f"{shown}: {type(error).__name__}: {error}", url=shown)
    return error


def sentence_of(text: str) -> str:
    """What a dataset service says in ``{"error": "..."}``, somewhere in a text; empty if it says nothing."""
    found = _SENTENCE.search(text)
    if found is None:
        return ""
    try:
        said = json.loads(f'"{found[1]}"')
    except ValueError:
        return ""
    return "".join(character if character.isprintable() else " " for character in said)[:_MAX_SENTENCE]


def from_service(
    status: int, sentence: str, url: str, *, writing: bool = False, retry_after: str | None = None
) -> Exception:
    """The error for what a dataset service answered.

    Args:
        status: of the answer.
        sentence: the service's own words, or empty.
        url: what was asked for.
        writing: whether the request would have made an object.
        retry_after: the header, if the transport shows it.
    """
    if status == 409 and writing:
        status = 412
    error = from_status(status, "", url, writing=writing, retry_after=retry_after)
    said = str(error)
    if isinstance(error, AccessDeniedError):
        said = (
            f"{redact(url)}: the service answered {status}. Pass its token by storage_options={{'token': ...}} or the "
            "environment's TORCHDATA_REMOTE_TOKEN."
        )
    error.args = (f"{said} The service says: {sentence}" if sentence else said,)
    return error


def from_obstore_of_service(error: Exception, url: str) -> Exception:
    """The error for what obstore raised while it spoke to a dataset service."""
    text = str(error)
    status = _STATUS.search(text)
    return from_service(int(status[1]), sentence_of(text), url) if status else from_obstore(error, url)
