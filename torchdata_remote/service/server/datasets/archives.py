"""Stream a dataset as a tar, and unpack archives into files. All calls block."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from ....errors import ObjectChangedError, ObjectNotFoundError
from ....formats.compression import CompressionLimits, decompressed
from ....formats.tar import END_OF_ARCHIVE, TarOptions, TarParser, pack_header, padding
from ....formats.zip import ZipArchive
from ....storage import Entry
from ..limits import ServiceLimits
from ..problems import Problem
from .dataset_root import STREAM_BYTES, DatasetRoot
from .digests import Digests, filled_file, publish
from .lifetimes import LiveFolder
from .names import require_path

# A note beside an archive whose files are being written: after a kill, the next service writes the others.
COMMITTED = "committed"
_ZIP = (b"PK\3\4", b"PK\5\6")
_NUM_WRITERS = 8  # each waits for the disk once per file
_SMALL_BYTES = 4 << 20
Data = bytes | memoryview
WriteFile = Callable[[str, int, Iterable[Data]], None]


class Unpacked(NamedTuple):
    """Files in an archive, their bytes, and the links and devices that were skipped."""

    num_files: int
    num_bytes: int
    num_skipped: int


def tar_stream(root: DatasetRoot, folder: str, entries: Iterable[Entry] | None = None) -> Iterator[bytes]:
    """Stream files of a folder as a tar, in chunks of about 256 KiB.

    Args:
        root: the datasets.
        folder: with the files.
        entries: of its files, with paths below it; ``None`` for all, sorted by path.

    Raises:
        ObjectChangedError: if a file is replaced or removed meanwhile.
    """
    small: list[bytes] = []  # small files are sent together
    small_bytes = 0
    for entry in root.files(folder) if entries is None else entries:
        size = entry.size or 0
        small.append(pack_header(entry.path, size))
        for chunk in _chunks_of(root, entry._replace(path=folder + entry.path)):
            small.append(bytes(chunk))
            small_bytes += len(chunk)
            if small_bytes >= STREAM_BYTES:
                yield b"".join(small)
                small, small_bytes = [], 0
        small.append(bytes(padding(size)))
        small_bytes += 2 * len(END_OF_ARCHIVE)
        if small_bytes >= STREAM_BYTES:
            yield b"".join(small)
            small, small_bytes = [], 0
    yield b"".join([*small, END_OF_ARCHIVE])


def _chunks_of(root: DatasetRoot, entry: Entry) -> Iterator[memoryview]:
    """Read a file of the listing. One that was removed since then has changed too."""
    try:
        yield from root.chunks(entry, chunk_bytes=STREAM_BYTES)
    except ObjectNotFoundError as error:
        raise ObjectChangedError(f"{entry.path} was removed.", url=error.url, etag=entry.etag) from error


def members(
    root: DatasetRoot,
    archive: Entry,
    name: str,
    limits: ServiceLimits,
    on_skip: Callable[[str], object] = lambda kind: None,
) -> Iterator[tuple[str, int, Iterator[Data]]]:
    """Iterate over path, size and data of the files in a tar, compressed or not, or a zip. Data must be read in order.

    Args:
        root: the datasets.
        archive: as ``stat`` returned it.
        name: of the archive, for error messages.
        limits: of files and bytes.
        on_skip: called with ``"directory"``, ``"link"`` or ``"device"`` for each member that is skipped.

    Raises:
        ShardReadError: for a damaged archive, or another format.
        Problem: 400, for names that are not valid paths; 413, beyond the limits.
    """
    num_files = num_bytes = 0
    seen: set[bytes] = set()
    for path, size, pieces in _members(root, archive, name, limits, on_skip):
        path = path.removeprefix("./")
        require_path(path)
        key = hashlib.sha256(path.encode()).digest()[:16]
        num_files, num_bytes = num_files + 1, num_bytes + size
        if key in seen:
            raise Problem(400, f"The archive contains {path!r:.200} twice.")
        seen.add(key)
        if num_files > limits.max_unpacked_files or num_bytes > limits.max_file_bytes:
            raise Problem(
                413,
                f"An archive may have {limits.max_unpacked_files:,} files and {limits.max_file_bytes:,} bytes at most.",
            )
        yield path, size, pieces


def _members(
    root: DatasetRoot, archive: Entry, name: str, limits: ServiceLimits, on_skip: Callable[[str], object]
) -> Iterator[tuple[str, int, Iterator[Data]]]:
    def read(start: int, end: int) -> bytes:
        return b"".join(root.chunks(archive, start, end))

    assert archive.size is not None
    if read(0, min(4, archive.size)) in _ZIP:
        found = ZipArchive(read, archive.size, name)
        for entry in found.members(root.chunks(archive), max_member_bytes=limits.max_file_bytes):
            if entry.kind == "file":
                yield entry.path, entry.num_bytes, entry.pieces
            else:
                on_skip(entry.kind)
        return
    unpacked = CompressionLimits(max_decompressed_bytes=limits.max_file_bytes)
    compression, parts = decompressed(root.chunks(archive), url=name, limits=unpacked)
    try:
        num_bytes = archive.size if compression is None else None
        options = TarOptions(num_bytes=num_bytes, max_member_bytes=limits.max_file_bytes, on_skip=on_skip)
        walk = TarParser(parts, name, options)
        while (member := walk.next_member()) is not None:
            path, size = member
            yield path, size, walk.pieces(size, f"member {path!r:.200}")
    finally:
        parts.close()


def check(root: DatasetRoot, archive: Entry, folder: str, name: str, limits: ServiceLimits) -> Unpacked:
    """Read a whole archive without writing, and require that all its files can be stored.

    Raises:
        ShardReadError, Problem: as :func:`members`; 507, if its files do not fit on the disk; 409, if a folder or a
            file of the dataset has one of the paths that they need.
    """
    num_files = num_bytes = 0
    free_bytes = root.free_bytes()
    paths: set[str] = set()
    skipped: Counter[str] = Counter()
    for path, size, pieces in members(root, archive, name, limits, lambda kind: skipped.update([kind])):
        num_files, num_bytes = num_files + 1, num_bytes + size
        if free_bytes is not None and free_bytes - num_bytes < limits.min_free_bytes:
            raise Problem(
                507, f"The archive unpacks to at least {num_bytes:,} bytes; the disk has {free_bytes:,} left."
            )
        root.require_writable_path(folder, path)
        paths.add(path)
        for _ in pieces:
            pass
    for path in paths:
        above = path
        while above := above.rpartition("/")[0]:
            if above in paths:
                raise Problem(400, f"The archive contains a file {above!r:.200}, and {path!r:.200} below it.")
    return Unpacked(num_files, num_bytes, skipped["link"] + skipped["device"])


def commit(root: DatasetRoot, digests: Digests, folder: LiveFolder, dataset: str) -> None:
    """Note beside an archive that it is being unpacked into a dataset, which the next service finishes after a kill."""
    write_file(root, digests, folder, COMMITTED, [dataset.encode()])


def unpack(root: DatasetRoot, archive: Entry, name: str, limits: ServiceLimits, write: WriteFile) -> None:
    """Write the files of a checked archive. Each becomes visible as a whole. Repeating it changes nothing.

    Args:
        root: the datasets.
        archive: as ``stat`` returned it.
        name: of the archive, for error messages.
        limits: of files and bytes.
        write: called with path, size and data of each file; small files by several threads. It need not read the data.

    Raises:
        Problem: 409, if a folder or a file has a path that is needed; 404, if the dataset was removed.
    """
    running: set[Future[object]] = set()
    with ThreadPoolExecutor(_NUM_WRITERS, "unpack") as pool:
        for path, size, pieces in members(root, archive, name, limits):
            if size > _SMALL_BYTES:
                write(path, size, pieces)
                for _ in pieces:
                    pass
                continue
            data = b"".join(pieces)
            running.add(pool.submit(write, path, size, [data]))
            if len(running) >= 2 * _NUM_WRITERS:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
        for future in running:
            future.result()


def write_file(
    root: DatasetRoot,
    digests: Digests,
    folder: LiveFolder,
    path: str,
    pieces: Iterable[Data],
    by: Callable[[str], None] | None = None,
) -> None:
    """Write a file, which becomes visible when it is complete. ``by`` is that of :meth:`Life.changed`."""
    pending, sha256 = filled_file(root, folder, path, pieces)
    publish(root, digests, pending, folder, path, sha256, by)
