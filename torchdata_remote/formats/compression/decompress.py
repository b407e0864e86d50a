"""Decompress archives in a background thread, within limits; the format is recognised by content."""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ...core.background import run_in_background
from ...errors import ShardReadError
from ..limits import FREE_BYTES, MAX_DECOMPRESSED_BYTES, MAX_RATIO
from ..tar.header import BLOCK, is_header

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# How far back xz and zstd may refer, which is the memory that they take
WINDOW_BYTES = 64 << 20

_WINDOW_LOG = WINDOW_BYTES.bit_length() - 1
_FEED_BYTES = 64 << 10
_CHUNK_BYTES = 1 << 20
# Beyond the first streams, each must decompress to some bytes on average
_FREE_STREAMS = 1_000
_MIN_STREAM_BYTES = 512

_Parts = Generator[bytes | memoryview, None, None]


@dataclass(frozen=True)
class CompressionLimits:
    """Limits for the size of a decompressed archive.

    Args:
        max_ratio: decompressed bytes for each compressed one, beyond the first 16 MiB.
        max_decompressed_bytes: in total.
    """

    max_ratio: int = MAX_RATIO
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES


class _Stream(Protocol):
    """A decompressor of one compressed stream, of which several may follow each other."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gzip:
    """zlib's decompressor, with the interface of the others."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        chunk = self._stream.decompress(self._stream.unconsumed_tail + data, max_length)
        self.needs_input = not self._stream.unconsumed_tail and len(chunk) < max_length
        return chunk


@dataclass(frozen=True)
class _Format:
    name: str
    begins: Callable[[bytes], bool]
    open: Callable[[], _Stream]


def _begins_bzip2(head: bytes) -> bool:
    # The digits of pi begin a block, those of its square root the end of a stream
    return head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90")


_FORMATS = (
    _Format("gzip", lambda head: head[:3] == b"\x1f\x8b\x08", _Gzip),
    _Format("bzip2", _begins_bzip2, bz2.BZ2Decompressor),
    _Format(
        "xz",
        lambda head: head[:6] == b"\xfd7zXZ\0",
        lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=WINDOW_BYTES + (4 << 20)),
    ),
    _Format(
        "zstd",
        lambda head: head[:4] == b"\x28\xb5\x2f\xfd" or (head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5),
        lambda: zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}),
    ),
)
_ERRORS = (zlib.error, lzma.LZMAError, zstd.ZstdError, OSError, EOFError, ValueError)


def decompressed(
    parts: Iterable[bytes | memoryview], *, url: str, limits: CompressionLimits
) -> tuple[str | None, _Parts]:
    """Return the name of the compression (``None`` for none) and the decompressed bytes, a generator to be closed.

    Supports gzip, bzip2, xz and zstd, each as one stream or several, as parallel compressors write them.

    Args:
        parts: consecutive, of any length; pulled only from the thread that iterates.
        url: for error messages.
        limits: for the decompressed size.

    Raises:
        ShardReadError: for data that are damaged, incomplete, followed by other data, or beyond the limits.
    """
    source = iter(parts)
    head, first = b"", []
    for part in source:
        first.append(part)
        head += bytes(part[:BLOCK])
        if len(head) >= BLOCK:
            break
    whole = _chained(first, source)
    for known in _FORMATS:
        if known.begins(head) and not is_header(head[:BLOCK]):  # bzip2's magic may begin a member's name
            return known.name, run_in_background(whole, _Decompression(known, url, limits))
    return None, whole


def decompressed_whole(data: bytes, *, name: str, url: str, limits: CompressionLimits) -> bytes:
    """Decompress data in memory, in the calling thread.

    Args:
        data: compressed.
        name: of the compression: ``gzip``, ``bzip2``, ``xz`` or ``zstd``.
        url: for error messages.
        limits: for the decompressed size.

    Raises:
        ValueError: if the data do not begin as data of this compression.
        ShardReadError: as :func:`decompressed`.
    """
    known = next(known for known in _FORMATS if known.name == name)
    if not known.begins(data[:BLOCK]):
        raise ValueError(f"it begins with {data[:6]!r}, where {name} data were expected")
    stage = _Decompression(known, url, limits)
    whole = b"".join(stage.feed(data))
    stage.finish()
    return whole


def _chained(first: list[bytes | memoryview], rest: Iterator[bytes | memoryview]) -> _Parts:
    while first:
        yield first.pop(0)
    yield from rest


class _Decompression:
    """Decompression of one archive, a stage for ``run_in_background``."""

    def __init__(self, known: _Format, url: str, limits: CompressionLimits) -> None:
        self._format, self._url, self._limits = known, url, limits
        self._stream: _Stream | None = None
        self._bytes_in = self._bytes_out = self._num_streams = 0

    def feed(self, part: bytes | memoryview) -> Iterator[bytes]:
        """Yield the decompressed bytes of the next part, in chunks of at most 1 MiB."""
        view = memoryview(part)
        # In small pieces, because zlib copies the input that it has not used
        for start in range(0, len(view), _FEED_BYTES):
            data = bytes(view[start : start + _FEED_BYTES])
            self._bytes_in += len(data)
            yield from self._feed(data)

    def _feed(self, data: bytes) -> Iterator[bytes]:
        while data or (self._stream is not None and not self._stream.needs_input):
            if self._stream is None:
                data = data.lstrip(b"\0")  # padding after a stream
                if not data:
                    return
                self._stream = self._format.open()
                self._num_streams += 1
                if self._num_streams > _FREE_STREAMS + self._bytes_out // _MIN_STREAM_BYTES:
                    what = f"{self._num_streams:,} streams of {self._format.name} for {self._bytes_out:,} bytes"
                    raise self._fault(what, "Compress the shard as one stream.")
            try:
                chunk = self._stream.decompress(data, _CHUNK_BYTES)
            except _ERRORS as error:
                raise self._unreadable(error) from error
            data = b""
            if self._stream.eof:
                data, self._stream = self._stream.unused_data, None
            if chunk:
                self._count(len(chunk))
                yield chunk

    def _unreadable(self, error: Exception) -> ShardReadError:
        # The libraries report this in no other way
        if "emory" in str(error):
            what = f"the {self._format.name} data refer back more than {WINDOW_BYTES:,} bytes"
            return self._fault(what, "Compress the shard with a smaller window: xz up to -9, zstd up to --long=26.")
        return self._fault(f"the {self._format.name} data are damaged ({error})", "Write the shard again.")

    def finish(self) -> None:
        """End the input.

        Raises:
            ShardReadError: if the last stream is incomplete.
        """
        if self._stream is not None:
            raise self._fault(f"the {self._format.name} data end early", "The upload was cut short: write it again.")

    def _count(self, num_bytes: int) -> None:
        self._bytes_out += num_bytes
        most = min(self._limits.max_decompressed_bytes, FREE_BYTES + self._limits.max_ratio * self._bytes_in)
        if self._bytes_out > most:
            raise self._fault(
                f"{self._bytes_out:,} decompressed bytes, more than max_ratio={self._limits.max_ratio}, beyond 16 MiB, "
                f"or max_decompressed_bytes={self._limits.max_decompressed_bytes} allow",
                "If that is what the shard holds, raise the limit.",
            )

    def _fault(self, what: str, advice: str) -> ShardReadError:
        where = f"before compressed byte {self._bytes_in:,}"
        return ShardReadError(f"{self._url}: {where}: {what}. {advice}", url=self._url)
