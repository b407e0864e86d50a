"""Compress objects, with the format that their names end in. Equal input gives equal output."""

from __future__ import annotations

import sys
import zlib
from typing import Protocol

from ..limits import FREE_BYTES, MAX_RATIO

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# zstd's own default, which differs between libraries
_ZSTD_LEVEL = 3
# zlib's wbits of a gzip stream; its header has no time and no name
_GZIP = 31
_PIECE_BYTES = 1 << 20

# RFC 8878: magic number; a frame without checksum and length; a window of 1 MiB. Blocks have at most 128 KiB.
_ZSTD_HEAD = b"\x28\xb5\x2f\xfd\x00\x50"
_ZSTD_BLOCK_BYTES = 128 << 10


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
    return _Zstd() if name.endswith(".zst") else _Gzip()


class _Bounded:
    """Limits the compression ratio, because readers take a higher one for a decompression bomb.

    At half of what readers allow, a piece is stored without compression, in a stream of its own between two others.
    Only bytes that a compressor has returned are counted, so the limit holds at each byte of the object.
    """

    def __init__(self) -> None:
        self._bytes_in = self._bytes_out = 0
        # None between two streams
        self._stream: Compressor | None = None

    def compress(self, data: bytes, /) -> bytes:
        view = memoryview(data)
        return b"".join(self._compress(view[at : at + _PIECE_BYTES]) for at in range(0, len(view), _PIECE_BYTES))

    def flush(self) -> bytes:
        if self._stream is None and self._bytes_in:
            return b""
        return self._end()

    def _compress(self, piece: memoryview) -> bytes:
        before = b""
        if self._exceeds_ratio(len(piece)):
            before = self._end() if self._stream is not None else b""
            self._bytes_out += len(before)
        self._bytes_in += len(piece)
        if self._exceeds_ratio(0):
            made = self._stored(bytes(piece))
        else:
            self._stream = self._stream or self._open()
            made = self._stream.compress(bytes(piece))
        self._bytes_out += len(made)
        return before + made

    def _exceeds_ratio(self, num_bytes: int) -> bool:
        return self._bytes_in + num_bytes > (FREE_BYTES + MAX_RATIO * self._bytes_out) // 2

    def _end(self) -> bytes:
        stream, self._stream = self._stream or self._open(), None
        return stream.flush()

    def _open(self) -> Compressor:
        raise NotImplementedError

    def _stored(self, data: bytes) -> bytes:
        """Return a whole stream of stored data."""
        raise NotImplementedError


class _Gzip(_Bounded):
    def _open(self) -> Compressor:
        return zlib.compressobj(wbits=_GZIP)

    def _stored(self, data: bytes) -> bytes:
        stream = zlib.compressobj(level=0, wbits=_GZIP)
        return stream.compress(data) + stream.flush()


class _Zstd(_Bounded):
    def _open(self) -> Compressor:
        parameters = zstd.CompressionParameter
        return zstd.ZstdCompressor(options={parameters.compression_level: _ZSTD_LEVEL, parameters.checksum_flag: 1})

    def _stored(self, data: bytes) -> bytes:
        frame = [_ZSTD_HEAD]
        for at in range(0, len(data), _ZSTD_BLOCK_BYTES):
            block = data[at : at + _ZSTD_BLOCK_BYTES]
            is_last = at + len(block) == len(data)
            frame += ((len(block) << 3 | is_last).to_bytes(3, "little"), block)
        return b"".join(frame)
