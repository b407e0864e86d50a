"""The streams of ``async_prefetch`` behave as files do."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.scripted_store import store_of

TEXTLIKE = st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"long word", b"\0"]), max_size=40).map(b"".join)
SIZES = st.none() | st.integers(-1, 30)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["read", "readline"]), SIZES),
        st.tuples(st.just("readlines"), st.just(-1)),
        st.tuples(st.just("readinto"), st.integers(0, 30)),
        st.tuples(st.just("read1"), st.integers(-1, 30)),
        st.tuples(st.just("peek"), st.integers(0, 30)),
        st.tuples(st.sampled_from(["next", "tell"]), st.none()),
    ),
    max_size=25,
)


def step(stream: Any, twin: io.BytesIO, name: str, size: int | None) -> None:
    """Do the same to both; where a file may return fewer bytes, the twin returns as many."""
    if name == "readinto":
        buffer, twins = bytearray(size or 0), bytearray(size or 0)
        assert (stream.readinto(buffer), buffer) == (twin.readinto(twins), twins)
    elif name == "read1":
        got = stream.read1(size)
        assert got or size == 0 or twin.tell() == len(twin.getvalue())
        assert size is None or size < 0 or len(got) <= size
        assert got == twin.read(len(got))
    elif name == "peek":
        got, rest = stream.peek(size), twin.getvalue()[twin.tell() :]
        assert rest.startswith(got)
        assert got or not rest
    elif name == "next":
        assert next(stream, None) == next(twin, None)
    elif name == "tell":
        assert stream.tell() == twin.tell()
    else:
        assert getattr(stream, name)(size) == getattr(twin, name)(size)


@given(data=TEXTLIKE, part_bytes=st.integers(1, 50), operations=OPERATIONS, listed=st.booleans())
def test_any_sequence_of_reads_returns_what_a_file_returns(
    data: bytes, part_bytes: int, operations: list[tuple[str, Any]], listed: bool
) -> None:
    with store_of({"a": data}) as store:
        [(_, stream)] = store.open(listed=listed, part_bytes=part_bytes, max_buffer_bytes=30)
        twin = io.BytesIO(data)
        for name, size in operations:
            step(stream, twin, name, size)
        assert stream.read() == twin.read()
        assert (stream.read(), stream.read(5), stream.readline(), list(stream)) == (b"", b"", b"", [])
        assert stream.tell() == len(data)
        stream.close()


def test_a_stream_is_readable_and_neither_writable_nor_seekable() -> None:
    with store_of({"a": bytes(25)}) as store:
        [(_, stream)] = store.open()
        assert (stream.readable(), stream.writable(), stream.seekable()) == (True, False, False)
        with pytest.raises(io.UnsupportedOperation):
            stream.seek(0)
        with pytest.raises(io.UnsupportedOperation):
            stream.write(b"")
        stream.close()


@pytest.mark.parametrize("read_before", [0, 5, 25])
def test_a_closed_stream_is_not_read_and_may_be_closed_twice(read_before: int) -> None:
    with store_of({"a": bytes(25)}) as store:
        [(_, stream)] = store.open()
        stream.read(read_before)
        assert not stream.closed
        stream.close()
        stream.close()
        assert stream.closed
        for attempt in (stream.read, lambda: stream.read(1), lambda: stream.read(0), stream.readline, stream.peek):
            with pytest.raises(ValueError, match="closed"):
                attempt()


def test_a_file_of_this_disk_reads_as_other_streams_do(tmp_path: Any) -> None:
    (tmp_path / "a").write_bytes(b"one\ntwo\nthree")
    [(_, stream)] = tdr.IterableWrapper([f"{tmp_path}/a"]).async_prefetch()
    assert (stream.readline(), stream.peek(3)[:3], stream.tell()) == (b"one\n", b"two", 4)
    assert (stream.read(4), stream.tell(), stream.read(), stream.read()) == (b"two\n", 8, b"three", b"")
    stream.close()
    with pytest.raises(ValueError, match="closed stream"):
        stream.read()
