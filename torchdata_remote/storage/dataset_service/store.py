"""``datasets://host:port/NAME/PATH``: a dataset service as a store, and what it can do beyond other stores."""

from __future__ import annotations

import contextlib
import datetime as dt
import email.utils
import hashlib
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from ...core.options import RetryPolicy, StorageOptions
from ...core.retry import call_with_retries
from ...core.urls import DATASETS
from ...errors import ObjectExistsError, ObjectNotFoundError, RemoteDataError, StorageError, UrlError
from ..errors import translate_errors
from ..http import answer_of, parse_content_length, range_header, stream_body
from ..obstore_reader import ODD_KEY, ObstoreReader, http_store
from ..protocol import Answer, Entry, EntryTable, Page, for_if_match, normalized_etag
from .client import ServiceClient, from_obstore_at_service
from .protocol import DAMAGED, digest_field

__all__ = ["DATASETS", "MAX_PAGE", "DatasetFile", "DatasetsStore"]

MAX_PAGE = 2_000  # entries, so that JSON of any content takes little memory
_MAX_BYTES = 2**63 - 1
_PIECE_BYTES = 1 << 20


class DatasetFile(NamedTuple):
    """A file of a dataset: ``NAME/PATH``, size in bytes, etag with quotes, SHA-256 in hex."""

    path: str
    size: int
    etag: str
    sha256: str


