from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import webdataset
from hypothesis import example, given, settings
from hypothesis import strategies as st
from webdataset.tariterators import tar_file_iterator

from tests.support.archive_bytes import in_parts, make_header, make_member, octal_size, pack_tar, padded, pax_line
from tests.support.tar_members import read_members
from torchdata_remote.errors import ShardReadError
from torchdata_remote.formats.tar import BLOCK, END_OF_ARCHIVE, TarOptions, pack_header, padding
from torchdata_remote.formats.tar.header import _ustar
from torchdata_remote.formats.tar.packing import is_plain, pack_plain_members

URL = "s3://b/t-000.tar"
Members = list[tuple[str, bytes]]

SIZES = st.sampled_from([0, 1, 511, 512, 513, 1024, 1025]) | st.integers(0, 3000)
CHARACTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
NAMES = st.one_of(
    st.text(CHARACTERS, min_size=1, max_size=20),
    st.text("ab/", min_size=95, max_size=105),
    st.text("ab/", min_size=150, max_size=320),
    st.text("aé漢/", min_size=30, max_size=130),
).filter(lambda name: not name.endswith("/"))
MEMBERS = st.lists(st.tuples(NAMES, SIZES.map(lambda size: bytes(i * 7 % 251 for i in range(size)))), max_size=6)

# Around the limits of ustar's two fields: 100 bytes of name, 155 of prefix, 256 of both.
BORDER_NAMES = [
    *("n" * length for length in (1, 99, 100, 101, 155, 156, 255)),
    *("p" * prefix + "/" + "n" * name for prefix in (1, 154, 155, 156) for name in (1, 99, 100, 101)),
    "a/" * 49 + "bcd",
    "a/" * 77 + "n" * 99,
    "a/" * 77 + "n" * 100,
    "a/" * 200 + "b",
    "é" * 50,
    "é" * 51,
    "漢字/" * 40 + "字",
    "with blank and 'quote'.x",
    "-begins.with.a.dash",
]

HAS_GNU_TAR = (
    b"GNU" in subprocess.run(["tar", "--version"], capture_output=True).stdout if shutil.which("tar") else False
)
needs_gnu_tar = pytest.mark.skipif(not HAS_GNU_TAR, reason="needs GNU tar")


def _read(data: bytes) -> Members:
    return list(read_members([data], url=URL))


def _extended(record: bytes, kind: bytes = b"x") -> bytes:
    return make_member(b"extended", record, kind)


def _pax(**fields: str) -> bytes:
    """A pax record."""
    return b"".join(pax_line(key.replace("__", "."), value) for key, value in fields.items())


ONE = make_header(size=octal_size(3)) + padded(b"one")


def _error(data: bytes, **options: Any) -> str:
    """The message of the error that reading ends with; it names the shard."""
    with pytest.raises(ShardReadError) as caught:
        list(read_members([data], url=URL, options=TarOptions(**options)))
    assert caught.value.url == URL
    assert str(caught.value).startswith(f"{URL}: at byte ")
    return str(caught.value)


# Our reader on our bytes


@given(members=MEMBERS, cuts=st.lists(st.integers(0, 20_000), max_size=12))
@example(members=[("a" * 101, b"x" * 511), ("é.x", b""), ("p/" * 200 + "n", b"y" * 513)], cuts=[0, 0, 511, 512, 1100])
def test_members_come_back_equal_however_the_archive_is_cut(members: Members, cuts: list[int]) -> None:
    """Names of any length and script, data of any size, parts of any length, empty ones included."""
    assert list(read_members(in_parts(pack_tar(members), cuts), url=URL)) == members


