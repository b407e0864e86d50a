"""Archives: a dataset as a tar, a tar or zip as files, and batches of small files in one tar. All calls block."""

from __future__ import annotations

import contextlib
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import BinaryIO

from ...formats.compression import CompressionLimits, decompressed
from ...formats.tar import END_OF_ARCHIVE, TarOptions, TarParser, pack_header, padding
from ...formats.zip import ZipArchive
from ...storage.dataset_service.protocol import DAMAGED, SHA256_RECORD
from .context import Context, Dataset, Opened, all_files, each
from .folder import chunks_of
from .problems import Problem
from .requests import require_path
from .root import CHUNK_BYTES, STREAM_BYTES, File

_ZIP = (b"PK\3\4", b"PK\5\6")
_NUM_WRITERS = 4
_SMALL_BYTES, _GROUP_FILES, _MAX_FILES = 4 << 20, 500, 10_000_000
_NO_HEADER = b"\xff" * 512
Data = bytes | memoryview


# Out


def tar_stream(dataset: Dataset, paths: Iterable[str] | None = None) -> Iterator[bytes]:
    """Stream files of a dataset as a tar, in chunks of about 256 KiB. One that breaks off is no tar.

    It ends inside a member, or with a header that is none: GNU tar takes one that ends between two members for whole.

    Args:
        dataset: of the files.
        paths: of the files, of which missing ones are left out; ``None`` for all, sorted by path.

    Raises:
        ObjectChangedError: if a listed file is replaced or removed meanwhile.
    """
    waiting, num_bytes = list[Data](), 0  # small files are sent together
    is_begun, is_inside = False, False  # the response; a member
    try:
        for one in each(dataset, partial(_opened, dataset), all_files(dataset) if paths is None else paths):
            if one is not None:
                is_inside = True
                for piece in _member(*one):
                    waiting.append(piece)
                    num_bytes += len(piece)
                    if num_bytes >= STREAM_BYTES:
                        is_begun = True
                        yield b"".join(waiting)
                        waiting, num_bytes = [], 0
                is_inside = False
    except Exception:
        if is_begun and not is_inside:
            yield b"".join([*waiting, _NO_HEADER])
        raise
    yield b"".join([*waiting, END_OF_ARCHIVE])


def _opened(dataset: Dataset, wanted: File | str) -> tuple[Opened, bytes | None] | None:
    """Open a file, with its data if it is small and takes a request, which is then sent ahead."""
    try:
        opened = dataset.open(wanted) if isinstance(wanted, str) else dataset.open(wanted.path, wanted)
    except Problem as problem:
        if problem.status != 404:
            raise
        return None
    is_ahead = dataset.num_readers > 1 and opened.file.size <= STREAM_BYTES
    return opened, b"".join(opened.chunks(0, opened.file.size, STREAM_BYTES)) if is_ahead else None


def _member(opened: Opened, data: bytes | None) -> Iterator[Data]:
    with contextlib.closing(opened):
        yield pack_header(opened.file.path, opened.file.size)
        yield from opened.chunks(0, opened.file.size, STREAM_BYTES) if data is None else [data]
        yield bytes(padding(opened.file.size))


# In


