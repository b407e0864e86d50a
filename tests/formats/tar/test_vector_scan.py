"""Plain members found by vectorised scans, by the fast path and by the parser: the same for all bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.archive_bytes import header_sum, in_parts, make_header, make_member, padded, pax_line
from torchdata_remote.errors import ShardReadError
from torchdata_remote.formats.tar import BLOCK, END_OF_ARCHIVE, TarOptions, read_member_batches
from torchdata_remote.formats.tar import fast_path as plain
from torchdata_remote.formats.tar import vector_scan as scan

URL, WINDOWS = "s3://b/t-000.tar", [BLOCK, 2 * BLOCK, 3 * BLOCK, 8 * BLOCK, 2 << 20]
Event = tuple[str, Any]  # name and data; or what, and why

SIZE_FORMATS = b"%011o\0|%011o |%11o |%12o|%012o|%o|0000\0%06o\0|%010o8\0|\0\0\0%08o\0".split(b"|")
SIZE_FORMATS += [b"\x80", b"\xff"]  # base 256: positive, negative
CHECKSUMS = b"%06o\0 |%06o  |%06o \0|%06o\0\0|%07o\0|%08o|%6o\0 |%o|%06o\0x|x%05o\0 ".split(b"|")


def _pax(key: str, value: bytes, kind: bytes = b"x") -> bytes:
    return make_member(b"pax", pax_line(key, value), kind)


ODD_NAMES = b"|d/|d/a.x|/|a\0b|a\0/|a\n|\n|a\nb\0c|\0a|\xe6|\xe6\n|\xff/\xe9|\xe6\xbc\xa2".split(b"|")
ODD_NAMES += [b"n" * 98, b"n" * 99, b"n" * 100, b"d" * 99 + b"/", b"d/" * 50]
FAKE = make_member(b"fake.x", b"fake")
FAKES = [FAKE * 6, FAKE * 6 + END_OF_ARCHIVE, FAKE * 3 + FAKE[:300], b"x" * BLOCK + make_member(b"fake.x", b"") * 6]
FAKES += [make_header(b"fake.x", b"77777777777\0") * 3, END_OF_ARCHIVE, (b"usta" * 500)[3:1900]]
DATA = st.sampled_from([b"", b"1", b"d" * 511, b"d" * 512, b"d" * 513, bytes(700), *FAKES]) | st.binary(max_size=30)
SHORT = st.binary(max_size=20) | st.sampled_from([bytes(19), bytes(20), b"d" * 512, b"d" * 513, bytes(1025)])
PLAIN_NAMES = st.integers(0, 99).map(lambda i: b"%02d.jpg" % i)
PLAIN = st.lists(st.builds(make_member, PLAIN_NAMES, SHORT), min_size=1, max_size=6).map(b"".join)
NEARLY_PLAIN = st.builds(make_member, st.sampled_from(ODD_NAMES) | st.binary(max_size=100), DATA)
ODD_MAGICS = [b"", b"ustar  ", b"ustar", b"ustar\0", b"ustax", b"usta", b"star", b"ustar\x0001"]
KINDS = [bytes([kind]) for kind in b"0\x007123456SVz"]


@st.composite
def _odd_members(draw: st.DrawFn) -> bytes:
    """A member in which any field may be written otherwise."""
    data, size_format = draw(DATA), draw(st.sampled_from(SIZE_FORMATS[:1] * 5 + SIZE_FORMATS))
    header = make_header(
        draw(st.sampled_from(ODD_NAMES) | st.binary(max_size=100)),
        size_format % len(data) if b"%" in size_format else size_format + len(data).to_bytes(11, "big"),
        draw(st.sampled_from([b"0"] * 12 + KINDS)),
        draw(st.sampled_from([b"ustar\x0000"] * 5 + ODD_MAGICS)),
        draw(st.sampled_from([b""] * 5 + [b"p", b"p" * 155, b"\0p", b"p\0p", b"p\0" * 77])),
        checksum=draw(st.sampled_from(CHECKSUMS[:1] * 8 + CHECKSUMS)),
        off_by=draw(st.sampled_from([0] * 30 + [1, -1, 256])),
        signed=draw(st.sampled_from([False] * 5 + [True])),
    )
    return header + padded(data)


PAX = [_pax("path", b"long/" * 40 + b"a.x"), _pax("path", b"d/"), _pax("mtime", b"1.5"), _pax("size", b"1")]
PAX += [_pax("size", b"513"), _pax("comment", b"git", b"g"), _pax("path", b"a", b"g")]
LONG = [(b"l" * 150 + b".x\0", b"L"), (b"d/\0", b"L"), (b"target\0", b"K")]
GNU = [make_member(b"long", name, kind) for name, kind in LONG]
WITH_SIZE = [(b"d/", b"5"), (b"hard", b"1"), (b"v7/", b"\0")]
SKIPPED = [make_header(name, b"00000002000\0", kind) for name, kind in WITH_SIZE]
SKIPPED += [make_header(b"v7/", kind=b"\0", magic=b""), bytes(BLOCK)]
EXTENSIONS = st.sampled_from(PAX + GNU + SKIPPED)
BODIES = st.lists(PLAIN | PLAIN | NEARLY_PLAIN | _odd_members() | EXTENSIONS, max_size=9).map(b"".join)
ENDS = st.sampled_from([END_OF_ARCHIVE] * 6 + [b"", bytes(BLOCK), bytes(1000), bytes(10_240), END_OF_ARCHIVE + b"x"])
LIMITS = st.sampled_from([4 << 30, 4 << 30, 1024, 512, 19, 0])
CUTS = st.lists(st.integers(0, 12_000) | st.integers(0, 24).map(lambda i: i * BLOCK), max_size=4)
CHANGES = st.lists(st.tuples(st.sampled_from("sdx"), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=3)


@contextmanager
def _scanning(window_bytes: int = 2 << 20) -> Iterator[None]:
    """Scan after the first plain member, where it could be done at all, and take what is found, be it two members."""
    always = {"_STEPS": 1, "_SMALL_BYTES": 1 << 60, "_POOR_SCAN_MEMBERS": 0, "_MIN_SCAN_BYTES": BLOCK}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in always.items():
            patch.setattr(plain, name, value)
        patch.setattr(scan, "_MIN_CHAIN", 1)
        patch.setattr(scan, "WINDOW_BYTES", window_bytes)
        yield


@contextmanager
def _one_by_one() -> Iterator[None]:
    """Every header by ``walk``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain.FastPath, "members_from", lambda self, view, position: None)
        yield


