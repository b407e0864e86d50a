"""http and https: read by obstore, or by fsspec where the URL has a query or obstore cannot be used."""

from __future__ import annotations

from functools import cached_property

from ..errors import ObjectNotFoundError, UrlError
from ..options import StorageOptions
from ..urls import join_url, redact
from . import _obstore
from ._fsspec import FsspecStore
from ._protocol import Blob, Entry, Page, PendingObject


class HttpStore:
    """One http host. It has no listing and takes no objects.

    Args:
        scheme: ``http`` or ``https``.
        host: with its port.
    """

    may_ignore_ranges = True

    def __init__(self, scheme: str, host: str) -> None:
        self._scheme, self._host = scheme, host

    @cached_property
    def _reader(self) -> _obstore.ObstoreReader:
        return _obstore.http_reader(f"{self._scheme}://{self._host}")

    @cached_property
    def _general(self) -> FsspecStore:
        return FsspecStore(self._scheme, self._host, StorageOptions())

    def _by(self, path: str) -> _obstore.ObstoreReader | FsspecStore:
        return self._reader if _obstore.usable() and _obstore.can_express_http(path) else self._general

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Blob:
        return self._by(path).read(path, start, end, etag)

    def stat(self, path: str) -> Entry:
        return self._by(path).stat(path)

    def find(self, path: str) -> Entry | None:
        try:
            return self.stat(path)
        except ObjectNotFoundError:
            return None

    def _cannot(self, path: str, what: str) -> UrlError:
        url = redact(join_url(self._scheme, self._host, path))
        return UrlError(f"{url}: http {what}.", url=url)

    def list_page(self, prefix: str, *, recursive: bool, token: str | None) -> Page:
        raise self._cannot(prefix, "has no listing. Name the objects, or a brace range such as t-{000000..000099}.tar")

    def create(self, path: str, *, overwrite: bool) -> PendingObject:
        raise self._cannot(path, "takes no objects. Write to s3, a local folder, or another store")

    def delete(self, path: str) -> None:
        raise self._cannot(path, "deletes no objects")
