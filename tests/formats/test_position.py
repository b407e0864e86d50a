"""Read positions: where in an archive the next sample begins, and how that is saved."""

from __future__ import annotations

import gzip
import io
import json
import uuid
import zipfile
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.archive_bytes import in_parts, make_member, padded, pax_line
from tests.support.shard_places import tar_of
from torchdata_remote import ShardTarReader
from torchdata_remote.formats.grouping import samples_of
from torchdata_remote.formats.position import Position, ReadPosition
from torchdata_remote.formats.tar import END_OF_ARCHIVE, TarOptions, read_member_batches
from torchdata_remote.formats.zip import read_directory, read_members

LINKS = {"directory": b"5", "link": b"2", "device": b"4"}
SMALL = st.integers(0, 60)
SIZES = st.lists(SMALL, min_size=1, max_size=6) | st.lists(SMALL, min_size=17, max_size=80)  # the latter are scanned
KINDS = st.sampled_from(["plain", "plain", "pax", "gnu", "prefix", "global", "meta", *LINKS])


GZIP_BYTES = 200
NESTED = ("m.tar.gz", 512, GZIP_BYTES)


def test_a_read_position_starts_at_the_first_byte_unless_it_is_given_another() -> None:
    """Where reading starts, and what is current before anything was read."""
    assert ReadPosition().start == Position(0, 0, None)
    assert ReadPosition().current() == Position()
    for start in (Position(512), Position(0, 3), Position(700, 4, NESTED)):
        assert ReadPosition(start).start == ReadPosition(start).current() == start


def test_the_next_byte_follows_from_the_number_of_names_that_are_left() -> None:
    """So a member costs no update of its own."""
    position = ReadPosition()
    position.batch_offset, position.batch_starts = 1000, (0, 30, 70)
    position.batch_rest = names = iter("abc")
    for expected in (1000, 1030, 1070):
        next(names)
        assert position.next_byte() == expected
        assert position.current() == Position(expected)


def test_there_is_no_position_after_the_last_sample() -> None:
    """Neither by bytes, nor by samples of a compressed archive, nor in a nested one."""
    position = ReadPosition()
    position.batch_offset = 5
    for position.num_read in (None, 3):
        position.ended = False
        assert position.current() is not None
        position.ended = True
        assert position.current() is None


def test_a_position_in_a_nested_archive_counts_from_the_outer_one() -> None:
    """By bytes, or by samples if the nested archive is compressed; after its last sample the next member follows."""
    position = ReadPosition()
    within = position.enter(NESTED, following=1024)
    assert within.start == Position()
    within.batch_offset = 100
    assert position.current() == Position(612, 0, NESTED)
    within.num_read = 2
    assert position.current() == Position(512, 2, NESTED)
    within.ended = True
    assert position.current() == Position(1024)


def test_only_the_nested_archive_around_the_start_is_entered_in_its_middle() -> None:
    """All others from their beginning."""
    position = ReadPosition(Position(700, 4, NESTED))
    assert position.enter(NESTED, following=1024).start == Position(188, 4)
    assert position.enter(("n.tar", 512, GZIP_BYTES), following=1024).start == Position()


@given(byte=st.integers(0, 1 << 60), num_skipped=st.integers(0, 1 << 40), is_nested=st.booleans())
def test_a_position_survives_json(byte: int, num_skipped: int, is_nested: bool) -> None:
    """Whichever of its fields have values of their own."""
    position = Position(byte, num_skipped, NESTED if is_nested else None)
    assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position


INNER = [("a.x", b"1" * 600), ("b.x", b"2"), ("c.x", b"3")]
# As they are stored in checkpoints: lists of one to three fields, in ``open`` beside the number of the shard
SAVED: list[tuple[str, Any, list[str]]] = [
    ("plain", [1536], ["b", "c"]),
    ("plain", None, []),
    ("compressed", [0, 0], ["a", "b", "c"]),
    ("compressed", [0, 2], ["c"]),
    ("nested", [3072, 0, ["m.tar", 512, 10240]], ["m/c", "n/a", "n/b", "n/c"]),
    ("nested", [10752], ["n/a", "n/b", "n/c"]),
    ("nested", [13824, 0, ["n.tar", 11264, 10240]], ["n/c"]),
    ("nested", [21504], []),
    ("compressed nested", [512, 1, ["m.tar.gz", 512, GZIP_BYTES]], ["m/b", "m/c", "n/a", "n/b", "n/c"]),
    ("compressed nested", [512, 0, ["m.tar.gz", 512, GZIP_BYTES]], ["m/a", "m/b", "m/c", "n/a", "n/b", "n/c"]),
    ("compressed nested", [4096, 0, ["n.tar", 1536, 10240]], ["n/c"]),
]


