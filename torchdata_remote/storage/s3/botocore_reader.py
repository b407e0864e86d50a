"""Read S3 by botocore: what obstore cannot read, and in processes where it does not work."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from typing import Any, Protocol

from ...core.object_version import same_etag
from ..error_tables import from_botocore
from ..errors import translate_errors
from ..http import parse_content_length, parse_content_range, range_header, require_unencoded, stream_body
from ..network_errors import unusable_response
from ..preferred_reader import MAX_UNREADABLE
from ..protocol import Answer, Entry, for_if_match, normalized_etag

_log = logging.getLogger("torchdata_remote")


class Bucket(Protocol):
    """What reading needs of its store."""

    may_ignore_ranges: bool

    def url(self, path: str) -> str:
        """URL of an object, for errors and the log."""

    def named(self, path: str) -> dict[str, Any]:
        """Return botocore's arguments that name an object."""

    def stat(self, path: str) -> Entry:
        """Return the object at exactly this path."""

    def request(self, name: str, path: str, *, writing: bool = False, **arguments: Any) -> Any:
        """Send one request."""


class BotocoreReader:
    """Reads objects of one bucket.

    Args:
        store: sends the requests.
    """

    def __init__(self, store: Bucket) -> None:
        self._store = store
        self._num_ignored_ranges = 0  # consecutive responses with the whole object instead of a range

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like ``Store.read``."""
        arguments: dict[str, Any] = self._store.named(path)
        wanted_range = range_header(start, end)
        if wanted_range is not None:
            arguments["Range"] = wanted_range
        if (expected := for_if_match(etag)) is not None:
            arguments["IfMatch"] = expected
        response = self._store.request("get_object", path, **arguments)
        metadata, url = response["ResponseMetadata"], self._store.url(path)
        headers = metadata["HTTPHeaders"]
        with contextlib.ExitStack() as on_error:
            on_error.callback(response["Body"].close)
            require_unencoded(headers.get("content-encoding"), path, url)
            status, length = metadata["HTTPStatusCode"], parse_content_length(headers.get("content-length"))
            first, after, total = parse_content_range(status, headers.get("content-range"), length, url)
            if total is None:
                total = self._total_bytes(path, response.get("ETag"))
            on_error.pop_all()
        requested = (start, total if end is None else min(end, total))
        self._count_ignored_range(wanted_range is not None and (first, after) == (0, total) and requested != (0, total))
        return Answer(first, after, total, normalized_etag(response.get("ETag")), self._chunks(path, response["Body"]))

    def _total_bytes(self, path: str, etag: str | None) -> int:
        """Size of an object, if the response to a range does not contain it."""
        entry = self._store.stat(path)
        if entry.size is None or not same_etag(etag, entry.etag):
            raise unusable_response(self._store.url(path), f"the store does not send the size of the version {etag}")
        return entry.size

    def _count_ignored_range(self, is_whole: bool) -> None:
        """Count consecutive responses that contain the whole object instead of a range.

        A store that ignores ranges would send the whole object for each part, so later objects are read in one request.
        """
        self._num_ignored_ranges = self._num_ignored_ranges + 1 if is_whole else 0
        if self._num_ignored_ranges == MAX_UNREADABLE and not self._store.may_ignore_ranges:
            self._store.may_ignore_ranges = True
            bucket = self._store.url("").rstrip("/")
            _log.warning("%s ignores ranges: each object is read in one request, more slowly", bucket)

    def _chunks(self, path: str, body: Any) -> Generator[memoryview, None, None]:
        with contextlib.closing(body), translate_errors(from_botocore, self._store.url(path)):
            yield from stream_body(body._raw_stream)
