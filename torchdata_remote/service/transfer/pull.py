"""``pull``: copy a dataset of a service into a local folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ...core import arguments as check
from ...core.arguments import explained, whole
from ...core.options import RetryPolicy, policy_of
from ...core.urls import RemoteUrl
from ...errors import AccessDeniedError, EmptyListingError, RemoteDataError, StorageError
from ...fetch.listing.source_argument import url_of
from ...fetch.ranges import ObjectReader
from ...formats.tar import BLOCK, TarOptions, TarParser
from ...storage import is_internal_name
from ...storage.dataset_service.protocol import MAX_BATCH_FILE_BYTES, path_problem
from ...storage.dataset_service.store import DatasetFile
from .destination import Destination, Pulled, Written
from .jobs import Dataset, Jobs, folders_of, grouped, local_folder, os_errors, read_pieces
from .progress import OnProgress, TransferCounter, Transferred

_MAX_FETCHES = 2  # of one version, if its digest is wrong
_HEADER_BYTES = 8 * BLOCK  # of a member of a batch at most, beside its name
_PUBLISHED_BYTES = 64 << 20  # fetched again after a kill at most
_SHA256 = re.compile("[0-9a-f]{64}")


@explained
def pull(
    url: str,
    folder: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
    max_in_flight: int = 16,
    on_progress: OnProgress | None = None,
    progress: bool = True,
    delete: bool = False,
) -> Transferred:
    """Copy a dataset of a service into a folder, except for files that are already there, by SHA-256.

    Each file is verified by its digest and then renamed into place, so the folder can be read meanwhile. Of several
    pulls into one folder, by processes or containers that share it, one works and the others wait, and then find a
    complete folder. An interrupted pull is resumed by the same call: files that are there are not fetched again. A file
    that an earlier pull wrote and that the dataset no longer has is removed; the folder's
    ``.torchdata_remote-pull.json`` lists them. A complete folder may be read-only.

    Args:
        url: ``datasets://host:port/name``, or a folder in it.
        folder: local; created if it does not exist. Links below it are never followed.
        storage_options: ``token`` and ``secure``.
        retry: of requests that fail temporarily; ``None`` takes the defaults.
        max_in_flight: concurrent requests, each in a thread of its own.
        on_progress: called in this thread, with :class:`TransferProgress`, after each request; ``None`` shows a
            progress bar.
        progress: show it, if standard error is a terminal.
        delete: whether files that were not pulled, or were changed since, are removed and replaced too.

    Returns:
        Transferred: numbers of files and bytes.

    Raises:
        UrlError: if ``url`` is not a dataset of a service.
        ObjectNotFoundError: if there is no such dataset.
        EmptyListingError: if it has no files. Nothing is removed then.
        ObjectExistsError: if another dataset was pulled into the folder, also one of this name from another host, of
            which a file would be replaced or removed.
        ObjectChangedError, ObjectNotFoundError: if a file is replaced or removed during the pull: pull again.
        StorageError: for a full disk, a digest that is wrong twice, a listing with paths outside the folder, or a file
            in the folder that was not pulled, or was changed since, and has a path of the dataset.

    Example:
        >>> pull("datasets://storage:8080/photos", "/datasets/photos")  # doctest: +SKIP
        Transferred(num_files=0, num_bytes=0, num_unchanged=2000, num_removed=0, num_foreign=0, elapsed_s=0.1)
    """
    retry, local = policy_of(retry), local_folder("folder", folder)
    check.function_or_none("on_progress", on_progress, example="print")
    delete, progress = check.flag("delete", delete), check.flag("progress", progress)
    jobs = Jobs(whole("max_in_flight", max_in_flight), retry)
    counter = TransferCounter(on_progress, "pull", shown=progress)
    dataset = Dataset(url_of(url, of="pull"), storage_options, jobs)
    with Destination(local) as destination, counter, jobs:
        listed = dataset.files()
        if not listed:
            raise EmptyListingError(f"{dataset.url}: there are no files to pull. Push some first.", url=dataset.url)
        _require_safe_paths(listed, dataset.url)
        counter.set_total(len(listed), sum(file.size for file in listed.values()))
        update = _FolderUpdate(dataset, destination, jobs, counter, listed)
        num_foreign = update.run(delete=delete)
    return counter.result(num_foreign=num_foreign)


def _require_safe_paths(listed: dict[str, DatasetFile], url: str) -> None:
    """Require that the paths of a listing stay inside the folder and can exist together."""
    for path, file in listed.items():
        wrong = path_problem(path)
        if wrong is None and is_internal_name(path.rpartition("/")[2]):
            wrong = "has a name that is reserved for pull"
        if wrong is None and any(folder in listed for folder in folders_of(path)):
            wrong = "is in a folder that is also listed as a file"
        if wrong is None and not _SHA256.fullmatch(file.sha256):
            wrong = f"has the SHA-256 {file.sha256!r}"
        if wrong is not None:
            what = f"the service lists a path that cannot be pulled, {path!r}: it {wrong}. Nothing was written"
            raise StorageError(f"{url}: {what}; rename it in the dataset.", url=url)


class _FolderUpdate:
    """Makes the folder equal to the listing.

    Args:
        dataset: source of the files.
        destination: folder to update.
        jobs: runs hashing and fetching.
        counter: counts files and bytes.
        listed: files of the dataset, by path.
    """

    def __init__(
        self,
        dataset: Dataset,
        destination: Destination,
        jobs: Jobs,
        counter: TransferCounter,
        listed: dict[str, DatasetFile],
    ) -> None:
        self._dataset, self._destination, self._jobs, self._counter = dataset, destination, jobs, counter
        self._listed, self._before = listed, destination.load_state(dataset.prefix, dataset.host)
        self._now: dict[str, Pulled] = {}  # what is there
        self._missing: dict[str, DatasetFile] = {}
        self._not_ours = set[str]()  # of the missing ones, those where there is a file that no pull wrote
        self._lock, self._written = threading.RLock(), list[Written]()  # without their names yet

    def run(self, *, delete: bool) -> int:
        """Remove, then fetch; return the number of files that were not pulled, and were kept.

        Args:
            delete: whether to remove these.
        """
        destination, files = self._destination, self._destination.files
        obsolete = {path for path, found in files.items() if path not in self._listed and self._is_ours(path, found)}
        foreign = files.keys() - self._listed.keys() - obsolete | destination.others
        own, obsolete = obsolete, obsolete | (foreign if delete else set())
        self._compare()
        self._require_same_host(own)
        if not destination.is_writable:
            if self._missing or obsolete:
                what = f"{len(self._missing):,} files are to be fetched and {len(obsolete):,} to be removed"
                what = f"{destination.folder} is not writable, and not complete: {what}."
                raise AccessDeniedError(what, url=destination.folder)
            return len(foreign)
        if not delete:
            self._require_ours()
        removed: set[str] = set()
        for path in sorted(obsolete):
            removed.update(destination.remove(path))
            self._counter.add(removed=1)
        self._require_free_paths(removed)
        try:
            self._fetch_all()
        finally:
            self._publish([], least_bytes=0)
            self._counter.report()
            old = {path: self._before[path] for path in self._missing if path in self._before}
            known, dataset = {**old, **self._now}, self._dataset
            destination.save_state(dataset.prefix, dataset.host, known, changed=known != self._before)
        return 0 if delete else len(foreign)

    def _is_ours(self, path: str, found: tuple[int, int]) -> bool:
        """Whether a pull wrote the file, and no other program since, by its size and date."""
        return path in self._before and self._before[path][:2] == found

    def _compare(self) -> None:
        """Find out which files are to be fetched. One of a right size is hashed unless an earlier pull wrote it."""
        unsure: list[str] = []
        for path, file in sorted(self._listed.items()):
            found, before = self._destination.files.get(path), self._before.get(path)
            if found is None:
                self._missing[path] = file
            elif before is not None and self._is_ours(path, found):
                if (before.size, before.sha256) == (file.size, file.sha256):
                    self._keep(path)
                else:
                    self._missing[path] = file
            elif found[0] == file.size or (before is not None and found[0] == before.size):
                unsure.append(path)
            else:
                self._missing[path] = file
                self._not_ours.add(path)
        self._counter.report()

        def compare(path: str) -> None:
            digest, full = hashlib.sha256(), self._destination.absolute_path(path)
            with os_errors(full):
                for piece in read_pieces(full):
                    self._jobs.check()
                    digest.update(piece)
            if digest.hexdigest() == self._listed[path].sha256:
                self._keep(path)
                return
            self._missing[path] = self._listed[path]
            if path not in self._before or digest.hexdigest() != self._before[path].sha256:
                self._not_ours.add(path)

        self._jobs.run((partial(compare, path) for path in unsure), self._counter.report)

    def _require_same_host(self, own: set[str]) -> None:
        """Require that nothing is replaced or removed which another service's dataset of this name put there.

        Args:
            own: files that a pull wrote, and that the dataset does not have.
        """
        destination, dataset = self._destination, self._dataset
        if destination.other_host is not None and (own or not destination.files.keys().isdisjoint(self._missing)):
            held, wanted = (f"{host}/{dataset.prefix}" for host in (destination.other_host, dataset.host))
            raise destination.held_error(held, wanted)

    def _require_ours(self) -> None:
        """Require that no file would be replaced which no pull wrote, or which was changed since."""
        for path in sorted(self._not_ours):
            where = self._destination.absolute_path(path)
            what = "was not pulled, or was changed since, and the dataset has another one of its name"
            raise StorageError(f"{where} {what}. It is not replaced: move it, or pass delete=True.", url=where)

    def _keep(self, path: str) -> None:
        file = self._listed[path]
        self._now[path] = Pulled(*self._destination.files[path], file.sha256)
        self._counter.add(unchanged=1, existing_bytes=file.size)

    def _require_free_paths(self, removed: set[str]) -> None:
        """Require that no file or link is where a folder is needed, and no folder or link where a file is needed."""
        files, others, folders = self._destination.files, self._destination.others, self._destination.folders
        for path in self._missing:
            for name in (*folders_of(path), path):
                if name not in removed and (name in others or name in (folders if name == path else files)):
                    what = "a folder" if name in folders else "a file" if name in files else "a link"
                    where = self._destination.absolute_path(name)
                    raise StorageError(
                        f"{where} is {what}, and in the way of {path!r}. Links are not followed, and files that were "
                        "not pulled are not removed: move it, or pass delete=True.",
                        url=where,
                    )

    # Fetching

    def _fetch_all(self) -> None:
        """Fetch: small files in batches, others by a request each."""
        files = self._missing

        def tasks() -> Iterator[Callable[[], object]]:
            for group in grouped(files, len(files), lambda path: files[path].size, self._jobs.max_in_flight):
                yield partial(self._fetch_batch, group) if len(group) > 1 else partial(self._fetch, group[0])

        self._jobs.run(tasks(), self._counter.report)

    def _fetch_batch(self, group: list[str]) -> None:
        """Fetch small files in one request. What is not in it, or not right, is fetched by itself."""
        left = dict.fromkeys(group)
        with contextlib.suppress(RemoteDataError):
            self._jobs.attempt(partial(self._receive_batch, left))
        self._jobs.check()
        for path in left:
            self._fetch(path)

    def _receive_batch(self, left: dict[str, None]) -> None:
        """Fetch files, and remove those from ``left`` that are complete."""
        dataset, below, written = self._dataset, self._dataset.below, list[Written]()
        paths = [below + path for path in left]
        num_bytes = sum(_HEADER_BYTES + 4 * len(path.encode()) + self._missing[path].size for path in left)
        chunks = dataset.store.get_batch(dataset.name, paths, num_bytes + 64 * BLOCK)

        def received() -> Iterator[tuple[str, list[bytes | memoryview]]]:
            tar = TarParser(chunks, dataset.url, TarOptions(max_member_bytes=MAX_BATCH_FILE_BYTES))
            while (member := tar.next_member()) is not None:
                path, data = member[0].removeprefix(below), tar.take(member[1], "a member")
                self._jobs.check()  # so that nothing is written after the pull ended
                if path in left and hashlib.sha256(data).hexdigest() == self._missing[path].sha256:
                    self._counter.add(num_bytes=len(data))
                    yield path, [data]

        with contextlib.closing(chunks):
            try:
                for one in self._destination.write(received()):
                    written.append(one)  # those before an error, too
            finally:
                self._publish(written)
                for one in written:
                    left.pop(one.path, None)

    def _fetch(self, path: str) -> None:
        """Fetch a file; a wrong digest means to fetch it once more."""
        file, jobs = self._missing[path], self._jobs
        url = RemoteUrl(self._dataset.url_of(path), file.size, file.etag)
        reader = ObjectReader(url, self._dataset.store, file.path, jobs.retry, jobs.in_flight, sleep=jobs.sleep)
        for _ in range(_MAX_FETCHES):
            digest = hashlib.sha256()
            (written,) = self._destination.write([(path, self._received(reader, digest, file.size))])
            if digest.hexdigest() == file.sha256:
                return self._publish([written])
            self._counter.add(existing_bytes=-file.size)
            self._destination.discard(written)
        raise StorageError(
            f"{url}: received SHA-256 {digest.hexdigest()} after fetching it {_MAX_FETCHES} times, where the service "
            f"reports {file.sha256}. The file is damaged in the dataset or in transit: push it again.",
            url=url,
            etag=file.etag,
        )

    def _received(self, reader: ObjectReader, digest: Any, size: int) -> Iterator[memoryview]:
        for piece in reader.pieces(0, None) if size else ():
            self._jobs.check()  # so that nothing is written after the pull ended
            digest.update(piece)
            yield piece
            self._counter.add(num_bytes=len(piece))

    def _publish(self, written: list[Written], least_bytes: int = _PUBLISHED_BYTES) -> None:
        """Give files their names when there are enough of them: a sync waits for all that others write to the disk."""
        self._jobs.check()  # so that nothing is published after the pull ended
        with self._lock:
            self._written += written
            if sum(self._missing[one.path].size for one in self._written) < least_bytes:
                return
            ready, self._written = self._written, []
        pulled = {
            path: Pulled(self._missing[path].size, mtime_ns, self._missing[path].sha256) for path, _, mtime_ns in ready
        }
        if pulled:
            self._destination.announce(self._dataset.prefix, self._dataset.host, pulled)
        self._destination.publish(ready)
        self._now.update(pulled)
        self._counter.add(files=len(ready))
