"""Batches: many small files of a dataset in one tar. All calls block."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ....errors import ObjectNotFoundError, RemoteDataError, ShardReadError
from ....formats.tar import BLOCK, END_OF_ARCHIVE, TarOptions, TarParser, pack_header, padding
from ....storage import Entry, LocalStore
from ....storage.dataset_service.protocol import MAX_BATCH_FILE_BYTES, MAX_BATCH_FILES, SHA256_RECORD
from ..datasets.archives import tar_stream
from ..datasets.dataset_root import DatasetRoot
from ..datasets.digests import Digests, publish
from ..datasets.file_metadata import file_info
from ..datasets.names import require_path
from ..http.private_paths import without_root
from ..limits import ServiceLimits
from ..problems import Problem, problem_of

_SHA256 = re.compile("[0-9a-f]{64}")
_MAX_REST_BYTES = 2 * MAX_BATCH_FILE_BYTES + 64 * BLOCK  # of a member that is not complete: its headers and its data


class Batch(NamedTuple):
    """Files to send: bytes of the tar, and the tar."""

    num_bytes: int
    chunks: Iterator[bytes]


def batch_of(root: DatasetRoot, name: str, paths: list[str]) -> Batch:
    """Plan a tar of files of a dataset. Paths without a file are left out.

    Raises:
        Problem: 400, for an invalid path; 404, if there is no such dataset.
    """
    folder = root.folder(name)
    entries = []
    num_bytes = len(END_OF_ARCHIVE)
    for path in paths:
        try:
            entry = root.stat(folder, path)._replace(path=path)
        except ObjectNotFoundError:
            continue
        except Problem as problem:
            if problem.status == 404:
                continue
            raise
        size = entry.size or 0
        entries.append(entry)
        num_bytes += len(pack_header(path, size)) + size + padding(size)
    return Batch(num_bytes, tar_stream(root, folder, entries))


class _IncompleteError(Exception):
    """The rest of a member has not been received yet."""


class BatchWriter:
    """Stores the files of a tar while it is received. Each becomes visible as a whole, when its digest was compared.

    Args:
        root: the datasets.
        digests: receives the digests of the files.
        limits: of the disk.
        name: of the dataset.

    Raises:
        Problem: 404, if there is no such dataset.
    """

    def __init__(self, root: DatasetRoot, digests: Digests, limits: ServiceLimits, name: str) -> None:
        self._root, self._digests, self._limits = root, digests, limits
        self._folder = root.folder(name)
        self._rest, self._offset = b"", 0  # of a member that is not complete
        self._stored: list[str] = []
        self._files: list[dict[str, Any]] = []
        self._failed: list[dict[str, Any]] = []
        self._num_skipped = 0

    def feed(self, data: bytes, *, is_last: bool = False) -> None:
        """Store the files that are complete with the next bytes of the tar.

        Args:
            data: of the tar.
            is_last: whether the tar ends with them.

        Raises:
            Problem: 400 or 413, for a tar that is damaged or incomplete, or exceeds a limit. The message says how many
                of its files were stored.
        """
        held = self._rest + data if self._rest else data
        if not is_last:
            self._limits.require_space(self._root.free_bytes(), len(data))
        skipped: list[str] = []
        options = TarOptions(first_byte=self._offset, max_member_bytes=MAX_BATCH_FILE_BYTES, on_skip=skipped.append)
        parser = TarParser(_parts(held, is_last=is_last), "the batch", options)
        end = self._offset
        try:
            while (member := parser.next_member()) is not None:
                path, size = member
                content = parser.take(size, f"member {path!r:.200}")
                self._take(path.removeprefix("./"), content, parser.records.get(SHA256_RECORD))
                self._num_skipped, end = self._num_skipped + len(skipped), parser.cursor.offset
                skipped.clear()
            self._num_skipped += len(skipped)
        except _IncompleteError:
            pass
        except ShardReadError as error:
            raise self._problem(400, str(error)) from error
        self._rest = held[end - self._offset :]
        self._offset = end
        if len(self._rest) > _MAX_REST_BYTES:
            raise self._problem(413, f"The batch has a member of more than {MAX_BATCH_FILE_BYTES:,} bytes.")

    def result(self) -> dict[str, Any]:
        """Return what became of each member, when all files that were stored are on disk."""
        self._sync()
        return {"files": self._files, "failed": self._failed, "num_skipped": self._num_skipped}

    def _take(self, path: str, data: bytes, sha256: str | None) -> None:
        if len(self._files) + len(self._failed) == MAX_BATCH_FILES:
            raise self._problem(413, f"A batch may have {MAX_BATCH_FILES:,} files at most.")
        try:
            entry, received = self._store(path, data, sha256)
        except (RemoteDataError, Problem, OSError) as error:
            problem = problem_of(error)
            if problem is None:
                raise
            self._failed.append(
                {"path": path, "status": problem.status, "error": without_root(problem.message, self._root.url)}
            )
        else:
            self._stored.append(path)
            self._files.append({**file_info(entry, path), "sha256": received})

    def _store(self, path: str, data: bytes, sha256: str | None) -> tuple[Entry, str]:
        require_path(path)
        self._limits.require_file_bytes(len(data))
        received = hashlib.sha256(data).hexdigest()
        if sha256 is not None and not _SHA256.fullmatch(sha256):
            raise Problem(400, f"The record {SHA256_RECORD} is {sha256!r:.100}, expected 64 hexadecimal digits.")
        if sha256 not in (None, received):
            raise Problem(400, f"The tar says SHA-256 {sha256}, the received bytes have {received}. Send them again.")
        pending = self._root.create_file(self._folder, path, sync_folder=False)
        try:
            pending.write(data)
        except BaseException:
            pending.abort()
            raise
        return publish(self._root, self._digests, pending, self._folder, path, received), received

    def _sync(self) -> None:
        """Wait until the files that were stored are on disk: once for all files of a folder."""
        if isinstance(self._root.store, LocalStore):
            for above in {(self._folder + path).rpartition("/")[0] for path in self._stored}:
                with contextlib.suppress(ObjectNotFoundError):  # removed since, with its files
                    self._root.store.sync_folder(above)

    def _problem(self, status: int, message: str) -> Problem:
        self._sync()
        stored, failed = len(self._files), len(self._failed)
        return Problem(
            status,
            f"{message} Of the files before, {stored:,} were stored and {failed:,} refused.",
            {"Connection": "close"},
        )


def _parts(data: bytes, *, is_last: bool) -> Iterator[bytes]:
    yield data
    if not is_last:
        raise _IncompleteError