def unpack(context: Context, dataset: Dataset, archive: BinaryIO, name: str) -> dict[str, int]:
    """Make the files of an archive those of a dataset, when all of it was read and none of them conflicts.

    Each file becomes visible as a whole. A tar may say the SHA-256 of a file, which is compared.

    Args:
        context: of the application.
        dataset: that the files are for.
        archive: the archive, in a file.
        name: of the archive, for error messages.

    Returns:
        Numbers of files, of their bytes, and of links and devices that were skipped.

    Raises:
        ShardReadError: for a damaged archive, or another format.
        Problem: 400, for names that are not valid paths, and wrong digests; 413, beyond the limits; 507, if its files
            do not fit on the disk; 409, if a folder or a file of the dataset has one of the paths; 404, if the dataset
            was removed.
    """
    limits, free_bytes, num_bytes = context.limits, context.root.free_bytes(), 0
    paths, skipped = set[str](), list[str]()
    for path, size, pieces, promised in _members(context, archive, name, skipped):
        num_bytes += size
        if require_path(path) in paths:
            raise Problem(400, f"The archive contains {path!r:.200} twice.")
        if num_bytes > limits.max_file_bytes or len(paths) == _MAX_FILES:
            most = f"{_MAX_FILES:,} files of {limits.max_file_bytes:,} bytes"
            raise Problem(413, f"An archive may have {most} together.")
        limits.require_space(free_bytes, num_bytes)
        dataset.require_writable(path)
        paths.add(path)
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        if promised not in (None, digest.hexdigest()):
            raise Problem(400, f"{path!r:.200} has SHA-256 {digest.hexdigest()}, not {promised:.100}. {DAMAGED}.")
    for path in paths:
        above = path
        while above := above.rpartition("/")[0]:
            if above in paths:
                raise Problem(400, f"The archive contains a file {above!r:.200}, and {path!r:.200} below it.")
    _store(dataset, _members(context, archive, name, []))
    num_skipped = sum(kind in ("link", "device") for kind in skipped)
    return {"num_files": len(paths), "num_bytes": num_bytes, "num_skipped": num_skipped}


_Member = tuple[str, int, Iterator[Data], str | None]  # path, size, data, SHA-256 that the archive says


def _members(context: Context, archive: BinaryIO, name: str, skipped: list[str]) -> Iterator[_Member]:
    """Iterate over the files. Data that is not read is passed over."""
    for path, size, pieces, promised in _all_members(context, archive, name, skipped):
        yield path.removeprefix("./"), size, context.stopping.during(pieces), promised
        for _ in pieces:
            pass


def _all_members(context: Context, archive: BinaryIO, name: str, skipped: list[str]) -> Iterator[_Member]:
    size, most, descriptor = archive.seek(0, 2), context.limits.max_file_bytes, archive.fileno()

    def read(start: int, end: int) -> bytes:
        return b"".join(chunks_of(descriptor, start, end, CHUNK_BYTES))

    chunks = chunks_of(descriptor, 0, size, CHUNK_BYTES)
    if read(0, min(4, size)) in _ZIP:
        for entry in ZipArchive(read, size, name).members(chunks, max_member_bytes=most):
            if entry.kind == "file":
                yield entry.path, entry.num_bytes, entry.pieces, None
            else:
                skipped.append(entry.kind)
        return
    limits = CompressionLimits(max_decompressed_bytes=most)
    compression, parts = decompressed(chunks, url=name, limits=limits)
    with contextlib.closing(parts):
        num_bytes = size if compression is None else None
        options = TarOptions(num_bytes=num_bytes, max_member_bytes=most, on_skip=skipped.append)
        walk = TarParser(parts, name, options)
        while (member := walk.next_member()) is not None:
            path, num_bytes = member
            yield path, num_bytes, walk.pieces(num_bytes, f"member {path!r:.200}"), walk.records.get(SHA256_RECORD)


def _store(dataset: Dataset, members: Iterable[_Member]) -> None:
    """Store files: small ones together, in threads, since each group waits for the disk or the bucket."""
    group, num_bytes, running = list[tuple[str, bytes]](), 0, deque[Future[None]]()
    with ThreadPoolExecutor(_NUM_WRITERS, "files") as pool:
        for path, size, pieces, _ in members:
            if size > _SMALL_BYTES:
                writer, digest = dataset.writer(path, {}), hashlib.sha256()
                try:
                    for piece in pieces:
                        digest.update(piece)
                        writer.write(piece)
                    writer.commit(digest.hexdigest())
                finally:
                    writer.abort()
                continue
            group.append((path, b"".join(pieces)))
            num_bytes += size
            if num_bytes > _SMALL_BYTES or len(group) == _GROUP_FILES:
                running.append(pool.submit(dataset.store, group))
                group, num_bytes = [], 0
            if len(running) > _NUM_WRITERS:
                running.popleft().result()
        dataset.store(group)
        for one in running:
            one.result()
