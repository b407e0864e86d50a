"""Read files of the Hub: from where it says that they are, by the address that it has signed."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from ...errors import AccessDeniedError, ObjectNotFoundError
from ..errors import from_urllib3, to_package_error, unusable_response
from ..http.content_range import parse_content_length, parse_content_range, range_header
from ..http.request import chunks_of
from ..protocol import Answer, Entry, normalized_etag
from .client import HubClient, Received, RefusedLocationError
from .locations import Location, Locations
from .repository import Repository


class HubReader:
    """The requests that read files at a commit. An object of its own, because its attributes show signed URLs.

    Args:
        client: sends them.
    """

    def __init__(self, client: HubClient) -> None:
        self._client = client
        self._locations = Locations()

    def read(self, repository: Repository, commit: str, file: str, start: int, end: int | None, shown: str) -> Answer:
        """Read bytes of a file. Its etag is that of listings.

        Args:
            repository: that has the file.
            commit: at which it is read.
            file: path in the repository.
            start: the first byte.
            end: exclusive; ``None`` for the end of the file.
            shown: URL of the file, for errors.
        """
        wanted = range_header(start, end)
        headers = {} if wanted is None else {"Range": wanted}
        url = self._url(repository, commit, file)
        location = self._locations.get(url)
        if location is not None:
            answer = self._read_at(url, location, headers, shown, repository)
            if answer is not None:
                return answer
        with self._locations.finding(url, self._client.read_timeout_s):
            location = self._locations.get(url)  # which another part has found meanwhile
            if location is None:
                received = self._client.send("GET", url, shown, repository, headers)
                self._remember(url, received)
                return self._answer(received, headers, shown)
        answer = self._read_at(url, location, headers, shown, repository)
        if answer is not None:
            return answer
        return self._answer(self._client.send("GET", url, shown, repository, headers), headers, shown)

    def stat(self, repository: Repository, commit: str, file: str, path: str, shown: str) -> Entry:
        """Return size and etag, by one request to the Hub that also says where the file is."""
        url = self._url(repository, commit, file)
        received = self._client.send("HEAD", url, shown, repository)
        is_here = received.url == url or self._client.is_hub(received.url)
        response, size, etag = received.response, received.size, received.etag
        if is_here:
            length = parse_content_length(response.headers.get("Content-Length"))
            size, etag = length if size is None else size, etag or normalized_etag(response.headers.get("ETag"))
            _release(response, shown)
        self._remember(url, received._replace(size=size, etag=etag))
        return Entry(path, size, etag)

    def _url(self, repository: Repository, commit: str, file: str) -> str:
        return f"{self._client.endpoint}{repository.page}/resolve/{commit}/{quote(file)}"

    def _remember(self, url: str, received: Received) -> None:
        self._locations.put(url, received.url, received.etag, received.size, received.response.headers)

    def _read_at(
        self, url: str, location: Location, headers: dict[str, str], shown: str, repository: Repository
    ) -> Answer | None:
        """Read at a location; ``None`` if it is not valid any more."""
        try:
            received = self._client.send("GET", location.url, shown, repository, headers)
        except (RefusedLocationError, AccessDeniedError, ObjectNotFoundError):
            self._locations.drop(url, location)
            return None
        return self._answer(received._replace(etag=location.etag, size=location.size), headers, shown)

    def _answer(self, received: Received, headers: dict[str, str], shown: str) -> Answer:
        response, _, etag, size = received
        length = parse_content_length(response.headers.get("Content-Length"))
        try:
            span = parse_content_range(response.status, response.headers.get("Content-Range"), length, shown)
            total = size if span.total_bytes is None else span.total_bytes
            if total is None or (size is not None and total != size):
                raise unusable_response(shown, f"the Hub says that the file has {size} bytes, its server {total}")
        except BaseException:
            response.close()
            raise
        etag = etag or normalized_etag(response.headers.get("ETag"))
        return Answer(span.start, span.end, total, etag, chunks_of(response, shown))


def _release(response: Any, shown: str) -> None:
    """Let the connection of a response without a body be used again."""
    try:
        response.drain_conn()
        response.release_conn()
    except Exception as error:  # noqa: BLE001  # no other exception leaves this module
        response.close()
        raise to_package_error(from_urllib3, error, shown) from None