def test_every_cut_and_every_part_length_reads_the_same() -> None:
    """An archive with all kinds of headers, cut in two at each byte, and in parts of each length."""
    members = [("a.x", b"1"), ("n" * 150, b"2" * 513), ("p" * 120 + "/" + "n" * 90, b"3" * 512), ("é.x", b"")]
    data = pack_tar(members)
    for cut in range(len(data) + 1):
        assert list(read_members(in_parts(data, [cut]), url=URL)) == members, f"cut at byte {cut}"
    for length in range(1, 1200):
        parts = in_parts(data, range(length, len(data), length))
        assert list(read_members(parts, url=URL)) == members, f"parts of {length} bytes"


@given(MEMBERS)
def test_an_archive_has_the_bytes_that_the_headers_announce(members: Members) -> None:
    """Whole blocks, and the writer can count them beforehand."""
    for name, data in members:
        assert len(pack_header(name, len(data))) % BLOCK == 0
        assert (len(data) + padding(len(data))) % BLOCK == 0
        assert 0 <= padding(len(data)) < BLOCK
        assert pack_header(name, len(data)) == pack_header(name, len(data))
    assert len(END_OF_ARCHIVE) == 1024


def test_a_member_is_handed_on_before_the_next_part_is_asked_for() -> None:
    """A shard's first sample does not wait for the whole shard, and what is not read is not pulled."""
    data = pack_tar([(f"{i}.x", b"x" * 600) for i in range(10)])
    pulled = 0

    def parts() -> Iterator[bytes]:
        nonlocal pulled
        for start in range(0, len(data), 1536):
            pulled += 1
            yield data[start : start + 1536]

    members = read_members(parts(), url=URL)
    for i in range(1, 11):
        assert next(members) == (f"{i - 1}.x", b"x" * 600)
        assert pulled == i


def test_data_does_not_change_with_the_part_that_it_came_in() -> None:
    """Members are bytes of their own, so that a buffer may be used again."""
    buffer = bytearray(pack_tar([("a.x", b"first")]))
    members = list(read_members([memoryview(buffer)], url=URL))
    buffer[:] = bytes(len(buffer))
    assert members == [("a.x", b"first")]


# Our bytes, read by others


@given(MEMBERS)
def test_tarfile_reads_what_we_pack(members: Members) -> None:
    """Python's own reader, which knows pax, agrees on names, data, and that nothing else is in there."""
    with tarfile.open(fileobj=io.BytesIO(pack_tar(members))) as archive:
        infos = archive.getmembers()
        assert all(info.isreg() and (info.mode, info.uid, info.gid, info.mtime) == (0o644, 0, 0, 0) for info in infos)
        got = [(info.name, file.read()) for info in infos if (file := archive.extractfile(info))]
    assert got == members


def test_tarfile_reads_names_at_the_borders() -> None:
    """Where a name just fits into the fields of ustar, and where it just does not."""
    members = [(name, name.encode()) for name in BORDER_NAMES]
    assert _read(pack_tar(members)) == members
    with tarfile.open(fileobj=io.BytesIO(pack_tar(members))) as archive:
        assert [info.name for info in archive] == BORDER_NAMES


@given(
    members=st.lists(
        st.tuples(st.text(st.characters(max_codepoint=127), max_size=100), st.binary(max_size=1_100)), min_size=1
    )
)
@example(members=[("\x7f" * 100, b""), ("", b"x" * 512), ("a.jpg", b"x" * 513)])
def test_members_packed_together_equal_those_packed_one_by_one(members: list[tuple[str, bytes]]) -> None:
    """Header, data and padding of each are the same bytes."""
    names, values = zip(*members, strict=True)
    expected = [pack_header(name, len(data)) + data + bytes(padding(len(data))) for name, data in members]
    assert pack_plain_members(names, values) == b"".join(expected)


@given(name=st.text(max_size=130), size=st.integers(0, 1 << 40) | st.sampled_from([0o77777777777, 0o77777777777 + 1]))
@example(name="n" * 100, size=0o77777777777)
def test_a_plain_name_and_size_fit_into_one_header(name: str, size: int) -> None:
    """Where members are packed together, none has an extended header."""
    if is_plain(name, size):
        assert pack_header(name, size) == _ustar(b"", name.encode(), size, b"0")


