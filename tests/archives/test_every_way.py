"""Whole or in pieces, by scans or header by header, lazily or by an index: every way of reading finds the same."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.archive_bytes import (
    BLOCK,
    END_OF_ARCHIVE,
    header_sum,
    make_header,
    make_member,
    padded,
    pax_line,
)
from tests.support.archives import bare, flipped, outcome, outcomes, read, reader
from tests.support.shard_places import Place, memory_place, tar_of
from torchdata_remote.errors import BadMemberError

SMALL = [(f"s/{number:03}.jpg", b"%d" % number) for number in range(80)]
ROW = b"".join(make_member(name.encode(), data) for name, data in SMALL)
"""So many small members that the headers behind them are found by a scan, in one piece."""


def result(data: bytes, **options: Any) -> tuple[Any, ...]:
    """All that reading does: samples, members left out, and the error."""
    bad: list[tuple[str | None, str | None]] = []
    pipe = reader(data, on_bad_member=lambda error: bad.append((error.member, error.reason)), **options)
    found, error = outcome(pipe)
    samples = [{name: value if isinstance(value, str) else bytes(value) for name, value in s.items()} for s in found]
    return samples, bad, dict(pipe.skipped.members), None if error is None else str(error)


SIZE_FORMATS = b"%011o\0|%011o |%11o |%12o|%012o|%o|0000\0%06o\0|%010o8\0|\0\0\0%08o\0".split(b"|")
SIZE_FORMATS += [b"\x80", b"\xff"]  # base 256: positive, negative
CHECKSUMS = b"%06o\0 |%06o  |%06o \0|%06o\0\0|%07o\0|%08o|%6o\0 |%o|%06o\0x|x%05o\0 ".split(b"|")
NAMES = b".x|/.x|a.x|d/a.x|/a.x|a.X|.x.y|/../a.x|a".split(b"|")
NAMES += [b"a\0b.x", b"\n.x", b"a\nb.x\0c.x", b"\xe6.x", b"\xe6\n.x", b"\xff/\xe9.x", b"\xe6\xbc\xa2.x"]
NAMES += [b"n" * 95 + b".x", b"n" * 96 + b".x", b"d" * 97 + b"/", b"d/" * 48]
FAKE = make_member(b"fake.x", b"fake")
FAKES = [FAKE * 6, FAKE * 6 + END_OF_ARCHIVE, FAKE * 3 + FAKE[:300], b"x" * BLOCK + make_member(b"fake.x", b"") * 6]
FAKES += [make_header(b"fake.x", b"77777777777\0") * 3, END_OF_ARCHIVE, (b"usta" * 500)[3:1900]]
DATA = st.sampled_from([b"", b"1", b"d" * 511, b"d" * 512, b"d" * 513, bytes(700), *FAKES]) | st.binary(max_size=30)
MAGICS = [b"", b"ustar  ", b"ustar", b"ustar\0", b"ustax", b"usta", b"star", b"ustar\x0001"]
KINDS = [bytes([kind]) for kind in b"0\x007123456SVz"]
LINES = [("mtime", "1.5"), ("size", "1"), ("size", "513"), ("path", "d/")]
EXTRAS = [make_member(b"pax", pax_line(*line), b"x") for line in LINES]
EXTRAS += [make_member(b"g", pax_line("comment", "git"), b"g"), make_member(b"long", b"target\0", b"K"), bytes(BLOCK)]
EXTRAS += [
    make_header(name, b"00000002000\0", kind) for name, kind in ((b"d/", b"5"), (b"hard", b"1"), (b"v7/", b"\0"))
]
EXTRAS += [make_member(b"__meta__", b"x" * 600), make_member(b".hidden", b"x"), make_member(b"README", b"")]


@st.composite
def rows(draw: st.DrawFn, number: int, *, is_sound: bool = False) -> bytes:
    """Some members, whose keys begin with a number: plain ones, or one in which any field may be written otherwise."""
    kind = draw(st.integers(0, 5))
    if kind < 3:
        sizes = draw(st.lists(st.sampled_from([0, 1, 19, 20, 512, 513, 1025]), min_size=1, max_size=7))
        endings = draw(st.sampled_from([(b"jpg",), (b"jpg", b"cls"), (b"jpg", b"JSON", b"seg.png")]))
        return b"".join(
            make_member(b"%d/%d.%s" % (number, i, ending), bytes([i]) * size)
            for i, size in enumerate(sizes)
            for ending in endings
        )
    name = b"%d%s" % (number, draw(st.sampled_from(NAMES)))
    data = draw(DATA)
    if kind == 3:
        path = draw(st.sampled_from(["l" * 150, "é/" * 60 + "l"]))
        return make_member(b"pax", pax_line("path", f"{number}{path}.x"), b"x") + make_member(name[:99], data)
    if is_sound:
        return draw(st.sampled_from(EXTRAS[4:6] + EXTRAS[7:])) + make_member(b"%d.x" % number, data)
    if kind == 4:
        return draw(st.sampled_from(EXTRAS)) + make_member(name[:100], data)
    size = draw(st.sampled_from(SIZE_FORMATS[:1] * 5 + SIZE_FORMATS))
    return padded_header(
        draw, name, size % len(data) if b"%" in size else size + len(data).to_bytes(11, "big")
    ) + padded(data)


def padded_header(draw: st.DrawFn, name: bytes, size: bytes) -> bytes:
    return make_header(
        name[:100],
        size,
        draw(st.sampled_from([b"0"] * 12 + KINDS)),
        draw(st.sampled_from([b"ustar\x0000"] * 5 + MAGICS)),
        draw(st.sampled_from([b""] * 5 + [b"p", b"p" * 155, b"\0p", b"p\0p", b"p\0" * 77])),
        checksum=draw(st.sampled_from(CHECKSUMS[:1] * 8 + CHECKSUMS)),
        off_by=draw(st.sampled_from([0] * 30 + [1, -1, 256, 65536])),
        signed=draw(st.sampled_from([False] * 5 + [True])),
    )


@st.composite
def bodies(draw: st.DrawFn, *, is_sound: bool = False) -> bytes:
    return b"".join(draw(rows(number, is_sound=is_sound)) for number in range(draw(st.integers(1, 7))))


ENDS = st.sampled_from([END_OF_ARCHIVE] * 6 + [b"", bytes(BLOCK), bytes(1000), bytes(10_240), END_OF_ARCHIVE + b"x"])
CHANGES = st.lists(st.tuples(st.sampled_from("sdxc"), st.integers(0, 30), st.integers(0, 30)), max_size=2)


@pytest.mark.filterwarnings("ignore:.*links are left out")
@given(
    body=bodies(),
    end=ENDS,
    changes=CHANGES,
    cuts=st.lists(st.integers(0, 100_000), max_size=4),
    limit=st.sampled_from([4 << 30, 4 << 30, 1024, 512, 19, 3]),
    copy=st.booleans(),
)
def test_an_archive_gives_the_same_in_one_piece_and_in_many(
    body: bytes, end: bytes, changes: list[tuple[str, int, int]], cuts: list[int], limit: int, copy: bool
) -> None:
    """Same samples, members left out, and error: whatever the fields, whatever blocks a storage has lost or doubled."""
    data = ROW + body + end
    blocks = [data[start : start + BLOCK] for start in range(0, len(data), BLOCK)]
    for change, one, other in changes:
        i, j = len(blocks) - 1 - one % len(blocks), len(blocks) - 1 - other % len(blocks)
        if change == "s":
            blocks[i], blocks[j] = blocks[j], blocks[i]
        elif change == "d":
            blocks.insert(i, blocks[j])
        elif change == "c":
            blocks[i] = blocks[i][: 17 * other]
        else:
            del blocks[i]
    data = b"".join(blocks)
    expected = result(data, cuts=range(BLOCK, len(data), BLOCK), max_member_bytes=limit)
    assert result(data, max_member_bytes=limit, copy=copy) == expected
    assert result(data, max_member_bytes=limit, cuts=cuts) == expected


@pytest.mark.filterwarnings("ignore:.*links are left out")
def test_a_flipped_bit_of_a_header_among_small_members_is_an_error() -> None:
    """Only a blank for a zero of the checksum is none."""
    start = 50 * 1024
    flips = [(at, bit) for at in range(start, start + BLOCK) for bit in (at % 8, (at + 3) % 8)]
    data, whole = ROW + END_OF_ARCHIVE, read(ROW + END_OF_ARCHIVE)
    for (at, bit), (found, error) in zip(flips, outcomes(flipped(data, *flip) for flip in flips), strict=True):
        assert found == whole[: len(found)]
        assert error is not None or (148 <= at - start < 156 and found == whole), f"bit {bit} of byte {at - start}"


@pytest.mark.parametrize("byte", [1, 127, 128, 255])
@pytest.mark.parametrize("off_by", [0, 1, 256, 65536, -65536])
def test_the_bytes_of_any_header_are_summed_without_overflow(byte: int, off_by: int) -> None:
    """A sum that wrapped around would let a damaged header pass."""
    bare_header = make_header(b"last.jpg")
    filled = (
        bare_header[:157]
        + bytes([byte]) * 100
        + bare_header[257:265]
        + bytes([byte]) * 80
        + b"\0"
        + bytes([byte]) * 166
    )
    total = header_sum(filled) + off_by
    header = filled[:148] + (b"%06o\0 " % total if total >= 0 else b"0000000\0") + filled[156:]
    for row in (ROW, b""):
        found, _, _, error = result(row + header + END_OF_ARCHIVE)
        assert (error is None) == (off_by == 0)
        assert len(found) == {(0, 0): 0, (0, 1): 1, (1, 0): 79, (1, 1): 81}[bool(row), off_by == 0]


LAZY = st.lists(
    st.tuples(
        st.text("abé/", max_size=120),
        st.sampled_from(["mp4", "left.MP4", "json"]),
        st.sampled_from([0, 5, 512, 1 << 16, (1 << 16) + 1, 200_000]),
    ),
    min_size=1,
    max_size=8,
)


@given(members=LAZY, part_bytes=st.sampled_from([1000, 1 << 16, 1 << 20]), cut=st.none() | st.floats(0, 1))
def test_lazy_members_are_files_of_the_same_bytes(
    members: list[tuple[str, str, int]], part_bytes: int, cut: float | None
) -> None:
    """And an archive that was cut short is an error there too."""
    whole = tar_of([(f"{i}{name}.{ending}", bytes([i + 1]) * size) for i, (name, ending, size) in enumerate(members)])
    data = whole if cut is None else whole[: int(len(whole) * cut)]
    place = memory_place()
    place.put({"0.tar": data})
    urls = tdr.IterableWrapper([f"{place.url}0.tar"])
    found, error = outcome(urls.async_prefetch(part_bytes=part_bytes).shard_tar_reader(lazy={"mp4"}))
    files = [value for sample in found for name, value in sample.items() if name.endswith("mp4")]
    samples = [{name: value if isinstance(value, str) else bytes(value) for name, value in s.items()} for s in found]
    expected, expected_error = outcome(urls.shard_tar_reader())
    assert samples == expected
    assert (error is None) == (expected_error is None)
    assert all(file.name.endswith(("mp4", "MP4")) and file.seekable() for file in files)


def put(data: bytes) -> Place:
    place = memory_place()
    place.put({"0.tar": data})
    return place


def beside(place: Place) -> tuple[list[int], dict[str, Any]]:
    """The index and the keys, as other programs read them."""
    files = place.files()
    index = list(struct.unpack(f"<{len(files['0.tar.idx']) // 8}Q", files["0.tar.idx"]))
    with np.load(io.BytesIO(files["0.tar.keys"]), allow_pickle=False) as arrays:
        keys = dict(arrays)
    return index, keys


def ignore(error: BadMemberError) -> None:
    """Leave the member out."""


@pytest.mark.filterwarnings("ignore:.*links are left out")
@given(body=bodies(is_sound=True), has_row=st.booleans(), cuts=st.lists(st.integers(0, 100_000), max_size=3))
def test_index_and_keys_tell_the_place_of_each_member(body: bytes, has_row: bool, cuts: list[int]) -> None:
    """With folders, members of no sample, long names, and samples that differ; for readers by number, key and part."""
    data = (ROW if has_row else b"") + body + END_OF_ARCHIVE
    expected, _, _, error = result(data)
    assume(error is None and expected)
    place = put(data)
    (shard,) = tdr.index_shards(place.url, on_bad_member=ignore)
    assert (shard.num_samples, shard.num_bytes) == (len(expected), len(data))
    index, keys = beside(place)
    names = bytes(keys["keys"]).decode().split("\0")
    assert names == [sample["__key__"] for sample in expected]
    extensions = bytes(keys["extensions"]).decode().split("\0")
    members, at, ends = iter(zip(keys["members"], keys["gaps"], keys["sizes"], strict=True)), 0, []
    for sample, count in zip(expected, keys["counts"], strict=True):
        found = {}
        for _ in range(count):
            member, gap, size = map(int, next(members))
            at += gap
            found[extensions[member]] = data[at : at + size]
            at += size + -size % BLOCK
        assert found == {name: value for name, value in sample.items() if name != "__key__"}
        ends.append(at)
    assert index[0] == 0
    assert all(end <= begin for end, begin in zip(ends, index[1:], strict=True))
    by_number = tdr.ShardedDataset(place.url, on_bad_member=ignore)
    for number in {0, len(expected) // 2, len(expected) - 1}:
        assert bare([by_number[number]]) == [expected[number]]
    chosen = tdr.stream_shards(place.url, shuffle=False, select={"keys": names[::3]}, on_bad_member=ignore)
    assert bare(chosen) == expected[::3]
    parts = [
        tdr.stream_shards(f"{place.url}index.json", shuffle=False, world=tdr.World(rank, 3), on_bad_member=ignore)
        for rank in range(min(3, len(expected)))
    ]
    if len(expected) >= 3:
        assert sorted(bare(s for part in parts for s in part), key=str) == sorted(expected, key=str)
