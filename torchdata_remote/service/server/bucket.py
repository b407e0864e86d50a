"""Datasets in a bucket, which any number of services serve: all state is in the bucket.

A dataset is a prefix, and a small object beside the datasets, its marker, which holds the id of its life. A file is
written under the bucket's own conditions, with its SHA-256 and the id of its writer as metadata. Then the marker is
read again: if another service has removed the dataset meanwhile, the file is taken back. A removal first changes the
marker, then removes the files, and the marker last: if it is interrupted, the clean-up of any service finishes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from ...core.options import RetryPolicy, StorageOptions
from ...core.retry import ConcurrencyLimit
from ...core.threads import NamedLocks
from ...core.urls import RemoteUrl, join_url, split_url
from ...errors import (
    ObjectChangedError,
    ObjectNotFoundError,
    RemoteDataError,
    ServiceError,
    StorageError,
    TransientStorageError,
)
from ...fetch.ranges import ObjectReader
from ...storage import ObjectWriter, Page
from ...storage.bucket_objects import CHANGED, UPLOAD_PART_BYTES, WRITER_ID, BucketObjects, Found
from ...storage.dataset_service.protocol import path_problem
from .problems import AGAIN, CLOSE, Problem, Stopping
from .requests import is_dataset_name, require_dataset_name, require_match
from .root import WORK_FOLDER, File, no_dataset, no_file, removed

_SHA256 = "torchdataremotesha256"  # metadata; Azure allows letters and digits only
_LIFE = 32  # bytes of a marker; that of a dataset which is being removed is longer, which listings show
_REMOVED = b"-removed"
RETRY = RetryPolicy(deadline_s=30.0)
_MAX_REQUESTS, _MAX_ATTEMPTS = 64, 20
_REFRESH_S, _LEASE_S = 10.0, 60.0  # a removal changes the marker so often; after the lease others go on with it
_ABANDONED_S = 600.0  # as the lease, by the bucket's clock, which may differ from the service's
_SIGNED_S = 300.0
_log = logging.getLogger("torchdata_remote")


class BucketRoot:
    """A bucket, or a part of one; its methods are those of a folder.

    Args:
        url: of the bucket, or a folder in it.
        options: of the store.
        objects: of the bucket.
        prefix: of all paths.
        signs: whether clients are sent to the bucket to read.
    """

    def __init__(self, url: str, options: StorageOptions, objects: BucketObjects, prefix: str, *, signs: bool) -> None:
        self.url, self.options, self.prefix, self.signs = url, options, prefix, signs
        self.objects = objects
        self.concurrency, self.locks = ConcurrencyLimit(_MAX_REQUESTS, check=lambda: None), NamedLocks()
        self.work = f"{prefix}{WORK_FOLDER}"
        self._markers = f"{self.work}datasets/"
        self._removals = dict[str, tuple[bytes, float]]()  # of others: marker, and when it was first seen
        self.threads = ThreadPoolExecutor(_MAX_REQUESTS, "bucket")

    def names(self) -> list[str]:
        skip = len(self._markers)
        marked = {one.path[skip:]: one.size for page in self.objects.pages(self._markers) for one in page.entries}
        names = {name for name, size in marked.items() if size == _LIFE}
        for page in self.objects.pages(self.prefix, recursive=False):  # also those that others put there
            names |= {folder[len(self.prefix) : -1] for folder in page.folders} - marked.keys()
        return sorted(filter(is_dataset_name, names))

    def dataset(self, name: str) -> BucketDataset:
        life, _ = self.marker(require_dataset_name(name))
        if len(life) != _LIFE if life is not None else not self.objects.has_folder(f"{self.prefix}{name}/"):
            raise no_dataset(name)
        return BucketDataset(self, name, life)

    def open(self, name: str, path: str) -> OpenObject:
        """Open a file. Marker and file are asked for at once."""
        dataset = self.threads.submit(self.dataset, name)
        try:
            found = BucketDataset(self, require_dataset_name(name), None).find(path)
        finally:
            alive = dataset.result()
        if found is None:
            raise no_file(path)
        return OpenObject(alive, found)

    def open_cached(self, name: str, path: str) -> None:
        return None

    def create(self, name: str) -> None:
        life, _ = self.marker(require_dataset_name(name))
        if life is not None and len(life) != _LIFE:
            if not self._go_on_with_removal(name, life):
                raise Problem(503, f"The dataset {name!r} is being removed. Try again.", AGAIN)
            life = None
        if life is not None or self.objects.has_folder(f"{self.prefix}{name}/") or not self.mark(name, "create"):
            raise Problem(409, f"The dataset {name!r} exists already.")

    def remove(self, name: str) -> None:
        life, version = self.marker(require_dataset_name(name))
        if life is not None and len(life) != _LIFE:
            if not self._go_on_with_removal(name, life):
                raise no_dataset(name)
            return
        dataset = self.dataset(name)
        dataset.require_life()
        life, version = self.marker(name)
        removal = Removal(self, name, life or b"")
        if life is None or life != dataset.life or not removal.begin(version):
            raise no_dataset(name)
        removal.run()

    def _go_on_with_removal(self, name: str, marker: bytes, *, is_old: bool = False) -> bool:
        """Finish the removal of a service that was killed; return whether it was one.

        Args:
            name: of the dataset.
            marker: of the removal.
            is_old: whether its date says that it was given up.
        """
        now_s = time.monotonic()
        seen = self._removals.setdefault(name, (marker, now_s))
        if seen[0] != marker:
            seen = self._removals[name] = marker, now_s
        if not is_old and now_s < seen[1] + _LEASE_S:
            return False
        self._removals.pop(name, None)
        removal, (found, version) = Removal(self, name, marker), self.marker(name)
        return found == marker and removal.begin(version) and removal.run()

    def marker(self, name: str) -> tuple[bytes | None, Any]:
        """Return the content of a dataset's marker, and its version; ``None`` without one."""
        found = self.objects.get(self._markers + name)
        return (None, None) if found is None else (found[0], found[1].version)

    def mark(self, name: str, mode: Any, life: bytes | None = None) -> bool:
        """Write a marker, unless another service has changed it; return whether this one has."""
        life = life or uuid.uuid4().hex.encode()
        try:
            self.objects.put(self._markers + name, life, mode)
        except CHANGED:
            return self.marker(name)[0] == life  # a request whose answer was lost
        return True

    def remove_marker(self, name: str) -> None:
        """Remove the marker of a dataset."""
        self.objects.delete([self._markers + name])

    def free_bytes(self) -> None:
        return None

    def scratch(self) -> None:
        return None

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Require that the bucket holds conditions, by which several services are one: some servers ignore them."""
        probe = f"{self.work}probe-{uuid.uuid4().hex}"
        try:
            self.objects.put(probe, b"1", "create")
            found = self.objects.head(probe)
            assert found is not None
            self.objects.put(probe, b"2", found.version)
            for mode, header in [("create", "If-None-Match"), (found.version, "If-Match")]:
                with contextlib.suppress(*CHANGED):
                    self.objects.put(probe, b"3", mode)
                    what = f"{self.url} ignores {header}, by which services would overwrite each other's files"
                    raise ServiceError(
                        f"{what}. Serve a local folder, or a bucket with conditional writes.", url=self.url
                    )
        finally:
            self.objects.delete([probe])
        yield

    def clean(self, stopping: Stopping) -> None:
        """Finish removals. Nothing else is looked at: other services may be writing it."""
        now_s = time.time()
        for page in self.objects.pages(self._markers):
            for one in stopping.during(page.entries):
                if one.size != _LIFE:
                    name, is_old = one.path[len(self._markers) :], (one.modified_s or now_s) < now_s - _ABANDONED_S
                    try:
                        marker, _ = self.marker(name)
                        if marker is not None and len(marker) != _LIFE:
                            self._go_on_with_removal(name, marker, is_old=is_old)
                    except RemoteDataError as error:  # others are finished
                        _log.warning("The removal of %r is not finished, and will be repeated: %s", name, error)


class _TakenOverError(Exception):
    """Another service goes on with a removal."""


class Removal:
    """Removes a dataset. Its marker holds an id of the removal, which is compared before each request that removes.

    It is changed every few seconds, so that others see that the removal goes on. Of several that begin or go on with a
    removal, one replaces the marker, by the bucket's condition.

    Args:
        root: of the dataset.
        name: of it.
        marker: that is replaced.
    """

    def __init__(self, root: BucketRoot, name: str, marker: bytes) -> None:
        self._root, self._name, self._life = root, name, marker[:_LIFE]
        self._marker, self._changed_s = marker, 0.0

    def begin(self, version: Any) -> bool:
        """Replace the marker, of this version; return whether no other service has."""
        marker, now_s = self._life + _REMOVED + b"-" + uuid.uuid4().hex.encode(), time.monotonic()
        if not self._root.mark(self._name, version, marker):
            return False
        self._marker, self._changed_s = marker, now_s
        return True

    def run(self) -> bool:
        """Remove the files, then the marker; return whether no other service went on with it."""
        root, name = self._root, self._name
        try:
            for folder in (f"{root.work}sha256/{name}/", f"{root.prefix}{name}/"):
                root.objects.delete_folder(folder, before_each=self._require_own)
            self._require_own()
        except _TakenOverError:
            return False
        except TransientStorageError:
            raise  # the next request to remove or create it goes on
        except StorageError:
            self._give_up()
            raise
        root.remove_marker(name)
        return True

    def _give_up(self) -> None:
        """Let what is left be a dataset again: the removal would fail each time."""
        marker, version = self._root.marker(self._name)
        if marker == self._marker:
            self._root.mark(self._name, version, self._life)

    def _require_own(self) -> None:
        marker, version = self._root.marker(self._name)
        is_own = marker == self._marker
        if is_own and time.monotonic() > self._changed_s + _REFRESH_S:
            is_own = self.begin(version)
        if not is_own:
            raise _TakenOverError


class BucketDataset:
    """A dataset in a bucket. One that others put there has no life until something is written to it."""

    num_readers = 16

    def __init__(self, root: BucketRoot, name: str, life: bytes | None) -> None:
        self.root, self.name, self.life, self._seen_s = root, name, life, time.monotonic()
        self.folder = f"{root.prefix}{name}/"
        self.url = join_url(*split_url(root.url)[:2], self.folder)

    def require_life(self) -> bytes:
        """Give it a life if it has none."""
        if self.life is None:
            self.root.mark(self.name, "create")
            self.life, _ = self.root.marker(self.name)
        return self.life or b""

    def require_alive(self, max_age_s: float = 0.0) -> None:
        """Raise ``Problem`` 404 if the dataset is not the same one any more, unless that was compared just now."""
        if time.monotonic() > self._seen_s + max_age_s:
            self._seen_s = time.monotonic()
            if self.root.marker(self.name)[0] != self.require_life():
                raise removed()

    def full(self, path: str) -> str:
        """Return the path of a file in the bucket."""
        if "?versionId=" in path:
            raise Problem(400, f"{path!r:.200}: '?versionId=' names a version in a bucket. Choose another name.")
        return self.folder + path

    # Files

    def find(self, path: str) -> File | None:
        found = self.root.objects.head(self.full(path))
        return None if found is None else _file(path, found)

    def open(self, path: str, version: File | None = None) -> OpenObject:
        found = version or self.find(path)
        if found is None:
            raise no_file(path)
        return OpenObject(self, found)

    def listed(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        page, skip = self.root.objects.page(prefix, recursive=recursive, after=after, limit=limit), len(self.folder)
        entries = [one for one in page.entries if path_problem(one.path[skip:]) is None]  # others may put any key there
        return Page(entries, page.next_token, [one for one in page.folders if path_problem(one[skip:-1]) is None])

    def writer(self, path: str, conditions: Mapping[str, str]) -> Upload:
        self.require_life()
        return Upload(self, path, conditions)

    def remove(self, path: str) -> None:
        if self.life is not None:
            self.require_alive()  # right before: a bucket has no condition for a removal
        self.root.objects.delete([self.folder + path, self.digest_path(path)])

    def store(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Store small files, each as a whole."""
        writers = [self.writer(path, {}).holding(data) for path, data in files]
        try:
            list(self.root.threads.map(Upload.publish, writers))
        finally:
            self.settle(writers)

    def settle(self, writers: list[Upload]) -> None:
        """Take files back that were written while the dataset was removed. Raises ``Problem`` 404 then."""
        try:
            self.require_alive()
        except Problem:
            for writer in writers:
                writer.take_back()
            raise
        digests = [self.digest_path(one.path) for one in writers if one.done.sha256]  # of larger files before them
        if self.root.objects.has_folder(os.path.dirname(self.digest_path("")) + "/"):
            self.root.objects.delete(digests)

    def require_writable(self, path: str) -> None:
        """A bucket may have any path."""

    # Digests

    def about(self, file: File) -> File:
        if file.sha256 is None:
            found = self.find(file.path)
            file = found if found is not None and found.etag == file.etag else file
        if file.sha256 is None:
            kept = self.root.objects.get(self.digest_path(file.path))
            sha256, _, etag = ("" if kept is None else kept[0].decode("ascii", "replace")).partition(" ")
            file = file._replace(sha256=sha256 if etag == file.etag else None)
        return file

    def keep_sha256(self, file: File, sha256: str) -> None:
        """Store it beside the datasets, one for each path: an object that others wrote is left as it is."""
        self.root.objects.put(self.digest_path(file.path), f"{sha256} {file.etag}".encode())

    def digest_path(self, path: str) -> str:
        return f"{self.root.work}sha256/{self.name}/{hashlib.sha256(path.encode()).hexdigest()}"


