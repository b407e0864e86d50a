"""The interface of every store. All calls block; none retries a request by itself, except those of an object writer."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, NamedTuple, Protocol, overload, runtime_checkable

from ..errors import AccessDeniedError, ExpiredCredentialsError, StorageError, TransientStorageError

CONNECT_TIMEOUT_S = 10


def normalized_etag(received: object) -> str | None:
    """Return an etag as HTTP writes it, in quotes; ``None`` if the store sent none, or an empty one.

    Some servers omit the quotes in listings only, and If-Match needs them. Transports that use HTTP call this for
    every etag.

    Example:
        >>> [normalized_etag(etag) for etag in ("1f", '"1f"', ' W/"1f"', "W/1f", "", '""', None)]
        ['"1f"', '"1f"', 'W/"1f"', 'W/"1f"', None, None, None]
    """
    if not isinstance(received, str):
        return None
    if len(received) > 2 and received[0] == received[-1] == '"':  # as nearly all
        return received
    weak = "W/" * received.strip().startswith("W/")
    tag = received.strip().removeprefix("W/").removeprefix('"').removesuffix('"')
    return f'{weak}"{tag}"' if tag else None


def for_if_match(etag: str | None) -> str | None:
    """Return an etag to send in If-Match, which never holds for a weak one; ``None`` for that."""
    normal = normalized_etag(etag)
    return None if normal is None or normal.startswith("W/") else normal


class Entry(NamedTuple):
    """An object in a listing: path as in the URL, size in bytes, etag, and time of the last write (UTC)."""

    path: str
    size: int | None
    etag: str | None
    modified_s: float | None = None  # since 1970, if listings contain it


class EntryTable(Sequence[Entry]):
    """Objects of a listing, one list for each field of :class:`Entry`. An entry is made where it is asked for.

    Lists of strings and numbers cost Python's garbage collector nothing. A tuple or dictionary for each object is
    visited by it again and again, which took half of the time of a listing.

    Args:
        paths: of the objects.
        sizes: in bytes, or ``None``.
        etags: or ``None``.
        modified: when they were written: seconds since 1970, a date, or ``None``.
    """

    __slots__ = ("_columns", "etags", "paths", "sizes")

    def __init__(
        self, paths: list[str], sizes: Sequence[int | None], etags: Sequence[str | None], modified: Sequence[Any]
    ) -> None:
        self.paths, self.sizes, self.etags = paths, sizes, etags
        self._columns: tuple[Any, ...] = paths, sizes, etags, modified

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> EntryTable:
        """Return a table of entries; a table unchanged."""
        if isinstance(entries, cls):
            return entries
        columns: Any = [list(column) for column in zip(*entries, strict=True)] or [[], [], [], []]
        return cls(*columns)

    def selected(self, are_selected: Sequence[object]) -> EntryTable:
        """Return a table of the objects for which a value is true."""
        if all(are_selected):
            return self
        return EntryTable(*(list(compress(column, are_selected)) for column in self._columns))

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Entry]:
        return map(_entry, *self._columns)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> EntryTable: ...
    def __getitem__(self, index: int | slice) -> Entry | EntryTable:
        made: Any = EntryTable if isinstance(index, slice) else _entry
        return made(*(column[index] for column in self._columns))  # type: ignore[no-any-return]


def _entry(path: str, size: int | None, etag: str | None, modified: Any) -> Entry:
    return Entry(path, size, etag, modified.timestamp() if isinstance(modified, dt.datetime) else modified)


class Page(NamedTuple):
    """Entries of a listing, and the token that requests the next page (``None`` on the last one)."""

    entries: Sequence[Entry]
    next_token: str | None
    folders: Sequence[str] = ()  # with a slash at the end, if the listing is not recursive


class Answer(NamedTuple):
    """A store's response to a read: range, size and etag of the object, and its bytes as they arrive.

    ``chunks`` returns all bytes at once, or yields them up to the last one, or raises. The end of a ``with`` block ends
    the request. The caller checks that etag, size and number of bytes are the expected ones.
    """

    start: int  # the byte requested, or 0 if the store ignored the range
    end: int  # exclusive
    total_bytes: int  # of the whole object
    etag: str | None
    chunks: Generator[memoryview, None, None] | Callable[[], memoryview]
    is_cached: bool = False  # by this host, so that no request was sent

    def pieces(self) -> Iterable[memoryview]:
        """Return the bytes in consecutive pieces: a tuple of one, or as they arrive."""
        return (self.chunks(),) if callable(self.chunks) else self.chunks

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *exception: object) -> None:
        if not callable(self.chunks):
            self.chunks.close()

    def whole(self) -> bytes:
        """Read all bytes of a small response.

        Raises:
            TransientStorageError: if the body is shorter or longer than the headers say.
        """
        pieces: list[memoryview] = []
        num_bytes, expected = 0, self.end - self.start
        with self:
            for piece in self.pieces():
                pieces.append(piece)
                num_bytes += len(piece)
                if num_bytes > expected:  # it may have no end
                    break
        if num_bytes != expected:
            more = " or more" if num_bytes > expected else ""
            raise TransientStorageError(f"The body has {num_bytes:,}{more} of {expected:,} bytes.")
        return b"".join(pieces)


def single_chunk(data: bytes | memoryview) -> Callable[[], memoryview]:
    """Chunks of an answer whose bytes are in memory."""
    return lambda: memoryview(data)


class RangeNotSatisfiableError(StorageError):
    """The range starts at or after the object's end."""


