"""Send requests to the Hub and to the hosts that it redirects to. Only the Hub gets the token."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...core.urls import redact_text
from ...errors import AccessDeniedError, ExpiredCredentialsError, ObjectNotFoundError, TransientStorageError
from ..errors import from_status, unusable_response
from ..http import HttpClient, body_of, origin_of, parse_content_length
from ..protocol import normalized_etag
from .repository import Repository
from .settings import LOGIN, HubSettings, find_token

_MAX_ERROR_BYTES = 8192
_MAX_MESSAGE = 300
_INVALID_TOKEN = "Invalid credentials in Authorization header"  # noqa: S105  # a message of the Hub
_LIMIT = re.compile(r'"(\w+)"\s*;\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,18})(?!\d)')


class MissingFileError(ObjectNotFoundError):
    """The revision has no file or folder of this path."""


class Received(NamedTuple):
    """A successful response without its body, after redirects.

    Args:
        response: of urllib3.
        url: where the file is; perhaps signed.
        etag: of the file, which the Hub says of files that another host serves; ``None`` if it has not said it.
        size: of the file, likewise.
    """

    response: Any
    url: str
    etag: str | None
    size: int | None


class HubClient:
    """Sends requests. Thread-safe; not to be shared by processes.

    Args:
        settings: of the store.
    """

    def __init__(self, settings: HubSettings) -> None:
        self._settings, self._http = settings, HttpClient(settings.read_timeout_s)
        self.endpoint, self._origin = settings.endpoint, origin_of(settings.endpoint)

    def __reduce__(self) -> str:
        raise TypeError(
            "A store belongs to its process and contains a secret, so it cannot be pickled. Open it in each process."
        )

    def _authorization(self, url: str) -> dict[str, str]:
        """The header with the token, for the Hub itself."""
        token = find_token(self._settings.token) if origin_of(url) == self._origin else None
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    def send(
        self, method: str, url: str, shown: str, repository: Repository, headers: Mapping[str, str] | None = None
    ) -> Received:
        """Send a request, and follow redirects: with the token at the Hub, without it elsewhere.

        ``HEAD`` ends at the Hub's redirect to another host, which says all about the file.

        Args:
            method: of HTTP.
            url: of the request.
            shown: URL of the file or folder, as ``hf://``, for errors.
            repository: that is asked for.
            headers: in addition to those of every request.

        Raises:
            StorageError: for every response that is not a success. Its ``status`` is that of the response.
        """
        etag: str | None = None
        size: int | None = None
        for hop in self._http.hops(method, url, shown, headers or {}, self._authorization):
            url, response = hop.url, hop.response
            if origin_of(url) == self._origin:
                etag = etag or normalized_etag(response.headers.get("X-Linked-Etag"))
                size = size if size is not None else parse_content_length(response.headers.get("X-Linked-Size"))
            if method == "HEAD" and hop.next_url is not None and origin_of(hop.next_url) != self._origin:
                body_of(response, shown)
                return Received(response, hop.next_url, etag, size)
        if response.status in (200, 203, 206):
            return Received(response, url, etag, size)
        body_of(response, shown, _MAX_ERROR_BYTES)
        raise self._refused(response.status, response.headers, url, shown, repository)

    def get_json(self, target: str, shown: str, repository: Repository) -> tuple[Any, Mapping[str, str]]:
        """Request a path of the API, and return the JSON of the response, and its headers."""
        response = self.send("GET", self.endpoint + target, shown, repository).response
        body = body_of(response, shown)
        try:
            return json.loads(body), response.headers
        except (ValueError, RecursionError):
            raise unusable_response(
                shown, f"{self.endpoint} answers {redact_text(repr(body[:80]))}, which is no JSON. Is the Hub there?"
            ) from None

    def _refused(
        self, status: int, headers: Mapping[str, str], url: str, shown: str, repository: Repository
    ) -> Exception:
        """Make the error for a response. Its headers' names are case-insensitive."""
        origin, has_token = origin_of(url), bool(self._authorization(url))
        code, message = headers.get("X-Error-Code", ""), _printable(headers.get("X-Error-Message", ""))
        says = f" The Hub says: {message}" if message else ""
        if origin != self._origin and status in (400, 401, 403, 404, 410):
            return ExpiredCredentialsError(
                f"{shown}: {origin} refuses the address that the Hub has given for this file ({status}). Check that "
                "this host can be reached without a proxy that changes requests.",
                url=shown,
            )
        if status == 429:
            return _too_many(headers, shown)
        if code == "GatedRepo":
            asked = "with the account of the token: " if has_token else "and pass a token of that account: "
            page = f"{self.endpoint}{repository.page}"
            what = f"the {repository} is gated. Accept its terms at {page} {asked}{LOGIN}.{says}"
        elif status == 401 and message == _INVALID_TOKEN:
            what = (
                f"the Hub at {self.endpoint} does not accept the token: it is wrong, or has expired. Make a new one at "
                f"{self.endpoint}/settings/tokens, and {LOGIN}."
            )
        elif (code == "RepoNotFound" or status == 401) and not has_token:
            what = (
                f"{self.endpoint} shows no {repository} without a token: it does not exist, or it is private. Check "
                f"the spelling; for a private one {LOGIN}."
            )
        elif code == "RepoNotFound":
            return ObjectNotFoundError(
                f"{shown}: {self.endpoint} has no {repository}, or its token may not read it. Check the spelling, the "
                "kind (hf://datasets/..., hf://spaces/..., or none for a model), and the rights of the token.",
                url=shown,
            )
        elif code == "RevisionNotFound":
            return ObjectNotFoundError(
                f"{shown}: the {repository} has no revision {repository.revision or 'main'!r}. Check the branch, tag "
                "or commit behind '@'; a slash in its name is written as %2F.",
                url=shown,
            )
        elif code == "EntryNotFound":
            return MissingFileError(f"{shown}: no such file in the {repository} at this revision.", url=shown)
        elif status in (401, 403):
            what = f"the Hub answered {status}. Check the rights of the token.{says}"
        else:
            error = from_status(status, "", shown, retry_after=headers.get("Retry-After"))
            error.args = (f"{error}{says}",)
            return error
        return AccessDeniedError(f"{shown}: {what}", url=shown)


def _too_many(headers: Mapping[str, str], url: str) -> Exception:
    """Make the error for a rate limit, which says when it ends in Retry-After or RateLimit."""
    error = from_status(429, "", url, retry_after=headers.get("Retry-After"))
    limit = _LIMIT.search(headers.get("RateLimit", ""))
    if limit is not None and isinstance(error, TransientStorageError):
        error.retry_after_s = max(error.retry_after_s or 0.0, float(limit[2]))
        message = f"{url}: the Hub's rate limit for {limit[1]} is reached, for {limit[2]} s. It is higher with a token."
        error.args = (message,)
    return error


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)[:_MAX_MESSAGE]
