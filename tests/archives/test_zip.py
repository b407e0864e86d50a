"""Zip archives: what zipfile writes is read, and what is damaged, hostile or ambiguous is an error."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.archives import (
    Members,
    Sample,
    Stream,
    at_most,
    bare,
    flipped,
    grouped,
    outcomes,
    pack_zip,
    read,
    reader,
    refusal,
)
from tests.support.shard_places import memory_place

PHOTO = bytes(i * i * 7 % 251 for i in range(300))


class Unseekable(io.BytesIO):
    """A stream to which zipfile writes data descriptors, since it cannot go back."""

    def tell(self) -> int:
        raise io.UnsupportedOperation


def info(name: str, method: int = 0, mode: int = 0o100644) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.compress_type, made.create_system, made.external_attr = method, 3, mode << 16
    return made


def pack(members: Members, method: int = 0, comment: bytes = b"", stream: io.BytesIO | None = None) -> bytes:
    stream = stream or io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.comment = comment
        for name, data in members:
            archive.writestr(info(name, method), data)
    return stream.getvalue()


def by_zipfile(data: bytes) -> list[Sample]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = sorted(archive.infolist(), key=lambda one: one.header_offset)
        files = [i for i in infos if not i.filename.endswith("/") and not stat.S_ISLNK(i.external_attr >> 16)]
        return grouped((one.filename, archive.read(one)) for one in files)


def error(data: bytes, **limits: Any) -> str:
    message = refusal(data, "zip", **limits)
    assert ": at byte " in message
    assert message.partition("\n")[0].endswith("the archive again.")
    return message


def patched(data: bytes, signature: bytes, offset: int, form: str, *values: int, last: bool = False) -> bytes:
    """The archive with other values at an offset in its first (or last) record of a kind."""
    changed = bytearray(data)
    struct.pack_into("<" + form, changed, (data.rfind if last else data.find)(signature) + offset, *values)
    return bytes(changed)


def hand_made(members: Sequence[tuple[bytes, int, bytes, int, int]], *, gap: bytes = b"") -> bytes:
    """Members of (name, method, compressed, CRC-32, claimed bytes), a gap after each, with headers that agree."""
    body, directory = b"", b""
    for name, method, compressed, crc32, num_bytes in members:
        sizes = struct.pack("<3L", crc32, len(compressed), num_bytes)
        common = struct.pack("<5H", 20, 0, method, 0, 33) + sizes
        directory += b"PK\1\2\x14\3" + common + struct.pack("<5H2L", len(name), 0, 0, 0, 0, 0, len(body)) + name
        body += b"PK\3\4" + common + struct.pack("<2H", len(name), 0) + name + compressed + gap
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(members), len(members), len(directory), len(body), 0)
    return body + directory + end


NAMES = st.text(st.characters(exclude_characters="\0./", exclude_categories=["Cs"]), min_size=1, max_size=20)
LENGTHS = st.sampled_from([0, 1, 30, 65_535, 65_536, 65_537, 300_000]) | st.integers(0, 3000)
KINDS = st.sampled_from(["file", "file", "file", "wide", "directory", "link"])
MEMBERS = st.lists(st.tuples(NAMES, LENGTHS, st.sampled_from([0, 8]), KINDS), min_size=1, max_size=6)


@pytest.mark.filterwarnings("ignore:.*links are left out", "ignore:.*without a single sample")
@pytest.mark.parametrize("stream_class", [io.BytesIO, Unseekable])
@given(members=MEMBERS, comment=st.binary(max_size=60), cuts=st.lists(st.integers(0, 400_000), max_size=12))
@example(members=[("é", 300, 8, "wide"), ("d", 0, 0, "directory"), ("l", 9, 8, "link")], comment=b"PK", cuts=[0, 0, 5])
def test_what_zipfile_writes_is_read(stream_class: type[io.BytesIO], members: Any, comment: bytes, cuts: Any) -> None:
    """Stored, deflated, zip64, with data descriptors or without, beside directories and links, however it is cut."""
    stream = stream_class()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.comment = comment
        for number, (name, size, method, kind) in enumerate(members):
            data = {"directory": b"", "link": b"../target"}.get(kind, (PHOTO * (size // 300 + 1))[:size])
            mode = {"directory": 0o40755, "link": 0o120777}.get(kind, 0o100644)
            path = f"{number}{name}" + ("/" if kind == "directory" else ".x")
            with archive.open(info(path, method, mode), "w", force_zip64=kind == "wide") as file:
                file.write(data)
    packed = stream.getvalue()
    pipe = reader(packed, "zip", cuts=cuts)
    assert bare(pipe) == by_zipfile(packed)
    assert sum(pipe.skipped.members.values()) == sum(kind in ("directory", "link") for *_, kind in members)
    described = [bool(one.flag_bits & 8) for one in archive.infolist()]  # sizes follow the data
    assert described == [stream_class is Unseekable] * len(members)


@pytest.mark.parametrize("method", [0, 8])
def test_pieces_of_every_length_read_the_same(method: int) -> None:
    data = pack([("a.jpg", PHOTO), ("é/b.cls", b"1"), ("c.x", b"")], method, b"comment")
    for length in range(1, len(data) + 1):
        assert read(data, "zip", cuts=range(length, len(data), length)) == by_zipfile(data), f"{length} bytes"


@pytest.mark.parametrize("count", [65_535, 65_536])
def test_as_many_members_as_the_plain_end_record_counts_and_more(count: int) -> None:
    """From 65,536 on zip64's end record counts them; the directory takes two requests."""
    place = memory_place()
    place.put({"0.zip": pack([(f"{i}.x", b"") for i in range(count)])})
    pipe = tdr.IterableWrapper([f"{place.url}0.zip"]).shard_zip_reader()
    assert [sample["__key__"] for sample in pipe] == list(map(str, range(count)))


