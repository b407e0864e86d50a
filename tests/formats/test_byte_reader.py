from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.support.byte_readers import assert_same_step
from torchdata_remote.formats.byte_reader import ByteReader, join_chunks

DATA = bytes(i * 7 % 251 for i in range(3000))


def _parts(cuts: list[int]) -> list[memoryview]:
    return [memoryview(DATA)[a:b] for a, b in pairwise([0, *sorted(cuts), len(DATA)])]


@given(
    cuts=st.lists(st.integers(0, 3000), max_size=8),
    steps=st.lists(st.tuples(st.sampled_from(["take", "skip", "pieces"]), st.integers(0, 1500)), max_size=12),
    offset=st.integers(0, 1 << 40),
)
def test_byte_reader_returns_bytes_in_order(cuts: list[int], steps: list[tuple[str, int]], offset: int) -> None:
    """Whatever the parts and the steps, wherever they begin; at the end there are fewer, then none."""
    cursor, at = ByteReader(_parts(cuts), offset), 0
    assert cursor.offset == cursor.part_offset == offset
    for what, num_bytes in steps:
        expected = DATA[at : at + num_bytes]
        if what == "take":
            assert cursor.take(num_bytes) == expected
        elif what == "skip":
            assert cursor.skip(num_bytes) == len(expected)
        else:
            assert b"".join(cursor.pieces(num_bytes)) == expected
        at += len(expected)
        assert cursor.offset == offset + at
        assert bytes(cursor.view[cursor.position :]) == DATA[at:][: len(cursor.view) - cursor.position]
        assert bytes(cursor.view) == DATA[cursor.part_offset - offset :][: len(cursor.view)], "where the part lies"


def test_a_cursor_begins_at_the_archives_first_byte() -> None:
    """Unless an offset is passed."""
    assert ByteReader([b"abc"]).offset == 0


@given(sizes=st.lists(st.integers(0, 400_000), max_size=12), claimed=st.integers(0, 3 << 20))
def test_join_chunks_returns_all_bytes(sizes: list[int], claimed: int) -> None:
    """For chunks of any length, and if there are fewer bytes than announced."""
    chunks = [bytes([i % 251]) * size for i, size in enumerate(sizes)]
    total = sum(sizes)
    assert join_chunks(iter(chunks), max(total, claimed)) == b"".join(chunks)


def test_join_chunks_allocates_the_memory_once() -> None:
    """A member of 64 MiB is not copied twice; a false claim of a terabyte allocates what arrived."""
    chunk = bytes(1 << 20)
    tracemalloc.start()
    try:
        assert len(join_chunks(iter([chunk] * 64), 64 << 20)) == 64 << 20
        assert tracemalloc.get_traced_memory()[1] < 68 << 20
        tracemalloc.reset_peak()
        assert len(join_chunks(iter([chunk] * 3), 1 << 40)) == 3 << 20
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


def test_a_part_is_freed_before_the_next_one_arrives() -> None:
    """So the producer of the parts never has to hold two of them."""
    alive: list[weakref.ref[memoryview]] = []

    def parts() -> Iterator[memoryview]:
        for _ in range(4):
            assert [part for part in alive if part() is not None] == []
            part = memoryview(bytes(1000))
            alive.append(weakref.ref(part))
            yield part
            del part

    cursor = ByteReader(parts())
    assert len(cursor.take(1500)) == 1500
    assert cursor.skip(1000) == 1000
    assert sum(map(len, cursor.pieces(5000))) == 1500
    assert len(alive) == 4


class JumpingParts:
    """Parts that skip bytes without producing them."""

    def __init__(self, data: bytes, part_bytes: int) -> None:
        self._data, self._part_bytes, self._at = data, part_bytes, 0
        self.handed_on = 0

    def __iter__(self) -> Iterator[bytes]:
        while self._at < len(self._data):
            part = self._data[self._at : self._at + self._part_bytes]
            self._at += len(part)
            self.handed_on += len(part)
            yield part

    def jump(self, num_bytes: int) -> int:
        passed = min(num_bytes, len(self._data) - self._at)
        self._at += passed
        return passed


@given(
    data=st.binary(max_size=200),
    part_bytes=st.integers(1, 50),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 120))),
)
def test_skipping_by_jumps_equals_reading(data: bytes, part_bytes: int, steps: list[tuple[bool, int]]) -> None:
    """Bytes, counts and offsets are the same as for parts that cannot skip."""
    jumping, plain = ByteReader(JumpingParts(data, part_bytes), 7), ByteReader([data], 7)
    for take, length in steps:
        assert_same_step(jumping, plain, length, take=take)


def test_skipped_bytes_are_not_downloaded() -> None:
    """Of a gigabyte that is passed over, only the part at hand was brought."""
    parts = JumpingParts(bytes(100_000), 100)
    cursor = ByteReader(parts)
    cursor.take(10)
    assert cursor.skip(99_000) == 99_000
    assert cursor.take(5) == bytes(5)
    assert parts.handed_on == 200