def _events(parts: Iterable[bytes | memoryview], **options: Any) -> list[Event]:
    """What reading does, in order: members, what is passed over, an error."""
    events: list[Event] = []
    options = {"on_skip": lambda kind: events.append(("skipped", kind)), **options}
    try:
        for names, values in read_member_batches(parts, url=URL, options=TarOptions(**options)):
            for name, value in zip(names, values, strict=True):
                assert type(value) is (bytes if options.get("copy", True) else memoryview)
                events.append((name, bytes(value)))
    except ShardReadError as error:
        events.append((type(error).__name__, str(error)))
    return events


def _assert_same(
    archives: Iterable[bytes], cuts: Sequence[int] = (), window_bytes: int = 2 << 20, **options: Any
) -> int:
    """All three ways lead to the same; returns how many archives are read to the end."""
    archives = list(archives)
    with _one_by_one():
        expected = [_events([data], **options) for data in archives]
    with _scanning(window_bytes):
        assert [_events(in_parts(data, cuts), **options) for data in archives] == expected
    assert [_events(in_parts(data, cuts), **options) for data in archives] == expected, "by steps: too small for a scan"
    return sum("Error" not in events[-1][0] for events in expected if events)


def test_a_scan_finds_plain_members_up_to_the_first_that_is_not() -> None:
    """The other tests of this file would hold for a scan that finds nothing."""
    members = [make_member(b"%02d.x" % i, b"d" * i * 100) for i in range(10)]
    data = b"".join(members) + make_header(b"v7", magic=b"") + members[0] * 9 + END_OF_ARCHIVE
    assert (found := scan.HeaderScan(memoryview(data), 0, 4 << 30).members_from(0)) is not None
    assert found.names == [f"{i:02}.x" for i in range(10)]
    assert [end - start for start, end in zip(found.starts, found.ends, strict=True)] == [i * 100 for i in range(10)]
    assert all(data[start:end].strip(b"d") == b"" for start, end in zip(found.starts, found.ends, strict=True))
    assert found.after == len(b"".join(members))