def test_names_are_utf8_or_cp437() -> None:
    """The flag decides, then whether the bytes are UTF-8; a name that says so and is not is an error."""
    found = read(hand_made([(b"\x81.x", 0, b"", 0, 0), ("é.x".encode(), 0, b"", 0, 0)]), "zip")
    assert [sample["__key__"] for sample in found] == ["ü", "é"]
    assert "not UTF-8" in error(patched(hand_made([(b"\x81.x", 0, b"", 0, 0)]), b"PK\1\2", 8, "H", 1 << 11))


def test_a_member_is_handed_out_before_more_is_read() -> None:
    """Than the header that tells that its sample is complete."""
    data = pack([(f"{i}.x", PHOTO) for i in range(9)])
    starts = [one.header_offset for one in zipfile.ZipFile(io.BytesIO(data)).infolist()]
    stream = Stream(data, starts)
    samples = iter(tdr.IterableWrapper([("u", stream)], deepcopy=False).shard_zip_reader())
    for number in range(7):
        assert next(samples)["x"] == PHOTO
        assert stream.tell() == starts[number + 2]


def test_bytes_that_belong_to_no_member_are_passed_over() -> None:
    """A program before the first member, padding and remains between members."""
    stream = io.BytesIO()
    stream.write(b"#!/bin/sh\n")
    assert read(pack([("a.x", PHOTO)], stream=stream), "zip") == [{"__key__": "a", "x": PHOTO}]
    assert stream.getvalue().startswith(b"#!")
    data = hand_made([(b"a.x", 0, b"x", zlib.crc32(b"x"), 1), (b"b.x", 0, b"", 0, 0)], gap=b"PK\3 remains" * 9000)
    expected = [{"__key__": "a", "x": b"x"}, {"__key__": "b", "x": b""}]
    assert read(data, "zip") == read(data, "zip", cuts=range(7, len(data), 7)) == expected


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 1 << 20])
def test_a_member_that_the_directory_has_lost_is_an_error(lost: int, length: int) -> None:
    """The first, one between, or the last: its header is found among the bytes, however they are cut."""
    data = hand_made([(b"%d.x" % i, 0, PHOTO, zlib.crc32(PHOTO), 300) for i in range(3)], gap=b"between members" * 2)
    stop = len(data) - 22 - 49 * (2 - lost)
    data = patched(data[: stop - 49] + data[stop:], b"PK\5\6", 8, "2HL", 2, 2, 98)
    assert "does not name" in refusal(data, "zip", cuts=range(length, len(data), length))


@pytest.mark.parametrize("signature", [b"PK\7\b", b""])
@pytest.mark.parametrize("form", ["<3L", "<L2Q"])
def test_a_data_descriptor_is_no_lost_member(signature: bytes, form: str) -> None:
    """Not even one whose checksum reads PK\\3\\4, with any size of its fields; right after it a header is one."""
    data = b"pP:\x04"
    gap = signature + struct.pack(form, zlib.crc32(data), 4, 4)
    assert b"PK\3\4" in gap
    member = (b"a.x", 0, data, zlib.crc32(data), 4)
    assert read(hand_made([member], gap=gap), "zip") == [{"__key__": "a", "x": data}]
    assert "does not name" in error(hand_made([member], gap=gap + b"PK\3\4"))


