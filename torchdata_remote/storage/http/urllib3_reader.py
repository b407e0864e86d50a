"""Read HTTP by urllib3: URLs that obstore cannot express, and all URLs if obstore cannot be used.

(fsspec's HTTP filesystem encodes a signed query again, and reports 403 as 404.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Any

import urllib3
from urllib3.exceptions import MaxRetryError, ResponseError

from ...core.signatures import hide_signatures_in_log
from ...core.urls import redact
from ...errors import RemoteDataError, StorageError
from ..errors import from_status, from_urllib3, to_package_error, unusable_response
from ..network import ServerPools
from ..protocol import CONNECT_TIMEOUT_S, Answer, Entry, RangeNotSatisfiableError, normalized_etag, single_chunk
from .content_encoding import IDENTITY, require_unencoded
from .content_range import parse_content_length, parse_content_range, range_header
from .request import stream_body

_MAX_REDIRECTS = 5
_REFUSED = {400, 401, 403}


class UrllibReader:
    """Reads objects of one HTTP host.

    Args:
        origin: such as ``https://host:port``.
        read_timeout_s: seconds without a byte after which a request fails.
        headers: of every request to this host, and to no other one to which it redirects.
    """

    def __init__(self, origin: str, read_timeout_s: float, headers: dict[str, str] | None = None) -> None:
        self._origin, self._headers = origin, headers or {}
        hide_signatures_in_log("urllib3.connectionpool")
        retries = urllib3.Retry(
            total=None,
            connect=0,
            read=0,
            status=0,
            other=0,
            redirect=_MAX_REDIRECTS,
            remove_headers_on_redirect={*urllib3.Retry.DEFAULT_REMOVE_HEADERS_ON_REDIRECT, *self._headers},
        )
        self._pools = ServerPools(
            timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s),
            retries=retries,
        )

    @contextlib.contextmanager
    def _request(self, method: str, path: str, headers: dict[str, str]) -> Iterator[Any]:
        url = f"{self._origin}/{path}"
        try:
            response = self._pools.manager(url).request(
                method,
                url,
                headers={**self._headers, **IDENTITY, **headers},
                preload_content=False,
                enforce_content_length=True,
            )
            try:
                yield response
            except BaseException:
                response.close()  # with its connection, which has unread bytes
                raise
            response.drain_conn()  # also after HEAD, or the connection cannot be reused
            response.release_conn()
        except (RemoteDataError, MemoryError):
            raise
        except MaxRetryError as error:
            if isinstance(error.reason, ResponseError):
                raise StorageError(f"{redact(url)}: more than {_MAX_REDIRECTS} redirects.", url=redact(url)) from None
            raise to_package_error(from_urllib3, error, url) from None  # a redirect may lead to a signed URL
        except Exception as error:  # noqa: BLE001  # no other exception leaves this module
            raise to_package_error(from_urllib3, error, url) from None

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read the range, or the whole object if the server ignores ranges."""
        url = f"{self._origin}/{path}"
        wanted_range = range_header(start, end)
        headers = {} if wanted_range is None else {"Range": wanted_range}
        with contextlib.ExitStack() as stack:
            response = stack.enter_context(self._request("GET", path, headers))
            if response.status not in (200, 203, 206):
                raise from_status(response.status, "", url, retry_after=response.headers.get("Retry-After"))
            require_unencoded(response.headers.get("Content-Encoding"), path, url)
            found_etag, length = (
                normalized_etag(response.headers.get("ETag")),
                parse_content_length(response.headers.get("Content-Length")),
            )
            if length is None and response.status != 206:
                if not response.chunked:
                    raise StorageError(
                        f"{redact(url)}: the server sends no length, so a truncated body would go unnoticed. Serve it "
                        "with Content-Length.",
                        url=redact(url),
                    )
                whole = response.read(decode_content=False)  # its last chunk marks the end
                return Answer(0, len(whole), len(whole), found_etag, single_chunk(whole))
            first, after, total = parse_content_range(
                response.status, response.headers.get("Content-Range"), length, url
            )
            if total is None:
                total = self._total_bytes(path, found_etag, is_range=bool(headers))
            return Answer(first, after, total, found_etag, self._chunks(response, stack.pop_all()))

    def _total_bytes(self, path: str, etag: str | None, *, is_range: bool) -> int:
        """Size of the object if the response does not contain it: by HEAD, or by the headers of a GET of all."""
        with self._request("HEAD", path, {}) as response:
            found = Entry(
                path,
                parse_content_length(response.headers.get("Content-Length")),
                normalized_etag(response.headers.get("ETag")),
            )
        if response.status != 200 or found.size is None:
            if not is_range:
                raise unusable_response(f"{self._origin}/{path}", "the server does not send the size of the object")
            answer = self.read(path, 0, None, None)
            answer.chunks.close()
            found = Entry(path, answer.total_bytes, answer.etag)
        if found.size is None or (etag is not None and found.etag is not None and etag != found.etag):
            raise unusable_response(
                f"{self._origin}/{path}", f"the server does not send the size of the version {etag}"
            )
        return found.size

    def _chunks(self, response: Any, request: contextlib.ExitStack) -> Generator[memoryview, None, None]:
        with request:
            yield from stream_body(response)

    def stat(self, path: str) -> Entry:
        """Return size and etag by a HEAD request, ``None`` if the server does not send them."""
        with self._request("HEAD", path, {}) as response:
            status, headers = response.status, response.headers
        if status in _REFUSED and "?" in path:  # it may be signed for GET only
            try:
                answer = self.read(path, 0, 1, None)
            except RangeNotSatisfiableError:
                answer = self.read(path, 0, None, None)
            answer.chunks.close()
            return Entry(path, answer.total_bytes, answer.etag)
        if status in (405, 501):
            return Entry(path, None, None)  # no HEAD here; the first GET reports a missing object
        if status != 200:
            raise from_status(status, "", f"{self._origin}/{path}", retry_after=headers.get("Retry-After"))
        return Entry(path, parse_content_length(headers.get("Content-Length")), normalized_etag(headers.get("ETag")))
