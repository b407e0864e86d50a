"""Send requests to the Hub and to the hosts that it redirects to. Only the Hub gets the token."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urljoin

import urllib3

from ...core.urls import redact_text
from ...errors import ExpiredCredentialsError, StorageError
from ..errors import from_urllib3, to_package_error, unusable_response
from ..http.content_encoding import IDENTITY, require_unencoded
from ..http.content_range import parse_content_length
from ..http.request import send, whole_body
from ..network import ServerPools
from ..protocol import CONNECT_TIMEOUT_S, normalized_etag
from .errors import from_hub
from .repository import Repository
from .settings import HubSettings, find_token

_MAX_REDIRECTS = 5
_MAX_ERROR_BYTES = 8192
_URL = re.compile(r"(https?)://(?:[^/?#\\\s]*@)?([^/?#@\\\s]+)", re.IGNORECASE)
_PORTS = {"http": ":80", "https": ":443"}


class Received(NamedTuple):
    """A response whose body is not yet read, after redirects.

    Args:
        response: of urllib3.
        url: that answered.
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
        self._settings = settings
        self.endpoint, self.read_timeout_s = settings.endpoint, settings.read_timeout_s
        self._origin = _origin(settings.endpoint)
        timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=settings.read_timeout_s)
        self._pools = ServerPools(timeout=timeout, retries=False)
        self._authorization: dict[str, str] | None = None

    def __reduce__(self) -> str:
        raise TypeError(
            "A store belongs to its process and contains a secret, so it cannot be pickled. Open it in each process."
        )

    def authorization(self) -> dict[str, str]:
        """The header with the token, if there is one; it is looked for again after it was refused."""
        if self._authorization is None:
            token = find_token(self._settings.token)
            self._authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self._authorization

    def is_hub(self, url: str) -> bool:
        """Whether a URL is at the Hub itself, which may get the token."""
        return _origin(url) == self._origin

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
        for _ in range(_MAX_REDIRECTS + 1):
            response = self._send(method, url, shown, headers or {})
            if self.is_hub(url):
                etag = etag or normalized_etag(response.headers.get("X-Linked-Etag"))
                size = size if size is not None else parse_content_length(response.headers.get("X-Linked-Size"))
            location = response.headers.get("Location") if 300 <= response.status < 400 else None
            if location is None:
                return self._checked(Received(response, url, etag, size), shown, repository)
            self._drain(response, shown)
            next_url = _redirected(url, location)
            if next_url is None:
                raise unusable_response(shown, "the Hub redirects to what is no http URL")
            if method == "HEAD" and not self.is_hub(next_url):
                return Received(response, next_url, etag, size)
            url = next_url
        raise StorageError(f"{shown}: more than {_MAX_REDIRECTS} redirects.", url=shown)

    def _send(self, method: str, url: str, shown: str, headers: Mapping[str, str]) -> Any:
        own = self.authorization() if self.is_hub(url) else {}
        return send(self._pools, method, url, shown, {**IDENTITY, **headers, **own})

    def _checked(self, received: Received, shown: str, repository: Repository) -> Received:
        response, url, _, _ = received
        if response.status in (200, 203, 206):
            try:
                require_unencoded(response.headers.get("Content-Encoding"), shown, shown)
            except BaseException:
                response.close()
                raise
            return received
        self._drain(response, shown)
        has_token = bool(self.authorization())
        if self.is_hub(url):
            if response.status == 401:
                self._authorization = None  # a new one may have been stored
            error = from_hub(response.status, response.headers, shown, repository, self.endpoint, has_token=has_token)
        elif response.status in (400, 401, 403, 404, 410):
            error = RefusedLocationError(
                f"{shown}: {_origin(url)} refuses the address that the Hub has given for this file "
                f"({response.status}). Check that this host can be reached without a proxy that changes requests.",
                url=shown,
            )
        else:
            error = from_hub(response.status, response.headers, shown, repository, self.endpoint, has_token=False)
        raise error

    def _drain(self, response: Any, shown: str) -> None:
        """Read the rest of a short body, so that the connection is used again."""
        try:
            response.read(_MAX_ERROR_BYTES, decode_content=False)
            if response.length_remaining:
                response.close()  # with its connection, which has unread bytes
            response.release_conn()
        except Exception as error:  # noqa: BLE001  # as above
            response.close()
            raise to_package_error(from_urllib3, error, shown) from None

    def get_json(self, target: str, shown: str, repository: Repository) -> tuple[Any, Mapping[str, str]]:
        """Request a path of the API, and return the JSON of the response, and its headers."""
        response = self.send("GET", self.endpoint + target, shown, repository).response
        body = whole_body(response, shown)
        try:
            return json.loads(body), response.headers
        except (ValueError, RecursionError):
            raise unusable_response(
                shown, f"{self.endpoint} answers {redact_text(repr(body[:80]))}, which is no JSON. Is the Hub there?"
            ) from None


class RefusedLocationError(ExpiredCredentialsError):
    """Another host refuses the address that the Hub has signed, as it does when the signature has expired."""


def _redirected(url: str, location: str) -> str | None:
    """Return the URL to which a response redirects; ``None`` if it is no http URL."""
    try:
        following = urljoin(url, location).partition("#")[0]
    except ValueError:
        return None
    return following if _URL.match(following) else None


def _origin(url: str) -> str:
    """Return scheme and host of a URL, with the port if it is not the usual one, and without user and password."""
    match = _URL.match(url)
    assert match is not None
    scheme, host = match[1].lower(), match[2].lower()
    return f"{scheme}://{host.removesuffix(_PORTS[scheme])}"
