"""Compressors of whole objects, chosen by the ending of their names; equal bytes give equal bytes."""

from __future__ import annotations

import sys
import zlib
from typing import Protocol

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_ZSTD_LEVEL = 3  # zstd's own default, written down because libraries disagree
_GZIP = 31  # zlib's wbits of a gzip stream; its header holds no time and no name


class Compressor(Protocol):
    """One stream."""

    def compress(self, data: bytes, /) -> bytes:
        """What comes of the next bytes so far; may be empty."""

    def flush(self) -> bytes:
        """What is left, and the stream's end."""


def is_compressed(name: str) -> bool:
    """Whether an object of this name is written compressed.

    >>> is_compressed("s3://b/0.tar"), is_compressed("s3://b/0.tar.zst")
    (False, True)
    """
    return name.endswith((".gz", ".tgz", ".zst"))


def open_compressor(name: str) -> Compressor | None:
    """A compressor for an object of this name: gzip for ``.gz`` and ``.tgz``, zstd for ``.zst``, ``None`` for others.

    The same library gives the same bytes for the same data; another version of it may compress otherwise.

    Example:
        >>> import gzip
        >>> compressor = open_compressor("0.tar.gz")
        >>> gzip.decompress(compressor.compress(b"wren") + compressor.flush())
        b'wren'
    """
    if not is_compressed(name):
        return None
    if not name.endswith(".zst"):
        return zlib.compressobj(wbits=_GZIP)
    parameters = zstd.CompressionParameter
    return zstd.ZstdCompressor(options={parameters.compression_level: _ZSTD_LEVEL, parameters.checksum_flag: 1})
