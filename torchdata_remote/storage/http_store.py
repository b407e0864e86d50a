"""http and https: read by obstore, or by urllib3 if obstore cannot express the request, or cannot be used."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, NoReturn

from ..core.options import StorageOptions
from ..core.urls import redact
from ..errors import ObjectNotFoundError, UrlError
from .errors import from_status
from .http import HttpClient, answer_of, first_byte, range_header
from .obstore_reader import ODD_HTTP_PATH, http_reader
from .options import nested
from .protocol import Answer, Entry

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\x20-\x7e\x80-\xff]*")  # what HTTP allows, without tabs
# What obstore does not send to another host after a redirect, and what is no secret
_LEFT_TO_OBSTORE = {"authorization", "cookie", "accept", "accept-language", "referer", "user-agent"}


def http_headers(options: StorageOptions) -> dict[str, str]:
    """Return the headers that options ask for.

    Raises:
        UrlError: for a header that cannot be sent. Values are never shown.
    """
    found: dict[str, str] = nested(options, "headers")
    for name, value in found.items():
        if not isinstance(value, str) or not _HEADER.fullmatch(f"{name}:{value}"):
            raise UrlError(
                f"storage_options['headers']: the header {name!r:.50} cannot be sent. A name has no spaces, a value is "
                "a str without line breaks, in Latin-1."
            )
    return found


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
        """Read by urllib3. A server that ignores ranges sends the whole object."""
        url, wanted = f"{self._root}/{path}", range_header(start, end)
        headers = {} if wanted is None else {"Range": wanted}
        *_, (_, response, _) = self._client.follow(url, redact(url), headers, self._headers)
        if response.status in (200, 203, 206):
            return answer_of(response, path, url)
        response.close()
        raise from_status(response.status, "", url, retry_after=response.headers.get("Retry-After"))

    def stat(self, path: str) -> Entry:
        return first_byte(self.read_without_obstore, path)

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
