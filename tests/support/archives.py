"""Archives in memory, read by the package's readers."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import tracemalloc
import zipfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import torchdata_remote as tdr
from torchdata_remote.errors import ShardReadError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

URL = "s3://b/t-000.tar"
PIECE_BYTES = 1 << 20  # that readers ask for; other reads are of ranges
Sample = dict[str, Any]
Members = list[tuple[str, bytes]]

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, 6, mtime=0),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: bytes(zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})),
}


class Stream(io.BytesIO):
    """A file whose pieces end at some cuts, as those of a socket do anywhere."""

    def __init__(self, data: bytes, cuts: Iterable[int] = ()) -> None:
        super().__init__(data)
        self._cuts = sorted(cuts)

    def read(self, size: int | None = -1) -> bytes:
        at = self.tell()
        if size == PIECE_BYTES and (number := bisect_right(self._cuts, at)) < len(self._cuts):
            size = self._cuts[number] - at
        return super().read(size)


def reader(data: bytes, form: str = "tar", *, cuts: Iterable[int] = (), **options: Any) -> Any:
    """The pipe that reads an archive, in the pieces between some cuts."""
    source = tdr.IterableWrapper([(URL, Stream(data, cuts))], deepcopy=False)
    return (tdr.pipes.ShardTarReader if form == "tar" else tdr.pipes.ShardZipReader)(source, **options)


def bare(samples: Iterable[Sample]) -> list[Sample]:
    """Samples without the place that they are from."""
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in samples]


def read(data: bytes, form: str = "tar", **options: Any) -> list[Sample]:
    return bare(reader(data, form, **options))


def outcome(pipe: Iterable[Sample]) -> tuple[list[Sample], ShardReadError | None]:
    """The samples, and the error that the pass ended with."""
    found: list[Sample] = []
    try:
        for sample in pipe:
            found += bare([sample])
    except ShardReadError as error:
        return found, error
    return found, None


def outcomes(
    archives: Iterable[bytes], form: str = "tar", **options: Any
) -> Iterator[tuple[list[Sample], ShardReadError | None]]:
    """The same of each of many archives, by one pass."""
    errors: dict[str, ShardReadError] = {}
    begun: list[str] = []

    def streams() -> Iterator[tuple[str, Stream]]:
        for number, data in enumerate(archives):
            begun.append(f"s3://b/{number}")
            yield begun[-1], Stream(data)

    def keep(error: ShardReadError) -> None:
        errors[str(error.url)] = error

    kind = tdr.pipes.ShardTarReader if form == "tar" else tdr.pipes.ShardZipReader
    pipe = kind(tdr.IterableWrapper(streams(), deepcopy=False), on_bad_shard=keep, **options)
    found: list[Sample] = []
    num_told = 0
    for sample in pipe:
        while begun[num_told] != sample["__url__"]:
            yield found, errors.pop(begun[num_told], None)
            found, num_told = [], num_told + 1
        found += bare([sample])
    for url in begun[num_told:]:
        yield found, errors.pop(url, None)
        found = []


def refusal(data: bytes, form: str = "tar", **options: Any) -> str:
    """The message of the error that reading ends with, which names the shard."""
    with pytest.raises(ShardReadError) as caught:
        list(reader(data, form, **options))
    assert caught.value.url == URL
    assert str(caught.value).startswith(URL)
    return str(caught.value)


def grouped(members: Iterable[tuple[str, bytes]]) -> list[Sample]:
    """The samples of members whose names are key, dot, extension."""
    samples: dict[str, Sample] = {}
    for name, data in members:
        base = name.rfind("/") + 1
        key, extension = name[: name.index(".", base)], name[name.index(".", base) + 1 :]
        samples.setdefault(key, {"__key__": key})[extension] = data
    return list(samples.values())


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def pack_zip(members: Iterable[tuple[str, bytes]], methods: Sequence[int] = (zipfile.ZIP_STORED,)) -> bytes:
    """An archive of ``zipfile``, compressed by these methods in turn."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for index, (name, data) in enumerate(members):
            archive.writestr(zipfile.ZipInfo(name), data, methods[index % len(methods)])
    return stream.getvalue()


@contextmanager
def at_most(limit_bytes: int) -> Iterator[None]:
    """Python takes no more memory than that."""
    tracemalloc.start()
    try:
        yield
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < limit_bytes
