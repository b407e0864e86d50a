"""Compressed streams: valid ones are decompressed, and everything else is an error within limits."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import sys
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.archive_bytes import in_parts
from tests.support.fuzz_archives import within_limits
from torchdata_remote.errors import ShardReadError
from torchdata_remote.formats.compression import decompress as compression
from torchdata_remote.formats.compression.decompress import WINDOW_BYTES, CompressionLimits, decompressed

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

URL = "s3://b/t-000.tar.gz"
MIB = 1 << 20


def _zstd(data: bytes) -> bytes:
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, 6, mtime=0),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": _zstd,
}
MAGIC_BYTES = {"gzip": 3, "bzip2": 10, "xz": 6, "zstd": 4}
FORMATS = pytest.mark.parametrize("name", COMPRESS)
TEXT = b"".join(b"%d, " % (i * i) for i in range(400))
SKIPPABLE = struct.pack("<2L", 0x184D2A5F, 5) + b"5data"
CUTS = st.lists(st.integers(0, 3000), max_size=12)


def _read(parts: Iterable[bytes | memoryview], **limits: int) -> tuple[str | None, bytes]:
    name, whole = decompressed(parts, url=URL, limits=CompressionLimits(**limits))
    return name, b"".join(whole)


def _error(data: bytes, **limits: int) -> str:
    with pytest.raises(ShardReadError) as caught:
        _read([data], **limits)
    assert caught.value.url == URL
    assert str(caught.value).startswith(f"{URL}: before compressed byte ")
    return str(caught.value)


@FORMATS
@given(streams=st.lists(st.binary(max_size=600), min_size=1, max_size=5), zeros=st.integers(0, 40), cuts=CUTS)
@example(streams=[b"", b"", b"a"], zeros=4, cuts=range(400))
def test_streams_are_decompressed_from_parts_of_any_length(
    name: str, streams: list[bytes], zeros: int, cuts: Any
) -> None:
    """One stream or several, empty ones among them, zeros after each, in parts of any length, of one byte too."""
    packed = b"".join(COMPRESS[name](data) + bytes(zeros) for data in streams)
    assert _read(in_parts(packed, cuts)) == (name, b"".join(streams))


@FORMATS
@pytest.mark.parametrize("num_bytes", [MIB - 1, MIB, MIB + 1, 3 * MIB])
def test_large_streams_are_decompressed(name: str, num_bytes: int) -> None:
    """Of more than one chunk, and of just one."""
    data = Random(1).randbytes(num_bytes // 2) + bytes(num_bytes - num_bytes // 2)
    assert _read([COMPRESS[name](data)]) == (name, data)


@given(streams=st.lists(st.binary(max_size=99), max_size=4), frames=st.lists(st.integers(0, 15), min_size=1), cuts=CUTS)
def test_skippable_frames_are_passed_over(streams: list[bytes], frames: list[int], cuts: list[int]) -> None:
    """Of each of their 16 numbers, as pzstd writes them, before, between and after frames with data."""
    skipped = b"".join(struct.pack("<2L", 0x184D2A50 + frame, frame) + bytes(frame) for frame in frames)
    packed = skipped + b"".join(_zstd(data) + skipped for data in streams)
    assert _read(in_parts(packed, cuts)) == ("zstd", b"".join(streams))


@given(data=st.binary(max_size=40).filter(lambda data: data[:1] not in b"\x1f\xfd(BPQRSTUVWXYZ[\\]^_"), cuts=CUTS)
def test_other_bytes_pass_untouched(data: bytes, cuts: list[int]) -> None:
    """No bytes, fewer than identify a format, or more."""
    assert _read(in_parts(data, cuts)) == (None, data)


@pytest.mark.parametrize("member", ["BZh9.txt", "BZh91AY.txt", "BZhello.txt", "PK.txt", "ustar", "\x1f\x8b.txt", "(.x"])
def test_a_tar_that_begins_like_a_format_passes(member: str) -> None:
    """A tar begins with the name of its first member."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(member))
    assert _read([buffer.getvalue()]) == (None, buffer.getvalue())


@FORMATS
def test_every_truncation_says_so(name: str) -> None:
    """In the first stream or the second; too few bytes to identify the format are left to the tar reader to refuse."""
    packed = COMPRESS[name](TEXT)
    for end in range(2 * len(packed)):
        data = (packed + packed)[:end]
        if end < MAGIC_BYTES[name]:
            assert _read([data]) == (None, data)
        elif end == len(packed):
            assert _read([data]) == (name, TEXT)
        else:
            assert "end early" in _error(data), f"cut at byte {end}"


@FORMATS
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7), cuts=CUTS)
def test_a_flipped_bit_is_an_error_or_harmless(name: str, position: int, bit: int, cuts: list[int]) -> None:
    """The checksum of the content finds what the decompressor does not; a flip in gzip's time changes nothing."""
    packed = bytearray(COMPRESS[name](TEXT))
    packed[position % len(packed)] ^= 1 << bit
    try:
        found, data = _read(in_parts(bytes(packed), cuts))
    except ShardReadError:
        return
    assert (found, data) in [(name, TEXT), (None, bytes(packed))], "the same, or no longer compressed"


@FORMATS
@given(position=st.integers(0, 10_000), damage=st.binary(min_size=1, max_size=20))
def test_damage_raises_no_other_exception(name: str, position: int, damage: bytes) -> None:
    """Bytes inserted anywhere; zstd without a checksum, so that other data may result."""
    packed = zstd.compress(TEXT) if name == "zstd" else COMPRESS[name](TEXT)
    position %= len(packed)
    try:
        _, data = _read([packed[:position] + damage + packed[position + len(damage) :]])
    except ShardReadError:
        return
    assert len(data) <= CompressionLimits().max_ratio * len(packed) + 16 * MIB


