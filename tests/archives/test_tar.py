"""Tar archives: each kind of header, what belongs to no sample, and what is no tar."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.archive_bytes import (
    BLOCK,
    END_OF_ARCHIVE,
    make_header,
    make_member,
    octal_size,
    pack_tar,
    padded,
    pax_line,
)
from tests.support.archives import (
    URL,
    Members,
    Stream,
    at_most,
    bare,
    flipped,
    grouped,
    outcome,
    outcomes,
    pack_zip,
    read,
    reader,
    refusal,
)
from tests.support.shard_places import memory_place

END = END_OF_ARCHIVE
ONE, TWO = make_member(b"a.x", b"one"), make_member(b"b.x", b"two")


def pax(kind: bytes = b"x", /, **fields: str) -> bytes:
    record = b"".join(pax_line(key.replace("__", "."), value) for key, value in fields.items())
    return make_member(b"extended", record, kind)


def long_name(name: bytes, kind: bytes = b"L") -> bytes:
    return make_member(b"././@LongLink", name + b"\0", kind, magic=b"ustar  ")


def with_size(field: bytes, **fields: Any) -> bytes:
    return make_header(size=field, **fields) + padded(b"one")


BASE_256 = b"\x80" + (3).to_bytes(11, "big")
BOTH = {"a.x": b"one", "b.x": b"two"}
ACCEPTED: dict[str, tuple[bytes, dict[str, bytes]]] = {
    "v7": (make_member(b"a.x", b"one", b"\0", magic=b""), {"a.x": b"one"}),
    "a contiguous file": (make_member(b"a.x", b"one", b"7"), {"a.x": b"one"}),
    "size in base 256": (with_size(BASE_256), {"a.x": b"one"}),
    "size led by blanks": (with_size(b"         3 \0", magic=b""), {"a.x": b"one"}),
    "size of one digit": (with_size(b"3"), {"a.x": b"one"}),
    "size of twelve digits": (with_size(b"000000000003"), {"a.x": b"one"}),
    "size ended by a blank": (with_size(b"00000000003 "), {"a.x": b"one"}),
    "checksum ended otherwise": (make_header(checksum=b"%06o  "), {"a.x": b""}),
    "checksum of eight digits": (make_header(checksum=b"%08o"), {"a.x": b""}),
    "checksum of signed bytes": (make_header("é.x".encode(), signed=True), {"é.x": b""}),
    "size in pax": (pax(size="3") + make_header() + padded(b"one") + TWO, BOTH),
    "size in pax, another in the header": (pax(size="3") + with_size(octal_size(2000)) + TWO, BOTH),
    "other records in pax": (
        pax(mtime="1.5", uname="é", SCHILY__xattr__user="a=b\nc", comment="") + ONE,
        {"a.x": b"one"},
    ),
    "a path in pax for one member": (
        pax(path="é" * 90 + ".x", mtime="1") + ONE + ONE,
        {"é" * 90 + ".x": b"one", "a.x": b"one"},
    ),
    "a prefix": (make_member(b"a.x", b"one", prefix=b"p/q"), {"p/q/a.x": b"one"}),
    "a prefix that GNU tar does not know": (
        make_member(b"a.x", b"one", magic=b"ustar  ", prefix=b"p"),
        {"a.x": b"one"},
    ),
    "long name": (long_name(b"l" * 300 + b".x") + ONE + ONE, {"l" * 300 + ".x": b"one", "a.x": b"one"}),
    "a name of 4,096 characters": (pax(path="é" * 4094 + ".x") + ONE, {"é" * 4094 + ".x": b"one"}),
    "global records": (pax(b"g", comment="git") * 2 + ONE, {"a.x": b"one"}),
    "long names of a link": (
        long_name(b"l" * 200) + long_name(b"t" * 200, b"K") + make_header(b"l", kind=b"2") + ONE,
        {"a.x": b"one"},
    ),
    "a hard link with its target's size": (make_header(b"l", octal_size(1024), b"1") + ONE + TWO, BOTH),
    "a directory with its quota": (make_header(b"d/", octal_size(1024), b"5") + ONE + TWO, BOTH),
    "a directory of v7": (make_header(b"d/", kind=b"\0", magic=b"") + ONE, {"a.x": b"one"}),
}


@pytest.mark.filterwarnings("ignore:.*links are left out")
@pytest.mark.parametrize("case", ACCEPTED)
@pytest.mark.parametrize("end", [END, bytes(10_240), bytes(3 << 20)], ids=["blocks", "record", "zeros"])
def test_a_header_of_any_writer_is_read(case: str, end: bytes) -> None:
    """And every number of zeros after the last member; whole, and where each piece is a block."""
    data, files = ACCEPTED[case]
    assert read(data + end) == grouped(files.items())
    assert read(data + end, cuts=range(BLOCK, len(data), BLOCK)) == grouped(files.items())


@pytest.mark.parametrize(
    ("kind", "called"), [*zip(b"123456", ["link", "link", "device", "device", "directory", "device"], strict=True)]
)
@pytest.mark.filterwarnings("ignore:.*links are left out")
def test_links_devices_and_directories_are_counted(kind: int, called: str) -> None:
    pipe = reader(ONE + make_header(b"other", kind=bytes([kind])) + TWO + END)
    assert bare(pipe) == grouped(BOTH.items())
    assert pipe.skipped.members == {called: 1}


@pytest.mark.filterwarnings("ignore:.*links are left out")
@pytest.mark.parametrize("kind", [b"2", b"3", b"4", b"6"])
def test_a_link_or_device_with_a_size_loses_no_member(kind: bytes) -> None:
    """Programs disagree on whether data follow: they are read as members, or the shard is refused."""
    found, error = outcome(reader(make_header(b"other", octal_size(1024), kind) + ONE + TWO + END))
    assert error is not None or found == grouped(BOTH.items())


def test_files_of_macos_and_meta_members_are_counted() -> None:
    names = ["__meta__", "d/__info.json__", "d/._a.x", "d/.DS_Store", "__MACOSX/a.x", "a.x"]
    pipe = reader(pack_tar([(name, b"1") for name in names]))
    assert bare(pipe) == [{"__key__": "a", "x": b"1"}]
    assert pipe.skipped.members == {"meta": 2, "macos": 3}


def header_of(name: bytes = b"other", size: int = 0, kind: bytes = b"0") -> bytes:
    return make_header(name, octal_size(size) if size < 8 << 30 else b"\x80" + size.to_bytes(11, "big"), kind)


RECORDS = [
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
]
RECORDS += [b"6 a=bc", b"99999999999999999999999 a=b\n", bytes(20)]
SIZES = [b"-0000000003\0", b"\xff" * 12, b"\xff" + b"\0" * 11, b"0000000000x\0", b"0000000000\x008", b"0x3".ljust(12)]
REFUSED: dict[str, tuple[bytes, list[str]]] = {
    **{f"checksum off by {by}": (make_header(off_by=by), ["at byte 0", "checksum"]) for by in (1, -1, 256, 65521)},
    "a page": (b"<html>not found</html>".ljust(2048), ["not a tar"]),
    "a zip": (b"PK\3\4" + bytes(2044), ["not a tar"]),
    **{
        f"type {kind}": (ONE + make_header(b"other", kind=kind.encode()), [repr(kind), "'other'", "at byte 1,024"])
        for kind in "SMVADNXE8z+"
    },
    **{f"size {size!r}": (ONE + make_header(size=size), ["at byte 1,024", "size"]) for size in SIZES},
    **{
        f"{size:,} bytes": (
            header_of(size=size) + bytes(2048),
            ["'other'", f"claims {size:,} bytes (max_member_bytes=4,294,967,296)", "Raise that limit"],
        )
        for size in ((4 << 30) + 1, (8 << 30) - 1, 1 << 50, (1 << 88) - 1)
    },
    "2**60 bytes in pax": (pax(size=str(1 << 60)) + ONE, ["max_member_bytes"]),
    **{
        f"pax size {size[:9]!r}": (pax(size=size) + ONE, ["pax size"])
        for size in ("-3", "3.0", "", "x", "٣", "1" * 5000, "0x3", " 3")
    },
    **{f"pax record {record!r}": (make_member(b"pax", record, b"x") + ONE, ["pax header"]) for record in RECORDS},
    **{
        f"{kind!r} of more than a MiB": (header_of(size=(1 << 20) + 1, kind=kind) + bytes(4096), ["1,048,577"])
        for kind in (b"x", b"g", b"L", b"K")
    },
    "two pax headers": (pax(path="b.x") * 2 + ONE, ["two extended headers"]),
    "two long names": (long_name(b"b.x") * 2 + ONE, ["two extended headers"]),
    "long name, then pax": (long_name(b"b.x") + pax(path="c.x") + ONE, ["two names for one member"]),
    "pax without a member": (ONE + pax(path="b.x"), ["without a member"]),
    "long name without a member": (ONE + long_name(b"b.x"), ["without a member"]),
    "a name of 4,097 characters": (pax(path="é" * 4095 + ".x") + ONE, ["4,097 characters (limit 4,096)"]),
    "a global path": (pax(b"g", path="a") + ONE, ["global header"]),
    "a global size": (pax(b"g", size="3") + ONE, ["global header"]),
    "one byte after the zeros": (ONE + END + bytes(3 << 20) + b"x" * 512, ["after the end"]),
    "one zero block between members": (ONE + bytes(BLOCK) + TWO, ["after the end"]),
    "sparse in a vendor's record": (pax(GNU__sparse__major="1") + ONE, ["sparse"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_rightly_is_refused_with_its_place_and_reason(case: str) -> None:
    data, words = REFUSED[case]
    message = refusal(data + END)
    assert [word for word in words if word not in message] == []
    assert len(message) < 1000
    assert refusal(data + END, cuts=range(BLOCK, len(data), BLOCK)) == message


def test_a_short_member_tells_what_came() -> None:
    message = refusal(ONE + make_header(b"b.x", octal_size(2000)) + bytes(700))
    for part in ("at byte 1,024", "'b.x'", "700 of 2,000 bytes", "write the shard again"):
        assert part in message


def test_a_member_that_cannot_fit_is_refused_before_it_is_waited_for() -> None:
    """Where the length of the object is known. One that just fits is read."""
    place = memory_place()
    place.put({"0.tar": make_header(size=octal_size(2049)) + bytes(2048), "1.tar": ONE + END})
    pipe = tdr.IterableWrapper([f"{place.url}*.tar"]).list_remote().shard_tar_reader(on_bad_shard=tdr.skip_with_warning)
    with pytest.warns(RuntimeWarning, match="claims 2,049 bytes where the object has 2,048 left"):
        assert bare(pipe) == [{"__key__": "a", "x": b"one"}]


def test_the_limit_of_a_member_is_the_readers() -> None:
    """A member of exactly so many bytes is read, also of a zip."""
    for form, data in (("tar", ONE + END), ("zip", pack_zip([("a.x", b"one")]))):
        assert read(data, form, max_member_bytes=3) == [{"__key__": "a", "x": b"one"}]
        message = refusal(data, form, max_member_bytes=2)
        assert "claims 3 bytes" in message
        assert "max_member_bytes=2" in message


NAMES = st.one_of(
    st.text(st.characters(exclude_characters="\0./", exclude_categories=["Cs"]), min_size=1, max_size=20),
    st.text("ab/", min_size=90, max_size=320).filter(lambda name: not name.endswith("/")),
    st.text("aé漢", min_size=30, max_size=130),
)
LENGTHS = st.sampled_from([0, 1, 511, 512, 513, 1024, 1025]) | st.integers(0, 3000)
MEMBERS = st.lists(st.tuples(NAMES, LENGTHS), min_size=1, max_size=6).map(
    lambda found: [(f"{i}{name}.x", bytes(j * 7 % 251 for j in range(size))) for i, (name, size) in enumerate(found)]
)


@given(members=MEMBERS, cuts=st.lists(st.integers(0, 20_000), max_size=12), copy=st.booleans())
def test_samples_do_not_depend_on_the_pieces_that_arrive(members: Members, cuts: list[int], copy: bool) -> None:
    """Names of any length and script, data of any size, as bytes or as views of the pieces."""
    (found, error) = outcome(reader(pack_tar(members), cuts=cuts, copy=copy))
    assert error is None
    assert {type(sample["x"]) for sample in found} == {bytes if copy else memoryview}
    assert [{**sample, "x": bytes(sample["x"])} for sample in found] == grouped(members)


ALL_KINDS = [
    ("a.x", b"1"),
    ("n" * 150 + ".x", b"2" * 513),
    ("p" * 120 + "/" + "n" * 88 + ".x", b"3" * 512),
    ("é.x", b""),
    ("é.y", b"4"),
]
WHOLE = pack_tar(ALL_KINDS)


def test_a_sample_is_handed_out_before_more_is_read() -> None:
    """Than the header that tells that it is complete."""
    data = pack_tar([(f"{i}.x", b"x" * 600) for i in range(9)])
    stream = Stream(data, range(1536, len(data), 1536))
    samples = iter(tdr.IterableWrapper([(URL, stream)], deepcopy=False).shard_tar_reader())
    for number in range(9):
        next(samples)
        assert stream.tell() == min(1536 * (number + 2), len(data))


@pytest.mark.parametrize("copy", [True, False])
def test_memory_is_that_of_a_member_and_of_the_piece_at_hand(copy: bool) -> None:
    """A member of many pieces takes its length once; of members that were handed out nothing is kept."""
    large = pack_tar([("a.x", bytes(24 << 20)), *((f"{number}.y", bytes(10_000)) for number in range(2000))])
    samples = iter(reader(large, copy=copy))
    with at_most(29 << 20):
        assert len(next(samples)["x"]) == 24 << 20
    with at_most(6 << 20):
        assert sum(len(sample["y"]) for sample in samples) == 20_000_000


def test_an_archive_that_ends_anywhere_but_at_its_end_is_an_error_after_whole_samples() -> None:
    """Where a member ends it is one of its own, which alone can be accepted, and is counted."""
    whole = grouped(ALL_KINDS)
    with tarfile.open(fileobj=io.BytesIO(WHOLE)) as archive:
        ends = [(info.offset_data + info.size + 511) // 512 * 512 for info in archive]
    for number, end in enumerate(ends):
        pipe = reader(WHOLE[:end], on_bad_shard=tdr.accept_missing_end)
        assert bare(pipe) == grouped(ALL_KINDS[: number + 1])
        assert (pipe.skipped.num_missing_ends, pipe.skipped.shards) == (1, {})
        refusal(WHOLE[: end + BLOCK], on_bad_shard=tdr.accept_missing_end)
    cuts = [at + more for at in range(0, len(WHOLE), BLOCK) for more in (0, 1, 300, BLOCK - 1)]
    for end, (found, error) in zip(cuts, outcomes(WHOLE[:end] for end in cuts), strict=True):
        assert found == whole[: len(found)], f"cut at byte {end}"
        assert "cut short" in str(error), f"cut at byte {end}"
        assert isinstance(error, tdr.errors.MissingEndError) == (end in ends), f"cut at byte {end}"


HEADERS = [at for at in range(0, len(WHOLE), BLOCK) if WHOLE[at + 257 : at + 262] == b"ustar"]


@pytest.mark.parametrize("start", [HEADERS[0], HEADERS[1], HEADERS[3], len(WHOLE) - 2 * BLOCK, len(WHOLE) - BLOCK])
def test_every_flipped_bit_of_a_header_is_an_error(start: int) -> None:
    """Two or three of each byte: of a plain header, one of pax, one with a prefix, and the end.

    Only a blank for a zero of a checksum is none.
    """
    flips = [divmod(bit, 8) for bit in range(8 * start, 8 * (start + BLOCK), 3)]
    whole, found_in = grouped(ALL_KINDS), outcomes(flipped(WHOLE, *flip) for flip in flips)
    for (at, bit), (found, error) in zip(flips, found_in, strict=True):
        assert found == whole[: len(found)], f"bit {bit} of byte {at - start}"
        assert error is not None or (148 <= at - start < 156 and found == whole), f"bit {bit} of byte {at - start}"
