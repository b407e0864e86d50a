"""``push``: copy a local folder into a dataset of a service."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from ...core import arguments as check
from ...core.arguments import explained, whole
from ...core.options import RetryPolicy, policy_of
from ...errors import EmptyListingError, ObjectChangedError, RemoteDataError, StorageError
from ...fetch.listing.source_argument import url_of
from ...formats.tar import END_OF_ARCHIVE, pack_header, padding
from ...storage import is_internal_name
from ...storage.dataset_service.protocol import SHA256_RECORD, path_problem
from .jobs import Dataset, Jobs, folders_of, grouped, local_folder, os_errors, read_pieces
from .progress import OnProgress, TransferCounter, Transferred


@explained
def push(
    source_folder: str | os.PathLike[str],
    url: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
    max_in_flight: int = 16,
    on_progress: OnProgress | None = None,
    progress: bool = True,
    delete: bool = False,
) -> Transferred:
    """Copy a folder into a dataset of a service, except for files that it already has, by SHA-256.

    Small files are sent many in one request, others in one request each. An interrupted push is resumed by the same
    call: files that were stored are not sent again. A file becomes visible as a whole, after the service has compared
    its digest. At most ``max_in_flight`` times 8 MiB are held in memory.

    Args:
        source_folder: with all folders below it. Links that stay inside are followed.
        url: ``datasets://host:port/name``, or a folder in it. The dataset is created if it does not exist.
        storage_options: ``token`` and ``secure``, see :class:`StorageOptions`.
        retry: of requests that fail temporarily; ``None`` takes the defaults.
        max_in_flight: concurrent requests, each in a thread of its own.
        on_progress: called in this thread, with :class:`TransferProgress`, after each request; ``None`` shows a
            progress bar.
        progress: show it, if standard error is a terminal.
        delete: whether files in the dataset (or in its folder) that the source lacks are removed.

    Returns:
        Transferred: numbers of files and bytes.

    Raises:
        UrlError: if ``url`` is not a dataset of a service.
        EmptyListingError: if the source has no files.
        ObjectChangedError: if a file changed while it was sent.
        StorageError: for a link that leads out of the folder, an entry that is neither file nor folder, a name that is
                not allowed in a dataset, or a refusal of the service.

    Example:
        >>> push("/data/photos", "datasets://storage:8080/photos")  # doctest: +SKIP
        Transferred(num_files=2000, num_bytes=188000000, num_unchanged=0, num_removed=0, num_foreign=0, elapsed_s=1.9)
    """
    retry, local = policy_of(retry), local_folder("source_folder", source_folder)
    check.function_or_none("on_progress", on_progress, example="print")
    delete, progress = check.flag("delete", delete), check.flag("progress", progress)
    jobs = Jobs(whole("max_in_flight", max_in_flight), retry)
    with TransferCounter(on_progress, "push", shown=progress) as counter, jobs:
        dataset = Dataset(url_of(url, of="push"), storage_options, jobs)
        files = _files_of(local)
        counter.set_total(len(files), sum(file.stamp.size for file in files))
        jobs.request(lambda: dataset.store.create_dataset(dataset.name), dataset.url)
        existing, wanted = dataset.files(), {file.path for file in files}
        foreign = sorted(path for path in existing.keys() - wanted if not is_internal_name(path.rpartition("/")[2]))
        uploads = _Uploads(dataset, {path: file.sha256 for path, file in existing.items()}, jobs, counter)
        first = _blocking(foreign, wanted) if delete else set()
        uploads.remove(first)
        uploads.send(files)
        if delete:  # after the uploads, so that the dataset never lacks a file that was only renamed
            uploads.remove(path for path in foreign if path not in first)
    return counter.result(num_foreign=0 if delete else len(foreign))


def _blocking(foreign: Iterable[str], wanted: set[str]) -> set[str]:
    """Return files with the path of a needed folder, or in a folder with the path of a needed file."""
    folders = {folder for path in wanted for folder in folders_of(path)}
    return {path for path in foreign if path in folders or not wanted.isdisjoint(folders_of(path))}


class _Stamp(NamedTuple):
    """What changes with the content of a file."""

    size: int
    mtime_ns: int
    inode: int
    device: int

    @classmethod
    def of(cls, status: os.stat_result) -> _Stamp:
        return cls(status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev)


class _LocalFile(NamedTuple):
    """A file: path below the folder, absolute path, and its stamp."""

    path: str
    absolute_path: str
    stamp: _Stamp

    def pieces(self, check: Callable[[], object]) -> Iterator[memoryview]:
        """Read it in pieces of at most 1 MiB. Each is valid until the next one is read.

        Args:
            check: called before each piece; may raise an error to stop.

        Raises:
            ObjectChangedError: before the last piece, if the file is not what it was when it was found.
        """
        left = self.stamp.size
        with os_errors(self.absolute_path):
            for piece in read_pieces(self.absolute_path):
                check()
                left -= len(piece)
                if left <= 0:
                    self.require_unchanged()
                yield piece
            if left:
                self.require_unchanged()

    def require_unchanged(self) -> None:
        """Raise ``ObjectChangedError`` if the file has changed since it was listed."""
        if _Stamp.of(os.stat(self.absolute_path)) != self.stamp:
            what = "changed while it was pushed. Push again when no program writes to it"
            raise ObjectChangedError(f"{self.absolute_path} {what}.", url=self.absolute_path)


def _files_of(folder: str) -> list[_LocalFile]:
    """List all files below a folder, sorted by path. Links that stay inside are followed."""
    with os_errors(folder):
        if not stat.S_ISDIR(os.stat(folder).st_mode):
            raise StorageError(f"{folder} is not a folder. Push the folder that contains it.", url=folder)
    root = os.path.realpath(folder)
    files = sorted(_walk(root, root, "", ()))
    if not files:
        raise EmptyListingError(f"{folder}: there are no files to push. Is everything mounted?", url=folder)
    return files


def _walk(root: str, folder: str, below: str, above: tuple[str, ...]) -> Iterator[_LocalFile]:
    def refused(what: str) -> StorageError:
        return StorageError(f"{entry.path} {what}.", url=entry.path)

    with os_errors(folder), os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        path, real = below + entry.name, entry.path
        if entry.is_symlink():
            real = os.path.realpath(entry.path)
            if not os.path.exists(real):
                raise refused("is a link to nowhere. Remove it")
            if os.path.commonpath([root, real]) != root:
                raise refused(f"is a link that leads out of the folder, to {real}. Replace it by a copy")
        with os_errors(entry.path):
            status = entry.stat()
        if stat.S_ISDIR(status.st_mode):
            if real in (root, *above):
                raise refused("is a link to a folder above it. Remove it")
            yield from _walk(root, entry.path, path + "/", (*above, real))
        elif is_internal_name(entry.name):
            continue
        elif not stat.S_ISREG(status.st_mode):
            raise refused("is neither a file nor a folder. Move it out of the folder that is pushed")
        elif (wrong := path_problem(path)) is not None:
            raise StorageError(f"{entry.path!r}: a path in a dataset cannot be {path!r}: it {wrong}. Rename it.")
        else:
            yield _LocalFile(path, entry.path, _Stamp.of(status))


class _Uploads:
    """Uploads into one folder of a service.

    Args:
        dataset: to upload to.
        known: SHA-256 of the files in it, by path.
        jobs: runs them.
        counter: counts files and bytes.
    """

    def __init__(self, dataset: Dataset, known: dict[str, str], jobs: Jobs, counter: TransferCounter) -> None:
        self.dataset, self.known, self.jobs, self.counter = dataset, known, jobs, counter

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files of the dataset."""

        def remove(path: str) -> None:
            url = self.dataset.url_of(path)
            self.jobs.request(lambda: self.dataset.store.delete(self.dataset.prefix + path), url)
            self.counter.add(removed=1)

        self.jobs.run((partial(remove, path) for path in paths), self.counter.report)

    def send(self, files: list[_LocalFile]) -> None:
        """Send files, unless the service has them: small ones in batches, others by requests of their own."""

        def tasks() -> Iterator[Callable[[], object]]:
            for group in grouped(files, len(files), lambda file: file.stamp.size, self.jobs.max_in_flight):
                yield partial(self._send_batch, group) if len(group) > 1 else partial(self._send_one, group[0])

        self.jobs.run(tasks(), self.counter.report)

    def _is_known(self, file: _LocalFile, sha256: str) -> bool:
        """Whether the service had the file before; if so, count it."""
        if self.known.get(file.path) != sha256:
            return False
        self.counter.add(unchanged=1, existing_bytes=file.stamp.size)
        return True

    def _send_one(self, file: _LocalFile, *, is_maybe_stored: bool = False) -> None:
        digest, store, path = hashlib.sha256(), self.dataset.store, self.dataset.prefix + file.path
        for piece in file.pieces(self.jobs.check):
            digest.update(piece)
        sha256 = digest.hexdigest()
        if self._is_known(file, sha256):
            return
        if not is_maybe_stored or self.jobs.request(lambda: store.sha256_of(path)) != sha256:

            def request(call: Callable[[], object], num_bytes: int) -> object:
                return self.jobs.request(call, self.dataset.url_of(file.path), num_bytes)

            store.put(path, file.stamp.size, sha256, partial(file.pieces, self.jobs.check), request)
        self.counter.add(files=1, num_bytes=file.stamp.size)

    def _send_batch(self, group: list[_LocalFile]) -> None:
        """Send small files in one request. If it fails, each is sent by itself, which reports the error."""
        tar: list[bytes] = []
        changed: list[_LocalFile] = []
        for file in group:
            data = b"".join(map(bytes, file.pieces(self.jobs.check)))
            sha256 = hashlib.sha256(data).hexdigest()
            if not self._is_known(file, sha256):
                changed.append(file)
                header = pack_header(self.dataset.below + file.path, len(data), {SHA256_RECORD: sha256})
                tar += [header, data, bytes(padding(len(data)))]
        if len(changed) > 1:
            body = b"".join([*tar, END_OF_ARCHIVE])
            del tar
            with contextlib.suppress(RemoteDataError):
                self.jobs.attempt(lambda: self.dataset.store.put_batch(self.dataset.name, body))
                self.counter.add(files=len(changed), num_bytes=sum(file.stamp.size for file in changed))
                return
        for file in changed:
            self._send_one(file, is_maybe_stored=len(changed) > 1)
