"""Compressors of whole objects."""

from __future__ import annotations

import gzip
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.formats.compression.compress import is_compressed, open_compressor
from torchdata_remote.formats.compression.decompress import CompressionLimits, decompressed

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENDINGS = [".tar.gz", ".tgz", ".tar.zst"]


def _compress(name: str, pieces: list[bytes]) -> bytes:
    compressor = open_compressor(name)
    assert compressor is not None
    return b"".join([*map(compressor.compress, pieces), compressor.flush()])


@given(pieces=st.lists(st.binary(max_size=5_000), max_size=6), ending=st.sampled_from(ENDINGS))
def test_compressed_data_are_decompressed(pieces: list[bytes], ending: str) -> None:
    """By the formats' own libraries and by this package, for input in pieces of any length."""
    data = _compress(f"0{ending}", pieces)
    plain = zstd.decompress(data) if ending.endswith("zst") else gzip.decompress(data)
    assert plain == b"".join(pieces)
    name, parts = decompressed([data], url="0", limits=CompressionLimits())
    assert name == ("zstd" if ending.endswith("zst") else "gzip")
    assert b"".join(parts) == plain


@given(st.lists(st.binary(max_size=5_000), max_size=4), st.sampled_from(ENDINGS))
def test_the_same_bytes_give_the_same_bytes(pieces: list[bytes], ending: str) -> None:
    """Twice in one process: neither holds a time or a name."""
    assert _compress(f"a{ending}", pieces) == _compress(f"b{ending}", pieces)


def test_gzip_holds_no_time_and_no_name() -> None:
    """Its header's flags and its time are 0."""
    assert _compress("0.tgz", [b"wren"])[:8] == b"\x1f\x8b\x08\0\0\0\0\0"


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_flipped_bit_is_noticed(ending: str) -> None:
    """Both formats carry a checksum of what was compressed, zstd because it is asked for."""
    data = bytearray(_compress(f"0{ending}", [b"wren " * 100]))
    data[-3] ^= 1
    with pytest.raises((gzip.BadGzipFile, zlib.error, zstd.ZstdError)):
        zstd.decompress(bytes(data)) if ending.endswith("zst") else gzip.decompress(bytes(data))


@pytest.mark.parametrize("name", ["0.tar", "0.zip", "gz", "0.tar.bz2", "0.gz.tar"])
def test_other_names_are_not_compressed(name: str) -> None:
    """What the ending does not say is not done."""
    assert not is_compressed(name)
    assert open_compressor(name) is None
