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
from hypothesis import example, given
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


def hand_made(members: Sequence[tuple[bytes, int, bytes, int, int]]) -> bytes:
    """Members of (name, method, compressed, CRC-32, claimed bytes), with headers that agree."""
    body, directory = b"", b""
    for name, method, compressed, crc32, num_bytes in members:
        sizes = struct.pack("<3L", crc32, len(compressed), num_bytes)
        common = struct.pack("<5H", 20, 0, method, 0, 33) + sizes
        directory += b"PK\1\2\x14\3" + common + struct.pack("<5H2L", len(name), 0, 0, 0, 0, 0, len(body)) + name
        body += b"PK\3\4" + common + struct.pack("<2H", len(name), 0) + name + compressed
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


def test_more_members_than_the_plain_end_record_counts_are_read() -> None:
    """Zip64's end record counts them; the directory takes two requests."""
    place, count = memory_place(), 65_536
    place.put({"0.zip": pack([(f"{i}.x", b"") for i in range(count)])})
    pipe = tdr.IterableWrapper([f"{place.url}0.zip"]).shard_zip_reader()
    assert [sample["__key__"] for sample in pipe] == list(map(str, range(count)))


def test_names_are_utf8_or_cp437() -> None:
    """The flag decides, then whether the bytes are UTF-8; a name that says so and is not is an error."""
    found = read(hand_made([(b"\x81.x", 0, b"", 0, 0), ("é.x".encode(), 0, b"", 0, 0)]), "zip")
    assert [sample["__key__"] for sample in found] == ["ü", "é"]
    assert "utf-8" in error(patched(hand_made([(b"\x81.x", 0, b"", 0, 0)]), b"PK\1\2", 8, "H", 1 << 11))


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
    """A program before the first member."""
    stream = io.BytesIO()
    stream.write(b"#!/bin/sh\n")
    assert read(pack([("a.x", PHOTO)], stream=stream), "zip") == [{"__key__": "a", "x": PHOTO}]
    assert stream.getvalue().startswith(b"#!")


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
    """Some bits of each byte: the same samples, where it is a time or a comment, or an error that names the shard."""
    data = ARCHIVES[name]
    whole = read(data, "zip")
    assert whole == by_zipfile(data)
    bits = range(0, 8 * len(data), 3)
    found_in = outcomes((flipped(data, bit // 8, bit % 8) for bit in bits), "zip")
    for bit, (found, refused) in zip(bits, found_in, strict=True):
        assert [one for one in found if one not in whole] == [], f"bit {bit % 8} of byte {bit // 8}"
        assert refused is not None or found == whole, f"bit {bit % 8} of byte {bit // 8}"


@pytest.mark.parametrize("name", ARCHIVES)
def test_every_cut_of_a_zip_is_an_error(name: str) -> None:
    """And no sample is handed out, since the directory is at the end."""
    data = ARCHIVES[name]
    found = list(outcomes((data[:length] for length in range(len(data))), "zip"))
    assert [one for one in found if one[0] or one[1] is None] == []


ZEROS = zlib.compress(bytes(42_000_000), 9)[2:-4]  # without the header and checksum of zlib


INNER = hand_made(PLAIN[:1])[:34]
OVER = [(b"b.x", 0, INNER, zlib.crc32(INNER), 34), PLAIN[0]]
HOSTILE = {
    "a bomb that claims less": (hand_made([(b"a.x", 8, ZEROS, 0, 9)]), "CRC-32"),
    "a bomb with a wrong checksum": (hand_made([(b"a.x", 8, ZEROS, 0, 42_000_000)]), "CRC-32"),
    "members that overlap": (patched(hand_made(OVER), b"PK\1\2", 42, "L", 33, last=True), "overlaps the member before"),
    "a claim over the ratio": (hand_made([(b"a.x", 8, b"\3\0", 0, 20_000_000)]), "max_ratio=1,000"),
    "a false claim of 4 GiB": (hand_made([(b"a.x", 8, b"\3\0" + bytes(5 << 20), 0, 0xFFFFFFFE)]), "0 of 4,294,967,294"),
    "stored bytes that do not come": (hand_made([(b"a.x", 0, b"x", 0, 0xFFFFFFFE)]), "claims 4,294,967,294 bytes"),
    "deflate data that ends early": (hand_made([(b"a.x", 8, ZEROS[:99], 0, 16 << 20)]), "CRC-32"),
    "no deflate data": (hand_made([(b"a.x", 8, b"\xff" * 9, 0, 9)]), "invalid block type"),
    "method 99": (hand_made([(b"a.x", 99, b"x", 0, 1)]), "method 99"),
    "..": (pack([("a/../b.x", b"")]), '".."'),
    "absolute": (pack([("/b.x", b"")]), "absolute"),
    "a count too small": (hand_made([(b"a.x", 0, b"", 0, 0)] * 2).replace(b"\2\0\2\0", b"\1\0\1\0"), "counts 1"),
    "60,000 members claimed": (patched(ONE, b"PK\5\6", 8, "2H", 60_000, 60_000), "counts 60,000"),
    "a directory of 4 GiB": (patched(ONE, b"PK\5\6", 12, "2L", 0xFFFFFFFE, 0), "directory"),
    "bytes behind the archive": (ONE + b"\n" * 99, "of another archive"),
    "a password": (patched(ONE, b"PK\1\2", 8, "H", 1), "encrypted"),
    "strong encryption": (patched(ONE, b"PK\1\2", 8, "H", 1 << 6), "strong encryption"),
    "no zip": (b"x" * 70_000, "no end record"),
    "nothing": (b"", "no end record"),
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
