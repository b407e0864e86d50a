"""The tables from what each transport raises to what this package raises."""

from __future__ import annotations

import re

from urllib3.exceptions import HTTPError

from ..errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    RemoteDataError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from ..urls import redact
from ._errors import from_status
from ._protocol import MissingHeaderError, RedirectWithoutPlaceError

STATUS = re.compile(r"status code: (\d{3})")
_KIND = re.compile(r"kind: (Timeout|Interrupted|Connect|Request|Decode)\b")
_CODE = re.compile(r"<Code>(\w+)</Code>")


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
    status, code = STATUS.search(text), _CODE.search(text)
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
            f"{redact(url)}: the credentials could not be had: {_first_line(text)}. Log in anew, or see the AWS "
            "environment.",
            url=redact(url),
        )
    if isinstance(error, OSError) or type(error).__module__ == "obstore.exceptions":
        cause = text.partition("\n")[0].partition(" - ")[2] or text.partition("\n")[0]
        kind = _KIND.search(text)
        cause += f" ({kind[1]})" if kind else ""
        return TransientStorageError(f"{redact(url)}: {cause.replace(url, redact(url))}.", url=redact(url))
    return error


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def from_os(error: Exception, url: str, *, passing: bool) -> Exception:
    """The error for what a local or fsspec filesystem raised.

    Args:
        error: as raised.
        url: what was asked for.
        passing: whether an unknown ``OSError`` is worth a repetition, as on a network.
    """
    shown = redact(url)
    if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, RemoteDataError):
        return error.__cause__  # fsspec's http takes every error for an object that is missing
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
