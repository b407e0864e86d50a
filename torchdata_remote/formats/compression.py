"""Compress shards as their names say, and decompress archives of any kind, within limits."""

from __future__ import annotations

import bz2
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ..core.background import run_in_background
from ..errors import ShardReadError
from .limits import FREE_BYTES, MAX_DECOMPRESSED_BYTES, MAX_RATIO
from .tar import BLOCK, Data, is_header

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# zlib's wbits of a gzip stream; its header has no time and no name
_GZIP = 31
# zstd's own default, which differs between libraries
_ZSTD_OPTIONS: dict[int, int] = {
    zstd.CompressionParameter.compression_level: 3,
    zstd.CompressionParameter.checksum_flag: 1,
}
_PIECE_BYTES = 1 << 20
# RFC 8878: magic number; a frame without checksum and length; a window of 1 MiB. Blocks have at most 128 KiB.
_ZSTD_HEAD, _ZSTD_BLOCK_BYTES = b"\x28\xb5\x2f\xfd\x00\x50", 128 << 10


class Compressor(Protocol):
    """Compressor of one stream."""

    def compress(self, data: bytes, /) -> bytes:
        """Return compressed bytes of the next data; may be empty."""

    def flush(self) -> bytes:
        """Return the remaining compressed bytes, and the end of the stream."""


def is_compressed(name: str) -> bool:
    """Return whether an object of this name is written compressed.

    >>> is_compressed("s3://b/0.tar"), is_compressed("s3://b/0.tar.zst")
    (False, True)
    """
    return name.endswith((".gz", ".tgz", ".zst"))


def open_compressor(name: str) -> Compressor | None:
    """Return a compressor for an object of this name: gzip for ``.gz`` and ``.tgz``, zstd for ``.zst``, else ``None``.

    The output is the same for the same data with the same version of the library.

    Example:
        >>> import gzip
        >>> compressor = open_compressor("0.tar.gz")
        >>> gzip.decompress(compressor.compress(b"wren") + compressor.flush())
        b'wren'
    """
    if not is_compressed(name):
        return None
    if name.endswith(".zst"):
        return _Bounded(partial(zstd.ZstdCompressor, options=_ZSTD_OPTIONS), _stored_zstd)
    return _Bounded(partial(zlib.compressobj, wbits=_GZIP), _stored_gzip)


class _Bounded:
    """Limits the compression ratio, because readers take a higher one for a decompression bomb.

    At half of what readers allow, a piece is stored without compression, in a stream of its own between two others.
    Only bytes that a compressor has returned are counted, so the limit holds at each byte of the object.
    """

    def __init__(self, open_stream: Callable[[], Compressor], stored: Callable[[bytes], bytes]) -> None:
        self._open, self._stored = open_stream, stored
        self._bytes_in = self._bytes_out = 0
        # None between two streams
        self._stream: Compressor | None = None

    def compress(self, data: bytes, /) -> bytes:
        view = memoryview(data)
        return b"".join(self._compress(bytes(view[at : at + _PIECE_BYTES])) for at in range(0, len(view), _PIECE_BYTES))

    def flush(self) -> bytes:
        return b"" if self._stream is None and self._bytes_in else self._end()

    def _compress(self, piece: bytes) -> bytes:
        before = self._end() if self._stream is not None and self._exceeds_ratio(len(piece)) else b""
        self._bytes_out += len(before)
        self._bytes_in += len(piece)
        if self._exceeds_ratio(0):
            made = self._stored(piece)
        else:
            self._stream = self._stream or self._open()
            made = self._stream.compress(piece)
        self._bytes_out += len(made)
        return before + made

    def _exceeds_ratio(self, num_bytes: int) -> bool:
        return self._bytes_in + num_bytes > (FREE_BYTES + MAX_RATIO * self._bytes_out) // 2

    def _end(self) -> bytes:
        stream, self._stream = self._stream or self._open(), None
        return stream.flush()


def _stored_gzip(data: bytes) -> bytes:
    stream = zlib.compressobj(level=0, wbits=_GZIP)
    return stream.compress(data) + stream.flush()


def _stored_zstd(data: bytes) -> bytes:
    frame = [_ZSTD_HEAD]
    for at in range(0, len(data), _ZSTD_BLOCK_BYTES):
        block = data[at : at + _ZSTD_BLOCK_BYTES]
        is_last = at + len(block) == len(data)
        frame += ((len(block) << 3 | is_last).to_bytes(3, "little"), block)
    return b"".join(frame)


# How far back xz and zstd may refer, which is the memory that they take
WINDOW_BYTES = 64 << 20

_FEED_BYTES = 64 << 10
_CHUNK_BYTES = 1 << 20
_ERRORS = (zlib.error, lzma.LZMAError, zstd.ZstdError, OSError, EOFError, ValueError)
# Of bzip2, the digits of pi begin a block, those of its square root the end of a stream; zstd has skippable frames
_BEGINNINGS = re.compile(
    rb"(?P<gzip>\x1f\x8b\x08)|(?P<bzip2>BZh.(?:1AY&SY|\x17rE8P\x90))|(?P<xz>\xfd7zXZ\0)"
    rb"|(?P<zstd>\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)",
    re.DOTALL,
)


