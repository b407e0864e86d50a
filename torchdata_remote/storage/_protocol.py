"""What every transport can do. All calls block; none repeats a request by itself."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ..errors import StorageError


class Entry(NamedTuple):
    """An object as a listing tells it: path as in the URL, bytes, etag."""

    path: str
    size: int | None
    etag: str | None


class Page(NamedTuple):
    """Entries of a listing, and the token that asks for the rest (``None``: that was all)."""

    entries: list[Entry]
    next_token: str | None


class Blob(NamedTuple):
    """Bytes of an object: the range asked for, or all of them where the store ignores ranges."""

    data: memoryview
    total_bytes: int  # of the whole object
    etag: str | None


class RangeNotSatisfiableError(StorageError):
    """The range starts at or after the object's end."""


class MissingHeaderError(StorageError):
    """The answer lacks a header that this transport needs; another may do without."""


class PendingObject(Protocol):
    """An object that is being written and that nobody sees before ``commit``."""

    def write(self, data: bytes) -> None:
        """Append bytes."""

    def commit(self) -> None:
        """Make the whole object appear at once."""

    def abort(self) -> None:
        """Leave nothing behind. Safe after a failed ``commit``."""


class Store(Protocol):
    """One bucket, or one local or general filesystem."""

    may_ignore_ranges: bool  # then the first answer has to be seen before a second part is asked for

    def list_page(self, prefix: str, *, recursive: bool, token: str | None) -> Page:
        """Objects at least in the folder of ``prefix``, directory markers left out, in any order."""

    def find(self, path: str) -> Entry | None:
        """The object at exactly this path, without needing more rights than listing does."""

    def stat(self, path: str) -> Entry:
        """The object at exactly this path."""

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Blob:
        """Bytes ``start`` to ``end`` (exclusive; ``None``: all) of the version ``etag``."""

    def create(self, path: str, *, overwrite: bool) -> PendingObject:
        """Begin an object."""

    def delete(self, path: str) -> None:
        """Remove an object; one that is not there is fine."""
