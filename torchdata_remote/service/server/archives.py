"""Archives: a dataset as a tar, a tar or zip as files, and batches of small files in one tar. All calls block."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from ...errors import RemoteDataError, ShardReadError
from ...formats.compression.decompress import CompressionLimits, decompressed
from ...formats.tar import BLOCK, END_OF_ARCHIVE, TarOptions, TarParser, pack_header, padding
from ...formats.zip import read_directory, read_pieces
from ...storage.dataset_service.protocol import MAX_BATCH_FILE_BYTES, MAX_BATCH_FILES, SHA256_RECORD
from .limits import ServiceLimits
from .names import require_path
from .problems import CLOSE, Problem, Stopping, problem_of, without_root
from .root import CHUNK_BYTES, STREAM_BYTES, Dataset, File, OpenFile, Root, all_files, each

_ZIP = (b"PK\3\4", b"PK\5\6")
_NUM_WRITERS = 8  # each waits for the disk once per file
_SMALL_BYTES = 4 << 20
_SHA256 = re.compile("[0-9a-f]{64}")
_MAX_REST_BYTES = 2 * MAX_BATCH_FILE_BYTES + 64 * BLOCK  # of a member that is not complete: its headers and its data
Data = bytes | memoryview


# Out


def tar_stream(dataset: Dataset, files: Iterable[File] | None = None) -> Iterator[bytes]:
    """Stream files of a dataset as a tar, in chunks of about 256 KiB; ``None`` for all, sorted by path.

    Raises:
        ObjectChangedError: if a file is replaced or removed meanwhile.
    """
    waiting, num_bytes = list[Data](), 0  # small files are sent together
    for file, data in each(dataset, partial(_ahead, dataset), all_files(dataset) if files is None else files):
        for piece in _member(dataset, file, data):
            waiting.append(piece)
            num_bytes += len(piece)
            if num_bytes >= STREAM_BYTES:
                yield b"".join(waiting)
                waiting, num_bytes = [], 0
    yield b"".join([*waiting, END_OF_ARCHIVE])


def _ahead(dataset: Dataset, file: File) -> tuple[File, bytes | None]:
    """Return a file with its data if it is small and takes a request, which is then sent ahead."""
    if dataset.num_readers == 1 or file.size > STREAM_BYTES:
        return file, None
    return file, b"".join(dataset.reopen(file).chunks(0, file.size, STREAM_BYTES))


def _member(dataset: Dataset, file: File, data: bytes | None) -> Iterator[Data]:
    yield pack_header(file.path, file.size)
    if data is not None:
        yield data
    else:
        with contextlib.closing(dataset.reopen(file)) as opened:
            yield from opened.chunks(0, file.size, STREAM_BYTES)
    yield bytes(padding(file.size))


def batch_of(dataset: Dataset, paths: list[str]) -> tuple[int, Iterator[bytes]]:
    """Return the size of a tar of these files, and the tar. Paths without a file are left out."""
    paths = [require_path(path) for path in paths]
    files = [file for file in each(dataset, dataset.find, paths) if file is not None]
    sizes = (len(pack_header(file.path, file.size)) + file.size + padding(file.size) for file in files)
    return len(END_OF_ARCHIVE) + sum(sizes), tar_stream(dataset, files)


# In


class Unpacked(NamedTuple):
    """Files in an archive, their bytes, and the links and devices that were skipped."""

    num_files: int
    num_bytes: int
    num_skipped: int


class Unpacking:
    """An archive whose files become those of a dataset, when all of it was read and none of them conflicts.

    Args:
        root: of the dataset.
        dataset: that the files are for.
        archive: the open archive.
        name: of the archive, for error messages.
        limits: of files, bytes and the disk.
        stopping: ends the work with the service.
    """

    def __init__(
        self, root: Root, dataset: Dataset, archive: OpenFile, name: str, limits: ServiceLimits, stopping: Stopping
    ) -> None:
        self._root, self._dataset, self._archive, self._name = root, dataset, archive, name
        self._limits, self._stopping = limits, stopping
        self._skipped: Counter[str] = Counter()

    def run(self) -> Unpacked:
        """Check the archive, and write its files. Each becomes visible as a whole.

        Raises:
            ShardReadError: for a damaged archive, or another format.
            Problem: 400, for names that are not valid paths; 413, beyond the limits; 507, if its files do not fit on
                the disk; 409, if a folder or a file of the dataset has one of the paths; 404, if the dataset was
                removed.
        """
        unpacked = self._check()
        with _Writers(self._dataset) as writers:
            for path, size, pieces in self._members():
                self._stopping.check()
                if size > _SMALL_BYTES:
                    _write(self._dataset, path, self._stopping.during(pieces))
                else:
                    writers.submit(path, partial(_write, self._dataset, path, [b"".join(pieces)]))
        return unpacked

    def _check(self) -> Unpacked:
        num_files = num_bytes = 0
        free_bytes, limits = self._root.free_bytes(), self._limits
        paths: set[str] = set()
        for path, size, pieces in self._members():
            num_files, num_bytes = num_files + 1, num_bytes + size
            require_path(path)
            if path in paths:
                raise Problem(400, f"The archive contains {path!r:.200} twice.")
            if num_files > limits.max_unpacked_files or num_bytes > limits.max_file_bytes:
                most = f"{limits.max_unpacked_files:,} files and {limits.max_file_bytes:,} bytes"
                raise Problem(413, f"An archive may have {most} at most.")
            if free_bytes is not None and free_bytes - num_bytes < limits.min_free_bytes:
                what = f"The archive unpacks to at least {num_bytes:,} bytes; the disk has {free_bytes:,} left."
                raise Problem(507, what)
            self._dataset.require_writable(path)
            paths.add(path)
            for _ in self._stopping.during(pieces):
                pass
        for path in paths:
            above = path
            while above := above.rpartition("/")[0]:
                if above in paths:
                    raise Problem(400, f"The archive contains a file {above!r:.200}, and {path!r:.200} below it.")
        skipped, self._skipped = self._skipped, Counter()
        return Unpacked(num_files, num_bytes, skipped["link"] + skipped["device"])

    def _members(self) -> Iterator[tuple[str, int, Iterator[Data]]]:
        """Iterate over path, size and data of the files. Data that is not read is passed over."""
        for path, size, pieces in self._all_members():
            yield path.removeprefix("./"), size, pieces
            for _ in pieces:
                pass

    def _all_members(self) -> Iterator[tuple[str, int, Iterator[Data]]]:
        size, most = self._archive.file.size, self._limits.max_file_bytes

        def read(start: int, end: int) -> bytes:
            return b"".join(self._archive.chunks(start, end, CHUNK_BYTES))

        def skip(kind: str) -> None:
            self._skipped[kind] += 1

        chunks = self._archive.chunks(0, size, CHUNK_BYTES)
        if read(0, min(4, size)) in _ZIP:
            entries = read_directory(read, size, url=self._name)
            for entry, data in read_pieces(chunks, entries, url=self._name, max_member_bytes=most):
                if entry.kind == "file":
                    yield entry.path, entry.num_bytes, data
                else:
                    skip(entry.kind)
                    for _ in data:
                        pass
            return
        unpacked = CompressionLimits(max_decompressed_bytes=most)
        compression, parts = decompressed(chunks, url=self._name, limits=unpacked)
        with contextlib.closing(parts):
            num_bytes = size if compression is None else None
            walk = TarParser(parts, self._name, TarOptions(num_bytes=num_bytes, max_member_bytes=most, on_skip=skip))
            while (member := walk.next_member()) is not None:
                path, num_bytes = member
                yield path, num_bytes, walk.pieces(num_bytes, f"member {path!r:.200}")


def _write(dataset: Dataset, path: str, pieces: Iterable[Data], *, sync: bool = True) -> File:
    """Write a file, which becomes visible when it is complete."""
    writer, digest = dataset.writer(path, {}), hashlib.sha256()
    try:
        for piece in pieces:
            digest.update(piece)
            writer.write(piece)
    except BaseException:
        writer.abort()
        raise
    return writer.commit(digest.hexdigest(), sync=sync)


class _Writers:
    """Threads that write small files, those of one path one after the other. The first error ends the block."""

    def __init__(self, dataset: Dataset) -> None:
        self._pool = ThreadPoolExecutor(_NUM_WRITERS, "files")
        self._running: deque[tuple[str, Future[Any]]] = deque()

    def submit(self, path: str, work: Callable[[], Any]) -> None:
        while len(self._running) >= 4 * _NUM_WRITERS or any(one[0] == path for one in self._running):
            self._running.popleft()[1].result()
        self._running.append((path, self._pool.submit(work)))

    def wait(self) -> None:
        while self._running:
            self._running.popleft()[1].result()

    def __enter__(self) -> _Writers:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._pool.shutdown(cancel_futures=True)


class _IncompleteError(Exception):
    """The rest of a member has not been received yet."""


class BatchWriter:
    """Stores the files of a tar while it is received. Each becomes visible as a whole, when its digest was compared.

    Args:
        root: of the dataset.
        dataset: that the files are for.
        limits: of the disk.
    """

    def __init__(self, root: Root, dataset: Dataset, limits: ServiceLimits) -> None:
        self._root, self._dataset, self._limits = root, dataset, limits
        self._rest, self._offset = b"", 0  # of a member that is not complete
        self._reports: list[dict[str, Any]] = []  # of each file; completed by the thread that writes it
        self._num_skipped = 0
        self._writers = _Writers(dataset)

    def feed(self, data: bytes, *, is_last: bool = False) -> None:
        """Store the files that are complete with the next bytes of the tar.

        Args:
            data: of the tar.
            is_last: whether the tar ends with them.

        Raises:
            Problem: 400 or 413, for a tar that is damaged or incomplete, or exceeds a limit. The message says how many
                of its files were stored.
        """
        held = self._rest + data
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
        """Return what became of each member, when all files that were stored are on disk. May be called twice."""
        self._writers.__exit__(None)
        stored = [one for one in self._reports if "etag" in one]
        self._dataset.sync([one["path"] for one in stored])
        failed = [one for one in self._reports if "etag" not in one]
        return {"files": stored, "failed": failed, "num_skipped": self._num_skipped}

    def _take(self, path: str, data: bytes, sha256: str | None) -> None:
        if len(self._reports) == MAX_BATCH_FILES:
            raise self._problem(413, f"A batch may have {MAX_BATCH_FILES:,} files at most.")
        report: dict[str, Any] = {}
        self._reports.append(report)
        self._writers.submit(path, partial(self._store, report, path, data, sha256))

    def _store(self, report: dict[str, Any], path: str, data: bytes, sha256: str | None) -> None:
        received = hashlib.sha256(data).hexdigest()
        try:
            require_path(path)
            self._limits.require_file_bytes(len(data))
            if sha256 is not None and not _SHA256.fullmatch(sha256):
                raise Problem(400, f"The record {SHA256_RECORD} is {sha256!r:.100}, expected 64 hexadecimal digits.")
            if sha256 not in (None, received):
                raise Problem(400, f"The tar says SHA-256 {sha256}, the received bytes have {received}. Send it again.")
            stored = _write(self._dataset, path, [data], sync=False)
        except (RemoteDataError, Problem, OSError) as error:
            problem = problem_of(error)
            if problem is None:
                raise
            message = without_root(problem.message, self._root.url)
            report |= {"path": path, "status": problem.status, "error": message}
        else:
            report |= stored.as_json(sha256=received)

    def _problem(self, status: int, message: str) -> Problem:
        done = self.result()
        stored, failed = len(done["files"]), len(done["failed"])
        return Problem(status, f"{message} Of the files before, {stored:,} were stored and {failed:,} refused.", CLOSE)


def _parts(data: bytes, *, is_last: bool) -> Iterator[bytes]:
    yield data
    if not is_last:
        raise _IncompleteError
