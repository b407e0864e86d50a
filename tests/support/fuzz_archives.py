"""Coverage-guided fuzzing of what reads archives: ``python -m tests.support.fuzz_archives --runs 100000 --seed 1``.

Whatever the bytes, they are samples or a ``RemoteDataError``, within a minute and 128 MiB. The first byte of
an input chooses the reader. An input that breaks this is printed in base64; ``--input BASE64`` reads it alone.
"""

from __future__ import annotations

import argparse
import base64
import bz2
import gc
import gzip
import io
import lzma
import os
import re
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

from tests.support.archive_bytes import make_member

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_CPU_S = 60.0  # an end: what is not linear takes hours
MAX_MORE_BYTES = 128 << 20  # twice what readers promise, since other threads take memory too
MAX_INPUT_BYTES = 1 << 14
BLOCK = 512
SMALL_MEMBERS = b"".join(make_member(b"%03d.jpg" % number, b"x" * (number % 3)) for number in range(80))
"""Behind so many, headers are found by scans."""


class InPieces(io.BytesIO):
    """A file of which each read gives so many bytes at most."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._size = size

    def read(self, size: int | None = -1) -> bytes:
        return super().read(size if self._size < 0 else self._size)


@contextmanager
def within_limits(*, exactly: bool = True) -> Iterator[None]:
    """At most a minute of CPU time in the block, in all threads, and 128 MiB more memory, that of C included.

    Args:
        exactly: whether garbage is collected before, and the peak counted anew; otherwise only a new peak is seen.
    """
    if exactly:
        gc.collect()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    before, started_s = _resident_bytes("VmRSS" if exactly else "VmHWM"), time.process_time()
    yield
    cpu_s, more = time.process_time() - started_s, _resident_bytes("VmHWM") - before
    assert cpu_s <= MAX_CPU_S, f"it took {cpu_s:.2f} s of CPU time"
    assert more <= MAX_MORE_BYTES, f"it took {more:,} bytes more memory"


def _resident_bytes(field: str) -> int:
    with open("/proc/self/status") as file:
        found = re.search(rf"{field}:\s*(\d+) kB", file.read())
    assert found is not None
    return int(found[1]) << 10


def seeds() -> Iterator[bytes]:
    """Small archives of every kind, sound ones, each with the byte that chooses its reader."""
    formats = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    files = [("a.txt", b"one"), ("a.x", b"x" * 600), ("p" * 90 + "/" + "n" * 60 + ".txt", b""), ("c.e", b"y" * 513)]
    tars = [_tar(files, kind) for kind in formats] + [
        _tar([*files, ("é" * 60 + ".x", b"")], kind) for kind in formats[1:]
    ]
    for archive in tars:
        yield b"\0" + archive
        yield b"\1" + archive
    outer = _tar([("a.tar", tars[0]), ("b.tgz", gzip.compress(tars[1]))], tarfile.USTAR_FORMAT)
    yield b"\2" + outer
    for compress in (gzip.compress, bz2.compress, lzma.compress, zstd.compress):
        yield b"\3" + compress(tars[0])
        yield b"\2" + compress(outer)
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", method) as archive_of_files:
            archive_of_files.writestr("d/a.txt", "one" * 20)
            archive_of_files.writestr("d/", "")
            with archive_of_files.open("d/é.txt", "w", force_zip64=True) as file:
                file.write(b"two")
        yield b"\4" + packed.getvalue()


def _tar(files: list[tuple[str, bytes]], tar_format: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as archive:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("l")
        link.type = tarfile.SYMTYPE
        archive.addfile(link)
    packed = buffer.getvalue().rstrip(b"\0")
    return packed + bytes(-len(packed) % BLOCK + 2 * BLOCK)


def with_checksums(data: bytes) -> bytes:
    """Headers of a tar whose checksums fit again, or a mutation would get no further than them."""
    mended = bytearray(data)
    for start in range(0, len(data) - BLOCK + 1, BLOCK):
        if data[start + 257 : start + 261] == b"usta":
            mended[start + 148 : start + 156] = b" " * 8
            mended[start + 148 : start + 156] = b"%06o\0 " % sum(mended[start : start + BLOCK])
    return bytes(mended)


class Readers:
    """What reads an input; made after torchdata_remote is instrumented."""

    def __init__(self) -> None:
        self._pipes, self._errors = import_module("torchdata_remote.pipes"), import_module("torchdata_remote.errors")
        tar, zip_file = self._pipes.ShardTarReader, self._pipes.ShardZipReader
        self._readers: list[Callable[[bytes], object]] = [
            lambda data: self._samples(tar, SMALL_MEMBERS + data),
            self._compare,
            lambda data: self._samples(tar, data, nested=True),
            lambda data: self._samples(tar, data),
            lambda data: self._samples(zip_file, data),
        ]

    def _samples(self, pipe: Any, data: bytes, size: int = -1, **options: Any) -> list[Any]:
        return list(pipe([("u", InPieces(data, size))], **options))

    def _outcome(self, data: bytes, size: int = -1) -> list[Any]:
        found: list[Any] = []
        try:
            for sample in self._pipes.ShardTarReader([("u", InPieces(data, size))], on_bad_member=found.append):
                found.append(sample)
        except self._errors.ShardReadError as error:
            found.append(error)
        return list(map(str, found))

    def _compare(self, data: bytes) -> None:
        """Many headers at once, or one by one since each piece is a block: the same samples, and the same error."""
        whole = SMALL_MEMBERS + data
        assert self._outcome(whole) == self._outcome(whole, BLOCK)

    def read(self, data: bytes, *, exactly: bool = False) -> str | None:
        """Read one input; returns the error that refused it, and raises for what must not be."""
        refusal = None
        try:
            with within_limits(exactly=exactly):
                try:
                    self._readers[data[0] % len(self._readers) if data else 0](data[1:])
                except self._errors.RemoteDataError as error:
                    refusal = str(error)
        except BaseException:
            sys.stderr.write(f"INPUT {base64.b64encode(data).decode()}\n")
            raise
        return refusal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="for the corpus and what crashes; a new one under /tmp unless told")
    parser.add_argument("--input", help="in base64: read this alone")
    options = parser.parse_args()
    atheris = None if options.input else import_module("atheris")
    with nullcontext() if atheris is None else atheris.instrument_imports(include=["torchdata_remote"]):
        readers = Readers()
    if atheris is None:
        sys.exit(readers.read(base64.b64decode(options.input), exactly=True))
    folder = options.folder or tempfile.mkdtemp(prefix="fuzz_archives")
    corpus = os.path.join(folder, "corpus")
    os.makedirs(corpus, exist_ok=True)
    for index, seed in enumerate(seeds()):
        with open(os.path.join(corpus, f"seed{index}"), "wb") as file:
            file.write(seed)

    def mutated(data: bytes, max_size: int, seed: int) -> bytes:
        changed: bytes = atheris.Mutate(data, max_size)
        return changed[:1] + with_checksums(changed[1:]) if changed[:1] in b"\0\1\2" and seed % 8 else changed

    limits = ["-timeout=10", "-rss_limit_mb=4096", f"-max_len={MAX_INPUT_BYTES}", f"-artifact_prefix={folder}/"]
    arguments = [sys.argv[0], f"-runs={options.runs}", f"-seed={options.seed}", *limits, corpus]

    def read(data: bytes) -> None:
        readers.read(data)

    atheris.Setup(arguments, read, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