def test_a_plain_name_takes_no_second_header() -> None:
    """What ustar can hold costs 512 bytes; only the rest takes a pax record."""
    assert len(pack_header("n" * 100, 0)) == BLOCK
    assert len(pack_header("p" * 155 + "/" + "n" * 100, 0)) == BLOCK
    assert len(pack_header("n" * 101, 0)) == 3 * BLOCK


def test_sizes_beyond_the_octal_field_are_told_in_pax() -> None:
    """tarfile reads the size of a member of 8 GiB, at the limit and above it, from the header alone."""
    for size in (0o77777777777, 0o77777777777 + 1, 1 << 40):
        with tarfile.open(fileobj=io.BytesIO(pack_header("a.x", size))) as archive:
            info = archive.next()
        assert info is not None
        assert (info.name, info.size) == ("a.x", size)


@needs_gnu_tar
def test_gnu_tar_reads_what_we_pack(tmp_path: Path) -> None:
    """It lists the same names in the same order, and hands out the same data."""
    members = [(name, bytes([i]) * (i * 100)) for i, name in enumerate(BORDER_NAMES)]
    archive = tmp_path / "a.tar"
    archive.write_bytes(pack_tar(members))
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}

    def tar(*arguments: str) -> bytes:
        done = subprocess.run(["tar", *arguments], capture_output=True, check=True, env=environment)
        assert done.stderr == b""
        return done.stdout

    listed = tar("--quoting-style=literal", "-tf", str(archive)).decode().splitlines()
    assert listed == BORDER_NAMES
    assert tar("-xOf", str(archive)) == b"".join(data for _, data in members)
    for name, data in members[::5]:
        assert tar("-xOf", str(archive), "--", name) == data


@given(MEMBERS)
def test_webdataset_reads_what_we_pack(members: Members) -> None:
    """Its reader sees the same members, apart from those that it passes over by name."""
    members = [(name, data) for name, data in members if not name.startswith("__")]
    got = tar_file_iterator(io.BytesIO(pack_tar(members)))
    assert [(item["fname"], item["data"]) for item in got] == members


# Bytes of others, read by us


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@given(members=MEMBERS)
def test_we_read_what_tarfile_writes(tar_format: int, members: Members) -> None:
    """In all its formats; what ustar cannot hold is left out there."""
    buffer = io.BytesIO()
    written = []
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as archive:
        for any_name, data in members:
            name = any_name.lstrip("/") or "x"  # tarfile's ustar loses the slash of a long absolute name
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uname = len(data), 1.5 if tar_format == tarfile.PAX_FORMAT else 1, "é"
            try:
                archive.addfile(info, io.BytesIO(data))
            except ValueError:
                assert tar_format == tarfile.USTAR_FORMAT
                continue
            written.append((name, data))
    assert _read(buffer.getvalue()) == written


def test_names_that_are_not_utf8_are_kept() -> None:
    """Latin-1 names of old archives are decoded with surrogates, as Python's file names are."""
    for tar_format in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tar_format, encoding="latin-1") as archive:
            archive.addfile(tarfile.TarInfo("ä.x"))
        assert _read(buffer.getvalue()) == [(b"\xe4.x".decode("utf-8", "surrogateescape"), b"")]


@needs_gnu_tar
@pytest.mark.parametrize("tar_format", ["v7", "oldgnu", "gnu", "ustar", "pax", "posix"])
def test_we_read_what_gnu_tar_writes(tmp_path: Path, tar_format: str) -> None:
    """Files in folders, of all sizes; directories and links beside them are passed over."""
    names = ["a.x", "d/é.x", "d/e/" + "n" * 80 + ".x"]
    if tar_format != "v7":
        names.append("p" * 60 + "/" + "q" * 60 + "/" + "n" * 90)
    if tar_format not in ("v7", "ustar"):
        names.append("r" * 200 + "/" + "s" * 200)
    files = {f"./{name}": bytes([65 + i]) * (511 + i) for i, name in enumerate(names)} | {"./empty.x": b""}
    for name, data in files.items():
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "files" / "symlink.x").symlink_to("a.x")
    command = ["tar", f"--format={tar_format}", "-cf", "-", "-C", str(tmp_path / "files"), "."]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    members = _read(archive)
    assert dict(members) == files
    assert len(members) == len(files)


