from __future__ import annotations

import io
import re
import shutil
import stat
import struct
import subprocess
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import length_hint
from pathlib import Path
from time import thread_time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.archive_bytes import in_parts
from torchdata_remote.errors import ShardReadError
from torchdata_remote.formats.zip import Entry, read_directory, read_members

URL = "s3://b/t-000.zip"
Members = list[tuple[str, bytes]]

PHOTO = bytes(i * i * 7 % 251 for i in range(300))
SIZES = st.sampled_from([0, 1, 30, 65_535, 65_536, 65_537, 300_000]) | st.integers(0, 3000)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
KINDS = st.sampled_from(["file", "file", "file", "wide", "directory", "link"])
MEMBER = st.tuples(NAMES, SIZES, st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]), KINDS)
MEMBERS = st.lists(MEMBER, max_size=6, unique_by=lambda member: member[0].rstrip("/"))


class _Unseekable(io.BytesIO):
    """A stream to which zipfile writes data descriptors, since it cannot go back."""

    def tell(self) -> int:
        raise io.UnsupportedOperation


def _info(name: str, method: int = zipfile.ZIP_STORED, mode: int = 0o100644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.compress_type, info.create_system, info.external_attr = method, 3, mode << 16
    return info


def _pack(members: Members, method: int = 0, comment: bytes = b"", stream: io.BytesIO | None = None) -> bytes:
    stream = stream or io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.comment = comment
        for name, data in members:
            archive.writestr(_info(name, method), data)
    return stream.getvalue()


def _entries(data: bytes) -> list[Entry]:
    return read_directory(lambda start, end: data[start:end], len(data), url=URL)


def _read(data: bytes, parts: Iterable[bytes | memoryview] | None = None, **limits: Any) -> Members:
    return list(
        read_members([data] if parts is None else parts, _entries(data), url=URL, **{"max_ratio": 1000, **limits})
    )


def _peer(data: bytes) -> Members:
    """The result of Python's own reader, in the order of the offsets."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        infos = sorted(archive.infolist(), key=lambda info: info.header_offset)
        files = [i for i in infos if not i.filename.endswith("/") and not stat.S_ISLNK(i.external_attr >> 16)]
        return [(info.filename, archive.read(info)) for info in files]


def _error(data: bytes, **limits: Any) -> str:
    """The message of the error that reading ends with; it names the shard and the byte."""
    with pytest.raises(ShardReadError) as caught:
        _read(data, **limits)
    assert caught.value.url == URL
    assert str(caught.value).startswith(f"{URL}: at byte ")
    assert str(caught.value).endswith("the archive again.")
    return str(caught.value)


def _patched(data: bytes, signature: bytes, offset: int, form: str, *values: int, last: bool = False) -> bytes:
    """The archive with other values at an offset in its first (or last) record of a kind."""
    changed = bytearray(data)
    struct.pack_into("<" + form, changed, (data.rfind if last else data.find)(signature) + offset, *values)
    return bytes(changed)


def _hand_made(members: Sequence[tuple[bytes, int, bytes, int, int]], *, gap: bytes = b"") -> bytes:
    """Members of (name, method, compressed, CRC-32, claimed bytes), a gap after each, with headers that agree."""
    body, directory = b"", b""
    for name, method, compressed, crc32, num_bytes in members:
        sizes = struct.pack("<3L", crc32, len(compressed), num_bytes)
        common = struct.pack("<5H", 20, 0, method, 0, 33) + sizes
        directory += b"PK\1\2\x14\3" + common + struct.pack("<5H2L", len(name), 0, 0, 0, 0, 0, len(body)) + name
        body += b"PK\3\4" + common + struct.pack("<2H", len(name), 0) + name + compressed + gap
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(members), len(members), len(directory), len(body), 0)
    return body + directory + end


@pytest.mark.parametrize("stream_class", [io.BytesIO, _Unseekable])
@given(members=MEMBERS, comment=st.binary(max_size=60), cuts=st.lists(st.integers(0, 400_000), max_size=12))
@example(members=[("é", 300, 8, "wide"), ("d", 0, 0, "directory"), ("l", 9, 8, "link")], comment=b"PK", cuts=[0, 0, 5])
@settings(max_examples=60)
def test_we_read_what_zipfile_writes(stream_class: type[io.BytesIO], members: Any, comment: bytes, cuts: Any) -> None:
    """Stored, deflated, zip64, with data descriptors or without, beside directories and links, however it is cut."""
    stream = stream_class()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.comment = comment
        for name, size, method, kind in members:
            data = {"directory": b"", "link": b"../target"}.get(kind, (PHOTO * (size // 300 + 1))[:size])
            path = name.rstrip("/") + ("/" if kind == "directory" else "x")
            mode = {"directory": 0o40755, "link": 0o120777}.get(kind, 0o100644)
            with archive.open(_info(path, method, mode), "w", force_zip64=kind == "wide") as file:
                file.write(data)
    packed, skipped = stream.getvalue(), list[str]()
    assert _read(packed, in_parts(packed, cuts), on_skip=skipped.append) == _peer(packed)
    assert skipped == [kind for *_, kind in members if kind in ("directory", "link")]
    described = [bool(info.flag_bits & 8) for info in archive.infolist()]  # sizes follow the data
    assert described == [stream_class is _Unseekable] * len(members)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_parts_of_every_length_read_the_same(method: int) -> None:
    """From 1 byte each up to the whole archive at once."""
    data = _pack([("a.jpg", PHOTO), ("é/b.cls", b"1"), ("c", b"")], method, b"comment")
    for length in range(1, len(data) + 1):
        assert _read(data, in_parts(data, range(length, len(data), length))) == _peer(data), f"parts of {length} bytes"


@pytest.mark.parametrize("count", [65_534, 65_535, 65_536])
def test_as_many_members_as_the_plain_end_record_counts_and_more(count: int) -> None:
    """From 65,536 on zip64's end record counts them, and the directory takes a read of its own."""
    data, ranges = _pack([(f"{i}", b"") for i in range(count)]), []

    def read_range(start: int, end: int) -> bytes:
        ranges.append(end - start)
        return data[start:end]

    assert [entry.path for entry in read_directory(read_range, len(data), url=URL)] == [f"{i}" for i in range(count)]
    assert len(ranges) == 2
    assert ranges[0] == 66 << 10


@pytest.mark.parametrize(
    "command",
    [
        "zip -qry ../a.zip %",
        "zip -qry0 ../a.zip %",
        "zip -qry - % >../a.zip",
        "bsdtar -acf ../a.zip %",
        "7z a -snl ../a.zip %",
    ],
)
def test_we_read_what_programs_write(tmp_path: Path, command: str) -> None:
    """Files in folders, also piped; directories and links are passed over; names are UTF-8 also without the flag."""
    if shutil.which(command.split()[0]) is None:
        pytest.skip(f"needs {command.split()[0]}")
    files = {"a.jpg": PHOTO, "d/é.cls": b"1", "d/e/empty": b"", "d/zeros": bytes(100_000)}
    for name, content in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    (tmp_path / "in/link").symlink_to("a.jpg")
    subprocess.run(command.replace("%", "a.jpg d link"), shell=True, cwd=tmp_path / "in", check=True)
    data = (tmp_path / "a.zip").read_bytes()
    assert dict(_read(data)) == files
    assert [content for _, content in _read(data)] == [content for _, content in _peer(data)]


def test_names_are_utf8_or_cp437() -> None:
    """The flag decides, then whether the bytes are UTF-8; a name that says so and is not is an error."""
    assert _read(_hand_made([(b"\x81.x", 0, b"", 0, 0), ("é".encode(), 0, b"", 0, 0)])) == [("ü.x", b""), ("é", b"")]
    assert "not UTF-8" in _error(_patched(_hand_made([(b"\x81.x", 0, b"", 0, 0)]), b"PK\1\2", 8, "H", 1 << 11))


def test_a_member_is_handed_on_before_the_next_part_is_asked_for() -> None:
    """What is not read is not pulled, and the directory's bytes are not pulled a second time."""
    data = _pack([(f"{i}", PHOTO) for i in range(9)])
    entries = _entries(data)
    parts = iter([data[entry.header_offset : entry.header_offset + 331] for entry in entries])
    members = read_members(parts, entries, url=URL)
    for i in range(9):
        assert next(members) == (f"{i}", PHOTO)
        assert length_hint(parts) == 8 - i
    assert next(members, None) is None


def test_bytes_that_belong_to_no_member_are_passed_over() -> None:
    """A program before the first member, padding and remains between members."""
    stream = io.BytesIO()
    stream.write(b"#!/bin/sh\n")
    assert _read(_pack([("a", PHOTO)], stream=stream)) == _peer(stream.getvalue()) == [("a", PHOTO)]
    assert stream.getvalue().startswith(b"#!")
    data = _hand_made([(b"a", 0, b"x", zlib.crc32(b"x"), 1), (b"b", 0, b"", 0, 0)], gap=b"PK\3 remains" * 9000)
    assert _read(data) == _read(data, in_parts(data, range(0, len(data), 7))) == [("a", b"x"), ("b", b"")]


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 1 << 20])
def test_a_member_that_the_directory_has_lost_is_an_error(lost: int, length: int) -> None:
    """The first, one between, or the last: its header is found among the bytes, however they are cut."""
    data = _hand_made([(b"%d" % i, 0, PHOTO, zlib.crc32(PHOTO), 300) for i in range(3)], gap=b"between members" * 2)
    stop = len(data) - 22 - 47 * (2 - lost)
    data = _patched(data[: stop - 47] + data[stop:], b"PK\5\6", 8, "2HL", 2, 2, 94)
    with pytest.raises(ShardReadError, match="does not name"):
        _read(data, in_parts(data, range(length, len(data), length)))


