"""Reading http by urllib3: for URLs that obstore cannot express, and where obstore cannot be used.

(fsspec's http is not used for them: it quotes a signed query anew and takes 403 for 404.)
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError, LocationParseError, MaxRetryError, ResponseError

from ..errors import StorageError, TransientStorageError, UrlError
from ..urls import redact
from ._errors import from_status
from ._protocol import Blob, Entry, RangeNotSatisfiableError
from ._s3_settings import CONNECT_TIMEOUT_S, READ_TIMEOUT_S

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_MAX_REDIRECTS = 5


class UrllibReader:
    """Reads objects of one http host.

    Args:
        origin: such as ``https://host:port``.
    """

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._pool = urllib3.PoolManager(
            maxsize=128,
            timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
            retries=urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=_MAX_REDIRECTS),
        )

    @contextlib.contextmanager
    def _request(self, method: str, path: str, headers: dict[str, str]) -> Iterator[Any]:
        url = f"{self._origin}/{path}"
        try:
            response = self._pool.request(
                method,
                url,
                headers={"Accept-Encoding": "identity", **headers},
                preload_content=False,
                enforce_content_length=True,
            )
            try:
                yield response
            except BaseException:
                response.close()  # and the connection, rather than reading what is left
                raise
            response.drain_conn()  # of a HEAD's answer too, or the connection is not ready for the next request
            response.release_conn()
        except LocationParseError as error:
            raise UrlError(f"{redact(url)}: not a URL of http.", url=redact(url)) from error
        except MaxRetryError as error:
            if isinstance(error.reason, ResponseError):
                raise StorageError(f"{redact(url)}: more than {_MAX_REDIRECTS} redirects.", url=redact(url)) from None
            raise self._passing(url, error) from None
        except HTTPError as error:
            raise self._passing(url, error) from None

    def _passing(self, url: str, error: HTTPError) -> TransientStorageError:
        shown = re.sub(r"\?[^\s'\")]*", "", str(error))  # urllib3 tells the path with its query
        return TransientStorageError(f"{redact(url)}: {type(error).__name__}: {shown}", url=redact(url))

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Blob:
        """The range asked for, or everything if the server ignores ranges."""
        url = f"{self._origin}/{path}"
        with self._request("GET", path, {} if end is None else {"Range": f"bytes={start}-{end - 1}"}) as response:
            if response.status not in (200, 206):
                raise from_status(response.status, "", url)
            data = response.read(decode_content=False)
            found_etag, content_range = response.headers.get("ETag"), response.headers.get("Content-Range")
            partial = response.status == 206
        if etag is not None and found_etag is not None and found_etag != etag:
            raise from_status(412, "", url)
        if not partial:
            return Blob(memoryview(data), len(data), found_etag)
        match = _CONTENT_RANGE.fullmatch(content_range or "")
        if match is None or end is None or int(match[1]) != start or len(data) != min(end, int(match[3])) - start:
            raise TransientStorageError(
                f"{redact(url)}: bytes {start:,} to {end} came as {len(data):,}, Content-Range {content_range!r}.",
                url=redact(url),
            )
        return Blob(memoryview(data), int(match[3]), found_etag)

    def stat(self, path: str) -> Entry:
        """Size and etag by a HEAD request, as far as the server tells them."""
        with self._request("HEAD", path, {}) as response:
            status, headers = response.status, response.headers
        if status == 403 and "?" in path:  # it may be signed for GET alone
            try:
                blob = self.read(path, 0, 1, None)
            except RangeNotSatisfiableError:
                blob = self.read(path, 0, None, None)
            return Entry(path, blob.total_bytes, blob.etag)
        if status in (405, 501):
            return Entry(path, None, None)  # no HEAD here; the first GET will tell
        if status != 200:
            raise from_status(status, "", f"{self._origin}/{path}")
        length = headers.get("Content-Length", "")
        return Entry(path, int(length) if length.isdigit() else None, headers.get("ETag"))
