"""http and https: read by obstore, or by urllib3 if obstore cannot express the request, or cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from ..core.urls import join_url, redact
from ..errors import ObjectNotFoundError, UrlError
from .http.headers import stay_at_host
from .http.urllib3_reader import UrllibReader
from .obstore_reader import ODD_HTTP_PATH, http_reader
from .protocol import Answer, Entry, ObjectWriter, Page


class HttpStore:
    """One HTTP host, for reading only: it cannot be listed or written.

    Args:
        scheme: ``http`` or ``https``.
        host: with its port.
        read_timeout_s: seconds without a byte after which a request fails.
        read_by_obstore: whether to read by obstore the paths that it can express.
        headers: of every request to this host. They are not sent to another one to which it redirects.
    """

    may_ignore_ranges = True
    maps_files = False

    def __init__(
        self,
        scheme: str,
        host: str,
        read_timeout_s: float,
        *,
        read_by_obstore: bool,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._scheme, self._host = scheme, host
        self._read_timeout_s, self._headers = read_timeout_s, headers or {}
        self._reader = http_reader(
            f"{scheme}://{host}",
            read_timeout_s,
            lambda *arguments: self._fallback.read(*arguments),
            odd=ODD_HTTP_PATH if read_by_obstore and stay_at_host(self._headers) else None,
            headers=self._headers,
        )

    @cached_property
    def _fallback(self) -> UrllibReader:
        return UrllibReader(f"{self._scheme}://{self._host}", self._read_timeout_s, self._headers)

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        return self._reader.read(path, start, end, etag)

    def read_if_changed(self, path: str, start: int, end: int | None, etag: str) -> Answer | None:
        return self._reader.get_if_changed(path, start, end, etag, self.stat)

    def read_without_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like :meth:`read`, by urllib3."""
        return self._fallback.read(path, start, end, etag)

    def stat(self, path: str) -> Entry:
        return self._fallback.stat(path)  # obstore reports a missing object if the server refuses HEAD

    def find(self, path: str) -> Entry | None:
        try:
            return self.stat(path)
        except ObjectNotFoundError:
            return None

    def _unsupported(self, path: str, reason: str) -> UrlError:
        url = redact(join_url(self._scheme, self._host, path))
        return UrlError(f"{url}: http {reason}.", url=url)

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        raise self._unsupported(
            prefix, "cannot be listed. Name the objects, or a brace range such as t-{000000..000099}.tar"
        )

    def create(self, path: str, *, overwrite: bool) -> ObjectWriter:
        raise self._unsupported(path, "cannot be written. Write to s3, a local folder, or another store")

    def delete(self, path: str) -> None:
        raise self._unsupported(path, "cannot delete objects")

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        raise self._unsupported(prefix, "cannot be written")
