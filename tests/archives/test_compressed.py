"""Compressed shards: valid streams are decompressed, and everything else is an error within limits."""

from __future__ import annotations

import functools
import lzma
import struct
import zlib
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.archive_bytes import make_header, octal_size, pack_tar
from tests.support.archives import COMPRESS, URL, flipped, grouped, outcomes, read, refusal
from tests.support.fuzz_archives import within_limits
from tests.support.shard_places import memory_place

MIB = 1 << 20
FORMATS = pytest.mark.parametrize("name", COMPRESS)
MEMBERS = [(f"{i}.x", b"".join(b"%d, " % (i * j) for j in range(40))) for i in range(4)]
TAR, WHOLE = pack_tar(MEMBERS), grouped(MEMBERS)
CUTS = st.lists(st.integers(0, 3000), max_size=12)


def error(data: bytes, **limits: Any) -> str:
    message = refusal(data, **limits)
    assert message.startswith(f"{URL}: before compressed byte ")
    return message


@FORMATS
@given(borders=st.lists(st.integers(0, len(TAR)), max_size=5), zeros=st.integers(0, 40), cuts=CUTS)
@example(borders=[0, 0, 600], zeros=4, cuts=range(400))
def test_concatenated_streams_are_one_archive(name: str, borders: list[int], zeros: int, cuts: Any) -> None:
    """As parallel compressors write them: empty ones among them, zeros after each, however they are cut."""
    ends = [0, *sorted(borders), len(TAR)]
    pieces = [TAR[start:end] for start, end in pairwise(ends)]
    packed = b"".join(COMPRESS[name](piece) + bytes(zeros) for piece in pieces)
    assert read(packed, cuts=cuts) == WHOLE


