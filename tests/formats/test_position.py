"""Where in an archive the next sample begins, whatever lies before it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.archive_bytes import in_parts, make_member, padded, pax_line
from torchdata_remote.formats.grouping import samples_of
from torchdata_remote.formats.position import ReadPosition
from torchdata_remote.formats.tar import END_OF_ARCHIVE, TarOptions, read_member_batches
from torchdata_remote.formats.zip import read_directory, read_members

LINKS = {"directory": b"5", "link": b"2", "device": b"4"}
SMALL = st.integers(0, 60)
SIZES = st.lists(SMALL, min_size=1, max_size=6) | st.lists(SMALL, min_size=17, max_size=80)  # the latter are scanned
KINDS = st.sampled_from(["plain", "plain", "pax", "gnu", "prefix", "global", "meta", *LINKS])


def test_reading_begins_at_the_first_byte() -> None:
    """Unless it is told otherwise; a position is plain JSON, and the first item of it is a byte."""
    assert ReadPosition().begin == [0]
    assert ReadPosition().position() == [0]
    assert ReadPosition([512, 3]).begin == [512, 3]


def test_the_place_follows_from_the_names_that_are_left() -> None:
    """So that nothing is to be done for a member."""
    place = ReadPosition()
    place.run_offset, place.run_starts = 1000, (0, 30, 70)
    place.run_names = names = iter("abc")
    for expected in (1000, 1030, 1070):
        next(names)
        assert place.next_byte() == expected
        assert place.position() == [expected]


def test_after_the_last_sample_there_is_no_place() -> None:
    """However it is described."""
    place = ReadPosition()
    place.describe = lambda: [5, 3, ["a.tar", 0, 1]]
    assert place.position() == [5, 3, ["a.tar", 0, 1]]
    place.ended = True
    assert place.position() is None


def packed(members: list[tuple[str, bytes, str]]) -> Iterator[bytes]:
    """Each member with what comes before it."""
    for name, data, kind in members:
        raw = name.encode()
        if kind == "pax":
            record = pax_line("path", name)
            yield make_member(b"pax", record, b"x") + make_member(b"short", data)
        elif kind == "gnu":
            record = raw + b"\0"
            yield make_member(b"././@LongLink", record, b"L", magic=b"ustar  ") + make_member(raw[:100], data)
        elif kind == "prefix":
            yield make_member(raw.rpartition(b"/")[2], data, prefix=raw.rpartition(b"/")[0])
        elif kind == "global":
            yield make_member(b"g", pax_line("comment", "x"), b"g") + make_member(raw, data)
        elif kind == "meta":
            yield make_member(b"__meta__", b"x") + make_member(raw, data)
        else:
            before = b"" if kind == "plain" else make_member(b"folder/", b"", LINKS[kind])
            yield before + make_member(raw, data)


def own_header(kind: str, name: str) -> int:
    """How many bytes before a sample are not part of it: they were passed over before the place was told."""
    return {
        "global": len(make_member(b"g", pax_line("comment", "x"), b"g")),
        "meta": len(make_member(b"__meta__", b"x")),
        **dict.fromkeys(LINKS, len(make_member(b"folder/", b""))),
    }.get(kind, 0)


@given(
    samples=st.lists(st.tuples(SMALL, st.integers(1, 3), KINDS), min_size=1, max_size=6)
    | st.lists(st.tuples(SMALL, st.integers(1, 2), st.just("plain")), min_size=17, max_size=80),
    large=st.integers(0, 3000),
    cuts=st.lists(st.integers(0, 200_000), max_size=5),
    copy=st.booleans(),
)
def test_tar_samples_begin_where_it_says(
    samples: list[tuple[int, int, str]], large: int, cuts: list[int], copy: bool
) -> None:
    """At the header of their first member, extended headers included; from there on the rest is read."""
    members = []
    for number, (size, count, kind) in enumerate(samples):
        for part in range(count):
            data = bytes([number]) * (large if number == 0 else size)
            members.append((f"folder/{number}.{part}", data, kind if part == 0 else "plain"))
    pieces = list(packed(members))
    begins = [0, *accumulate(map(len, pieces))]
    firsts = [begins[i] + own_header(kind, name) for i, (name, _, kind) in enumerate(members) if name.endswith(".0")]
    archive = b"".join(pieces) + END_OF_ARCHIVE

    def read(place: ReadPosition, *parts: memoryview) -> Iterator[tuple[str, list[int] | None]]:
        options = TarOptions(copy=copy, first_byte=place.begin[0])
        runs = read_member_batches(parts, url="a", options=options, place=place)
        for sample in samples_of(runs, url="a", of=place):
            yield sample["__key__"], place.position()

    place = ReadPosition()
    whole = list(read(place, *in_parts(archive, cuts)))
    assert whole == [
        (f"folder/{number}", [first] if first is not None else None) for number, first in enumerate([*firsts[1:], None])
    ]
    assert place.archive_end == begins[-1]
    for number, first in enumerate(firsts):
        start = first if number % 3 else begins[[name for name, *_ in members].index(f"folder/{number}.0")]
        tail = list(read(ReadPosition([start]), *in_parts(archive[start:], [max(0, cut - start) for cut in cuts])))
        assert tail == whole[number:]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@given(sizes=SIZES, cuts=st.lists(st.integers(0, 9000), max_size=4), before=st.integers(0, 50))
def test_zip_samples_begin_where_it_says(method: int, sizes: list[int], cuts: list[int], before: int) -> None:
    """At the local header of their first member; directories between them are passed over."""
    buffer = io.BytesIO(bytes(before))
    buffer.seek(0, io.SEEK_END)
    with zipfile.ZipFile(buffer, "a", method) as archive:
        for number, size in enumerate(sizes):
            if number % 3 == 1:
                archive.writestr(f"{number}/", b"")
            for extension in ("x", "y"):
                archive.writestr(f"{number}.{extension}", bytes([number]) * size)
        firsts = [info.header_offset for info in archive.infolist() if info.filename.endswith(".x")]
    data = buffer.getvalue()
    entries = read_directory(lambda start, end: data[start:end], len(data), url="a")

    def read(start: int) -> Iterator[tuple[str, list[int] | None]]:
        place = ReadPosition([start])
        parts = in_parts(data[start:], [max(0, cut - start) for cut in cuts])
        members = read_members(parts, entries, url="a", place=place)
        for sample in samples_of((([path], [data]) for path, data in members), url="a", of=place):
            yield sample["__key__"], place.position()

    whole = list(read(0))
    assert whole == [(str(n), [first] if first is not None else None) for n, first in enumerate([*firsts[1:], None])]
    for number in range(0, len(firsts), max(1, len(firsts) // 4)):
        assert list(read(firsts[number])) == whole[number:]


def test_padding_of_the_last_member_counts() -> None:
    """The end-of-archive blocks begin behind it."""
    data = make_member(b"a.x", b"1" * 600)
    place = ReadPosition()
    parts = [data + END_OF_ARCHIVE]
    assert (
        len(list(samples_of(read_member_batches(parts, url="a", options=TarOptions(), place=place), url="a", of=place)))
        == 1
    )
    assert place.archive_end == len(data) == 512 + len(padded(b"1" * 600))
