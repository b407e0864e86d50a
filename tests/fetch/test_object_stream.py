"""Streams behave as files do, also those over a range of an object."""

from __future__ import annotations

import csv
import io
import itertools
import os
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_store import FakeStore, options, store_of
from torchdata_remote.core.checksums import BlockSummer
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import ShardCorruptError
from torchdata_remote.fetch.object_stream import ObjectStream
from torchdata_remote.fetch.scheduler import PartScheduler
from torchdata_remote.fetch.session import FetchSession

TEXTLIKE = st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"long word", b"\0"]), max_size=40).map(b"".join)
SIZES = st.one_of(st.none(), st.integers(-1, 30))
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), SIZES),
        st.tuples(st.just("readline"), SIZES),
        st.tuples(st.just("readlines"), st.just(-1)),
        st.tuples(st.just("readinto"), st.integers(0, 30)),
        st.tuples(st.just("read1"), st.integers(-1, 30)),
        st.tuples(st.just("peek"), st.integers(0, 30)),
        st.tuples(st.just("next"), st.none()),
        st.tuples(st.just("tell"), st.none()),
    ),
    max_size=25,
)


def opened(url: str = "a", part_bytes: int = 10, start: int = 0, stop: int | None = None) -> ObjectStream:
    scheduler = PartScheduler(FetchSession(options(part_bytes=part_bytes, max_buffer_bytes=30), StorageOptions()))
    stream = ObjectStream(scheduler, url, start=start, stop=stop)
    scheduler.release()
    return stream


def as_file(stream: ObjectStream) -> Any:
    """For mypy: typeshed wants attributes that ``io`` does not ask for."""
    return stream


def step(stream: Any, twin: io.BytesIO, name: str, size: int | None) -> None:
    """Do the same to both; where a file may return fewer bytes, the twin returns as many."""
    if name == "readinto":
        buffer, twins = bytearray(size or 0), bytearray(size or 0)
        assert (stream.readinto(buffer), buffer) == (twin.readinto(twins), twins)
    elif name == "read1":
        got = stream.read1(size)
        left = len(twin.getvalue()) - twin.tell()
        assert got or size == 0 or not left
        assert size is None or size < 0 or len(got) <= size
        assert got == twin.read(len(got))
    elif name == "peek":
        got = stream.peek(size)
        rest = twin.getvalue()[twin.tell() :]
        assert rest.startswith(got)
        assert got or not rest
    elif name == "next":
        assert next(stream, None) == next(twin, None)
    elif name == "tell":
        assert stream.tell() == twin.tell()
    else:
        limit = -1 if name == "readline" else size  # for limits see test_readline_keeps_to_its_limit
        assert getattr(stream, name)(limit) == getattr(twin, name)(limit)


@given(
    data=TEXTLIKE,
    part_bytes=st.integers(1, 50),
    piece_bytes=st.integers(1, 60),
    operations=OPERATIONS,
    listed=st.booleans(),
)
@settings(max_examples=200)
def test_reads_like_bytes_io(
    data: bytes, part_bytes: int, piece_bytes: int, operations: list[tuple[str, Any]], listed: bool
) -> None:
    """Any sequence of reads, with any borders of parts and pieces."""
    with store_of({"a": data}) as store:
        store.piece_bytes = piece_bytes
        stream, twin = opened(RemoteUrl("a", len(data)) if listed else "a", part_bytes), io.BytesIO(data)
        for name, size in operations:
            step(stream, twin, name, size)
        assert stream.read() == twin.read()
        assert (stream.read(), stream.read(5), stream.readline(), stream.peek(), list(stream)) == (
            b"",
            b"",
            b"",
            b"",
            [],
        )
        assert stream.tell() == len(data)
        stream.close()


@given(data=st.binary(max_size=100), part_bytes=st.integers(1, 50), first=st.integers(0, 20))
def test_parts_yields_the_unread_rest(data: bytes, part_bytes: int, first: int) -> None:
    """In pieces of at most ``part_bytes``, none of them empty."""
    with store_of({"a": data}):
        stream = opened(part_bytes=part_bytes)
        start = stream.read(first)
        pieces = [bytes(piece) for piece in stream.parts()]
        assert start + b"".join(pieces) == data
        assert all(0 < len(piece) <= part_bytes for piece in pieces)
        assert stream.tell() == len(data)
        assert list(stream.parts()) == []


def test_parts_are_not_copied() -> None:
    """A piece is the memory of the store's response."""
    data = os.urandom(10)
    with store_of({"a": data}):
        [piece] = opened().parts()
        assert isinstance(piece, memoryview)
        assert piece == data


