"""Many files as one archive: a tar of a dataset while it streams, and archives that become files. All calls block."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from ...errors import ObjectChangedError, ObjectNotFoundError
from ...formats.compression.decompress import CompressionLimits, decompressed
from ...formats.tar import END_OF_ARCHIVE, TarOptions, TarParser, pack_header, padding
from ...formats.zip import read_directory, read_pieces
from ...storage.registry import Entry
from .dataset_root import CHUNK_BYTES, DatasetRoot
from .digests import Digests, publish
from .limits import ServiceLimits
from .names import require_path
from .problems import Problem

# A note beside an archive whose files are being written: after a kill, the next service writes the others.
COMMITTED = "committed"
_ZIP = (b"PK\3\4", b"PK\5\6")
_NUM_WRITERS = 8  # each waits for the disk once a file
_SMALL_BYTES = 4 << 20
_Pieces = Iterator[bytes | memoryview]


class Unpacked(NamedTuple):
    """How many files an archive had, and their bytes; and how many links and devices, which are left out."""

    num_files: int
    num_bytes: int
    num_skipped: int


def tar_of(shelf: DatasetRoot, folder: str) -> Iterator[bytes]:
    """All files of a folder as a tar, sorted by path, in chunks of at most about 1 MiB.

    Raises:
        ObjectChangedError: if one is replaced, before anything of it or in the middle.
    """
    small: list[bytes] = []  # files of a few bytes go out together
    small_bytes = 0
    for entry in shelf.files(folder):
        size = entry.size or 0
        small.append(pack_header(entry.path, size))
        for chunk in _chunks_of(shelf, entry._replace(path=folder + entry.path)):
            small.append(bytes(chunk))
            small_bytes += len(chunk)
            if small_bytes >= CHUNK_BYTES:
                yield b"".join(small)
                small, small_bytes = [], 0
        small.append(bytes(padding(size)))
        small_bytes += 2 * len(END_OF_ARCHIVE)
        if small_bytes >= CHUNK_BYTES:
            yield b"".join(small)
            small, small_bytes = [], 0
    yield b"".join([*small, END_OF_ARCHIVE])


def _chunks_of(shelf: DatasetRoot, entry: Entry) -> Iterator[memoryview]:
    """One that is gone was there when the archive began: that is a change as well."""
    try:
        yield from shelf.chunks(entry)
    except ObjectNotFoundError as error:
        raise ObjectChangedError(f"{entry.path} was removed.", url=error.url, etag=entry.etag) from error


def members(
    shelf: DatasetRoot,
    archive: Entry,
    name: str,
    limits: ServiceLimits,
    on_skip: Callable[[str], object] = lambda kind: None,
) -> Iterator[tuple[str, int, _Pieces]]:
    """Path, size and data of each file in a tar, which may be compressed, or a zip; data have to be taken in turn.

    Args:
        shelf: where the archive lies.
        archive: as ``stat`` told of it.
        name: for error messages.
        limits: of files and bytes.
        on_skip: called with ``"directory"``, ``"link"`` or ``"device"`` for each member that is passed over.

    Raises:
        ShardReadError: for what is damaged, or neither of these.
        Problem: 400, for names that cannot be paths; 413, beyond the limits.
    """
    num_files = num_bytes = 0
    seen: set[bytes] = set()
    for path, size, pieces in _members(shelf, archive, name, limits, on_skip):
        path = path.removeprefix("./")
        require_path(path)
        key = hashlib.sha256(path.encode()).digest()[:16]
        num_files, num_bytes = num_files + 1, num_bytes + size
        if key in seen:
            raise Problem(400, f"The archive has {path!r:.200} twice.")
        seen.add(key)
        if num_files > limits.max_unpacked_files or num_bytes > limits.max_file_bytes:
            raise Problem(
                413,
                f"An archive may have {limits.max_unpacked_files:,} files and {limits.max_file_bytes:,} bytes at most.",
            )
        yield path, size, pieces


def _members(
    shelf: DatasetRoot, archive: Entry, name: str, limits: ServiceLimits, on_skip: Callable[[str], object]
) -> Iterator[tuple[str, int, _Pieces]]:
    def read(start: int, end: int) -> bytes:
        return b"".join(shelf.chunks(archive, start, end))

    assert archive.size is not None
    if read(0, min(4, archive.size)) in _ZIP:
        entries = read_directory(read, archive.size, url=name)
        pieces = read_pieces(shelf.chunks(archive), entries, url=name, max_member_bytes=limits.max_file_bytes)
        for entry, data in pieces:
            if entry.kind == "file":
                yield entry.path, entry.num_bytes, data
            else:
                on_skip(entry.kind)
            for _ in data:
                pass
        return
    unpacked = CompressionLimits(max_decompressed_bytes=limits.max_file_bytes)
    compression, parts = decompressed(shelf.chunks(archive), url=name, limits=unpacked)
    try:
        num_bytes = archive.size if compression is None else None
        options = TarOptions(num_bytes=num_bytes, max_member_bytes=limits.max_file_bytes, on_skip=on_skip)
        walk = TarParser(parts, name, options)
        while (member := walk.next_member()) is not None:
            path, size = member
            yield path, size, walk.pieces(size, f"member {path!r:.200}")
    finally:
        parts.close()


def check(shelf: DatasetRoot, archive: Entry, folder: str, name: str, limits: ServiceLimits) -> Unpacked:
    """Read a whole archive, and write nothing.

    Raises:
        ShardReadError, Problem: as :func:`members`; 507, if its files would not fit on the disk; 409, where a folder or
            a file of the dataset is in their way.
    """
    num_files = num_bytes = 0
    free_bytes = shelf.free_bytes()
    paths: set[str] = set()
    skipped: Counter[str] = Counter()
    for path, size, pieces in members(shelf, archive, name, limits, lambda kind: skipped.update([kind])):
        num_files, num_bytes = num_files + 1, num_bytes + size
        if free_bytes is not None and free_bytes - num_bytes < limits.min_free_bytes:
            raise Problem(
                507, f"The archive unpacks to {num_bytes:,} bytes and more; the disk has {free_bytes:,} left."
            )
        shelf.require_place(folder, path)
        paths.add(path)
        for _ in pieces:
            pass
    for path in paths:
        above = path
        while above := above.rpartition("/")[0]:
            if above in paths:
                raise Problem(400, f"The archive has a file {above!r:.200}, and {path!r:.200} below it.")
    return Unpacked(num_files, num_bytes, skipped["link"] + skipped["device"])


def commit(shelf: DatasetRoot, digests: Digests, folder: str, dataset: str) -> None:
    """Note beside an archive that it is being unpacked into a dataset, which the next service finishes after a kill."""
    write_file(shelf, digests, folder, COMMITTED, [dataset.encode()])


def unpack(shelf: DatasetRoot, digests: Digests, archive: Entry, folder: str, name: str, limits: ServiceLimits) -> None:
    """Write the files of an archive that was checked. Each appears whole; doing it again changes nothing.

    Raises:
        Problem: 409, where a folder or a file is in a file's way.
    """
    running: set[Future[object]] = set()
    with ThreadPoolExecutor(_NUM_WRITERS, "unpack") as pool:
        for path, size, pieces in members(shelf, archive, name, limits):
            if size > _SMALL_BYTES:
                write_file(shelf, digests, folder, path, pieces)
                continue
            data = b"".join(pieces)
            running.add(pool.submit(write_file, shelf, digests, folder, path, [data]))
            if len(running) >= 2 * _NUM_WRITERS:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
        for future in running:
            future.result()


def write_file(
    shelf: DatasetRoot, digests: Digests, folder: str, path: str, pieces: Iterable[bytes | memoryview]
) -> None:
    """Write a file that appears when all of its pieces are there."""
    digest, pending = hashlib.sha256(), shelf.begin(folder, path)
    try:
        for piece in pieces:
            digest.update(piece)
            pending.write(bytes(piece))
    except BaseException:
        pending.abort()
        raise
    publish(shelf, digests, pending, folder, path, digest.hexdigest())
