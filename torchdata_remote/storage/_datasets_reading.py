"""Reading from a dataset service: by obstore, or by urllib3 where obstore cannot be used."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

from ..errors import TransientStorageError
from . import _obstore
from ._datasets_requests import ServiceClient
from ._protocol import Answer, MissingHeaderError
from ._urllib import CONTENT_RANGE, read_as_it_comes


class DatasetsReader:
    """Reads the files of one host.

    Args:
        client: speaks to it.
        read_by_obstore: whether obstore may carry what it can express.
    """

    def __init__(self, client: ServiceClient, *, read_by_obstore: bool) -> None:
        self._client = client
        self._read_by_obstore = read_by_obstore
        self._readers: dict[str | None, _obstore.ObstoreReader] = {}  # by token: the environment's may change
        self._lock = threading.RLock()
        self._refused = False  # whether obstore was told to slow down, but does not show for how long

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """As ``Store.read``."""
        self._client.split(path)
        if etag is not None and etag.startswith("W/"):
            etag = None  # If-Match never holds for it
        if self._read_by_obstore and _obstore.can_express(path) and not self._refused:
            try:
                return self._reader().read(path, start, end, etag)
            except MissingHeaderError:
                pass  # urllib3 can do without where Content-Range tells the size
            except TransientStorageError as error:
                if error.overloaded:
                    self._refused = True  # the next request goes by urllib3, which shows Retry-After
                raise
        self._refused = False
        return self._read_by_urllib3(path, start, end, etag)

    def _reader(self) -> _obstore.ObstoreReader:
        client, token = self._client, self._client.token
        with self._lock:
            if token not in self._readers:
                reader = _obstore.service_reader(
                    client.origin, client.root, client.read_timeout_s, client.authorization
                )
                self._readers = {token: reader}
            return self._readers[token]

    def _read_by_urllib3(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        headers = {} if etag is None else {"If-Match": etag}
        if end is not None or start:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        response = self._client.send("GET", self._client.file_target(path), path, headers=headers)
        found, length = response.headers.get("Content-Range"), response.headers.get("Content-Length", "")
        match = CONTENT_RANGE.fullmatch(found or "")
        if "Range" in headers and response.status == 206 and match is not None:
            first, after, total = int(match[1]), int(match[2]) + 1, int(match[3])
        elif "Range" not in headers and response.status == 200 and length.isascii() and length.isdigit():
            first, after, total = 0, int(length), int(length)
        else:
            response.close()
            url = self._client.url(path)
            raise TransientStorageError(
                f"{url}: asked for bytes {start:,} to {end}, got {response.status} with Content-Range "
                f"{found!r} and Content-Length {length!r}.",
                url=url,
            )
        return Answer(first, after, total, response.headers.get("ETag"), self._chunks(path, response))

    def _chunks(self, path: str, response: Any) -> Generator[memoryview, None, None]:
        try:
            with self._client.errors_of(self._client.url(path)):
                yield from read_as_it_comes(response)
                response.release_conn()
        finally:
            response.close()