class UnreadableResponseError(TransientStorageError):
    """This transport cannot read the response; another one may, or the next one is no mistake of a proxy."""

    likely_permanent = True


class UnsupportedRequestError(StorageError):
    """The store does not implement this operation, or one of its headers."""


class WrongRegionError(StorageError):
    """S3's response to a request in the wrong region; botocore looks up the right one."""


class CredentialSourceError(AccessDeniedError):
    """A source of credentials that is configured gives none. The message names it."""


class ObjectWriter(Protocol):
    """An object that is being written. It is invisible before ``commit``."""

    def write(self, data: bytes) -> None:
        """Append bytes."""

    def commit(self) -> None:
        """Make the whole object visible at once."""

    def abort(self) -> None:
        """Discard the object. May be called after a ``commit``, also one that failed."""


class Store(Protocol):
    """One bucket, or one local or general filesystem."""

    may_ignore_ranges: bool  # if so, wait for the first response before requesting a second range
    maps_files: bool  # chunks are views of the page cache, each as long as the range

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        """List objects that begin with ``prefix``, and maybe others of its folder, unsorted and without markers.

        Args:
            prefix: of their paths.
            recursive: whether to list the folders below it.
            token: of the page; ``None`` for the first one.
            after: the first page begins after this path. Given only to stores that return several pages; one that
                ignores it is noticed.
        """

    def find(self, path: str) -> Entry | None:
        """Return the object at exactly this path, or ``None``. Needs no more permissions than a listing."""

    def stat(self, path: str) -> Entry:
        """Return the object at exactly this path."""

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read bytes ``start`` to ``end`` (exclusive; ``None``: the end) of the version ``etag``."""

    def create(self, path: str, *, overwrite: bool) -> ObjectWriter:
        """Start to write an object."""

    def delete(self, path: str) -> None:
        """Delete an object; a missing one is no error."""

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        """Remove unfinished writes of killed processes for objects that begin with ``prefix``, if the store lists them.

        Args:
            prefix: a path; only its folder is searched, not the folders in it.
            is_ours: whether to remove the unfinished writes of an object, by its base name.
        """


def stat_if_allowed(store: Store, path: str) -> Entry | None:
    """Return an object; ``None`` if it is missing, or the store only allows to list it."""
    try:
        return store.stat(path)
    except (TransientStorageError, ExpiredCredentialsError):
        raise
    except StorageError:
        return None


@runtime_checkable
class ConditionalStore(Store, Protocol):
    """A store that confirms a version by the request that would read another one."""

    def read_if_changed(self, path: str, start: int, end: int | None, etag: str) -> Answer | None:
        """Read as :meth:`Store.read`, in one request; ``None`` if the object still has this etag (If-None-Match)."""