@given(
    samples=st.lists(
        st.fixed_dictionaries({"cls": st.integers(0, 9), "txt": st.text(max_size=600), "bin": st.binary(max_size=600)}),
        max_size=5,
    ),
    folder=st.sampled_from(["", "train/", "é/", "p" * 200 + "/"]),
)
@settings(max_examples=30)
def test_we_read_what_webdataset_writes(samples: list[dict[str, object]], folder: str) -> None:
    """Its TarWriter's members, in its order."""
    buffer = io.BytesIO()
    with webdataset.TarWriter(buffer, encoder=True) as writer:
        for i, sample in enumerate(samples):
            writer.write({"__key__": f"{folder}{i}", **sample})
    expected = [
        (f"{folder}{i}.{name}", value if isinstance(value, bytes) else str(value).encode())
        for i, sample in enumerate(samples)
        for name, value in sorted(sample.items())
    ]
    assert sorted(_read(buffer.getvalue())) == sorted(expected)


def test_pax_fields_of_others_are_no_error() -> None:
    """Times, owners, vendor keywords, empty values, and a global header before everything."""
    record = _pax(mtime="1.5", uname="é", SCHILY__xattr__user="a=b\nc", comment="")
    assert _read(_extended(_pax(comment="git"), b"g") + _extended(record) + ONE + END_OF_ARCHIVE) == [("a.x", b"one")]
    with_path = _extended(_pax(path="é" * 90, mtime="1"))
    assert _read(with_path + ONE + ONE + END_OF_ARCHIVE) == [("é" * 90, b"one"), ("a.x", b"one")]


def test_sizes_in_pax_and_in_base_256_are_sizes() -> None:
    """Members of 8 GiB and more are written so, smaller ones may be."""
    assert _read(_extended(_pax(size="3")) + make_header() + padded(b"one") + END_OF_ARCHIVE) == [("a.x", b"one")]
    base_256 = b"\x80" + (3).to_bytes(11, "big")
    assert _read(make_header(size=base_256) + padded(b"one") + END_OF_ARCHIVE) == [("a.x", b"one")]


@pytest.mark.parametrize("size", [b"         3 \0", b"3\0\0\0\0\0\0\0\0\0\0\0", b"000000000003", b"00000000003 "])
def test_the_octal_fields_of_old_writers_are_read(size: bytes) -> None:
    """Led by blanks, ended by blank, NUL or nothing."""
    assert _read(make_header(size=size, magic=b"") + padded(b"one") + END_OF_ARCHIVE) == [("a.x", b"one")]


def test_a_checksum_of_signed_bytes_is_accepted() -> None:
    """Some old writers summed so; it differs where a name is not ASCII."""
    header = make_header("é.x".encode())
    signed = sum(byte - 256 if byte > 127 else byte for byte in header[:148] + b" " * 8 + header[156:])
    old = header[:148] + b"%06o\0 " % signed + header[156:]
    assert old != header
    assert _read(old + END_OF_ARCHIVE) == [("é.x", b"")]


# What is passed over


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"5", b"6"])
def test_links_devices_and_directories_are_passed_over(kind: bytes) -> None:
    """Members before and after them are read."""
    data = ONE + make_header(b"other", kind=kind) + ONE + END_OF_ARCHIVE
    assert _read(data) == [("a.x", b"one")] * 2