@FORMATS
@pytest.mark.parametrize("garbage", [b"x", b"\0\0\0\0x", TEXT, b"\x1f\x8b", b"\x28\xb5\x2f", b"\n"])
def test_data_after_the_compressed_streams_are_an_error(name: str, garbage: bytes) -> None:
    """One byte is enough, also behind zeros."""
    _error(COMPRESS[name](TEXT) + garbage)


@FORMATS
def test_decompression_limits_are_the_callers(name: str) -> None:
    """Exactly that many decompressed bytes are allowed; the message has the limits."""
    packed = COMPRESS[name](TEXT)
    assert _read([packed], max_decompressed_bytes=len(TEXT)) == (name, TEXT)
    assert f"max_decompressed_bytes={len(TEXT) - 1}" in _error(packed, max_decompressed_bytes=len(TEXT) - 1)
    packed = COMPRESS[name](bytes(17 * MIB))
    enough = -(-MIB // min(len(packed), 64 << 10))
    assert _read([packed], max_ratio=enough) == (name, bytes(17 * MIB))
    assert "max_ratio=1," in _error(packed, max_ratio=1)


def _xz(dictionary_code: int) -> bytes:
    """A stream that claims a dictionary of ``(2 or 3) << (code // 2 + 11)`` bytes."""
    packed = bytearray(lzma.compress(TEXT))
    length = packed[12] * 4
    assert packed[14:16] == b"\x21\x01", "LZMA2, with one byte of properties"
    packed[16] = dictionary_code
    packed[12 + length : 16 + length] = struct.pack("<L", zlib.crc32(packed[12 : 12 + length]))
    return bytes(packed)


def _zeros(num_bytes: int, window: int = 7 << 3) -> bytes:
    """A zstd frame (RFC 8878) of blocks that repeat a zero 131,072 times; the default window is 128 KiB."""
    num_blocks = num_bytes >> 17
    block = (1 << 17) << 3 | 1 << 1
    blocks = struct.pack("<L", block) * (num_blocks - 1) + struct.pack("<L", block | 1)
    return b"\x28\xb5\x2f\xfd\0" + bytes([window]) + blocks


def test_a_dictionary_or_window_of_64_mib_is_read_and_a_larger_one_refused() -> None:
    """Before memory is taken for it."""
    assert WINDOW_BYTES == 64 * MIB
    assert _read([_xz(28)]) == ("xz", TEXT)
    assert _read([_zeros(1 << 17, 16 << 3)]) == ("zstd", bytes(1 << 17))
    for packed in (_xz(29), _xz(40), _zeros(1 << 17, 16 << 3 | 1), _zeros(1 << 17, 17 << 3), _zeros(1 << 17, 255)):
        with within_limits():
            _error(packed)


def test_a_window_that_is_too_large_is_not_called_damage() -> None:
    """The data are valid, and writing them again would not help: the message has the limit."""
    for packed in (_xz(29), _zeros(1 << 17, 17 << 3)):
        assert "damaged" not in _error(packed)


BOMBS = {
    "gzip": lambda: gzip.compress(bytes(200 * MIB), 1),
    "bzip2": lambda: bz2.compress(bytes(50 * MIB)) * 20,
    "xz": lambda: lzma.compress(bytes(50 * MIB), preset=0) * 20,
    "zstd": lambda: _zeros(4 << 30),
}


@FORMATS
@pytest.mark.parametrize("part_bytes", [512, 1 << 16, 1 << 30])
def test_decompression_bombs_are_errors(name: str, part_bytes: int) -> None:
    """Up to 4 GB of zeros: an error within a second of CPU time, for at most 64 MiB more memory."""
    bomb = BOMBS[name]()
    parts = in_parts(bomb, range(0, len(bomb), part_bytes))
    with within_limits(), pytest.raises(ShardReadError, match="decompressed bytes, more than"):
        for _ in decompressed(parts, url=URL, limits=CompressionLimits())[1]:
            pass


EMPTY = {**{name: compress(b"") for name, compress in COMPRESS.items()}, "skippable": SKIPPABLE[:4] + bytes(4)}


@pytest.mark.parametrize("name", EMPTY)
def test_a_flood_of_empty_streams_does_not_stand_still(name: str) -> None:
    """A MiB of them is read, or refused, within a second; none of it yields anything that a limit would count."""
    with within_limits(), suppress(ShardReadError):
        assert _read([EMPTY[name] * (MIB // len(EMPTY[name]))])[1] == b""


def test_decompression_runs_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are pulled by the thread that iterates, and only by it; decompression is done by another one."""
    pulled, worked, feed = set(), set(), compression._Decompression.feed

    def watched(stage: Any, part: bytes | memoryview) -> Iterator[bytes]:
        worked.add(threading.get_ident())
        return feed(stage, part)

    def parts() -> Iterator[memoryview]:
        for part in in_parts(_zstd(TEXT), range(0, 1000, 10)):
            pulled.add(threading.get_ident())
            yield part

    monkeypatch.setattr(compression._Decompression, "feed", watched)
    assert _read(parts()) == ("zstd", TEXT)
    assert pulled == {threading.get_ident()}
    assert len(worked) == 1
    assert not worked & pulled