@given(text=st.text(st.sampled_from("äb,\"\r\n'"), max_size=60), part_bytes=st.integers(1, 20))
def test_text_and_csv_readers_accept_a_stream(text: str, part_bytes: int) -> None:
    """The standard library's text and csv readers take a stream."""
    data = text.encode()
    with store_of({"a": data}):
        wrapped = io.TextIOWrapper(as_file(opened(part_bytes=part_bytes)), encoding="utf-8", newline="")
        assert list(wrapped) == list(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline=""))
        rows = csv.reader(io.TextIOWrapper(as_file(opened(part_bytes=part_bytes)), encoding="utf-8", newline=""))
        assert list(rows) == list(csv.reader(io.StringIO(text, newline="")))


def test_tarfile_reads_a_stream() -> None:
    """``tarfile`` reads a stream in its mode for pipes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("a.txt")
        info.size = 2_000
        archive.addfile(info, io.BytesIO(bytes(2_000)))
    with store_of({"a": buffer.getvalue()}), tarfile.open(fileobj=opened(part_bytes=700), mode="r|") as read:
        [member] = [(info.name, info.size) for info in read]
        assert member == ("a.txt", 2_000)


def test_a_stream_is_readable_and_not_seekable() -> None:
    """It is readable and neither writable nor seekable; it knows its URL and, in the end, its length."""
    with store_of({"a": bytes(25)}):
        stream = opened()
        assert (stream.readable(), stream.writable(), stream.seekable()) == (True, False, False)
        assert stream.url == "a"
        with pytest.raises(io.UnsupportedOperation):
            stream.seek(0)
        with pytest.raises(io.UnsupportedOperation):
            stream.write(b"")
        stream.read(1)
        assert stream.num_bytes == 25
        listed = opened(RemoteUrl("a", 25))
        assert listed.num_bytes == 25
        listed.close()
        stream.close()


def test_a_closed_stream_raises_value_error() -> None:
    """A closed stream raises ValueError, as files do; closing twice is fine."""
    with store_of({"a": bytes(25)}):
        for read_before in (0, 5, 25):
            with opened() as stream:
                stream.read(read_before)
            assert stream.closed
            stream.close()
            attempts: list[Callable[[], object]] = [
                stream.read,
                lambda: stream.read(1),
                lambda: stream.read(0),
                stream.readline,
                stream.peek,
            ]
            for attempt in attempts:
                with pytest.raises(ValueError, match="closed"):
                    attempt()
            with pytest.raises(ValueError, match="closed"):
                list(stream.parts())


DATA = bytes(i % 251 for i in range(200))
RANGES = st.tuples(st.integers(0, 199), st.integers(1, 220)).map(lambda ends: (ends[0], ends[0] + ends[1]))


def checked_url(data: bytes, block_bytes: int, size: int | None) -> RemoteUrl:
    summer = BlockSummer(block_bytes)
    summer.update(data)
    return RemoteUrl("a", size, "etag of a", summer.checksums())


def asked_for(store: FakeStore, size: int) -> list[tuple[int, int]]:
    """The ranges of all requests, sorted."""
    return sorted((start, size if end is None else min(end, size)) for _, start, end, _ in store.reads)


@settings(max_examples=200)
@given(
    wanted=RANGES,
    to_the_end=st.booleans(),
    block_bytes=st.none() | st.integers(1, 60),
    part_bytes=st.integers(1, 250),
    piece_bytes=st.integers(1, 250),
    listed=st.booleans(),
)
def test_a_range_requests_only_its_bytes_or_blocks(
    wanted: tuple[int, int],
    to_the_end: bool,
    block_bytes: int | None,
    part_bytes: int,
    piece_bytes: int,
    listed: bool,
) -> None:
    """It returns ``data[start:stop]``, and requests these bytes, or their whole blocks, once."""
    start, stop = wanted[0], None if to_the_end else wanted[1]
    size = len(DATA) if listed else None
    url = RemoteUrl("a", size, "etag of a") if block_bytes is None else checked_url(DATA, block_bytes, size)
    with store_of({"a": DATA}) as store:
        store.piece_bytes = piece_bytes
        stream = opened(url, part_bytes, start, stop)
        assert (stream.first_byte, stream.last_byte, stream.tell()) == (start, stop, start)
        pieces = list(map(bytes, stream.parts()))
        assert b"".join(pieces) == DATA[start:stop]
        assert all(pieces)
        assert stream.tell() == min(len(DATA), wanted[1]) if stop is not None else len(DATA)
        assert stream.num_bytes == len(DATA), "the length of the object, not of the range"
        assert (stream.read(), stream.peek()) == (b"", b"")
    block = block_bytes or 1
    first, last = start - start % block, len(DATA) if stop is None else min(len(DATA), stop + -stop % block)
    spans = asked_for(store, len(DATA))
    assert (spans[0][0], spans[-1][1]) == (first, last)
    assert all(end == following for (_, end), (following, _) in itertools.pairwise(spans))
    assert all(start % block == 0 for start, _ in spans)


@given(wanted=RANGES, to_the_end=st.booleans(), part_bytes=st.integers(1, 250), block_bytes=st.none() | st.just(30))
def test_a_range_from_a_server_that_ignores_ranges(
    wanted: tuple[int, int], to_the_end: bool, part_bytes: int, block_bytes: int | None
) -> None:
    """The server sends the whole object; only the range is returned."""
    start, stop = wanted[0], None if to_the_end else wanted[1]
    url = "a" if block_bytes is None else checked_url(DATA, block_bytes, len(DATA))
    with store_of({"a": DATA}) as store:
        store.may_ignore_ranges, store.piece_bytes = True, 17
        assert opened(url, part_bytes, start, stop).read() == DATA[start:stop]


@pytest.mark.parametrize("checked", [False, True])
def test_a_server_that_ignores_ranges_is_requested_once(checked: bool) -> None:
    """For an object of many parts too: else it would send the whole object for each of them."""
    with store_of({"a": DATA}) as store:
        store.may_ignore_ranges = True
        assert opened(checked_url(DATA, 10, len(DATA)) if checked else "a", 10, 15).read() == DATA[15:]
        assert len(store.reads) == 1


def test_readline_keeps_to_its_limit() -> None:
    """Also for a line that spans several parts."""
    with store_of({"a": b"a" * 50}), opened() as stream:
        assert stream.readline(15) == b"a" * 15


@given(
    wanted=RANGES,
    operations=OPERATIONS.map(lambda steps: [step for step in steps if step[0] != "tell"]),
    block_bytes=st.none() | st.integers(1, 60),
)
def test_a_range_reads_like_a_file_of_it(
    wanted: tuple[int, int], operations: list[tuple[str, Any]], block_bytes: int | None
) -> None:
    """Any sequence of reads."""
    data = DATA.replace(b"7", b"\n")
    url = "a" if block_bytes is None else checked_url(data, block_bytes, len(data))
    with store_of({"a": data}):
        stream, twin = opened(url, 25, *wanted), io.BytesIO(data[slice(*wanted)])
        for name, size in operations:
            step(stream, twin, name, size)
        assert stream.read() == twin.read()
        stream.close()


@pytest.mark.parametrize("damaged", [0, 35, 95])
def test_damage_in_a_block_of_a_range_is_noticed(damaged: int) -> None:
    """Also outside of the range, since blocks are verified as a whole; other blocks are not read."""
    data = bytearray(DATA)
    data[damaged] ^= 1
    with store_of({"a": bytes(data)}):
        stream = opened(checked_url(DATA, 30, len(DATA)), 60, 38, 82)
        if damaged in range(30, 90):
            with pytest.raises(ShardCorruptError):
                stream.read()
        else:
            assert stream.read() == DATA[38:82]
        stream.close()


@given(wanted=RANGES, read_before=st.integers(0, 50), other=RANGES, block_bytes=st.none() | st.integers(1, 60))
def test_other_bytes_can_be_read_besides_a_range(
    wanted: tuple[int, int], read_before: int, other: tuple[int, int], block_bytes: int | None
) -> None:
    """Anywhere in the object; sequential reading continues unchanged."""
    start, stop = wanted
    aside, end = other[0], min(other[1], len(DATA))
    url = "a" if block_bytes is None else checked_url(DATA, block_bytes, len(DATA))
    with store_of({"a": DATA}):
        stream = opened(url, 25, start, stop)
        head = stream.read(read_before)
        assert stream.read_range(aside, end) == DATA[aside:end]
        assert head + stream.read() == DATA[start:stop]
        stream.close()


def test_a_stream_has_a_number() -> None:
    """Which one it is of those of its pipe, if their order can be repeated."""
    with store_of({"a": b"1"}):
        scheduler = PartScheduler(FetchSession(options(), StorageOptions()))
        streams = [ObjectStream(scheduler, "a"), ObjectStream(scheduler, "a", 7)]
        scheduler.release()
        assert [stream.number for stream in streams] == [None, 7]
        assert [stream.read() for stream in streams] == [b"1", b"1"]