FEW = [("a.jpg", PHOTO), ("d/", b""), ("b.cls", b"1"), ("é.x", b"")]
PLAIN = [(b"a.x", 0, b"x", zlib.crc32(b"x"), 1), (b"b.x", 8, zlib.compress(PHOTO)[2:-4], zlib.crc32(PHOTO), 300)]
ONE = hand_made(PLAIN[:1])
ZIP64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, 49, 34)
WIDE = ONE[:83] + ZIP64 + struct.pack("<4sLQL", b"PK\6\7", 0, 83, 1) + ONE[83:]
ARCHIVES = {
    "stored": pack(FEW, comment=b"a comment"),
    "deflated": pack([*FEW, ("c.txt", b"words " * 9)], 8),
    "deflated stream": pack(FEW, 8, stream=Unseekable()),
    "a zip within": pack([("a.jpg", PHOTO), ("z.zip", pack(FEW))]),
    "zip64": WIDE,
}


@pytest.mark.filterwarnings("ignore:.*links are left out")
@pytest.mark.parametrize("name", ARCHIVES)
def test_no_flipped_bit_gives_other_samples(name: str) -> None:
    """Each bit: the same samples, where it is a time or a comment, or an error that names the shard."""
    data = ARCHIVES[name]
    whole = read(data, "zip")
    assert whole == by_zipfile(data)
    bits = range(8 * len(data))
    found_in = outcomes((flipped(data, bit // 8, bit % 8) for bit in bits), "zip")
    for bit, (found, refused) in zip(bits, found_in, strict=True):
        assert found == whole[: len(found)], f"bit {bit % 8} of byte {bit // 8}"
        assert refused is not None or found == whole, f"bit {bit % 8} of byte {bit // 8}"


@pytest.mark.parametrize("name", ARCHIVES)
def test_every_cut_of_a_zip_is_an_error(name: str) -> None:
    """And no sample is handed out, since the directory is at the end."""
    data = ARCHIVES[name]
    found = list(outcomes((data[:length] for length in range(len(data))), "zip"))
    assert [one for one in found if one[0] or one[1] is None] == []


ZEROS = zlib.compress(bytes(42_000_000), 9)[2:-4]  # without the header and checksum of zlib
EMPTY = hand_made([(b"a.x", 0, b"", 0, 0)])
ABSURD = patched(WIDE, b"PK\6\6", 24, "4Q", *[1 << 50] * 4)
OVERLAP = hand_made([(b"a.x", 0, b"x" * 99, 0, 99), (b"b.x", 0, b"", 0, 0)])


def zip_of_one_place(count: int) -> bytes:
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, 1, 0) + b"a"
    directory = (struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"a") * count
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), len(local))
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(local) + len(directory), 1)
    return (
        local
        + directory
        + end64
        + locator
        + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, *[(1 << 32) - 1] * 2, 0)
    )


def claim_in_zip64(method: int) -> bytes:
    """A member that claims 2**50 bytes in a zip64 field."""
    extra = struct.pack("<2H2Q", 1, 16, 1 << 50, 1 << 50)
    data = patched(patched(ONE, b"PK\1\2", 10, "H", method), b"PK\3\4", 8, "H", method)
    data = patched(patched(data, b"PK\1\2", 20, "2L", *[0xFFFFFFFF] * 2), b"PK\1\2", 30, "H", len(extra))
    return patched(data[:83] + extra + data[83:], b"PK\5\6", 12, "L", 49 + len(extra))


def named(name: bytes) -> bytes:
    return hand_made([(name, 0, b"x", zlib.crc32(b"x"), 1)])