@pytest.mark.parametrize("kind", [b"1", b"5"])
def test_a_size_of_what_is_passed_over_is_not_skipped(kind: bytes) -> None:
    """A hard link may carry its target's size, a directory its quota (POSIX): no data follows, as all readers agree."""
    data = make_header(b"other", octal_size(1024), kind) + ONE + ONE + END_OF_ARCHIVE
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert [info.name for info in archive if info.isreg()] == ["a.x", "a.x"]
    assert _read(data) == [("a.x", b"one")] * 2


@pytest.mark.parametrize("kind", [b"2", b"3", b"4", b"6"])
def test_a_link_or_device_with_a_size_loses_no_member(kind: bytes) -> None:
    """Readers disagree on whether data follows (POSIX: no): read on at once or refuse, but pass over no member."""
    try:
        members = _read(make_header(b"other", octal_size(1024), kind) + ONE + ONE + END_OF_ARCHIVE)
    except ShardReadError:
        return
    assert members == [("a.x", b"one")] * 2


def test_a_directory_of_v7_is_passed_over() -> None:
    """It has no type of its own, only a slash at the end of its name."""
    assert _read(make_header(b"folder/", kind=b"\0", magic=b"") + ONE + END_OF_ARCHIVE) == [("a.x", b"one")]


