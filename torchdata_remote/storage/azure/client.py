"""Requests to Azure's Blob service, by urllib3: everything but what obstore reads.

The protocol: https://learn.microsoft.com/en-us/rest/api/storageservices/blob-service-rest-api
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from ...errors import AccessDeniedError, ExpiredCredentialsError, UrlError
from ..errors import with_source
from ..http import HttpClient, answer_of, body_of, range_header
from ..network_errors import unusable_response
from ..protocol import Answer, for_if_match
from .credentials import AzureCredentials
from .errors import from_azure
from .settings import AzureSettings

T = TypeVar("T")
VERSION = "2023-11-03"
_UNRESERVED = "/~"
_SUCCESS = {"GET": (200, 206), "HEAD": (200,), "PUT": (201,), "DELETE": (202,)}


class AzureClient:
    """Sends requests for one container. Thread-safe; not to be shared by processes.

    Args:
        container: its name.
        settings: endpoint and timeout.
        credentials: of the container.
    """

    def __init__(self, container: str, settings: AzureSettings, credentials: AzureCredentials) -> None:
        self._root = f"{settings.endpoint}/{quote(container, safe='$')}"
        self._credentials = credentials
        self._http = HttpClient(settings.read_timeout_s)

    def with_renewal(self, shown: str, operation: Callable[[], T]) -> T:
        """Call ``operation``. If the store refuses the credentials as expired, get others, and call it once more.

        Args:
            shown: URL for errors.
            operation: sends a request.
        """
        refused = self._credentials.current()
        try:
            try:
                return operation()
            except ExpiredCredentialsError:
                if not self._credentials.renew(refused):
                    raise
            return operation()
        except AccessDeniedError as error:
            message, ended = with_source(error, self._credentials.source), self._credentials.ended()
            if ended is not None:
                message = f"{shown}: the SAS has expired at {ended}. Make a new one. {self._credentials.source}"
                raise ExpiredCredentialsError(message, url=shown) from None
            error.args = (message,)
            raise

    def call(
        self,
        method: str,
        path: str,
        shown: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | bytearray | None = None,
    ) -> tuple[Mapping[str, str], bytes]:
        """Send a request, and return the headers and the body of the response.

        Args:
            method: of HTTP.
            path: of the object; empty for the container.
            shown: URL for errors.
            query: parameters.
            headers: in addition to those of every request.
            body: to send.

        Raises:
            StorageError: for every response that is not a success.
        """

        def send() -> tuple[Mapping[str, str], bytes]:
            response = self._send(method, path, shown, query or {}, headers or {}, body)
            return response.headers, body_of(response, shown)

        return self.with_renewal(shown, send)

    def read(self, path: str, start: int, end: int | None, etag: str | None, shown: str) -> Answer:
        """Read bytes of an object."""
        wanted = range_header(start, end)
        headers = {} if wanted is None else {"Range": wanted}
        if (expected := for_if_match(etag)) is not None:
            headers["If-Match"] = expected
        response = self.with_renewal(shown, lambda: self._send("GET", path, shown, {}, headers, None))
        return answer_of(response, path, shown)

    def _send(
        self,
        method: str,
        path: str,
        shown: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | bytearray | None,
    ) -> Any:
        if "\\" in path or any(segment in (".", "..") for segment in path.split("/")):
            raise UrlError(
                f"{shown}: a name with '.' or '..' between slashes, or with a backslash, is another one on its way to "
                "Azure.",
                url=shown,
            )
        grant = self._credentials.current()
        target = f"{self._root}/{quote(path, safe=_UNRESERVED)}" if path else self._root
        parameters = "&".join(filter(None, (urlencode(query, quote_via=quote), grant.query)))
        every = {"x-ms-version": VERSION, **headers}
        if grant.token:
            every["Authorization"] = f"Bearer {grant.token}"
        url = f"{target}?{parameters}" if parameters else target
        response = self._http.send(method, url, shown, every, body)
        if response.status in _SUCCESS[method]:
            return response
        if response.status < 300:
            response.close()
            raise unusable_response(
                shown, f"{method} was answered {response.status}, which Azure does not: is it the page of a proxy?"
            )
        raise self._refused(response, shown, writing=method == "PUT")

    def _refused(self, response: Any, shown: str, *, writing: bool) -> Exception:
        try:
            details = response.read(decode_content=False)[:4096].decode("utf-8", "replace")
            response.release_conn()
        except Exception:  # noqa: BLE001  # the status says enough
            details = ""
            response.close()
        return from_azure(
            response.status,
            response.headers.get("x-ms-error-code", ""),
            shown,
            details=details,
            writing=writing,
            retry_after=response.headers.get("Retry-After"),
            anonymous=self._credentials.are_anonymous,
        )
