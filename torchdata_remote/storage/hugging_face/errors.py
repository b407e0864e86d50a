"""Convert error responses of the Hub to this package's errors."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...errors import AccessDeniedError, ObjectNotFoundError, TransientStorageError
from ..errors import from_status
from .repository import Repository
from .settings import LOGIN

_INVALID_TOKEN = "Invalid credentials in Authorization header"  # noqa: S105  # a message of the Hub
_LIMIT = re.compile(r'"(\w+)"\s*;\s*r\s*=\s*(\d{1,18})\s*;\s*t\s*=\s*(\d{1,18})(?!\d)')
_MAX_MESSAGE = 300


class MissingFileError(ObjectNotFoundError):
    """The revision has no file or folder of this path."""


def from_hub(
    status: int, headers: Mapping[str, str], url: str, repository: Repository, endpoint: str, *, has_token: bool
) -> Exception:
    """Make the error for a response of the Hub.

    Args:
        status: of the response.
        headers: of the response; their names are case-insensitive.
        url: of the file or folder, as ``hf://``.
        repository: that was asked for.
        endpoint: URL of the Hub.
        has_token: whether a token was sent.
    """
    code, message = headers.get("X-Error-Code", ""), _printable(headers.get("X-Error-Message", ""))
    says = f" The Hub says: {message}" if message else ""
    if status == 429:
        return _too_many(headers, url)
    if code == "GatedRepo":
        asked = "and pass a token of that account: " if not has_token else "with the account of the token: "
        return AccessDeniedError(
            f"{url}: the {repository} is gated. Accept its terms at {endpoint}{repository.page} {asked}{LOGIN}.{says}",
            url=url,
        )
    if status == 401 and message == _INVALID_TOKEN:
        return AccessDeniedError(
            f"{url}: the Hub at {endpoint} does not accept the token: it is wrong, or has expired. Make a new one at "
            f"{endpoint}/settings/tokens, and {LOGIN}.",
            url=url,
        )
    if code == "RepoNotFound" or (status == 401 and not has_token):
        if has_token:
            return ObjectNotFoundError(
                f"{url}: {endpoint} has no {repository}, or its token may not read it. Check the spelling, the kind "
                "(hf://datasets/..., hf://spaces/..., or none for a model), and the rights of the token.",
                url=url,
            )
        return AccessDeniedError(
            f"{url}: {endpoint} shows no {repository} without a token: it does not exist, or it is private. Check the "
            f"spelling; for a private one {LOGIN}.",
            url=url,
        )
    if code == "RevisionNotFound":
        return ObjectNotFoundError(
            f"{url}: the {repository} has no revision {repository.revision or 'main'!r}. Check the branch, tag or "
            "commit behind '@'; a slash in its name is written as %2F.",
            url=url,
        )
    if code == "EntryNotFound":
        return MissingFileError(f"{url}: no such file in the {repository} at this revision.", url=url)
    if status in (401, 403):
        return AccessDeniedError(f"{url}: the Hub answered {status}. Check the rights of the token.{says}", url=url)
    error = from_status(status, "", url, retry_after=headers.get("Retry-After"))
    error.args = (f"{error}{says}",)
    return error


def _too_many(headers: Mapping[str, str], url: str) -> TransientStorageError:
    """Make the error for a rate limit, which says when it ends in Retry-After or RateLimit."""
    error = from_status(429, "", url, retry_after=headers.get("Retry-After"))
    assert isinstance(error, TransientStorageError)
    limit = _LIMIT.search(headers.get("RateLimit", ""))
    if limit is not None and int(limit[2]) == 0:
        error.retry_after_s = max(error.retry_after_s or 0.0, float(limit[3]))
        message = f"{url}: the Hub's rate limit for {limit[1]} is reached, for {limit[3]} s. It is higher with a token."
        error.args = (message,)
    return error


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)[:_MAX_MESSAGE]
