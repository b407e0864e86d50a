"""Requests to Azure's Blob service, by urllib3: everything but what obstore reads.

The protocol: https://learn.microsoft.com/en-us/rest/api/storageservices/blob-service-rest-api
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

from ...core.signatures import hide_signatures_in_log
from ...errors import AccessDeniedError, UrlError
from ..clouds.bucket import CloudBucket
from ..errors import from_status, unusable_response
from ..http.content_encoding import IDENTITY, require_unencoded
from ..http.content_range import parse_content_length, parse_content_range, range_header
from ..http.request import chunks_of, send, whole_body
from ..network import ServerPools
from ..protocol import CONNECT_TIMEOUT_S, Answer, for_if_match, normalized_etag

VERSION = "2023-11-03"
_UNRESERVED = "/~"
_SUCCESS = {"GET": (200, 206), "HEAD": (200,), "PUT": (201,), "DELETE": (202,)}


class AzureClient:
    """Sends requests for one container. Thread-safe; not to be shared by processes.

    Args:
        cloud: its endpoint and credentials.
        read_timeout_s: seconds without a byte after which a request fails.
    """

    def __init__(self, cloud: CloudBucket, read_timeout_s: float) -> None:
        hide_signatures_in_log("urllib3.connectionpool")  # it logs the URLs of requests, which have the SAS
        self._root = f"{cloud.config['endpoint']}/{quote(cloud.name, safe='$')}"
        self._credentials, self._cloud = cloud.credentials, cloud
        timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s)
        self._pools = ServerPools(timeout=timeout, retries=False)

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
            return response.headers, whole_body(response, shown)

        return self._credentials.with_renewal(send)

    def read(self, path: str, start: int, end: int | None, etag: str | None, shown: str) -> Answer:
        """Read bytes of an object."""
        wanted = range_header(start, end)
        headers = {**IDENTITY} if wanted is None else {**IDENTITY, "Range": wanted}
        if (expected := for_if_match(etag)) is not None:
            headers["If-Match"] = expected
        response = self._credentials.with_renewal(lambda: self._send("GET", path, shown, {}, headers, None))
        try:
            received = response.headers
            require_unencoded(received.get("Content-Encoding"), path, shown)
            length = parse_content_length(received.get("Content-Length"))
            span = parse_content_range(response.status, received.get("Content-Range"), length, shown)
            if span.total_bytes is None:
                raise unusable_response(shown, "the store does not send the size of the object")
        except BaseException:
            response.close()
            raise
        found = normalized_etag(received.get("ETag"))
        return Answer(span.start, span.end, span.total_bytes, found, chunks_of(response, shown))

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
        fields = self._credentials.current().fields
        target = f"{self._root}/{quote(path, safe=_UNRESERVED)}" if path else self._root
        parameters = "&".join(filter(None, (urlencode(query, quote_via=quote), self._query(fields))))
        every = {"x-ms-version": VERSION, **headers}
        if "token" in fields:
            every["Authorization"] = f"Bearer {fields['token']}"
        url = f"{target}?{parameters}" if parameters else target
        response = send(self._pools, method, url, shown, every, body)
        if response.status in _SUCCESS[method]:
            return response
        if response.status < 300:
            response.close()
            raise unusable_response(
                shown, f"{method} was answered {response.status}, which Azure does not: is it the page of a proxy?"
            )
        raise self._refused(response, shown, writing=method == "PUT")

    def _query(self, fields: Mapping[str, Any]) -> str:
        if "access_key" not in fields:
            return str(fields.get("sas_token", ""))
        try:
            from azure.storage.blob import ContainerSasPermissions, generate_container_sas
        except ImportError:
            message = f"{self._cloud.url}: an account key needs a package: pip install 'torchdata_remote[az]'."
            raise AccessDeniedError(message, url=self._cloud.url) from None
        account, key = self._cloud.config["account_name"], fields["access_key"]
        allowed = ContainerSasPermissions(read=True, add=True, create=True, write=True, delete=True, list=True)
        end = dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=1)
        return str(generate_container_sas(account, self._cloud.name, key, permission=allowed, expiry=end))

    def _refused(self, response: Any, shown: str, *, writing: bool) -> Exception:
        try:
            details = response.read(decode_content=False)[:4096].decode("utf-8", "replace")
            response.release_conn()
        except Exception:  # noqa: BLE001  # the status says enough
            details = ""
            response.close()
        return from_status(
            response.status,
            response.headers.get("x-ms-error-code", ""),
            shown,
            details=details,
            writing=writing,
            retry_after=response.headers.get("Retry-After"),
        )