def test_long_names_of_links_are_passed_over() -> None:
    """GNU's long link name and long name before a link do not reach the member after it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        link = tarfile.TarInfo("l" * 200)
        link.type, link.linkname = tarfile.SYMTYPE, "t" * 200
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("a.x"))
    assert _read(buffer.getvalue()) == [("a.x", b"")]


def test_an_archive_without_members_yields_nothing() -> None:
    """The two end-of-archive blocks alone, more zeros after them, or a global header before them."""
    assert _read(END_OF_ARCHIVE) == _read(bytes(10_240)) == []
    assert _read(_extended(_pax(comment="x"), b"g") + END_OF_ARCHIVE) == []


# What is an error


def test_an_archive_that_ends_anywhere_but_at_its_end_is_an_error() -> None:
    """Cut at each byte of a shard of 20 members: an error that says so, after whole members only."""
    members = [(f"{i:02d}.{'x' * (60 * (i % 3) + 1)}", bytes([i]) * (i * 37)) for i in range(20)]
    data = pack_tar(members)
    for end in range(len(data)):
        got: Members = []
        with pytest.raises(ShardReadError, match="cut short"):
            got.extend(read_members([memoryview(data)[:end]], url=URL))
        assert got == members[: len(got)], f"cut at byte {end}"
    assert len(got) == 20, "members that are whole are handed out"
    assert _read(data) == members


def test_an_archive_shorter_than_the_object_is_an_error_at_once() -> None:
    """Where the length of the object is known, a member that cannot fit is refused before it is waited for."""
    data = make_header(size=octal_size(10_000)) + bytes(2048)
    assert "10,000" in _error(data, num_bytes=len(data))
    assert "2,048" in _error(data, num_bytes=len(data))
    assert list(read_members([ONE + END_OF_ARCHIVE], url=URL, options=TarOptions(num_bytes=2048))) == [("a.x", b"one")]


def test_every_flipped_bit_of_a_header_is_an_error() -> None:
    """Of name, pax, prefix and plain headers, and of the end: each bit is covered by the checksum.

    Only within the checksum field itself a flip may leave the number as it was (blank for a leading zero).
    """
    members = [("a.x", b"1"), ("n" * 150, b"2"), ("p" * 120 + "/" + "n" * 90, b"3")]
    data = pack_tar(members)
    headers = [start for start in range(0, len(data), BLOCK) if data[start + 257 : start + 262] == b"ustar"]
    assert headers == [0, 1024, 2048, 3072], "three members, one of them with a pax header"
    for start in (*headers, len(data) - 2 * BLOCK, len(data) - BLOCK):
        for position in range(start, start + BLOCK):
            for bit in range(8):
                flipped = bytearray(data)
                flipped[position] ^= 1 << bit
                try:
                    got = list(read_members([memoryview(flipped)], url=URL))
                except ShardReadError:
                    continue
                assert 148 <= position - start < 156, f"bit {bit} of byte {position - start} of header at {start}"
                assert got == members


@pytest.mark.parametrize("off_by", [1, -1, 256, 65521])
def test_a_checksum_that_does_not_fit_is_an_error(off_by: int) -> None:
    """By however much."""
    assert "checksum" in _error(make_header(off_by=off_by) + END_OF_ARCHIVE)


@pytest.mark.parametrize(
    "data", [b"<html>not found</html>".ljust(2048), bytes(range(256)) * 8, b"PK\3\4" + bytes(2044)]
)
def test_what_is_no_tar_is_an_error(data: bytes) -> None:
    """A page of a proxy, noise, a zip."""
    assert "not a tar" in _error(data)


@pytest.mark.parametrize("kind", list("SMVADNXE8z+"))
def test_types_that_cannot_be_read_rightly_are_an_error(kind: str) -> None:
    """Sparse files, volumes, dumps, vendor types: the error has type, name and offset."""
    message = _error(ONE + make_header(b"other", kind=kind.encode()) + ONE + END_OF_ARCHIVE)
    assert repr(kind) in message
    assert "'other'" in message
    assert "at byte 1,024" in message


@needs_gnu_tar
@pytest.mark.parametrize("options", [["gnu"], ["pax"], ["pax", "0.0"], ["pax", "0.1"], ["pax", "1.0"]])
def test_sparse_files_are_an_error(tmp_path: Path, options: list[str]) -> None:
    """As GNU tar writes them, in all its ways: their bytes are not where they seem to be."""
    with open(tmp_path / "a.x", "wb") as file:
        file.write(b"x")
        file.seek(1 << 20)
        file.write(b"y")
    versions = [f"--sparse-version={version}" for version in options[1:]]
    command = ["tar", "-S", f"--format={options[0]}", *versions, "-cC", str(tmp_path), "a.x"]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    assert len(archive) < 1 << 20, "it is sparse"
    _error(archive)


@pytest.mark.parametrize(
    "size",
    [b"-0000000003\0", b"\xff" * 12, b"\xff" + b"\0" * 11, b"0000000000x\0", b"0000000000\x008", b"0x3".ljust(12)],
)
def test_a_size_that_is_no_number_is_an_error(size: bytes) -> None:
    """Negative ones among them, in both ways of writing."""
    assert "size" in _error(make_header(size=size) + ONE + END_OF_ARCHIVE)


@pytest.mark.parametrize("size", [b"77777777777\0", b"\x80" + b"\x7f" * 11, b"\x80\0\0\0" + b"\xff" * 8])
def test_a_huge_size_is_an_error_before_memory_is_taken(size: bytes) -> None:
    """The message has the limit and the option that raises it."""
    message = _error(make_header(size=size) + ONE + END_OF_ARCHIVE)
    assert "max_member_bytes=4,294,967,296" in message
    assert "'a.x'" in message


def test_the_limit_of_a_member_is_the_callers() -> None:
    """A member of exactly so many bytes is read."""
    assert list(read_members([ONE + END_OF_ARCHIVE], url=URL, options=TarOptions(max_member_bytes=3))) == [
        ("a.x", b"one")
    ]
    assert "max_member_bytes=2" in _error(ONE + END_OF_ARCHIVE, max_member_bytes=2)
    assert "max_member_bytes" in _error(_extended(_pax(size=str(1 << 60))) + ONE + END_OF_ARCHIVE)


@pytest.mark.parametrize("size", ["-3", "3.0", "", "x", "٣", "1" * 5000, "0x3", " 3"])
def test_a_pax_size_that_is_no_number_is_an_error(size: str) -> None:
    """And one of thousands of digits is no other kind of error."""
    message = _error(_extended(_pax(size=size)) + ONE + END_OF_ARCHIVE)
    assert len(message) < 500


@pytest.mark.parametrize(
    "record",
    [
        b"x",
        b"3",
        b" 3 a=b\n",
        b"7 a=b\n",
        b"99 a=b\n",
        b"6 a=b\n6 a=",
        b"6 ab.\n\n",
        b"-6 a=b\n",
        b"0 a=b\n",
        b"1 a=b\n",
        b"6 a=bc",
        b"99999999999999999999999 a=b\n",
        bytes(20),
    ],
)
def test_a_pax_record_that_does_not_add_up_is_an_error(record: bytes) -> None:
    """Nothing is guessed from what may be damaged."""
    assert "pax" in _error(_extended(record) + ONE + END_OF_ARCHIVE)


def test_an_extended_header_is_limited() -> None:
    """One that claims more than a MiB is an error before memory is taken."""
    for kind in (b"x", b"g", b"L", b"K"):
        assert "1,048,577" in _error(make_header(size=octal_size((1 << 20) + 1), kind=kind) + bytes(1 << 12))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (_extended(_pax(path="b.x")), _extended(_pax(path="b.x"))),
        (_extended(_pax(mtime="1")), _extended(_pax(path="b.x"))),
        (_extended(b"b.x\0", b"L"), _extended(b"b.x\0", b"L")),
        (_extended(b"b.x\0", b"L"), _extended(_pax(path="c.x"))),
        (_extended(_pax(path="c.x")), _extended(b"b.x\0", b"L")),
    ],
)
def test_two_names_for_one_member_are_an_error(first: bytes, second: bytes) -> None:
    """Readers disagree on which of them counts, so that none is taken."""
    assert "two" in _error(first + second + ONE + END_OF_ARCHIVE)


@pytest.mark.parametrize("kind", [b"x", b"L", b"K"])
def test_an_extended_header_without_a_member_is_an_error(kind: bytes) -> None:
    """What it belongs to is missing."""
    record = _pax(path="b.x") if kind == b"x" else b"b.x\0"
    assert "without a member" in _error(ONE + _extended(record, kind) + END_OF_ARCHIVE)


def test_data_after_the_end_is_an_error() -> None:
    """Two archives in one file: the second would be lost silently; a single byte far behind counts too."""
    archive = ONE + END_OF_ARCHIVE
    assert "after the end" in _error(archive + archive)
    assert "after the end" in _error(archive + bytes(3 << 20) + b"x")
    assert "after the end" in _error(ONE + bytes(BLOCK) + ONE + END_OF_ARCHIVE), "one block of zeros between members"


def test_the_error_of_a_short_member_tells_what_came() -> None:
    """The error has received and expected bytes, name, offset, and what to do."""
    message = _error(ONE + make_header(b"b.x", octal_size(2000)) + bytes(700))
    for part in ("at byte 1,024", "'b.x'", "700 of 2,000 bytes", "write the shard again"):
        assert part in message


def test_global_headers_are_passed_over_unless_they_name_members() -> None:
    """Two in a row are fine; a path or a size for all members is refused rather than ignored."""
    comment, path = b"15 comment=abc\n", b"9 path=a\n"
    harmless = make_header(b"pax", octal_size(len(comment)), b"g") + comment.ljust(512, b"\0")
    assert _read(harmless * 2 + ONE + END_OF_ARCHIVE) == [("a.x", b"one")]
    naming = make_header(b"pax", octal_size(len(path)), b"g") + path.ljust(512, b"\0")
    with pytest.raises(ShardReadError, match="global header"):
        _read(naming + ONE + END_OF_ARCHIVE)


def test_an_empty_pax_path_leaves_the_name_to_the_header() -> None:
    """POSIX: an extended keyword without a value takes it back."""
    record = b"8 path=\n"
    assert _read(_extended(record) + ONE + END_OF_ARCHIVE) == [("a.x", b"one")]