class _Gunzip:
    """zlib's decompressor, with the interface of the others."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=_GZIP)
        self.needs_input = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        chunk = self._stream.decompress(self._stream.unconsumed_tail + data, max_length)
        self.needs_input = not self._stream.unconsumed_tail and len(chunk) < max_length
        return chunk


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "gzip": _Gunzip,
    "bzip2": bz2.BZ2Decompressor,
    "xz": partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, memlimit=WINDOW_BYTES + (4 << 20)),
    "zstd": partial(
        zstd.ZstdDecompressor, options={zstd.DecompressionParameter.window_log_max: WINDOW_BYTES.bit_length() - 1}
    ),
}


@dataclass(frozen=True)
class CompressionLimits:
    """Limits for the size of a decompressed archive.

    Args:
        max_ratio: decompressed bytes for each compressed one, beyond the first 16 MiB.
        max_decompressed_bytes: in total.
    """

    max_ratio: int = MAX_RATIO
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES


def decompressed(
    parts: Iterable[Data], *, url: str, limits: CompressionLimits
) -> tuple[str | None, Generator[Data, None, None]]:
    """Return the name of the compression (``None`` for none) and the decompressed bytes, a generator to be closed.

    Supports gzip, bzip2, xz and zstd, each as one stream or several, as parallel compressors write them, in a thread of
    its own. The format is recognised by content.

    Args:
        parts: consecutive, of any length; pulled only from the thread that iterates.
        url: for error messages.
        limits: for the decompressed size.

    Raises:
        ShardReadError: for data that are damaged, incomplete, followed by other data, or beyond the limits.
    """
    source = iter(parts)
    head, first = b"", []
    while len(head) < BLOCK and (part := next(source, None)) is not None:
        first.append(part)
        head += bytes(part[:BLOCK])
    found = _BEGINNINGS.match(head)
    whole = _chained(first, source)
    # bzip2's magic may begin a member's name
    if found is None or is_header(head[:BLOCK]):
        return None, whole
    return found.lastgroup, run_in_background(whole, _Decompression(str(found.lastgroup), url, limits))


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
    found = _BEGINNINGS.match(data[:BLOCK])
    if found is None or found.lastgroup != name:
        raise ValueError(f"it begins with {data[:6]!r}, where {name} data were expected")
    stage = _Decompression(name, url, limits)
    whole = b"".join(stage.feed(data))
    stage.finish()
    return whole


def _chained(first: list[Data], rest: Iterator[Data]) -> Generator[Data, None, None]:
    while first:
        yield first.pop(0)
    yield from rest


class _Decompression:
    """Decompression of one archive, a stage for ``run_in_background``."""

    def __init__(self, name: str, url: str, limits: CompressionLimits) -> None:
        self._name, self._url, self._limits = name, url, limits
        # None between two streams
        self._stream: Any = None
        self._bytes_in = self._bytes_out = 0

    def feed(self, part: Data) -> Iterator[bytes]:
        """Yield the decompressed bytes of the next part, in chunks of at most 1 MiB."""
        view = memoryview(part)
        # In small pieces, because zlib copies the input that it has not used
        for start in range(0, len(view), _FEED_BYTES):
            yield from self._chunks(bytes(view[start : start + _FEED_BYTES]))

    def _chunks(self, data: bytes) -> Iterator[bytes]:
        self._bytes_in += len(data)
        while data or (self._stream is not None and not self._stream.needs_input):
            if self._stream is None:
                data = data.lstrip(b"\0")  # padding after a stream
                if not data:
                    return
                self._stream = _DECOMPRESSORS[self._name]()
            try:
                chunk = self._stream.decompress(data, _CHUNK_BYTES)
            except _ERRORS as error:
                # The libraries report too large a window in no other way
                if "emory" not in str(error):
                    raise self._fault(
                        f"the {self._name} data are damaged ({error})", "Write the shard again."
                    ) from error
                what = f"the {self._name} data refer back more than {WINDOW_BYTES:,} bytes"
                advice = "Compress the shard with a smaller window: xz up to -9, zstd up to --long=26."
                raise self._fault(what, advice) from error
            data = b""
            if self._stream.eof:
                data, self._stream = self._stream.unused_data, None
            if chunk:
                self._count(len(chunk))
                yield chunk

    def finish(self) -> None:
        """End the input.

        Raises:
            ShardReadError: if the last stream is incomplete.
        """
        if self._stream is not None:
            raise self._fault(f"the {self._name} data end early", "The upload was cut short: write it again.")

    def _count(self, num_bytes: int) -> None:
        self._bytes_out += num_bytes
        limits = self._limits
        if self._bytes_out > min(limits.max_decompressed_bytes, FREE_BYTES + limits.max_ratio * self._bytes_in):
            raise self._fault(
                f"{self._bytes_out:,} decompressed bytes, more than max_ratio={limits.max_ratio}, beyond 16 MiB, or "
                f"max_decompressed_bytes={limits.max_decompressed_bytes} allow",
                "If that is what the shard holds, raise the limit.",
            )

    def _fault(self, what: str, advice: str) -> ShardReadError:
        where = f"before compressed byte {self._bytes_in:,}"
        return ShardReadError(f"{self._url}: {where}: {what}. {advice}", url=self._url)