@pytest.fixture(scope="module")
def shards() -> dict[str, str]:
    """A URL for each kind of shard; their bytes are always the same."""
    inner = tar_of(INNER)
    # zlib's own choices differ between versions, so the member's length is fixed by the header's file name
    packed = gzip.compress(inner, mtime=0)
    name = bytes(GZIP_BYTES - len(packed) - 1).replace(b"\0", b"n") + b"\0"
    packed = packed[:3] + b"\x08" + packed[4:10] + name + packed[10:]
    kinds = {
        "plain": inner,
        "compressed": packed,
        "nested": tar_of([("m.tar", inner), ("n.tar", inner)]),
        "compressed nested": tar_of([("m.tar.gz", packed), ("n.tar", inner)]),
    }
    folder = uuid.uuid4().hex
    fsspec.filesystem("memory").pipe({f"/{folder}/{kind}.tar": data for kind, data in kinds.items()})
    return {kind: f"memory://{folder}/{kind}.tar" for kind in kinds}


@pytest.mark.parametrize(("kind", "saved", "expected"), SAVED)
def test_states_saved_by_earlier_versions_resume_at_the_same_sample(
    shards: dict[str, str], kind: str, saved: Any, expected: list[str]
) -> None:
    """The literal lists that checkpoints of all versions hold."""
    pipe = ShardTarReader(IterableWrapper([shards[kind]]), nested="nested" in kind)
    pipe.load_state_dict({"open": [[0, saved]], "next": 1})
    assert [sample["__key__"] for sample in pipe] == expected


@pytest.mark.parametrize("kind", ["plain", "compressed", "nested", "compressed nested"])
def test_positions_are_saved_as_earlier_versions_saved_them(shards: dict[str, str], kind: str) -> None:
    """Each of the literal lists is what the state holds at that sample."""
    pipe = ShardTarReader(IterableWrapper([shards[kind]]), nested="nested" in kind)
    total = 6 if "nested" in kind else 3
    found = {}
    for number, _ in enumerate(pipe, 1):
        found[total - number] = pipe.state_dict()["open"]
    for one, saved, left in SAVED:
        if one == kind and len(left) < total:
            assert found[len(left)] == [[0, saved]]


def packed(members: list[tuple[str, bytes, str]]) -> Iterator[bytes]:
    """Each member, after its extended headers and the entries before it."""
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
    """How many bytes before a sample are not part of it: they were passed over before the position was updated."""
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

    def read(position: ReadPosition, *parts: memoryview) -> Iterator[tuple[str, Position | None]]:
        options = TarOptions(copy=copy, first_byte=position.start.byte)
        runs = read_member_batches(parts, url="a", options=options, position=position)
        for sample in samples_of(runs, url="a", position=position):
            yield sample["__key__"], position.current()

    position = ReadPosition()
    whole = list(read(position, *in_parts(archive, cuts)))
    assert whole == [
        (f"folder/{number}", Position(first) if first is not None else None)
        for number, first in enumerate([*firsts[1:], None])
    ]
    assert position.archive_end == begins[-1]
    for number, first in enumerate(firsts):
        start = first if number % 3 else begins[[name for name, *_ in members].index(f"folder/{number}.0")]
        tail = list(
            read(ReadPosition(Position(start)), *in_parts(archive[start:], [max(0, cut - start) for cut in cuts]))
        )
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

    def read(start: int) -> Iterator[tuple[str, Position | None]]:
        position = ReadPosition(Position(start))
        parts = in_parts(data[start:], [max(0, cut - start) for cut in cuts])
        members = read_members(parts, entries, url="a", position=position)
        for sample in samples_of((([path], [data]) for path, data in members), url="a", position=position):
            yield sample["__key__"], position.current()

    whole = list(read(0))
    assert whole == [
        (str(n), Position(first) if first is not None else None) for n, first in enumerate([*firsts[1:], None])
    ]
    for number in range(0, len(firsts), max(1, len(firsts) // 4)):
        assert list(read(firsts[number])) == whole[number:]


def test_padding_of_the_last_member_counts() -> None:
    """The end-of-archive blocks begin behind it."""
    data = make_member(b"a.x", b"1" * 600)
    position = ReadPosition()
    parts = [data + END_OF_ARCHIVE]
    assert (
        len(
            list(
                samples_of(
                    read_member_batches(parts, url="a", options=TarOptions(), position=position),
                    url="a",
                    position=position,
                )
            )
        )
        == 1
    )
    assert position.archive_end == len(data) == 512 + len(padded(b"1" * 600))