class DatasetsStore(ServiceClient):
    """One dataset service. Paths are ``NAME/PATH``: the first segment is the dataset.

    No method retries a request by itself, except those of the object writer that ``create`` returns.

    Args:
        host: with its port.
        options: ``token`` and ``secure``.
        read_timeout_s: seconds without a byte after which a request fails.
        read_by_obstore: whether to read by obstore what it can express.

    Raises:
        UrlError: for other options.
    """

    may_ignore_ranges = False
    maps_files = False

    def __init__(self, host: str, options: StorageOptions, read_timeout_s: float, *, read_by_obstore: bool) -> None:
        super().__init__(host, options, read_timeout_s)
        self._odd = ODD_KEY if read_by_obstore else None
        self._reader: tuple[dict[str, str], ObstoreReader] | None = None

    def __reduce__(self) -> str:
        raise TypeError(
            "A store belongs to its process and contains a secret, so it cannot be pickled. Open it in each process."
        )

    # Datasets

    def create_dataset(self, path: str, *, exist_ok: bool = True) -> None:
        """Create a dataset. Folders in it exist as soon as they contain a file."""
        with contextlib.suppress(ObjectExistsError) if exist_ok else contextlib.nullcontext():
            self.json("POST", self.target(), path, body={"name": self._dataset(path)})

    def remove_dataset(self, path: str) -> None:
        """Delete a dataset with all its files."""
        with contextlib.suppress(ObjectNotFoundError):
            self.json("DELETE", self.target(self._dataset(path)), path)

    def has_dataset(self, name: str) -> bool:
        """Whether a dataset exists."""
        try:
            self._files(self._dataset(name), name, 1)
        except ObjectNotFoundError:
            return False
        return True

    def _dataset(self, path: str) -> str:
        """Return the dataset that a path without a file names."""
        name = path.rstrip("/")
        if not name or "/" in name or name in (".", ".."):
            raise UrlError(f"{self.url(path)} is no dataset's name.", url=self.url(path))
        return name

    # Listings

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        return self.list_after(prefix, recursive=recursive, after=token or after, limit=MAX_PAGE)

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """Return a page of a dataset; or, if the prefix names none, the datasets as folders.

        Raises:
            UrlError: for the files of all datasets of a host.
        """
        name, slash, below = prefix.partition("/")
        if slash:
            return self._page(name, below, recursive, after, limit)
        if recursive:
            raise UrlError(
                f"{self.url(prefix)} names no dataset. List datasets://host:port/NAME/.", url=self.url(prefix)
            )
        response = self.json("GET", self.target(), "", num_entries=MAX_PAGE)
        with self.expecting("datasets", ""):
            folders = sorted(_folder(one["name"]) for one in response["datasets"])  # "a-b/" sorts before "a/"
        left = [folder for folder in folders if folder.startswith(prefix) and folder > after]
        return Page([], left[limit - 1] if len(left) > limit else None, left[:limit])

    def _page(self, name: str, below: str, recursive: bool, after: str, limit: int) -> Page:
        root = f"{name}/"
        is_odd = not {"", ".", ".."}.isdisjoint(below.split("/")[:-1])  # the service refuses it, and no file has it
        if is_odd or (after > root and not after.startswith(root)):
            return Page([], None)
        after, limit = after[len(root) :], min(limit, MAX_PAGE)
        try:
            response = self._files(name, root + below, limit, below, after, recursive=int(recursive))
        except ObjectNotFoundError:
            return Page([], None)
        with self.expecting("files", root + below):
            files = response["files"]
            entries = EntryTable(
                [root + _path(one["path"]) for one in files],
                [_size(one["size"]) for one in files],
                [_text(one["etag"]) for one in files],
                [_seconds(_from_iso, one.get("modified")) for one in files],
            )
            folders = [] if recursive else [root + _folder(folder) for folder in response["folders"]]
            following = _next(response["next"], after)
        return Page(entries, None if following is None else root + following, folders)

    def files_after(
        self, prefix: str, token: str | None, limit: int = MAX_PAGE
    ) -> tuple[list[DatasetFile], str | None]:
        """List one page of the files whose path begins with ``NAME/`` or ``NAME/...``, with SHA-256.

        Args:
            prefix: of the paths.
            token: ``None``, or the token that was returned with the page before.
            limit: number of files.

        Returns:
            The files, and the token of the next page (``None`` after the last page).

        Raises:
            ObjectNotFoundError: if there is no such dataset.
        """
        name, _, below = prefix.partition("/")
        response = self._files(name, prefix, limit, below, token or "", recursive=1, digests=1)
        with self.expecting("files", prefix):
            found = [
                DatasetFile(
                    f"{name}/{_text(one['path'])}", _size(one["size"]), _text(one["etag"]), _text(one["sha256"])
                )
                for one in response["files"]
            ]
            return found, _next(response["next"], token or "")

    def _files(self, name: str, path: str, limit: int, below: str = "", after: str = "", **query: int) -> Any:
        if name in (".", ".."):
            raise UrlError(f"{self.url(path)}: {name!r} is no dataset's name.", url=self.url(path))
        target = self.target(name, "files", limit=limit, prefix=below or None, after=after or None, **query)
        return self.json("GET", target, path, num_entries=limit)

    # Files

    def find(self, path: str) -> Entry | None:
        try:
            return self.stat(path)
        except ObjectNotFoundError:
            return None

    def stat(self, path: str) -> Entry:
        response = self.send("HEAD", self.file_target(path), path)
        headers = response.headers
        with translate_errors(self.url(path)):
            response.drain_conn()  # or the connection cannot be reused
            response.release_conn()
        with self.expecting("Content-Length", path):
            size = _size(parse_content_length(headers.get("Content-Length")))
        modified_s = _seconds(email.utils.parsedate_to_datetime, headers.get("Last-Modified"))
        return Entry(path, size, normalized_etag(headers.get("ETag")), modified_s)

    def sha256_of(self, path: str) -> str | None:
        """SHA-256 of a file in hex, or ``None`` if it does not exist."""
        with contextlib.suppress(ObjectNotFoundError):
            files, _ = self.files_after(path, None, limit=1)  # the path itself sorts before longer ones
            return files[0].sha256 if files and files[0].path == path else None
        return None

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        self.file_target(path)  # which refuses dots
        own = self.authorization  # that of the environment may change
        if self._reader is None or self._reader[0] != own:
            self._reader = (
                own,
                ObstoreReader(
                    self.root,
                    lambda small: http_store(f"{self.origin}/datasets", self.read_timeout_s, own, small=small),
                    self.read_without_obstore,
                    odd=None if own else self._odd,  # it may send the token on from a second redirect
                    key=lambda path: path.replace("/", "/files/", 1),
                    table=from_obstore_at_service,
                ),
            )
        return self._reader[1].read(path, start, end, for_if_match(etag))

    def read_without_obstore(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like :meth:`read`, by urllib3."""
        wanted = {"If-Match": for_if_match(etag), "Range": range_header(start, end)}
        headers = {name: value for name, value in wanted.items() if value is not None}
        return answer_of(self.send("GET", self.file_target(path), path, headers=headers), path, self.url(path))

    def create(self, path: str, *, overwrite: bool) -> DatasetsWriter:
        self.file_target(path)
        return DatasetsWriter(self, path, overwrite=overwrite)

    def put(
        self,
        path: str,
        num_bytes: int,
        sha256: str,
        pieces: Callable[[], Iterable[memoryview]],
        request: Callable[[Callable[[], object], int], object],
        *,
        overwrite: bool = True,
    ) -> None:
        """Store a file, which is visible when it is complete.

        Args:
            path: ``NAME/PATH``; the dataset must exist.
            num_bytes: of the file.
            sha256: of it, in hex, which the service compares.
            pieces: returns its bytes, for each attempt.
            request: calls a function, and again after transient faults; takes the number of bytes that it sends.
            overwrite: whether an existing file is replaced.

        Raises:
            ObjectNotFoundError: if there is no such dataset.
            ObjectExistsError: if the file exists and ``overwrite`` is ``False``.
            StorageError: if it was not stored.
        """
        headers = {"Content-Length": str(num_bytes), "Repr-Digest": digest_field(sha256)}
        if not overwrite:
            headers["If-None-Match"] = "*"
        num_attempts = 0

        def put() -> None:
            nonlocal num_attempts
            num_attempts += 1
            own: list[RemoteDataError] = []

            def body() -> Iterator[memoryview]:
                try:
                    yield from pieces()
                except RemoteDataError as error:  # which urllib3 would take for one of the connection
                    own.append(error)
                    raise

            try:
                self.json("PUT", self.file_target(path), path, headers=headers, body=body())
            except RemoteDataError as error:
                if own:
                    raise own[0] from None
                is_repeated = isinstance(error, ObjectExistsError) and num_attempts > 1
                if not is_repeated or self.sha256_of(path) != sha256:  # it may be there by a lost answer's attempt
                    raise

        try:
            request(put, num_bytes)
        except StorageError as error:
            if DAMAGED not in str(error):
                raise
            request(put, num_bytes)

    def delete(self, path: str) -> None:
        with contextlib.suppress(ObjectNotFoundError):
            self.json("DELETE", self.file_target(path), path)

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        """Do nothing: the service deletes what is not complete."""

    # Batches

    def get_batch(self, name: str, paths: list[str], max_bytes: int) -> Generator[memoryview, None, None]:
        """Read files of a dataset as a tar, as it arrives. Paths without a file are not in it.

        Args:
            name: of the dataset.
            paths: below it.
            max_bytes: of the tar; a longer one is an error.
        """
        response = self.send("POST", self.target(name, "files"), name, body={"paths": paths})
        with contextlib.closing(response), translate_errors(self.url(name)):
            for chunk in stream_body(response):
                max_bytes -= len(chunk)
                if max_bytes < 0:
                    raise StorageError(f"{self.url(name)}: the service sends more than the files.", url=self.url(name))
                yield chunk
            response.release_conn()

    def put_batch(self, name: str, tar: bytes) -> None:
        """Store the files of a tar, each with its SHA-256 as a pax record: all of them, or none.

        Args:
            name: of the dataset, which must exist.
            tar: all of it.
        """
        self.json("PUT", self.target(name, unpack=1), name, headers={"Content-Type": "application/x-tar"}, body=tar)


class DatasetsWriter:
    """A file that is being written: to a temporary file, which is sent when it is complete.

    Args:
        store: of the file.
        path: ``NAME/PATH``.
        overwrite: whether an existing file is replaced.
    """

    def __init__(self, store: DatasetsStore, path: str, *, overwrite: bool) -> None:
        self._store, self._path, self._overwrite = store, path, overwrite
        self._file, self._sha256 = tempfile.TemporaryFile(), hashlib.sha256()  # noqa: SIM115  # closed by ``abort``

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._sha256.update(data)

    def commit(self) -> None:
        file, url = self._file, self._store.url(self._path)

        def pieces() -> Iterator[memoryview]:
            file.seek(0)
            return map(memoryview, iter(lambda: file.read(_PIECE_BYTES), b""))

        def request(call: Callable[[], object], num_bytes: int) -> object:
            return call_with_retries(call, RetryPolicy(), url=url, expected_s=num_bytes / _PIECE_BYTES)

        size, sha256 = file.tell(), self._sha256.hexdigest()
        put = partial(self._store.put, self._path, size, sha256, pieces, request, overwrite=self._overwrite)
        try:
            put()
        except ObjectNotFoundError:  # the dataset is missing
            self._store.create_dataset(self._path.partition("/")[0])
            put()
        self.abort()

    def abort(self) -> None:
        self._file.close()


# Fields of responses. Each function raises an error for what no service sends


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.80} is no text")
    return value


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_BYTES:
        raise ValueError(f"{value!r:.80} is no number of bytes")
    return value


def _path(value: Any) -> str:
    """Return the path of a file, which leads nowhere else when it is appended to that of a folder."""
    path = _text(value)
    if not {"", ".", ".."}.isdisjoint(path.split("/")) or "\0" in path:
        raise ValueError(f"{path!r:.80} is no path of a file")
    return path


def _folder(value: Any) -> str:
    return _path(_text(value).removesuffix("/")) + "/"


def _next(value: Any, after: str) -> str | None:
    """Return the path after which the next page starts: after this one, or the listing would not end."""
    following = None if value is None else _text(value)
    if following is not None and following <= after:
        raise ValueError(f"the page after {after!r:.80} continues at {following!r:.80}, so the listing does not end")
    return following


def _from_iso(value: str) -> dt.datetime:
    return dt.datetime.fromisoformat(value.replace("Z", "+00:00"))


def _seconds(parse: Callable[[str], dt.datetime], value: Any) -> float | None:
    """Convert a date to seconds since 1970. ``None`` if there is none, or one that is invalid or without a zone."""
    try:
        when = parse(value)
        return None if when.tzinfo is None else when.astimezone(dt.timezone.utc).timestamp()
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None