@pytest.mark.parametrize("signature", [b"PK\7\b", b""])
@pytest.mark.parametrize("form", ["<3L", "<L2Q"])
def test_a_data_descriptor_is_no_lost_member(signature: bytes, form: str) -> None:
    """Not even one whose checksum reads PK\\3\\4, with any size of its fields; right after it a header is one."""
    data = b"pP:\x04"
    gap = signature + struct.pack(form, zlib.crc32(data), 4, 4)
    assert b"PK\3\4" in gap
    assert _read(_hand_made([(b"a", 0, data, zlib.crc32(data), 4)], gap=gap)) == [("a", data)]
    assert "does not name" in _error(_hand_made([(b"a", 0, data, zlib.crc32(data), 4)], gap=gap + b"PK\3\4"))


FEW = [("a.jpg", PHOTO), ("d/", b""), ("b.cls", b"1"), ("é", b"")]
PLAIN = [(b"a", 0, b"x", zlib.crc32(b"x"), 1), (b"b", 8, zlib.compress(PHOTO)[2:-4], zlib.crc32(PHOTO), 300)]
ONE = _hand_made(PLAIN[:1])
ZIP64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, 47, 32)
WIDE = ONE[:79] + ZIP64 + struct.pack("<4sLQL", b"PK\6\7", 0, 79, 1) + ONE[79:]
ARCHIVES = {
    "stored": _pack(FEW, comment=b"a comment"),
    "deflated": _pack([*FEW, ("c.txt", b"words " * 9)], zipfile.ZIP_DEFLATED),
    "stored stream": _pack(FEW, stream=_Unseekable()),
    "deflated stream": _pack(FEW, zipfile.ZIP_DEFLATED, stream=_Unseekable()),
    "a zip within": _pack([("a.jpg", PHOTO), ("z.zip", _pack(FEW))]),
    "modes unknown": _hand_made(PLAIN),
    "zip64": WIDE,
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_no_flipped_bit_gives_other_members(name: str) -> None:
    """Each bit of each byte: the same members, where it is a time or a comment, or an error that names the shard."""
    data = ARCHIVES[name]
    expected = _read(data)
    assert expected == _peer(data)
    refusals = set()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            members = _read(bytes(flipped))
        except ShardReadError as error:
            refusals.add((error.url, str(error).partition(": ")[0]))
            continue
        assert members == expected, f"bit {bit % 8} of byte {bit // 8}"
    assert refusals == {(URL, URL)}


@pytest.mark.parametrize("name", ARCHIVES)
def test_every_cut_is_an_error(name: str) -> None:
    """Of the object, and of the stream of an object whose directory was read."""
    data = ARCHIVES[name]
    for length in range(len(data)):
        _error(data[:length])
    entries = _entries(data)
    for length in range(entries[-1].directory_offset):
        with pytest.raises(ShardReadError, match="cut short"):
            list(read_members([data[:length]], entries, url=URL))


ZEROS = zlib.compress(bytes(42_000_000), 9)[2:-4]  # without the header and checksum of zlib
EMPTY = _hand_made([(b"a", 0, b"", 0, 0)])
ABSURD = _patched(WIDE, b"PK\6\6", 24, "4Q", *[1 << 50] * 4)
OVERLAP = _hand_made([(b"a", 0, b"x" * 99, 0, 99), (b"b", 0, b"", 0, 0)])

HOSTILE = {
    "overlapping members": (_patched(OVERLAP, b"PK\1\2", 42, "L", 31, last=True), "overlaps"),
    "the same member twice": (_patched(OVERLAP, b"PK\1\2", 42, "L", 0, last=True), "overlaps"),
    "a bomb that claims less": (_hand_made([(b"a", 8, ZEROS, 0, 9)]), "more than the 9 bytes"),
    "a bomb with a wrong checksum": (_hand_made([(b"a", 8, ZEROS, 0, 42_000_000)]), "CRC-32"),
    "a claim over the ratio": (_hand_made([(b"a", 8, b"\3\0", 0, 20_000_000)]), "max_ratio=1,000"),
    "a false claim of 4 GiB": (_hand_made([(b"a", 8, b"\3\0" + bytes(5 << 20), 0, 0xFFFFFFFE)]), "bytes after the end"),
    "deflate data that ends early": (_hand_made([(b"a", 8, ZEROS[:99], 0, 16 << 20)]), "without its end mark"),
    "deflate data with bytes left": (_hand_made([(b"a", 8, b"\3\0x", 0, 0)]), "bytes after the end"),
    "no deflate data": (_hand_made([(b"a", 8, b"\xff" * 9, 0, 9)]), "cannot be inflated"),
    "stored with two sizes": (_hand_made([(b"a", 0, b"x", 0, 2)]), "2 bytes that takes 1"),
    "method 99": (_hand_made([(b"a", 99, b"x", 0, 1)]), "method 99"),
    "encrypted": (_patched(ONE, b"PK\1\2", 8, "H", 1), "encrypted"),
    "encrypted by its own header": (_patched(ONE, b"PK\3\4", 6, "H", 1 << 13), "encrypted"),
    "another name in its own header": (ONE.replace(b"a", b"b", 1), "b'b', method 0, the directory says b'a'"),
    "a NUL in the name": (_hand_made([(b"a\0b", 0, b"", 0, 0)]), "NUL"),
    "a directory with data": (_hand_made([(b"a/", 0, b"x", zlib.crc32(b"x"), 1)]), "directory 'a/' with 1 bytes"),
    "a device": (_patched(ONE, b"PK\1\2", 38, "L", 0o060644 << 16), "device"),
    "a link with a file's permissions": (_patched(ONE, b"PK\1\2", 38, "L", 0o120644 << 16), "link of mode 0o120644"),
    "a link to nowhere": (_patched(EMPTY, b"PK\1\2", 38, "L", 0o120777 << 16), "target b''"),
    "an offset beyond the members": (_patched(ONE, b"PK\1\2", 42, "L", 32), "beyond the members' end"),
    "two end records": (_patched(ONE, b"PK\5\6", 20, "H", 22) + ONE[-22:], "2 end records"),
    "two archives": (ONE + ONE, "put before the archive"),
    "bytes after the end": (ONE + b"x", "off"),
    "several disks": (_patched(ONE, b"PK\5\6", 4, "H", 1), "split"),
    "a count too large": (_patched(ONE, b"PK\5\6", 8, "2H", 2, 2), "2 members"),
    "a count too small": (_hand_made([(b"a", 0, b"", 0, 0)] * 2).replace(b"\2\0\2\0", b"\1\0\1\0"), "counts 1"),
    "no zip": (b"x" * 70_000, "no end record"),
    "nothing": (b"", "no end record"),
    "zip64 with a directory of 2**63 bytes": (_patched(WIDE, b"PK\6\6", 40, "Q", 1 << 63), "disagree"),
    "zip64 of 2**63 bytes": (_patched(WIDE, b"PK\6\6", 4, "Q", 1 << 63), "zip64 end record"),
    "zip64 at byte 2**63": (_patched(WIDE, b"PK\6\7", 8, "Q", 1 << 63), "zip64 record"),
    "zip64 with absurd values": (_patched(ABSURD, b"PK\5\6", 8, "3L", *[0xFFFFFFFF] * 3), "should end at byte 79"),
}


@contextmanager
def _at_most(limit_bytes: int) -> Iterator[None]:
    """Python takes no more memory than that, and no more than 1 s of CPU."""
    tracemalloc.start()
    started_s = thread_time()
    yield
    took_s, (_, peak_bytes) = thread_time() - started_s, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took_s < 1
    assert peak_bytes < limit_bytes


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_an_error_soon_and_takes_no_memory(name: str) -> None:
    """Within 1 s of CPU and 64 MiB, for all claims; the message has the fault."""
    data, words = HOSTILE[name]
    with _at_most(64 << 20):
        assert re.search(words, _error(data))


@pytest.mark.parametrize("method", [0, 8])
def test_claims_of_2_to_50_bytes_take_no_memory(method: int) -> None:
    """In a zip64 field, below any limit that a caller might have raised."""
    extra = struct.pack("<2H2Q", 1, 16, 1 << 50, 1 << 50)
    data = _patched(_patched(ONE, b"PK\1\2", 10, "H", method), b"PK\3\4", 8, "H", method)
    data = _patched(_patched(data, b"PK\1\2", 20, "2L", *[0xFFFFFFFF] * 2), b"PK\1\2", 30, "H", len(extra))
    data = _patched(data[:79] + extra + data[79:], b"PK\5\6", 12, "L", 47 + len(extra))
    with _at_most(1 << 20):
        assert f"claims {1 << 50:,} bytes" in _error(data)
        _error(data, max_member_bytes=1 << 60)


def test_a_large_member_takes_its_length_once() -> None:
    """42 MB out of 41 kB, claimed rightly, and 42 MB stored in parts: their length and about 1 MiB."""
    zeros = bytes(42_000_000)
    for method, compressed in ((8, ZEROS), (0, zeros)):
        data = _hand_made([(b"a", method, compressed, zlib.crc32(zeros), len(zeros))])
        parts, entries = in_parts(data, range(0, len(data), 1 << 20)), _entries(data)
        with _at_most(len(zeros) + (2 << 20)):
            [(_, got)] = read_members(parts, entries, url=URL, max_ratio=2000)
        assert got == zeros


def test_zip_limits_are_the_callers() -> None:
    """A member over max_member_bytes is an error, one of just that length is read."""
    data = _pack([("a", PHOTO)])
    assert _read(data, max_member_bytes=300) == [("a", PHOTO)]
    assert "max_member_bytes=299" in _error(data, max_member_bytes=299)


def test_a_million_members_in_one_place_are_refused_by_their_number() -> None:
    """Each needs a header before the directory, so the claim alone is refused."""
    data = _zip_of_one_place(200_000)
    with _at_most(64 << 20), pytest.raises(ShardReadError, match="200,000 members in 31 bytes"):
        _entries(data)


def _zip_of_one_place(count: int) -> bytes:
    name = b"a"
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0) + name
    central = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, len(name), 0, 0, 0, 0, 0, 0) + name
    directory = central * count
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), len(local))
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(local) + len(directory), 1)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return local + directory + end64 + locator + end
