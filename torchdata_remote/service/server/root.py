"""What the routes need of a root: its datasets, and files that are opened, written under conditions, and removed.

Everything blocks, and runs in threads. A folder and a bucket implement it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from ...core.options import StorageOptions
from ...core.threads.ordered_map import ordered_map
from ...core.urls import RemoteUrl
from .names import percent_encoded
from .problems import Problem, Stopping

A = TypeVar("A")
T = TypeVar("T")
CHUNK_BYTES = 1 << 20
STREAM_BYTES = 256 << 10  # of a piece of a response, of which a client that stalls keeps three or four in memory
WORK_FOLDER = ".torchdata_remote/"  # beside the datasets, for what is none of their files


class File(NamedTuple):
    """A file of a dataset: path in it, size in bytes, etag in quotes, time of the last write, and SHA-256 if known."""

    path: str
    size: int
    etag: str
    modified_s: float | None = None
    sha256: str | None = None
    by: str = ""  # id of the upload in parts that wrote it, if it is known

    def as_json(self, **more: str) -> dict[str, Any]:
        """Describe it as in listings."""
        when = date_of(self.modified_s)
        modified = None if when is None else when.isoformat(timespec="seconds").replace("+00:00", "Z")
        return {"path": self.path, "size": self.size, "etag": self.etag, "modified": modified, **more}


class Files(NamedTuple):
    """A page of a listing: files, folders with a slash at their ends, and the path after which the next one begins."""

    files: list[File]
    folders: list[str]
    next: str | None


class OpenFile(Protocol):
    """One version of a file, which stays readable while it is replaced (in a bucket: or is an error)."""

    file: File

    @property
    def dataset(self) -> Dataset:
        """The dataset that it is in."""

    @property
    def descriptor(self) -> int | None:
        """Of a local file."""

    def chunks(self, start: int, end: int, chunk_bytes: int) -> Iterator[bytes | memoryview]:
        """Read bytes ``start`` to ``end``.

        Raises:
            ObjectChangedError: if it was replaced, or became shorter.
        """

    def signed_url(self) -> str | None:
        """Return a URL by which a client reads it for some minutes, without any token; ``None`` without one."""

    def close(self) -> None:
        """Close it."""


class FileWriter(Protocol):
    """A file that is being written. It is invisible before ``commit``."""

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""

    def rename(self, path: str) -> bool:
        """Give it another path before it is committed; return whether that is possible."""

    def commit(self, sha256: str, *, sync: bool = True) -> File:
        """Make the whole file visible at once, with its digest, if the conditions still hold.

        Without ``sync`` its name is on disk after :meth:`Dataset.sync` only.

        Raises:
            Problem: 412, if a condition does not hold; 404, if the dataset was removed.
        """

    def abort(self) -> None:
        """Discard it. May be called after a ``commit``, also one that failed."""


class Dataset(Protocol):
    """One life of a dataset: what is written here never appears in a later dataset of the same name."""

    name: str
    url: str
    num_readers: int  # calls that are worth to be made at once: 1 where none of them waits for a network

    def find(self, path: str) -> File | None:
        """Return a file, or ``None``."""

    def open(self, path: str) -> OpenFile:
        """Open a file. Raises ``Problem`` 404."""

    def reopen(self, file: File) -> OpenFile:
        """Open the version of a file that was found before. Raises ``ObjectChangedError`` if it is replaced."""

    def page(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Files:
        """List files whose paths begin with ``prefix``, sorted, after the path ``after``."""

    def writer(
        self, path: str, conditions: Mapping[str, str], *, sha256: str | None = None, by: str = ""
    ) -> FileWriter:
        """Start to write a file.

        Args:
            path: of the file.
            conditions: headers If-Match and If-None-Match. They are compared now, and hold when it is committed.
            sha256: of its bytes, if that was promised.
            by: id of what writes it, which the file keeps.

        Raises:
            Problem: 412, if a condition does not hold; 409, if a folder has its path, or a file the path of one of its
                folders; 404, if the dataset was removed.
        """

    def adopt(self, part: str, path: str, conditions: Mapping[str, str], by: str) -> FileWriter | None:
        """Make a part of an upload the file, without a copy; ``None`` where that is impossible."""

    def delete(self, path: str, conditions: Mapping[str, str]) -> None:
        """Remove a file. Raises ``Problem`` 404 or 412."""

    def sync(self, paths: Iterable[str]) -> None:
        """Wait until the names of files that were committed without ``sync`` are on disk."""

    def part_path(self, upload: str, name: str) -> str:
        """Return the path of a part of an upload, for :meth:`writer` and :meth:`open`."""

    def parts(self, upload: str) -> list[str]:
        """Return the names of the parts of an upload, sorted."""

    def remove_part(self, upload: str, name: str) -> None:
        """Remove a part of an upload, if it exists."""

    def remove_parts(self, upload: str) -> None:
        """Remove what is kept of an upload."""

    def about(self, file: File) -> File:
        """Return a file with its digest and the id of its writer, where these are stored."""

    def keep_sha256(self, file: File, sha256: str) -> None:
        """Store the digest of a file that was read."""

    def require_writable(self, path: str) -> None:
        """Require that a file could be created at a path. Raises ``Problem`` 403, 404 or 409."""


class Root(Protocol):
    """A folder or a bucket whose folders are the datasets.

    Attributes:
        url: with a slash at the end.
        options: of the store.
        is_local: whether it is a folder.
    """

    url: str
    options: StorageOptions
    is_local: bool

    def names(self) -> list[str]:
        """Return the names of all datasets, sorted."""

    def dataset(self, name: str) -> Dataset:
        """Return a dataset. Raises ``Problem`` 404."""

    def open_cached(self, name: str, path: str) -> OpenFile | None:
        """Open a local file whose name the kernel has in memory; ``None`` for others. Raises ``Problem`` 400."""

    def create(self, name: str) -> None:
        """Create an empty dataset. Raises ``Problem`` 409."""

    def remove(self, name: str) -> None:
        """Remove a dataset with all that is kept for it. Raises ``Problem`` 404."""

    def free_bytes(self) -> int | None:
        """Return the free bytes on the disk of a folder; ``None`` for a bucket."""

    def served(self) -> contextlib.AbstractContextManager[object]:
        """Serve it in this block. Raises ``ServiceError`` for a folder that another process serves."""

    def clean(self, unfinished_s: float, stopping: Stopping) -> None:
        """Remove what killed services left, and what else is unfinished and older than so many seconds."""


def no_dataset(name: str) -> Problem:
    """Make the response for a dataset that does not exist."""
    return Problem(404, f"There is no dataset {name!r}. POST /datasets creates one, GET /datasets lists them.")


def no_file(path: str) -> Problem:
    """Make the response for a file that does not exist."""
    return Problem(404, f"There is no file {path!r:.200} in the dataset.")


def removed() -> Problem:
    """Make the response to a request during which its dataset was removed."""
    return Problem(404, "The dataset was removed during the request.")


def all_files(dataset: Dataset, page_files: int = 10_000) -> Iterator[File]:
    """Iterate over all files of a dataset, sorted by path."""
    after: str | None = ""
    while after is not None:
        page = dataset.page("", recursive=True, after=after, limit=page_files)
        yield from page.files
        after = page.next


def sha256_of_file(dataset: Dataset, file: File, stopping: Stopping) -> str:
    """Return the digest of a version of a file, which is read if its digest is not stored.

    Raises:
        ObjectChangedError: if it is replaced meanwhile.
        ServiceStoppedError: if the service ends.
    """
    known = dataset.about(file).sha256
    if known is not None:
        return known
    digest = hashlib.sha256()
    with contextlib.closing(dataset.reopen(file)) as opened:
        for chunk in stopping.during(opened.chunks(0, file.size, CHUNK_BYTES)):
            digest.update(chunk)
    dataset.keep_sha256(file, digest.hexdigest())
    return digest.hexdigest()


def each(dataset: Dataset, call: Callable[[A], T], items: Iterable[A]) -> Iterator[T]:
    """Call a function for each item, several at once where calls are requests; yields the results in order."""
    if dataset.num_readers == 1:
        return map(call, items)

    def task(item: A) -> Callable[[object], T]:
        return lambda _: call(item)

    return ordered_map(map(task, items), max_threads=dataset.num_readers)


def file_urls(root: Root, dataset: Dataset) -> Iterator[RemoteUrl]:
    """Iterate over the URLs of all files, sorted, with an error at a link."""
    quotes = '"' if root.is_local else ""  # which versions of local files lack
    return (RemoteUrl(dataset.url + one.path, one.size, one.etag.strip(quotes)) for one in all_files(dataset))


def date_of(modified_s: float | None) -> dt.datetime | None:
    """Return a time as a date in UTC."""
    try:
        return None if modified_s is None else dt.datetime.fromtimestamp(int(modified_s), dt.timezone.utc)
    except (ValueError, OverflowError, OSError):  # file systems can store years after 9999
        return None


def location(dataset: str, path: str | None = None) -> str:
    """Return the URL path of a dataset, or of a file in it."""
    return f"/datasets/{dataset}" + ("" if path is None else f"/files/{percent_encoded(path)}")