@FORMATS
@pytest.mark.parametrize("num_bytes", [MIB - 1536, 5 * MIB // 2])
def test_large_streams_are_decompressed(name: str, num_bytes: int) -> None:
    """Of more than one chunk, and of just one."""
    members = [("a.x", Random(1).randbytes(num_bytes // 2)), ("b.x", bytes(num_bytes - num_bytes // 2))]
    assert read(COMPRESS[name](pack_tar(members))) == grouped(members)


@given(frames=st.lists(st.integers(0, 15), min_size=1, max_size=5), border=st.integers(0, len(TAR)), cuts=CUTS)
def test_skippable_frames_are_passed_over(frames: list[int], border: int, cuts: list[int]) -> None:
    """Of each of their 16 numbers, as pzstd writes them, before, between and after frames with data."""
    skipped = b"".join(struct.pack("<2L", 0x184D2A50 + frame, frame) + bytes(frame) for frame in frames)
    packed = skipped + b"".join(COMPRESS["zstd"](data) + skipped for data in (TAR[:border], TAR[border:]))
    assert read(packed, cuts=cuts) == WHOLE


@pytest.mark.parametrize(
    "name", ["BZh9.txt", "BZh91AY.txt", "BZh91AY&SY.txt", "BZhello.txt", "PK.txt", "ustar.txt", "\x1f\x8b.txt", "(.x"]
)
def test_a_tar_that_begins_like_a_compressed_file_is_read(name: str) -> None:
    """A tar begins with the name of its first member."""
    assert read(pack_tar([(name, b"1")])) == grouped([(name, b"1")])


@FORMATS
def test_every_truncation_is_an_error_after_whole_samples(name: str) -> None:
    """In the first stream or the second."""
    packed = COMPRESS[name](TAR[:1500]) + COMPRESS[name](TAR[1500:])
    for end, (found, refused) in enumerate(outcomes(packed[:end] for end in range(len(packed)))):
        assert found == WHOLE[: len(found)], f"cut at byte {end}"
        assert refused is not None, f"cut at byte {end}"
        assert end < 10 or "end early" in str(refused) or "cut short" in str(refused), f"cut at byte {end}"


@FORMATS
def test_a_flipped_bit_of_a_compressed_shard_is_an_error_or_harmless(name: str) -> None:
    """The checksum of the content finds what the decompressor does not; a flip in gzip's time changes nothing."""
    packed = COMPRESS[name](TAR)
    bits = range(0, 8 * len(packed), 1 if len(packed) < 300 else 3)
    harmless = 0
    for found, refused in outcomes(flipped(packed, bit // 8, bit % 8) for bit in bits):
        assert refused is not None or found == WHOLE
        harmless += refused is None
    assert harmless < 100


@FORMATS
@pytest.mark.parametrize("garbage", [b"x", b"\0\0\0\0x", TAR, b"\x1f\x8b", b"\x28\xb5\x2f", b"\n"])
def test_data_after_the_compressed_streams_are_an_error(name: str, garbage: bytes) -> None:
    """One byte is enough, also behind zeros."""
    error(COMPRESS[name](TAR) + garbage)


@FORMATS
def test_limits_of_decompression_are_the_readers(name: str) -> None:
    """Exactly that many decompressed bytes are allowed; the message has the limit."""
    packed = COMPRESS[name](TAR)
    assert read(packed, max_decompressed_bytes=len(TAR)) == WHOLE
    assert f"max_decompressed_bytes={len(TAR) - 1}" in error(packed, max_decompressed_bytes=len(TAR) - 1)
    plain = pack_tar([("a.x", bytes(17 * MIB))])
    zeros = COMPRESS[name](plain)
    enough = -(-(len(plain) - 16 * MIB) // len(zeros))
    assert len(read(zeros, max_ratio=enough)[0]["x"]) == 17 * MIB
    assert f"max_ratio={enough - 1}, beyond 16 MiB" in error(zeros, max_ratio=enough - 1)


def xz(dictionary_code: int) -> bytes:
    """A stream that claims a dictionary of ``(2 or 3) << (code // 2 + 11)`` bytes."""
    packed = bytearray(lzma.compress(TAR))
    length = packed[12] * 4
    assert packed[14:16] == b"\x21\x01", "LZMA2, with one byte of properties"
    packed[16] = dictionary_code
    packed[12 + length : 16 + length] = struct.pack("<L", zlib.crc32(packed[12 : 12 + length]))
    return bytes(packed)


def zeros_by_zstd(num_bytes: int, window: int = 7 << 3) -> bytes:
    """A frame (RFC 8878) of blocks that repeat a zero 131,072 times; the default window is 128 KiB."""
    num_blocks = num_bytes >> 17
    block = (1 << 17) << 3 | 1 << 1
    blocks = struct.pack("<L", block) * (num_blocks - 1) + struct.pack("<L", block | 1)
    return b"\x28\xb5\x2f\xfd\0" + bytes([window]) + blocks


def test_a_window_of_64_mib_is_read_and_a_larger_one_refused_before_memory_is_taken() -> None:
    """And not called damage, since writing the shard again would not help."""
    assert read(xz(28)) == WHOLE
    assert "131,072 zero bytes" in refusal(zeros_by_zstd(1 << 17, 16 << 3))
    for packed in (xz(29), xz(40), *(zeros_by_zstd(1 << 17, window) for window in (16 << 3 | 1, 17 << 3, 255))):
        with within_limits():
            message = error(packed)
        assert "damaged" not in message


MEMBER = make_header(b"a.x", octal_size((4 << 30) - 1))


@functools.cache
def zeros(name: str) -> bytes:
    """Streams of zeros, 400 MiB and more of them."""
    return zeros_by_zstd(4 << 30) if name == "zstd" else COMPRESS[name](bytes(20 * MIB)) * 20


@FORMATS
@pytest.mark.parametrize("before", [MEMBER, TAR], ids=["in a member", "behind all members"])
def test_a_decompression_bomb_is_an_error_that_takes_no_memory(name: str, before: bytes) -> None:
    """Up to 4 GB of zeros: memory stays bounded, however large the pieces are that arrive."""
    bomb = COMPRESS[name](before) + zeros(name)
    for cuts in (range(0, len(bomb), 512), ()) if before is TAR else ((),):
        with within_limits():
            assert "decompressed bytes, more than" in error(bomb, cuts=cuts)


FLOODS = {
    **{name: compress(b"") for name, compress in COMPRESS.items()},
    "skippable": struct.pack("<2L", 0x184D2A50, 0),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_of_empty_streams_ends(name: str) -> None:
    """A MiB of them is refused, though none of it yields anything that a limit of bytes would count."""
    with within_limits():
        assert "s3://b/t-000.tar" in refusal(FLOODS[name] * (MIB // len(FLOODS[name])))


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.zst"])
@pytest.mark.parametrize("sizes", [[300_000] * 140, [5 << 20] * 8])
def test_what_compresses_extremely_well_is_written_such_that_it_is_read(ending: str, sizes: list[int]) -> None:
    """Zeros shrink to a thousandth or less, which readers of strange archives take for a bomb."""
    place = memory_place()
    with tdr.ShardWriter(place.template(ending)) as writer:
        for number, size in enumerate(sizes):
            writer.write({"__key__": f"{number:06d}", "bin": bytes(size)})
    (shard,) = writer.shards
    assert [len(one["bin"]) for one in tdr.IterableWrapper([shard.url]).shard_tar_reader()] == sizes
    assert shard.num_bytes < sum(sizes) // 25, "nearly all of it is still compressed"


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_equal_samples_give_equal_compressed_bytes_with_a_checksum(ending: str) -> None:
    """Without a time or a name."""
    place = memory_place()
    for folder in "ab":
        with tdr.ShardWriter(f"{place.url}{folder}/{{shard}}.tar.{ending}") as writer:
            writer.write({"__key__": "0", "x": b"one"})
    packed = place.files()[f"a/0.tar.{ending}"]
    assert packed == place.files()[f"b/0.tar.{ending}"]
    assert ending == "zst" or packed[3:8] == bytes(5)
    refusal(flipped(packed, len(packed) - 3, 0))


@pytest.mark.parametrize("name", ["0.tar", "gz.tar", "0.gz.tar"])
def test_a_name_without_a_compressed_ending_is_written_plainly(name: str) -> None:
    place = memory_place()
    with tdr.ShardWriter(f"{place.url}{{shard}}{name}") as writer:
        writer.write({"__key__": "a", "x": b"one"})
    assert place.files()[f"0{name}"] == pack_tar([("a.x", b"one")])