class OpenObject:
    """A version of an object. It is an error if it was replaced."""

    descriptor = None

    def __init__(self, dataset: BucketDataset, file: File) -> None:
        self.dataset, self.file = dataset, file

    def chunks(self, start: int, end: int, chunk_bytes: int) -> Iterator[bytes | memoryview]:
        if start >= end:
            return
        root, file, full = self.dataset.root, self.file, self.dataset.full(self.file.path)
        version = RemoteUrl(join_url(*split_url(root.url)[:2], full), file.size, file.etag)
        reader = ObjectReader(version, root.objects.store, full, RETRY, root.concurrency)
        try:
            for piece in reader.pieces(start, end):
                for at in range(0, len(piece), chunk_bytes):
                    yield piece[at : at + chunk_bytes]
        except ObjectNotFoundError as error:
            raise ObjectChangedError(f"{file.path} was removed.", url=error.url, etag=file.etag) from error

    def signed_url(self) -> str | None:
        """Return a URL by which a client reads it for some minutes, without any token; ``None`` without one."""
        root, full = self.dataset.root, self.dataset.full(self.file.path)
        try:
            return root.objects.signed_url(full, _SIGNED_S) if root.signs else None
        except StorageError as error:  # such as credentials that cannot sign: it is passed through
            _log.warning("%s: URLs cannot be signed, so files are passed through: %s", root.url, error)
            root.signs = False
            return None

    def close(self) -> None:
        """Nothing is open."""


