"""Streams behave as files do."""

from __future__ import annotations

import csv
import io
import os
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_fetch import options, store_of
from torchdata_remote.engine import Engine
from torchdata_remote.errors import RemoteDataError
from torchdata_remote.fetch import Fetcher
from torchdata_remote.options import StorageOptions
from torchdata_remote.streams import ObjectStream, parts_of, streams_of
from torchdata_remote.urls import RemoteUrl

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


def opened(url: str = "a", part_bytes: int = 10) -> ObjectStream:
    fetcher = Fetcher(Engine(options(part_bytes=part_bytes, max_buffer_bytes=30), StorageOptions()))
    stream = ObjectStream(fetcher, url)
    fetcher.release()
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
        assert getattr(stream, name)(size) == getattr(twin, name)(size)


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
    """Any sequence of reads gives what ``io.BytesIO`` gives, wherever parts and the pieces of parts end."""
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
def test_parts(data: bytes, part_bytes: int, first: int) -> None:
    """``parts`` hands on what a read left, in pieces of up to ``part_bytes``, none of them empty."""
    with store_of({"a": data}):
        stream = opened(part_bytes=part_bytes)
        start = stream.read(first)
        pieces = [bytes(piece) for piece in stream.parts()]
        assert start + b"".join(pieces) == data
        assert all(0 < len(piece) <= part_bytes for piece in pieces)
        assert stream.tell() == len(data)
        assert list(stream.parts()) == []


def test_parts_are_not_copied() -> None:
    """A part is the memory that the store gave."""
    data = os.urandom(10)
    with store_of({"a": data}):
        [piece] = opened().parts()
        assert isinstance(piece, memoryview)
        assert piece == data


@given(text=st.text(st.sampled_from("äb,\"\r\n'"), max_size=60), part_bytes=st.integers(1, 20))
def test_text_wrapper(text: str, part_bytes: int) -> None:
    """The standard library's text and csv readers take a stream."""
    data = text.encode()
    with store_of({"a": data}):
        wrapped = io.TextIOWrapper(as_file(opened(part_bytes=part_bytes)), encoding="utf-8", newline="")
        assert list(wrapped) == list(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline=""))
        rows = csv.reader(io.TextIOWrapper(as_file(opened(part_bytes=part_bytes)), encoding="utf-8", newline=""))
        assert list(rows) == list(csv.reader(io.StringIO(text, newline="")))


def test_tarfile() -> None:
    """``tarfile`` reads a stream in its mode for pipes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("a.txt")
        info.size = 2_000
        archive.addfile(info, io.BytesIO(bytes(2_000)))
    with store_of({"a": buffer.getvalue()}), tarfile.open(fileobj=opened(part_bytes=700), mode="r|") as read:
        [member] = [(info.name, info.size) for info in read]
        assert member == ("a.txt", 2_000)


def test_what_a_stream_is() -> None:
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


def test_closed_stream() -> None:
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


def test_bare_urls_and_pairs() -> None:
    """A reader's source may be URLs or pairs, not both."""
    with store_of({"a": b"1", "b": b"2"}):
        got = [(url, stream.read()) for url, stream in streams_of(["a", "b"], Engine(options(), StorageOptions()))]
        assert got == [("a", b"1"), ("b", b"2")]
        pairs = [("x", io.BytesIO(b"3")), ("y", io.BytesIO(b"4"))]
        assert list(streams_of(iter(pairs), Engine(options(), StorageOptions()))) == pairs
        assert list(streams_of([], Engine(options(), StorageOptions()))) == []
        with pytest.raises(RemoteDataError, match="Expected a URL, as before, got tuple"):
            list(streams_of(["a", pairs[0]], Engine(options(), StorageOptions())))
        for wrong in (1, None, ("x", b"bytes"), ("x",), b"bytes", {"__key__": "1"}):
            with pytest.raises(RemoteDataError, match=r"Expected a URL or a \(url, file_like\) pair"):
                list(streams_of([wrong], Engine(options(), StorageOptions())))


@given(data=st.binary(max_size=100), piece_bytes=st.integers(1, 30))
def test_parts_of_any_file(data: bytes, piece_bytes: int) -> None:
    """Files of others come in pieces too."""
    assert b"".join(parts_of("x", io.BytesIO(data), piece_bytes)) == data


def test_parts_of_a_text_file() -> None:
    """A file that was opened as text is named as such."""
    with pytest.raises(RemoteDataError, match="mode='rb'"):
        list(parts_of("x", io.StringIO("text")))
