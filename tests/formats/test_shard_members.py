"""What is read of a shard in one pass: offsets, keys and members."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.archive_bytes import in_parts, make_header, make_member, pax_line
from torchdata_remote.errors import BadMemberError, ShardReadError
from torchdata_remote.formats.grouping import samples_of
from torchdata_remote.formats.key_index import dump_keys, key_index
from torchdata_remote.formats.position import ReadPosition
from torchdata_remote.formats.shard_members import read_shard_members
from torchdata_remote.formats.tar import END_OF_ARCHIVE, TarOptions, pack_header, padding, read_member_batches

URL = "memory://s/0.tar"

DATA = st.sampled_from([0, 1, 511, 512, 513, 5_000]).map(bytes)
# What belongs to no sample, and is skipped
SKIPPED = st.sampled_from(
    [
        make_header(b"d/", kind=b"5"),
        make_member(b"__meta__", b"x" * 600),
        make_member(b".hidden", b"x"),
        make_member(b"a\xff/../b.x", b"x" * 513),
        make_member(b"README", b""),
        make_member(b"pax", pax_line("mtime", "1"), b"x") + make_header(b"d/", kind=b"5"),
    ]
)


def packed(name: str, data: bytes) -> bytes:
    return pack_header(name, len(data)) + data + bytes(padding(len(data)))


def gnu(name: str, data: bytes) -> bytes:
    """With a long name, as GNU tar writes it."""
    return make_member(b"././@LongLink", name.encode() + b"\0", b"L", magic=b"ustar  \0") + make_member(b"x", data)


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    pieces: list[bytes] = []
    stems = st.sampled_from(["a", "p" * 99 + "/", "n" * 120, "é", "./b"])
    usual = draw(st.lists(st.sampled_from(["jpg", "cls", "Seg.PNG"]), min_size=1, max_size=3, unique=True))
    for number in range(draw(st.integers(1, 150 if draw(st.booleans()) else 6))):
        stem = draw(stems) if draw(st.integers(0, 9)) == 0 else "s"
        names = usual if draw(st.integers(0, 9)) else usual[:1]
        for extension in [*names, *([names[0].upper()] if draw(st.integers(0, 19)) == 0 else [])]:  # twice
            name, data = f"{stem}{number}.{extension}", draw(DATA) if number < 6 else bytes(number)
            pieces.append(gnu(name, data) if draw(st.integers(0, 19)) == 0 else packed(name, data))
            if draw(st.integers(0, 29)) == 0:
                pieces.append(draw(SKIPPED))
    return b"".join([*draw(st.lists(SKIPPED, max_size=2)), *pieces, *draw(st.lists(SKIPPED, max_size=1))])


def ignore(error: BadMemberError) -> None:
    """Skip the member."""


@given(data=archives(), cuts=st.lists(st.integers(0, 300_000), max_size=6))
@example(data=packed("a.x", b""), cuts=[])
def test_members_are_those_that_readers_get(data: bytes, cuts: list[int]) -> None:
    """With folders, members that are no samples, long names, and samples that differ: keys, extensions and data."""
    tar = data + END_OF_ARCHIVE
    position = ReadPosition()
    runs = read_member_batches([tar], url=URL, options=TarOptions(copy=True), position=position)
    expected, offsets = [], [0]
    for sample in samples_of(runs, url=URL, on_bad_member=ignore, position=position):
        expected.append(dict(sample))
        offsets.append(position.archive_end if position.ended else position.next_byte())
    compression, _, found_offsets, keys = read_shard_members(URL, in_parts(tar, cuts), ignore)
    assert (compression, found_offsets) == (None, offsets)
    assert keys.keys == [sample["__key__"] for sample in expected]
    ends = keys.firsts().tolist()
    for sample, first, last in zip(expected, ends, ends[1:], strict=False):
        members = [
            (keys.extensions[keys.members[at]], tar[keys.starts[at] : keys.starts[at] + keys.sizes[at]])
            for at in range(first, last)
        ]
        assert members == list(sample.items())[2:]
    gaps = keys.starts - keys.begins()
    assert (gaps >= 512).all()
    assert not (gaps % 512).any()
    assert keys.stops()[-1] <= offsets[-1]


@given(data=archives())
def test_bytes_of_members_in_a_row_are_a_tar_of_the_samples(data: bytes) -> None:
    """From the first byte of a sample's members to the last one: what selections read."""
    tar = data + END_OF_ARCHIVE
    keys = read_shard_members(URL, [tar], ignore).keys
    begins, stops, firsts = keys.begins(), keys.stops(), keys.firsts()
    for number in {0, len(keys.keys) // 2, len(keys.keys) - 1}:
        part = tar[begins[firsts[number]] : stops[firsts[number + 1] - 1]]
        alone = read_shard_members(URL, [part, END_OF_ARCHIVE], ignore).keys
        # A member that was left out is in front of it: a reader that takes it for a sample refuses the view
        assert alone.keys[-1] == keys.keys[number]
        assert (
            alone.sizes[-int(alone.counts[-1]) :].tolist() == keys.sizes[firsts[number] : firsts[number + 1]].tolist()
        )


def test_a_sample_that_is_made_by_hand() -> None:
    """A folder counts as headers of the member after it."""
    tar = make_header(b"d/", kind=b"5") + packed("d/a.cls", b"1") + packed("d/a.jpg", b"x" * 600)
    found = read_shard_members(URL, [tar, END_OF_ARCHIVE])
    assert found.offsets == [0, len(tar)]
    assert found.num_samples == 1
    expected = key_index([("d/a", [("cls", 1024, 1), ("jpg", 2048, 600)])])
    assert found.beside() == (np.array([0, len(tar)], "<u8").tobytes(), dump_keys(expected))


def test_a_compressed_shard_has_nothing_beside_it() -> None:
    """Its samples are counted."""
    found = read_shard_members(URL, [gzip.compress(packed("a.x", b"1") + END_OF_ARCHIVE)])
    assert (found.compression, found.num_samples, found.beside()) == ("gzip", 1, (None, None))


def test_a_key_that_comes_back_is_an_error() -> None:
    """It could not be looked up."""
    tar = packed("a.x", b"1") + packed("b.x", b"1") + packed("a.y", b"1") + END_OF_ARCHIVE
    with pytest.raises(ShardReadError, match="was already read"):
        read_shard_members(URL, [tar])


def test_a_key_with_a_nul_is_an_error() -> None:
    """Keys are separated by NUL in their file."""
    tar = make_member(b"pax", pax_line("path", "a\0b.x"), b"x") + make_member(b"a", b"") + END_OF_ARCHIVE
    with pytest.raises(BadMemberError, match="NUL"):
        read_shard_members(URL, [tar])
