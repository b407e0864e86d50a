"""http and https: read by obstore, or by urllib3 if obstore cannot express the request, or cannot be used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

from ..core.options import StorageOptions
from ..core.urls import redact
from ..errors import ObjectNotFoundError, StorageError, TransientStorageError, UrlError
from .errors import from_status
from .http import HttpClient, answer_of, body_of, parse_content_length, range_header, refuse_others
from .obstore_reader import ODD_HTTP_PATH, http_reader
from .protocol import Answer, Entry, RangeNotSatisfiableError, UnsupportedRequestError, normalized_etag

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x20-\x7e\x80-\xff]*")  # what HTTP allows, without tabs
# What this package sets, by which a response would be another one than it expects
_OWN = ("accept-encoding", "connection", "content-length", "host", "if-match", "if-none-match", "range")
# What obstore does not send to another host after a redirect, and what is no secret
_LEFT_TO_OBSTORE = {"authorization", "cookie", "accept", "accept-language", "referer", "user-agent"}


def http_headers(url: str, options: StorageOptions) -> dict[str, str]:
    """Return the headers that options ask for.

    Args:
        url: of the host, for errors.
        options: ``headers``, and ``client_kwargs`` with ``headers``; those of the first take precedence.

    Raises:
        UrlError: for another option, and for a header that cannot be sent, or that this package sets. Values are never
            shown.
    """
    nested = _dict(options, "client_kwargs")
    refuse_others(url, [*options.keys(), *nested], {"headers", "client_kwargs"})
    found: dict[str, tuple[str, str]] = {}
    for name, value in [*_dict(nested, "headers").items(), *_dict(options, "headers").items()]:
        is_text = isinstance(name, str) and isinstance(value, str)
        if not is_text or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or name.lower() in _OWN:
            raise UrlError(
                f"storage_options['headers']: the header {name!r:.50} cannot be sent. A name has no spaces, a value is "
                f"a str without line breaks, in Latin-1. This package itself sets {', '.join(_OWN)}."
            )
        found[name.lower()] = name, value
    return dict(found.values())


def _dict(options: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = options.get(name) or {}
    if not isinstance(value, Mapping):
        raise UrlError(f"storage_options: {name!r} must be a dict, got {type(value).__name__}.")
    return value


class HttpStore:
    """One HTTP host, for reading only: it cannot be listed or written.

    Args:
        root: scheme, host and port, as of a URL.
        read_timeout_s: seconds without a byte after which a request fails.
        read_by_obstore: whether to read by obstore the paths that it can express.
        headers: of every request to this host. They are not sent to another one to which it redirects.
    """

    may_ignore_ranges = True
    maps_files = False

    def __init__(self, root: str, read_timeout_s: float, headers: dict[str, str], *, read_by_obstore: bool) -> None:
        self._root, self._headers = root, headers
        self._client = HttpClient(root, read_timeout_s)
        is_safe = {name.lower() for name in self._headers} <= _LEFT_TO_OBSTORE
        odd = ODD_HTTP_PATH if read_by_obstore and is_safe else None
        reader = http_reader(self._root, read_timeout_s, self.read_without_obstore, odd=odd, headers=self._headers)
        self.read, self.read_if_changed = reader.read, partial(reader.get_if_changed, stat=self.stat)

    def read_without_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like :meth:`read`, by urllib3. A server that ignores ranges sends the whole object."""
        wanted = range_header(start, end)
        url, response = self._send("GET", path, {} if wanted is None else {"Range": wanted})
        return answer_of(response, path, url)

    def _send(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[str, Any]:
        """Send a request, and return the URL, and the response if it is a success."""
        url = f"{self._root}/{path}"
        *_, (_, response, _) = self._client.follow(method, url, redact(url), headers, self._headers)
        if response.status in (200, 203, 206):
            return url, response
        response.close()
        raise from_status(response.status, "", url, retry_after=response.headers.get("Retry-After"))

    def stat(self, path: str) -> Entry:
        """Return size and etag by a HEAD request, ``None`` if the server does not send them."""
        try:
            url, response = self._send("HEAD", path, {})
        except (ObjectNotFoundError, TransientStorageError):
            raise
        except StorageError as error:
            if "?" in path:
                return self._first_byte(path)  # it may be signed for GET only
            if isinstance(error, UnsupportedRequestError):
                return Entry(path, None, None)  # no HEAD here; the first GET reports a missing object
            raise
        body_of(response, url)  # none, but urllib3 has to see its end
        size = parse_content_length(response.headers.get("Content-Length"))
        return Entry(path, size, normalized_etag(response.headers.get("ETag")))

    def _first_byte(self, path: str) -> Entry:
        try:
            with self.read_without_obstore(path, 0, 1, None) as answer:
                return Entry(path, answer.total_bytes, answer.etag)
        except RangeNotSatisfiableError:
            return Entry(path, 0, None)

    def find(self, path: str) -> Entry | None:
        try:
            return self.stat(path)
        except ObjectNotFoundError:
            return None

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        url = redact(f"{self._root}/{arguments[0]}")
        raise UrlError(
            f"{url}: http cannot be listed or written. Name the objects, or a brace range such as "
            "t-{000000..000099}.tar. Write to s3, a local folder, or another store.",
            url=url,
        )

    list_page = create = delete = remove_leftovers = _refuse