class Upload:
    """Writes an object: a small one by one conditional request, a large one in parts, which become visible at once.

    Attributes:
        done: what was written, with its digest if that is metadata of the object.
    """

    def __init__(self, dataset: BucketDataset, path: str, conditions: Mapping[str, str]) -> None:
        self._dataset, self.path, self._objects, self._full = dataset, path, dataset.root.objects, dataset.full(path)
        self._conditions = {name: conditions[name] for name in ("if-match", "if-none-match") if name in conditions}
        self._id, self.done = uuid.uuid4().hex, File(path, 0, "")
        self._buffer, self._large = bytearray(), cast(ObjectWriter | None, None)
        self._mode()

    def _mode(self) -> Any:
        """Return how the object is put: over this version, or only where there is none."""
        if not self._conditions:
            return "overwrite"
        found = self._objects.head(self._full)
        require_match(self._conditions, found and found.etag)
        return "create" if found is None else found.version

    def holding(self, data: bytes) -> Upload:
        """Return this with all of a small file."""
        self._buffer += data
        return self

    def write(self, data: bytes | memoryview) -> None:
        self._buffer += data
        if self._large is None and len(self._buffer) > UPLOAD_PART_BYTES:
            mode = self._mode()
            if mode not in ("create", "overwrite"):
                what = f"A bucket has no condition for replacing a file by one of more than {UPLOAD_PART_BYTES:,} bytes"
                raise Problem(413, f"{what}. Send it without If-Match and If-None-Match.", CLOSE)
            self._large = self._objects.store.create(self._full, overwrite=mode == "overwrite")
        if self._large is not None:
            self._large.write(bytes(self._buffer))
            self._buffer = bytearray()

    def commit(self, sha256: str) -> File:
        self.publish(sha256)
        found = self._dataset.root.threads.submit(self._dataset.find, self.path)  # with its date
        self._dataset.settle([self])
        self.done = now if (now := found.result()) is not None and now.etag == self.done.etag else self.done
        if self.done.sha256 is None:
            self._dataset.keep_sha256(self.done, sha256)
        return self.done._replace(sha256=sha256)

    def publish(self, sha256: str | None = None) -> None:
        """Write the object. It may be that its dataset was removed meanwhile, see :meth:`BucketDataset.settle`."""
        self._dataset.require_alive(max_age_s=1.0 if self._large is None else 0.0)
        data, self._buffer = bytes(self._buffer), bytearray()
        if self._large is None:
            self.done = self._put(data, sha256 or hashlib.sha256(data).hexdigest())
            return
        self._large.commit()
        self._large, found = None, self._objects.head(self._full)
        if found is None:
            raise Problem(503, "The file was removed at once. Send it again.", AGAIN)
        self._id, self.done = found.metadata.get(WRITER_ID, self._id), _file(self.path, found)

    def _put(self, data: bytes, sha256: str) -> File:
        """Write a small object: a new one, or over the version that was there while the dataset was the same one."""
        mode = self._mode() if self._conditions else "create"
        for _ in range(_MAX_ATTEMPTS):
            with contextlib.suppress(*CHANGED):  # since it was compared, or by a request whose answer was lost
                etag = self._objects.put(self._full, data, mode, {WRITER_ID: self._id, _SHA256: sha256})
                return File(self.path, len(data), etag, None, sha256)
            found = self._objects.head(self._full)
            if found is not None and found.metadata.get(WRITER_ID) == self._id:
                return _file(self.path, found)
            require_match(self._conditions, found and found.etag)
            mode = "create" if found is None else found.version
            self._dataset.require_alive()  # after its version was read: it is none of a later life's
        raise Problem(503, f"{self.path!r} is replaced continuously. Send it again.", AGAIN)

    def take_back(self) -> None:
        """Remove what was written, if it is still there."""
        found = self._objects.head(self._full)
        if found is not None and found.metadata.get(WRITER_ID) == self._id:
            self._objects.delete([self._full])

    def abort(self) -> None:
        self._buffer = bytearray()
        large, self._large = self._large, None
        if large is not None:
            with contextlib.suppress(RemoteDataError):
                large.abort()


def _file(path: str, found: Found) -> File:
    return File(path, found.size, found.etag, found.modified_s, found.metadata.get(_SHA256))
