"""Datasets in a bucket, which any number of services serve: all state is in the bucket.

A dataset is a prefix, and a small object beside the datasets, its marker, which holds the id of its life. A file is
written under the bucket's own conditions, with its SHA-256 and the id of its writer as metadata. Then the marker is read
again: if another service has removed the dataset meanwhile, the file is taken back. A removal first changes the marker,
then removes the files, and the marker last: one that was interrupted is finished by the clean-up of any service.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import obstore

from ...core.concurrency_limit import ConcurrencyLimit
from ...core.options import RetryPolicy, StorageOptions
from ...core.retry import call_with_retries
from ...core.urls import RemoteUrl, join_url, split_url
from ...errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError, RemoteDataError, StorageError
from ...fetch.ranges import ObjectReader
from ...storage import Entry, Page
from ...storage.multipart import MAX_PARTS_IN_FLIGHT, UPLOAD_PART_BYTES, WRITER_ID
from ...storage.obstore_store import ObstoreStore
from .headers import require_match
from .names import is_dataset_name, require_dataset_name
from .problems import Problem
from .root import WORK_FOLDER, File, Files, no_dataset, no_file, removed

T = TypeVar("T")
_SHA256, _BY = "torchdataremotesha256", "torchdataremoteby"  # metadata; Azure allows letters and digits only
_LIFE = 32  # bytes of a marker; that of a dataset which is being removed is longer, which listings show
_REMOVED = b"-removed"
_RETRY = RetryPolicy(deadline_s=30.0)
_MAX_REQUESTS, _NUM_DELETING, _MAX_ATTEMPTS = 64, 16, 20
_ABANDONED_S = 600.0  # a removal that another service began so long ago, and has not finished, is finished
_SIGNED_FOR = dt.timedelta(minutes=5)
_log = logging.getLogger("torchdata_remote")


class BucketRoot:
    """A bucket, or a part of one.

    Args:
        url: of the bucket, or a folder in it.
        options: of the store.
        store: of the bucket.
        prefix: of all paths.
        signs: whether clients are sent to the bucket to read.
    """

    is_local = False

    def __init__(self, url: str, options: StorageOptions, store: ObstoreStore, prefix: str, *, signs: bool) -> None:
        self.url, self.options, self.store, self.prefix, self.signs = url, options, store, prefix, signs
        self.concurrency = ConcurrencyLimit(_MAX_REQUESTS, check=lambda: None)
        self._markers = f"{prefix}{WORK_FOLDER}datasets/"

    def send(self, path: str, request: Callable[[Any], T], *, writing: bool = False) -> T:
        """Send a request by obstore, with retries."""
        return call_with_retries(lambda: self.store.call(path, request, writing=writing), _RETRY)

    def pages(self, prefix: str, *, recursive: bool = True, after: str = "", limit: int = 10_000) -> Iterator[Page]:
        """List pages of objects."""
        following: str | None = after
        while following is not None:
            page = self.page(prefix, recursive=recursive, after=following, limit=limit)
            yield page
            following = page.next_token

    def page(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """List one page of objects."""
        listed = self.store.list_after
        return call_with_retries(lambda: listed(prefix, recursive=recursive, after=after, limit=limit), _RETRY)

    def names(self) -> list[str]:
        skip = len(self._markers)
        marked = {one.path[skip:]: one for page in self.pages(self._markers) for one in page.entries}
        names = {name for name, one in marked.items() if one.size == _LIFE}
        for page in self.pages(self.prefix, recursive=False):  # also those that others put there
            names |= {folder[len(self.prefix) : -1] for folder in page.folders} - marked.keys()
        return sorted(filter(is_dataset_name, names))

    def dataset(self, name: str) -> BucketDataset:
        life, _ = self.marker(require_dataset_name(name))
        if life is None:
            folder = f"{self.prefix}{name}/"
            if not call_with_retries(lambda: self.store.has_folder(folder), _RETRY):
                raise no_dataset(name)
        elif len(life) != _LIFE:
            raise no_dataset(name)
        return BucketDataset(self, name, life)

    def create(self, name: str) -> None:
        life, _ = self.marker(require_dataset_name(name))
        if life is not None and len(life) != _LIFE:
            raise Problem(503, f"The dataset {name!r} is being removed. Try again.", {"Retry-After": "1"})
        has_files = call_with_retries(lambda: self.store.has_folder(f"{self.prefix}{name}/"), _RETRY)
        if life is not None or has_files or not self.mark(name, "create"):
            raise Problem(409, f"The dataset {name!r} exists already.")

    def remove(self, name: str) -> None:
        dataset = self.dataset(name)
        dataset.require_life()
        life, version = self.marker(name)
        if life != dataset.life or version is None or not self.mark(name, version, life + _REMOVED):
            raise no_dataset(name)
        self._remove_all(name)

    def marker(self, name: str) -> tuple[bytes | None, Any]:
        """Return the content of a dataset's marker, and its version; ``None`` without one."""

        def get(store: Any) -> tuple[bytes, Any]:
            found = obstore.get(store, self._markers + name)
            return bytes(found.bytes()), _version(found.meta)

        try:
            return self.send(self._markers + name, get)
        except ObjectNotFoundError:
            return None, None

    def mark(self, name: str, mode: Any, life: bytes | None = None) -> bool:
        """Write a marker, unless another service has changed it; return whether this one has."""
        path, life = self._markers + name, life or uuid.uuid4().hex.encode()
        try:
            self.send(path, lambda store: obstore.put(store, path, life, mode=mode, use_multipart=False), writing=True)
        except (ObjectExistsError, ObjectChangedError, ObjectNotFoundError):
            return self.marker(name)[0] == life  # a request whose answer was lost
        return True

    def _remove_all(self, name: str) -> None:
        for folder in (f"{self.prefix}{WORK_FOLDER}uploads/{name}/", self._digests(name), f"{self.prefix}{name}/"):
            self.remove_folder(folder)
        self.delete(self._markers + name)

    def remove_folder(self, folder: str) -> None:
        """Remove all objects in a folder."""
        with ThreadPoolExecutor(_NUM_DELETING, "remove") as pool:
            for page in self.pages(folder, limit=1000):
                list(pool.map(self.delete, [one.path for one in page.entries]))
        call_with_retries(lambda: self.store.remove_folder(folder), _RETRY)  # what listings hide

    def delete(self, path: str) -> None:
        """Remove an object."""
        call_with_retries(lambda: self.store.delete(path), _RETRY)

    def _digests(self, name: str) -> str:
        return f"{self.prefix}{WORK_FOLDER}sha256/{name}/"

    def digest_path(self, name: str, file: File) -> str:
        """Return the path of the digest of a version of a file that has none as metadata."""
        return self._digests(name) + hashlib.sha256(f"{file.etag} {file.path}".encode()).hexdigest()

    def free_bytes(self) -> int | None:
        return None

    def served(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def clean(self, unfinished_s: float) -> None:
        now_s = time.time()
        for page in self.pages(self._markers):
            for one in page.entries:
                if one.size != _LIFE and (one.modified_s or now_s) < now_s - _ABANDONED_S:
                    self._remove_all(one.path[len(self._markers) :])
        for page in self.pages(f"{self.prefix}{WORK_FOLDER}uploads/"):
            for one in page.entries:
                if (one.modified_s or now_s) < now_s - max(unfinished_s, _ABANDONED_S):
                    self.delete(one.path)


class BucketDataset:
    """A dataset in a bucket. One that others put there has no life until something is written to it."""

    def __init__(self, root: BucketRoot, name: str, life: bytes | None) -> None:
        self.root, self.name, self.life = root, name, life
        self.folder = f"{root.prefix}{name}/"
        scheme, bucket, _ = split_url(root.url)
        self._bucket_url = scheme, bucket
        self.url = join_url(scheme, bucket, self.folder)

    def require_life(self) -> None:
        """Give it a life if it has none."""
        if self.life is None:
            self.root.mark(self.name, "create")
            self.life, _ = self.root.marker(self.name)

    def is_alive(self) -> bool:
        """Whether the dataset is still the same one."""
        return self.life is not None and self.root.marker(self.name)[0] == self.life

    def full(self, path: str) -> str:
        """Return the path in the bucket of a file, or of a part."""
        return path if path.startswith(self.root.prefix + WORK_FOLDER) else self.folder + path

    def find(self, path: str) -> File | None:
        full = self.full(path)
        try:
            found = self.root.send(full, lambda store: obstore.get(store, full, options={"head": True}))
        except ObjectNotFoundError:
            return None
        about = {str(key).lower(): value for key, value in found.attributes.items()}
        return _file(path, found.meta, about.get(_SHA256), about.get(_BY, ""))

    def writer_id(self, path: str) -> object:
        """Return the id of the request that wrote an object."""
        full = self.full(path)
        try:
            found = self.root.send(full, lambda store: obstore.get(store, full, options={"head": True}))
        except ObjectNotFoundError:
            return None
        return {str(key).lower(): value for key, value in found.attributes.items()}.get(WRITER_ID)

    def open(self, path: str) -> OpenObject:
        found = self.find(path)
        if found is None:
            raise no_file(path)
        return OpenObject(self, found)

    def open_cached(self, path: str) -> None:
        return None

    def page(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Files:
        skip = len(self.folder)
        after = self.folder + after if after else ""
        found = self.root.page(self.folder + prefix, recursive=recursive, after=after, limit=limit)
        files = [_of_entry(one._replace(path=one.path[skip:])) for one in found.entries]
        return Files(files, [path[skip:] for path in found.folders], found.next_token and found.next_token[skip:])

    def writer(self, path: str, conditions: Mapping[str, str], *, sha256: str | None = None, by: str = "") -> Upload:
        self.require_life()
        return Upload(self, path, conditions, sha256, by)

    def delete(self, path: str, conditions: Mapping[str, str]) -> None:
        """Remove a file: it is compared first, since not all buckets have conditions for that."""
        found = self.find(path)
        if found is None:
            raise no_file(path)
        require_match(conditions, found.etag)
        self.root.delete(self.folder + path)

    def require_writable(self, path: str) -> None:
        """A bucket may have any path."""

    def part_path(self, upload: str, name: str) -> str:
        return f"{self._parts(upload)}{name}"

    def parts(self, upload: str) -> list[str]:
        self.require_life()
        folder = self._parts(upload)
        return sorted(one.path[len(folder) :] for page in self.root.pages(folder) for one in page.entries)

    def remove_parts(self, upload: str) -> None:
        self.require_life()
        self.root.remove_folder(self._parts(upload))

    def _parts(self, upload: str) -> str:
        life = (self.life or b"").decode("ascii", "replace")
        return f"{self.root.prefix}{WORK_FOLDER}uploads/{self.name}/{life}/{upload}/"

    def written_by(self, file: File) -> str:
        return file.by

    def known_sha256(self, file: File) -> str | None:
        if file.sha256 is not None:
            return file.sha256
        found = self.find(file.path)
        if found is not None and found.etag == file.etag and found.sha256 is not None:
            return found.sha256
        path = self.root.digest_path(self.name, file)
        try:
            kept = self.root.send(path, lambda store: bytes(obstore.get(store, path).bytes()))
        except ObjectNotFoundError:
            return None
        return kept.decode("ascii")

    def keep_sha256(self, file: File, sha256: str) -> None:
        """Store it beside the datasets: an object that others wrote is left as it is."""
        path, data = self.root.digest_path(self.name, file), sha256.encode()
        self.root.send(path, lambda store: obstore.put(store, path, data, use_multipart=False), writing=True)

    def signed_url(self, path: str) -> str | None:
        if not self.root.signs:
            return None
        full = self.folder + path
        try:
            return str(self.root.store.call(full, lambda store: obstore.sign(store, "GET", full, _SIGNED_FOR)))
        except StorageError as error:  # such as credentials that cannot sign: it is passed through
            _log.warning("%s: URLs cannot be signed, so files are passed through: %s", self.root.url, error)
            self.root.signs = False
            return None

    def object_url(self, path: str) -> str:
        """URL of an object of the bucket."""
        return join_url(*self._bucket_url, self.full(path))


class OpenObject:
    """A version of an object."""

    descriptor = None

    def __init__(self, dataset: BucketDataset, file: File) -> None:
        self.file, self._dataset = file, dataset

    def chunks(self, start: int, end: int, chunk_bytes: int) -> Iterator[memoryview]:
        if start >= end:
            return
        root, file = self._dataset.root, self.file
        version = RemoteUrl(self._dataset.object_url(file.path), file.size, file.etag)
        reader = ObjectReader(version, root.store, self._dataset.full(file.path), _RETRY, root.concurrency)
        try:
            for piece in reader.pieces(start, end):
                for at in range(0, len(piece), chunk_bytes):
                    yield piece[at : at + chunk_bytes]
        except ObjectNotFoundError as error:
            raise ObjectChangedError(f"{file.path} was removed.", url=error.url, etag=file.etag) from error

    def close(self) -> None:
        """Nothing is open."""


class Upload:
    """Writes an object: a small one by one conditional request, a large one in parts, which become visible at once."""

    def __init__(
        self, dataset: BucketDataset, path: str, conditions: Mapping[str, str], sha256: str | None, by: str
    ) -> None:
        self._dataset, self._path, self._sha256 = dataset, path, sha256
        self._root, self._full = dataset.root, dataset.full(path)
        self._conditions = {name: conditions[name] for name in ("if-match", "if-none-match") if name in conditions}
        self._about = {WRITER_ID: uuid.uuid4().hex} | ({_BY: by} if by else {})
        self._buffer, self._large = bytearray(), None
        if self._conditions:
            self._matching()

    def _matching(self) -> Any:
        """Return how the object is put: over this version, or only where there is none."""
        full, found = self._full, None
        with contextlib.suppress(ObjectNotFoundError):
            found = self._root.send(full, lambda store: obstore.get(store, full, options={"head": True}).meta)
        require_match(self._conditions, found and _file(self._path, found).etag)
        return "create" if found is None else _version(found)

    def write(self, data: bytes | memoryview) -> None:
        self._buffer += data
        if len(self._buffer) > UPLOAD_PART_BYTES:
            if self._large is None:
                self._large = self._start()
            self._large.write(bytes(self._buffer))
            self._buffer = bytearray()

    def _start(self) -> Any:
        if self._conditions:
            if self._matching() != "create":
                raise Problem(
                    413,
                    f"A file of more than {UPLOAD_PART_BYTES:,} bytes replaces another one in a bucket without a "
                    "condition only. Send it without If-Match.",
                    {"Connection": "close"},
                )
            return self._root.store.create(self._full, overwrite=False)
        if self._sha256 is not None:
            self._about[_SHA256] = self._sha256
        sizes: Any = {"buffer_size": UPLOAD_PART_BYTES, "max_concurrency": MAX_PARTS_IN_FLIGHT}
        store = self._root.store.connect_with_retries()
        return _Multipart(self._root.store, self._full, obstore.open_writer(store, self._full, attributes=self._about, **sizes))

    def commit(self, sha256: str) -> File:
        if not self._dataset.is_alive():
            self.abort()
            raise removed()
        if self._large is not None:
            self._large.write(bytes(self._buffer))
            self._large.commit()
            put = None
        else:
            put = self._put(sha256)
        self._buffer = bytearray()
        found = self._dataset.find(self._path)
        if not self._dataset.is_alive():
            if self._dataset.writer_id(self._path) == self._about[WRITER_ID]:
                self._root.delete(self._full)
            raise removed()
        if found is None or (put is not None and found.etag != put.etag):  # replaced or removed since
            found = put
        if found is None:
            raise Problem(503, "The file was removed at once. Send it again.", {"Retry-After": "1"})
        if found.sha256 is None:
            self._dataset.keep_sha256(found, sha256)
        return found

    def _put(self, sha256: str) -> File:
        data, about = bytes(self._buffer), {**self._about, _SHA256: sha256}

        def put(store: Any) -> Any:
            return obstore.put(store, self._full, data, attributes=about, mode=mode, use_multipart=False)

        for _ in range(_MAX_ATTEMPTS):
            mode = self._matching() if self._conditions else "overwrite"
            try:
                result = self._root.send(self._full, put, writing=True)
                return File(self._path, len(data), str(result["e_tag"]), time.time(), sha256)
            except (ObjectExistsError, ObjectChangedError, ObjectNotFoundError):  # changed since it was compared
                if self._dataset.writer_id(self._path) == about[WRITER_ID]:  # by a request whose answer was lost
                    found = self._dataset.find(self._path)
                    if found is not None:
                        return found
        raise Problem(503, f"{self._path!r} is replaced continuously. Send it again.", {"Retry-After": "1"})

    def abort(self) -> None:
        self._buffer = bytearray()
        large, self._large = self._large, None
        if large is not None:
            with contextlib.suppress(RemoteDataError):
                large.abort()


class _Multipart:
    """Parts of an object by obstore, whose errors become this package's."""

    def __init__(self, store: ObstoreStore, path: str, file: Any) -> None:
        self._store, self._path, self._file, self._is_open = store, path, file, True

    def write(self, data: bytes) -> None:
        self._store.call(self._path, lambda _: self._file.write(data), writing=True, may_repeat=False)

    def commit(self) -> None:
        self._is_open = False
        self._store.call(self._path, lambda _: self._file.close(), writing=True, may_repeat=False)

    def abort(self) -> None:
        if self._is_open:
            self._is_open = False
            self._file.__exit__(ValueError, ValueError(), None)  # which aborts the upload


def _version(meta: Any) -> dict[str, Any]:
    """Return the version of an object as conditions of obstore have it."""
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}


def _file(path: str, meta: Any, sha256: str | None = None, by: str = "") -> File:
    return _of_entry(Entry(path, meta["size"], meta["e_tag"], meta["last_modified"].timestamp()), sha256, by)


def _of_entry(entry: Entry, sha256: str | None = None, by: str = "") -> File:
    etag = entry.etag or f"{entry.size}-{entry.modified_s}"
    return File(entry.path, entry.size or 0, etag if etag.startswith('"') else f'"{etag}"', entry.modified_s, sha256, by)
