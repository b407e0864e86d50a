"""What every transport can do. All calls block; none repeats a request by itself."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from ..errors import StorageError, TransientStorageError

CONNECT_TIMEOUT_S = 10


def normalized_etag(sent: object) -> str | None:
    """An etag as HTTP writes it, in quotes, from what a store sent; ``None`` if that is no text, or empty.

    Some servers leave the quotes away in listings only, and If-Match needs them. Transports that speak HTTP call this
    for every etag.

    Example:
        >>> [normalized_etag(sent) for sent in ("1f", '"1f"', ' W/"1f"', "W/1f", "", '""', None)]
        ['"1f"', '"1f"', 'W/"1f"', 'W/"1f"', None, None, None]
    """
    if not isinstance(sent, str):
        return None
    weak, tag = "", sent.strip()
    if tag.startswith("W/"):
        weak, tag = "W/", tag[2:]
    tag = tag.removeprefix('"').removesuffix('"')
    return f'{weak}"{tag}"' if tag else None


class Entry(NamedTuple):
    """An object as a listing tells it: path as in the URL, bytes, etag, and when it was written, in seconds (UTC)."""

    path: str
    size: int | None
    etag: str | None
    modified_s: float | None = None  # since 1970, where the store tells it along with the rest


class Page(NamedTuple):
    """Entries of a listing, and the token that asks for the rest (``None``: that was all)."""

    entries: list[Entry]
    next_token: str | None
    folders: Sequence[str] = ()  # below the prefix and not entered, with a slash at the end, where a listing has pages


class Answer(NamedTuple):
    """What a store answers to a read: what it knows of the object, and bytes as they arrive.

    ``chunks`` ends after the last byte, or raises; closing it ends the request. Whether etag, size and number of bytes
    are the right ones is for the caller to check.
    """

    start: int  # of the first byte: the one asked for, or 0 where the store ignored the range
    end: int  # byte after the last one
    total_bytes: int  # of the whole object
    etag: str | None
    chunks: Generator[memoryview, None, None]

    def whole(self) -> bytes:
        """Its bytes in one piece, for what is small.

        Raises:
            TransientStorageError: if they are not as many as the headers said.
        """
        data = b"".join(self.chunks)
        if len(data) != self.end - self.start:
            raise TransientStorageError(f"The body has {len(data):,} of {self.end - self.start:,} bytes.")
        return data


def single_chunk(data: bytes | memoryview) -> Generator[memoryview, None, None]:
    """Chunks of an answer that came whole."""
    yield memoryview(data)


class RangeNotSatisfiableError(StorageError):
    """The range starts at or after the object's end."""


class UnreadableResponseError(StorageError):
    """The answer is one that this transport cannot read; another may."""


class UnsupportedRequestError(StorageError):
    """The store does not know this kind of request, or one of its headers."""


class RedirectWithoutLocationError(StorageError):
    """S3's answer to a request that went to the wrong region; botocore finds out the right one."""


class ObjectWriter(Protocol):
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
    maps_files: bool  # pieces are the page cache's memory, as long as the part

    def list_page(self, prefix: str, *, recursive: bool, token: str | None) -> Page:
        """Objects at least in the folder of ``prefix``, directory markers left out, in any order."""

    def find(self, path: str) -> Entry | None:
        """The object at exactly this path, without needing more rights than listing does."""

    def stat(self, path: str) -> Entry:
        """The object at exactly this path."""

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Bytes ``start`` to ``end`` (exclusive; ``None``: the rest) of the version ``etag``."""

    def create(self, path: str, *, overwrite: bool) -> ObjectWriter:
        """Begin an object."""

    def delete(self, path: str) -> None:
        """Remove an object; one that is not there is fine."""

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        """Remove what killed writers left of objects that begin with ``prefix``, where that can be seen.

        Args:
            prefix: a path; objects in its folder only are looked at.
            is_ours: tells by an object's base name whether its leftovers are to go.
        """


@runtime_checkable
class FolderStore(Store, Protocol):
    """A store in which somebody keeps house: folders that may be empty, and listings that begin anywhere.

    A folder's path ends with a slash.
    """

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """At most ``limit`` of the objects that begin with ``prefix``, those after the path ``after``, sorted.

        The token is the ``after`` of the next page, ``None`` if there is none. Without ``recursive``, ``folders`` has
        those that lie in the folder of ``prefix``, and both together are at most ``limit``.
        """

    def has_folder(self, path: str) -> bool:
        """Whether there is a folder, or an object in it."""

    def make_folder(self, path: str) -> None:
        """Make an empty one; one that is there is an ``ObjectExistsError``."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder with all that is in it; one that is not there is fine."""

    def remove_old_leftovers(self, path: str, before_s: float) -> None:
        """Remove what killed writers left half written in a folder and those below it, before a time since 1970."""