HOSTILE = {
    "overlapping members": (patched(OVERLAP, b"PK\1\2", 42, "L", 33, last=True), "overlaps"),
    "the same member twice": (patched(OVERLAP, b"PK\1\2", 42, "L", 0, last=True), "overlaps"),
    "a bomb that claims less": (hand_made([(b"a.x", 8, ZEROS, 0, 9)]), "more than the 9 bytes"),
    "a bomb with a wrong checksum": (hand_made([(b"a.x", 8, ZEROS, 0, 42_000_000)]), "CRC-32"),
    "a claim over the ratio": (hand_made([(b"a.x", 8, b"\3\0", 0, 20_000_000)]), "max_ratio=1,000"),
    "a false claim of 4 GiB": (
        hand_made([(b"a.x", 8, b"\3\0" + bytes(5 << 20), 0, 0xFFFFFFFE)]),
        "bytes after the end",
    ),
    "2**50 bytes in zip64": (claim_in_zip64(0), f"claims {1 << 50:,} bytes"),
    "2**50 deflated bytes in zip64": (claim_in_zip64(8), f"claims {1 << 50:,} bytes"),
    "deflate data that ends early": (hand_made([(b"a.x", 8, ZEROS[:99], 0, 16 << 20)]), "without its end mark"),
    "deflate data with bytes left": (hand_made([(b"a.x", 8, b"\3\0x", 0, 0)]), "bytes after the end"),
    "no deflate data": (hand_made([(b"a.x", 8, b"\xff" * 9, 0, 9)]), "cannot be inflated"),
    "stored with two sizes": (hand_made([(b"a.x", 0, b"x", 0, 2)]), "2 bytes that takes 1"),
    "method 99": (hand_made([(b"a.x", 99, b"x", 0, 1)]), "method 99"),
    "encrypted": (patched(ONE, b"PK\1\2", 8, "H", 1), "encrypted"),
    "encrypted by its own header": (patched(ONE, b"PK\3\4", 6, "H", 1 << 13), "encrypted"),
    "a patch": (patched(ONE, b"PK\1\2", 8, "H", 1 << 5), "patch"),
    "another name in its own header": (ONE.replace(b"a.x", b"b.x", 1), "b'b.x', method 0, the directory says b'a.x'"),
    "a NUL in the name": (named(b"a\0b.x"), "NUL"),
    "..": (named(b"a/../b.x"), '".."'),
    "absolute": (named(b"/b.x"), "absolute"),
    "the sample's key": (named(b"a.__key__"), "two underscores"),
    "a directory with data": (named(b"a/"), "directory 'a/' with 1 bytes"),
    "a device": (patched(ONE, b"PK\1\2", 38, "L", 0o060644 << 16), "device"),
    "a link with a file's permissions": (patched(ONE, b"PK\1\2", 38, "L", 0o120644 << 16), "link of mode 0o120644"),
    "a link to nowhere": (patched(EMPTY, b"PK\1\2", 38, "L", 0o120777 << 16), "target b''"),
    "an offset beyond the members": (patched(ONE, b"PK\1\2", 42, "L", 34), "beyond the members' end"),
    "two end records": (patched(ONE, b"PK\5\6", 20, "H", 22) + ONE[-22:], "2 end records"),
    "end records only": (b"PK\5\6" * 20_000, "end record"),
    "two archives": (ONE + ONE, "put before the archive"),
    "bytes after the end": (ONE + b"x", "off"),
    "several disks": (patched(ONE, b"PK\5\6", 4, "H", 1), "split"),
    "a count too large": (patched(ONE, b"PK\5\6", 8, "2H", 2, 2), "2 members"),
    "60,000 members claimed": (patched(ONE, b"PK\5\6", 8, "2H", 60_000, 60_000), "60,000 members"),
    "a count too small": (hand_made([(b"a.x", 0, b"", 0, 0)] * 2).replace(b"\2\0\2\0", b"\1\0\1\0"), "counts 1"),
    "200,000 members in one place": (zip_of_one_place(200_000), "200,000 members in 31 bytes"),
    "a directory of 4 GiB": (patched(ONE, b"PK\5\6", 12, "2L", 0xFFFFFFFE, 0), "directory"),
    "no zip": (b"x" * 70_000, "no end record"),
    "nothing": (b"", "no end record"),
    "zip64 with a directory of 2**63 bytes": (patched(WIDE, b"PK\6\6", 40, "Q", 1 << 63), "disagree"),
    "zip64 of 2**63 bytes": (patched(WIDE, b"PK\6\6", 4, "Q", 1 << 63), "zip64 end record"),
    "zip64 at byte 2**63": (patched(WIDE, b"PK\6\7", 8, "Q", 1 << 63), "zip64 record"),
    "zip64 with absurd values": (patched(ABSURD, b"PK\5\6", 8, "3L", *[0xFFFFFFFF] * 3), "should end at byte 83"),
}


@pytest.mark.filterwarnings("ignore:.*links are left out")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_zip_is_an_error_that_takes_no_memory(name: str) -> None:
    """64 MiB for all claims; the message has the fault."""
    data, words = HOSTILE[name]
    with at_most(64 << 20):
        assert words in refusal(data, "zip", max_ratio=1000)


def test_a_large_member_takes_its_length_once() -> None:
    """42 MB out of 41 kB, claimed rightly, and 42 MB stored in pieces: their length and about 1 MiB."""
    zeros = bytes(42_000_000)
    for method, compressed in ((8, ZEROS), (0, zeros)):
        stream = Stream(hand_made([(b"a.x", method, compressed, zlib.crc32(zeros), len(zeros))]))
        samples = iter(tdr.IterableWrapper([("u", stream)], deepcopy=False).shard_zip_reader(max_ratio=2000))
        with at_most(len(zeros) + (4 << 20)):
            sample = next(samples)
        assert sample["x"] == zeros


@settings(max_examples=10)
@given(size=st.integers(1, 300))
def test_the_limit_of_a_zips_member_is_the_readers(size: int) -> None:
    """A member over max_member_bytes is an error, one of just that length is read."""
    data = pack_zip([("a.x", PHOTO[:size])])
    assert read(data, "zip", max_member_bytes=size) == [{"__key__": "a", "x": PHOTO[:size]}]
    assert f"max_member_bytes={size:,}" in error(pack_zip([("a.x", bytes(size + 1))]), max_member_bytes=size)