@given(BODIES, ENDS, CUTS, st.sampled_from(WINDOWS), LIMITS, st.booleans(), st.none() | st.integers(0, 12_000))
@settings(max_examples=600)
def test_any_archive_is_read_the_same(
    body: bytes, end: bytes, cuts: list[int], window: int, limit: int, knows_length: bool, stop: int | None
) -> None:
    """Same members, skips and error, in the same order; whatever is in it, wherever it is cut or cut short."""
    num_bytes = len(body + end) if knows_length else None
    _assert_same([(body + end)[:stop]], cuts, window, num_bytes=num_bytes, max_member_bytes=limit)


def test_any_name_is_read_the_same() -> None:
    """In a row of otherwise plain members: with line feeds, NULs, half characters, of just the field's length."""
    for names in (ODD_NAMES, [name for name in ODD_NAMES if b"\n" not in name]):
        _assert_same([b"".join(make_member(b"0.x", b"") + make_member(name, b"1") for name in names) + END_OF_ARCHIVE])


@pytest.mark.parametrize("fake", FAKES)
@pytest.mark.parametrize("window_bytes", WINDOWS)
def test_data_that_look_like_headers_are_data(fake: bytes, window_bytes: int) -> None:
    """Tars in tars, at the begin, in the middle and at the end of a row of plain members."""
    row = b"".join(make_member(b"%d.x" % i, b"d" * i) for i in range(6))
    data = (
        make_member(b"b.x", fake)
        + row
        + make_member(b"m.x", fake) * 2
        + row
        + make_member(b"e.x", fake)
        + END_OF_ARCHIVE
    )
    with _scanning(window_bytes):
        events = dict(_events([data]))
    assert sorted(events) == sorted([*(f"{i}.x" for i in range(6)), "b.x", "m.x", "e.x"])
    assert events["b.x"] == events["m.x"] == events["e.x"] == fake
    _assert_same([data], range(0, len(data), 700), window_bytes)


NAMED = make_member(b"n" * 100, b"d" * 513) + make_member(b"1.x", b"one", prefix=b"p" * 9)
V7 = make_member(b"d/\xe9.x", b"two", b"\0", magic=b"ustar  ")
MIXED = make_member(b"0.x", b"zero") + NAMED + V7 + make_member(b"3.x", b"") + END_OF_ARCHIVE


def _flipped(data: bytes, position: int, bit: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


@pytest.mark.parametrize("start", [0, 1024, 2560, 3584, 4608])
def test_every_flipped_bit_is_noticed_the_same(start: int) -> None:
    """Each bit of headers that are plain and of those that are nearly so."""
    _assert_same(_flipped(MIXED, start + i, bit) for i in range(BLOCK) for bit in range(8))


@pytest.mark.parametrize("start", [0, 1024, 2560, 3584, 4608])
def test_every_flipped_bit_under_a_fitting_checksum_is_taken_the_same(start: int) -> None:
    """What the checksum does not show: each other bit of a header, with the sum of the changed bytes in its field."""

    def repaired(data: bytes) -> bytes:
        field = b"%06o\0 " % header_sum(data[start : start + BLOCK])
        return data[: start + 148] + field + data[start + 156 :]

    others = [i for i in range(BLOCK) if not 148 <= i < 156]
    num_whole = _assert_same(repaired(_flipped(MIXED, start + i, bit)) for i in others for bit in range(8))
    assert num_whole > 3000, "most bits change no more than a name, a time or an owner"


@pytest.mark.parametrize("byte", [0, 1, 127, 128, 255])
def test_the_bytes_of_any_header_are_summed_without_overflow(byte: int) -> None:
    """A sum that wrapped around would let a damaged header pass."""
    headers = np.full((5, BLOCK), byte, np.uint8)
    headers[1:] = np.random.default_rng(byte).integers(0, 256, (4, BLOCK), np.uint8)
    for rows in (headers, headers[:1], headers[:0]):
        assert scan._byte_sums(rows).tolist() == rows.sum(axis=1, dtype=np.int64).tolist()


@given(BODIES, CHANGES)
@settings(max_examples=300)
def test_blocks_swapped_doubled_or_lost_are_noticed_the_same(body: bytes, changes: list[tuple[str, int, int]]) -> None:
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
    _assert_same([b"".join(blocks)])


@given(BODIES, CUTS)
def test_without_a_copy_data_are_views_of_the_same_bytes(body: bytes, cuts: list[int]) -> None:
    """In runs of many and of one, whole and across parts."""
    with _scanning():
        assert _events(in_parts(body, cuts), copy=False) == _events(in_parts(body, cuts))
