"""Reading from a dataset service: by obstore, or by urllib3 where obstore cannot be used."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from typing import Any

from ..errors import broken_answer
from ..http.content_range import length_of, span_of
from ..http.urllib3_reader import read_as_it_comes
from ..obstore_reader import ObstoreReader, can_express, http_store
from ..preferred_reader import PreferredRead
from ..protocol import Answer, normalized_etag
from .client import ServiceClient
from .errors import from_obstore_of_service


class DatasetsReader:
    """Reads the files of one host.

    Args:
        client: speaks to it.
        read_by_obstore: whether obstore may carry what it can express.
    """

    def __init__(self, client: ServiceClient, *, read_by_obstore: bool) -> None:
        self._client = client
        self._read = PreferredRead(
            client.root,
            self._read_by_obstore,
            self._read_by_urllib3,
            can_express if read_by_obstore else None,
        )
        self._readers: dict[str | None, ObstoreReader] = {}  # by token: the environment's may change
        self._lock = threading.RLock()

    def read(self, path: str, start: int, end: int | None, etag: str | None, *, by_obstore: bool = True) -> Answer:
        """As ``Store.read``; without ``by_obstore`` by urllib3."""
        self._client.split(path)
        if etag is not None and etag.startswith("W/"):
            etag = None  # If-Match never holds for it
        return (self._read if by_obstore else self._read.without_obstore)(path, start, end, etag)

    def _read_by_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        return self._reader().read(path, start, end, etag)

    def _reader(self) -> ObstoreReader:
        client, token = self._client, self._client.token
        with self._lock:
            if token not in self._readers:
                reader = service_reader(client.origin, client.root, client.read_timeout_s, client.authorization)
                self._readers = {token: reader}
            return self._readers[token]

    def _read_by_urllib3(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        headers = {} if etag is None else {"If-Match": etag}
        if end is not None or start:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        response = self._client.send("GET", self._client.file_target(path), path, headers=headers)
        url, length = self._client.url(path), length_of(response.headers.get("Content-Length"))
        with contextlib.ExitStack() as on_error:
            on_error.callback(response.close)
            span = span_of(response.status, response.headers.get("Content-Range"), length, url)
            if span.total_bytes is None or ("Range" in headers) != (response.status == 206):
                raise broken_answer(url, f"the service answered {response.status} with the span {tuple(span)}")
            on_error.pop_all()
        return Answer(
            span.start,
            span.end,
            span.total_bytes,
            normalized_etag(response.headers.get("ETag")),
            self._chunks(path, response),
        )

    def _chunks(self, path: str, response: Any) -> Generator[memoryview, None, None]:
        try:
            with self._client.errors_of(self._client.url(path)):
                yield from read_as_it_comes(response)
                response.release_conn()
        finally:
            response.close()


def service_reader(origin: str, root: str, read_timeout_s: float, headers: dict[str, str]) -> ObstoreReader:
    """A reader of one dataset service.

    Args:
        origin: such as ``https://host:port``.
        root: the same as ``datasets://host:port/``.
        read_timeout_s: without a byte, in seconds.
        headers: that every request has.
    """
    return ObstoreReader(
        http_store(f"{origin}/datasets", read_timeout_s, headers),
        root,
        if_match=True,
        key=lambda path: path.replace("/", "/files/", 1),
        table=from_obstore_of_service,
    )
