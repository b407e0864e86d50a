"""The vectorised reader of headers against the one that reads them one by one, and runs of names against single ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torchdata_remote.errors import ShardReadError
from torchdata_remote.grouping import samples_of
from torchdata_remote.sample import is_meta, naming_fault, split_key
from torchdata_remote.tar import BLOCK, END_OF_ARCHIVE, TarOptions, read_runs, scan

URL = "s3://b/t-000.tar"
WINDOWS = [BLOCK, 2 * BLOCK, 3 * BLOCK, 8 * BLOCK, 2 << 20]
Event = tuple[str, ...] | tuple[str, bytes]

SIZE_FORMATS: list[Callable[[int], bytes]] = [
    lambda size: b"%011o\0" % size,
    lambda size: b"%011o " % size,
    lambda size: b"%11o " % size,
    lambda size: b"%12o" % size,
    lambda size: b"%012o" % size,
    lambda size: b"%o" % size,
    lambda size: b"\x80" + size.to_bytes(11, "big"),
    lambda size: b"\xff" + size.to_bytes(11, "big"),
    lambda size: b"0000\0%06o\0" % size,
    lambda size: b"%010o8\0" % size,
    lambda size: b"\0\0\0\0%07o\0" % size,
]
CHECKSUM_FORMATS = [
    b"%06o\0 ",
    b"%06o  ",
    b"%06o \0",
    b"%06o\0\0",
    b"%07o\0",
    b"%08o",
    b"%6o\0 ",
    b"%o",
    b"%06o\0x",
    b"x%05o\0 ",
]


def _sum(header: bytes, *, signed: bool = False) -> int:
    others = header[:148] + b" " * 8 + header[156:]
    return sum(byte - 256 if signed and byte > 127 else byte for byte in others)


def _header(
    name: bytes = b"a.x",
    size: bytes = b"00000000000\0",
    kind: bytes = b"0",
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    *,
    checksum: bytes = b"%06o\0 ",
    off_by: int = 0,
    signed: bool = False,
) -> bytes:
    """A header with any fields, and a checksum that fits unless it is to be off."""
    fields = name.ljust(100, b"\0"), b"0000644\0", b"0000000\0" * 2, size.ljust(12, b"\0"), b"0" * 12, b" " * 8, kind
    header = b"".join(fields).ljust(257, b"\0") + magic.ljust(8, b"\0")
    header = (header.ljust(345, b"\0") + prefix).ljust(BLOCK, b"\0")
    return _with_checksum(header, checksum % (_sum(header, signed=signed) + off_by))


def _with_checksum(header: bytes, field: bytes) -> bytes:
    assert len(header) == BLOCK
    return header[:148] + field.ljust(8, b"\0")[:8] + header[156:]


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def _member(name: bytes, data: bytes, kind: bytes = b"0", **fields: Any) -> bytes:
    return _header(name, b"%011o\0" % len(data), kind, **fields) + _padded(data)


def _pax(key: str, value: bytes, kind: bytes = b"x") -> bytes:
    rest = f" {key}=".encode() + value + b"\n"
    length = next(n for n in range(len(rest), len(rest) + 9) if len(str(n)) + len(rest) == n)
    return _member(b"pax", str(length).encode() + rest, kind)


NAMES = st.one_of(
    st.integers(0, 99).map(lambda i: b"%02d.x" % i),
    st.sampled_from([b"", b"a", b"d/", b"d/a.x", b"/", b"n" * 98, b"n" * 99, b"n" * 100, b"d" * 99 + b"/", b"d/" * 50]),
    st.sampled_from(
        [b"a\0b", b"a\0/", b"a\n", b"\n", b"a\nb\0c", b"\0a", b"\xe6", b"\xe6\n", b"\xff/\xe9", "é漢".encode()]
    ),
    st.binary(max_size=100),
)
FAKES = [
    _member(b"fake.x", b"fake") * 6,
    _member(b"fake.x", b"fake") * 6 + END_OF_ARCHIVE,
    _member(b"fake.x", b"f" * 600) * 3 + bytes(300),
    b"x" * BLOCK + _member(b"fake.x", b"") * 6,
    _header(b"fake.x", b"77777777777\0") * 3,
    END_OF_ARCHIVE,
    (b"usta" * 500)[3:1900],
]
DATA = st.sampled_from([b"", b"1", b"d" * 511, b"d" * 512, b"d" * 513, b"\0" * 700, *FAKES]) | st.binary(max_size=30)
PLAIN = st.builds(_member, st.integers(0, 99).map(lambda i: b"%02d.jpg" % i), st.binary(max_size=20))
ODD_MAGICS = [b"", b"ustar  ", b"ustar", b"ustar\0", b"ustax", b"usta", b"star", b"ustar\x0001"]
KINDS = [bytes([kind]) for kind in b"0\x007123456SVz"]


@st.composite
def _odd_members(draw: st.DrawFn) -> bytes:
    """A member in which any field may be written otherwise."""
    data = draw(DATA)
    header = _header(
        draw(NAMES),
        draw(st.sampled_from(SIZE_FORMATS[:1] * 5 + SIZE_FORMATS))(len(data)),
        draw(st.sampled_from([b"0"] * 12 + KINDS)),
        draw(st.sampled_from([b"ustar\x0000"] * 5 + ODD_MAGICS)),
        draw(st.sampled_from([b""] * 5 + [b"p", b"p" * 155, b"\0p", b"p\0p", b"p\0" * 77])),
        checksum=draw(st.sampled_from(CHECKSUM_FORMATS[:1] * 8 + CHECKSUM_FORMATS)),
        off_by=draw(st.sampled_from([0] * 30 + [1, -1, 256])),
        signed=draw(st.sampled_from([False] * 5 + [True])),
    )
    return header + _padded(data)


EXTENSIONS = st.sampled_from(
    [
        _pax("path", b"long/" * 40 + b"a.x"),
        _pax("path", b"folder/"),
        _pax("mtime", b"1.5"),
        _pax("size", b"1"),
        _pax("size", b"513"),
        _pax("comment", b"git", b"g"),
        _pax("path", b"a", b"g"),
        _member(b"././@LongLink", b"l" * 150 + b".x\0", b"L"),
        _member(b"././@LongLink", b"l" * 150 + b"/\0", b"L"),
        _member(b"././@LongLink", b"target\0", b"K"),
        _member(b"folder/", b"", b"5"),
        _header(b"quota/", b"00000002000\0", b"5"),
        _header(b"hard", b"00000002000\0", b"1"),
        _header(b"v7/", kind=b"\0", magic=b""),
        _header(b"v7/", kind=b"\0"),
        bytes(BLOCK),
    ]
)
BODIES = st.lists(PLAIN | PLAIN | PLAIN | _odd_members() | EXTENSIONS, max_size=14).map(b"".join)
ENDS = st.sampled_from(
    [END_OF_ARCHIVE] * 6 + [b"", bytes(BLOCK), bytes(1000), END_OF_ARCHIVE + b"x", bytes(10_240), b"x"]
)
OPTIONS = st.fixed_dictionaries({"max_member_bytes": st.sampled_from([4 << 30, 4 << 30, 1024, 512, 19, 0])})


@contextmanager
def _scanning_early(window_bytes: int = 2 << 20) -> Iterator[None]:
    """Scan where it could be done at all, and take what is found, be it two members."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "_WORTH_BYTES": BLOCK,
            "_WORTH_MEMBERS": 1,
            "_SMALL_IN_A_ROW": 0,
            "_POOR_SCAN_MEMBERS": 0,
        }.items():
            patch.setattr(scan, name, value)
        patch.setattr(scan, "WINDOW_BYTES", window_bytes)
        yield


