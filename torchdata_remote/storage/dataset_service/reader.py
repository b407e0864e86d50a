"""Read from a dataset service by obstore, or by urllib3 if obstore cannot be used."""

from __future__ import annotations

import threading

from ..http import answer_of, range_header
from ..obstore_reader import ODD_KEY, ObstoreReader, Read, http_store
from ..protocol import Answer, for_if_match
from .client import ServiceClient, ServiceRequests
from .errors import from_obstore_at_service


class DatasetsReader(ServiceRequests):
    """The requests that read the files of one host. An object of its own, because its attributes show the token.

    Args:
        client: sends them.
        read_by_obstore: whether to read by obstore what it can express.
    """

    def __init__(self, client: ServiceClient, *, read_by_obstore: bool) -> None:
        super().__init__(client)
        self._read_by_obstore = read_by_obstore
        self._readers: dict[str | None, ObstoreReader] = {}  # by token, since that of the environment may change
        self._lock = threading.RLock()

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        self._client.split(path)
        return self._reader().read(path, start, end, for_if_match(etag))

    def read_without_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like :meth:`read`, by urllib3."""
        self._client.split(path)
        return self._read_by_urllib3(path, start, end, for_if_match(etag))

    def _reader(self) -> ObstoreReader:
        client, token = self._client, self._client.token
        with self._lock:
            if token not in self._readers:
                reader = service_reader(client, self._read_by_urllib3, by_obstore=self._read_by_obstore)
                self._readers = {token: reader}
            return self._readers[token]

    def _read_by_urllib3(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        wanted = {"If-Match": etag, "Range": range_header(start, end)}
        headers = {name: value for name, value in wanted.items() if value is not None}
        response = self._client.send("GET", self._client.file_target(path), path, headers=headers)
        return answer_of(response, path, self._client.url(path))


def service_reader(client: ServiceClient, fallback: Read, *, by_obstore: bool) -> ObstoreReader:
    """Make an obstore reader of one dataset service.

    Args:
        client: of the service.
        fallback: reads what obstore cannot.
        by_obstore: whether to read by obstore at all.
    """
    origin, headers = f"{client.origin}/datasets", client.authorization
    return ObstoreReader(
        client.root,
        lambda small: http_store(origin, client.read_timeout_s, headers, small=small),
        fallback,
        odd=ODD_KEY if by_obstore else None,
        key=lambda path: path.replace("/", "/files/", 1),
        table=from_obstore_at_service,
    )