@contextmanager
def _one_by_one() -> Iterator[None]:
    """Every header by ``walk``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan.Scanner, "members_from", lambda self, view, position: None)
        yield


def _events(parts: Iterable[bytes | memoryview], **options: Any) -> list[Event]:
    """What reading does, in order: members, what is passed over, an error."""
    events: list[Event] = []
    options = {"on_skip": lambda kind: events.append(("skipped", kind)), **options}
    try:
        for names, values in read_runs(parts, url=URL, options=TarOptions(**options)):
            events.extend((name, bytes(value)) for name, value in zip(names, values, strict=True))
    except ShardReadError as error:
        events.append((type(error).__name__, str(error)))
    return events


def _split(data: bytes, cuts: Sequence[int]) -> list[memoryview]:
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [memoryview(data)[start:end] for start, end in pairwise(borders)]


def _assert_same(data: bytes, cuts: Sequence[int] = (), window_bytes: int = 2 << 20, **options: Any) -> None:
    with _one_by_one():
        expected = _events([data], **options)
    with _scanning_early(window_bytes):
        assert _events(_split(data, cuts), **options) == expected


def _assert_all_same(archives: Iterable[bytes]) -> int:
    """Compare many small archives; returns how many of them are read to the end."""
    archives, num_whole = list(archives), 0
    with _one_by_one():
        expected = [_events([data]) for data in archives]
    with _scanning_early():
        for data, events in zip(archives, expected, strict=True):
            assert _events([data]) == events
            num_whole += "Error" not in str(events[-1][0])
    return num_whole


def test_a_scan_finds_plain_members_up_to_the_first_that_is_not() -> None:
    """The other tests of this file would hold for a scan that finds nothing."""
    members = [_member(b"%02d.x" % i, b"d" * i * 100) for i in range(10)]
    data = b"".join(members) + _header(b"v7", magic=b"") + members[0] * 9 + END_OF_ARCHIVE
    found = scan.Scan(memoryview(data), 0, 4 << 30).members_from(0)
    assert found is not None
    assert found.names == [f"{i:02}.x" for i in range(10)]
    assert [data[start:end] for start, end in zip(found.starts, found.ends, strict=True)] == [
        b"d" * i * 100 for i in range(10)
    ]
    assert found.after == len(b"".join(members))


@given(
    body=BODIES,
    end=ENDS,
    cuts=st.lists(st.integers(0, 12_000) | st.integers(0, 24).map(lambda i: i * BLOCK), max_size=4),
    window_bytes=st.sampled_from(WINDOWS),
    options=OPTIONS,
    knows_length=st.booleans(),
)
@settings(max_examples=600)
def test_any_archive_is_read_the_same(
    body: bytes, end: bytes, cuts: list[int], window_bytes: int, options: dict[str, Any], knows_length: bool
) -> None:
    """Same members, same skips, same error after the same members; whatever is in it and however it is cut."""
    data = body + end
    _assert_same(data, cuts, window_bytes, num_bytes=len(data) if knows_length else None, **options)


@given(body=BODIES, stop=st.integers(0, 12_000), window_bytes=st.sampled_from(WINDOWS), knows_length=st.booleans())
@settings(max_examples=200)
def test_an_archive_that_is_cut_short_ends_the_same(
    body: bytes, stop: int, window_bytes: int, knows_length: bool
) -> None:
    """After the same members, with the same words."""
    data = body + END_OF_ARCHIVE
    _assert_same(data[:stop], (), window_bytes, num_bytes=len(data) if knows_length else None)


@pytest.mark.parametrize("fake", FAKES)
@pytest.mark.parametrize("window_bytes", WINDOWS)
def test_data_that_look_like_headers_are_data(fake: bytes, window_bytes: int) -> None:
    """Tars in tars, at the begin, in the middle and at the end of a row of plain members."""
    plain = b"".join(_member(b"%d.x" % i, b"d" * i) for i in range(6))
    data = _member(b"b.x", fake) + plain + _member(b"m.x", fake) * 2 + plain + _member(b"e.x", fake) + END_OF_ARCHIVE
    with _scanning_early(window_bytes):
        events = dict(_events([data]))
    assert sorted(events) == sorted([*(f"{i}.x" for i in range(6)), "b.x", "m.x", "e.x"])
    assert events["b.x"] == events["m.x"] == events["e.x"] == fake
    _assert_same(data, range(0, len(data), 700), window_bytes)


MIXED = (
    _member(b"0.x", b"zero")
    + _member(b"n" * 100, b"d" * 513)
    + _member(b"1.x", b"one", prefix=b"p" * 9)
    + _member(b"d/\xe9.x", b"two", b"\0", magic=b"ustar  ")
    + _member(b"3.x", b"")
    + END_OF_ARCHIVE
)
HEADERS = [0, 1024, 2560, 3584, 4608]


def _flipped(data: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


@pytest.mark.parametrize("start", HEADERS)
def test_every_flipped_bit_is_noticed_the_same(start: int) -> None:
    """Each bit of headers that are plain and of those that are nearly so."""
    _assert_all_same(_flipped(MIXED, start + i, bit) for i in range(BLOCK) for bit in range(8))


@pytest.mark.parametrize("start", HEADERS)
def test_every_flipped_bit_under_a_fitting_checksum_is_taken_the_same(start: int) -> None:
    """What the checksum does not show: each other bit of a header, with the sum of the changed bytes in its field."""

    def repaired(data: bytes) -> bytes:
        header = data[start : start + BLOCK]
        return data[:start] + _with_checksum(header, b"%06o\0 " % _sum(header)) + data[start + BLOCK :]

    others = [i for i in range(BLOCK) if not 148 <= i < 156]
    num_whole = _assert_all_same(repaired(_flipped(MIXED, start + i, bit)) for i in others for bit in range(8))
    assert num_whole > 3000, "most bits change no more than a name, a time or an owner"


@given(
    body=BODIES,
    changes=st.lists(st.tuples(st.sampled_from("sdx"), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=3),
)
@settings(max_examples=300)
def test_blocks_that_are_swapped_doubled_or_lost_are_noticed_the_same(
    body: bytes, changes: list[tuple[str, int, int]]
) -> None:
    """As a storage might lose them."""
    data = body + END_OF_ARCHIVE
    blocks = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]
    for change, one, other in changes:
        i, j = one % len(blocks), other % len(blocks)
        if change == "s":
            blocks[i], blocks[j] = blocks[j], blocks[i]
        elif change == "d":
            blocks.insert(i, blocks[j])
        elif len(blocks) > 1:
            del blocks[i]
    _assert_same(b"".join(blocks))


@given(body=BODIES, cuts=st.lists(st.integers(0, 12_000), max_size=4))
def test_without_a_copy_data_are_views_of_the_same_bytes(body: bytes, cuts: list[int]) -> None:
    """In runs of many and of one, whole and across parts."""
    data = body + END_OF_ARCHIVE
    with _scanning_early():
        assert _events(_split(data, cuts), copy=False) == _events([data])
        try:
            for _, values in read_runs(_split(data, cuts), url=URL, options=TarOptions(copy=False)):
                assert all(type(value) is memoryview for value in values)
        except ShardReadError:
            pass


# Runs of names to samples

PATHS = st.one_of(
    st.builds("{}.{}".format, st.sampled_from("aab"), st.sampled_from(["jpg", "cls", "JPG", "a.b"])),
    st.text("ab./_\n\0", max_size=6),
    st.sampled_from(
        ["./a.jpg", "a/../b.x", "a.d/b.x", "a/__m__", "__a.x__", "a.__x__", "..", "/a.x", "a..x", "a.", ".x"]
    ),
)


def _samples_by_rule(names: list[str]) -> list[Any]:
    """The rules of ``shard_tar_reader``'s docstring, one name at a time; ends with "error" where one is broken."""
    samples: list[Any] = []
    for i, name in enumerate(names):
        if is_meta(name):
            continue
        path = name.removeprefix("./")
        key, extension = split_key(path)
        is_new = not samples or samples[-1]["__key__"] != key
        if naming_fault(path) or (any(s["__key__"] == key for s in samples) if is_new else extension in samples[-1]):
            return samples[: -1 if is_new is False else None] + ["error"]
        if is_new:
            samples.append({"__key__": key, "__url__": URL})
        samples[-1][extension] = b"%d" % i
    return samples or ["error"]


@given(names=st.lists(PATHS, max_size=8), cuts=st.lists(st.integers(0, 8), max_size=4))
@example(names=["a.jpg", "a.cls", "./b.jpg", "a.d/c.jpg"], cuts=[])
@settings(max_examples=500)
def test_samples_follow_the_rules_however_names_come_in_runs(names: list[str], cuts: list[int]) -> None:
    """Short cuts for runs of harmless names leave no rule out, and add none."""
    values = [b"%d" % i for i in range(len(names))]
    borders = [0, *sorted(min(cut, len(names)) for cut in cuts), len(names)]
    runs = [(names[start:end], values[start:end]) for start, end in pairwise(borders)]
    got: list[Any] = []
    expected = _samples_by_rule(names)
    try:
        got.extend(samples_of(runs, url=URL))
    except ShardReadError:
        got.append("error")
        # the sample before a broken rule may or may not have been complete: it is not handed out before it is
        expected = list(chain(expected[: len(got) - 1], ["error"])) if expected[-1:] == ["error"] else expected
    assert got == expected
