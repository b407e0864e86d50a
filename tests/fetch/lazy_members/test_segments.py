"""Byte ranges of several objects as one archive."""

from __future__ import annotations

import uuid

import fsspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.byte_readers import assert_same_step
from torchdata_remote.core.options import FetchOptions, StorageOptions
from torchdata_remote.core.shard_view import ShardView
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.fetch.lazy_members.jumping_streams import stream_by_jumps
from torchdata_remote.fetch.lazy_members.segments import Segment, SegmentReader, segments_of
from torchdata_remote.fetch.read_ahead import ReadAhead
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.formats.byte_reader import ByteReader, Skippable

RANGES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(1, 40)), max_size=6)


def put(data: bytes) -> RemoteUrl:
    url = f"memory://{uuid.uuid4().hex}/object"
    fsspec.filesystem("memory").pipe(url.removeprefix("memory:/"), data)
    return RemoteUrl(url, len(data))


def opened(segment: Segment) -> ReadAhead:
    return ReadAhead(segment.url, StorageOptions(), start=segment.start, stop=segment.stop)


@given(
    ranges=RANGES, steps=st.lists(st.tuples(st.booleans(), st.integers(0, 30_000)), max_size=8), cut=st.integers(0, 80)
)
def test_segments_are_read_as_their_bytes(
    ranges: list[tuple[int, int, int]], steps: list[tuple[bool, int]], cut: int
) -> None:
    """For any ranges, reads and jumps, from any byte of the view on; and every byte has its place."""
    objects = [bytes([1]) * 50_000, bytes(range(250)) * 210]
    urls = tuple(map(put, objects))
    rows = np.array(ranges, np.int64).reshape(-1, 3).T
    view = ShardView(urls, np.ones(len(ranges), np.int64), rows[0], rows[1] * 512, (rows[1] + rows[2]) * 512)
    whole = b"".join(objects[number][start * 512 : (start + length) * 512] for number, start, length in ranges)
    first = min(cut * 512, len(whole))
    segments = segments_of(view, first, len(whole))
    reader = SegmentReader(segments, opened)
    assert isinstance(reader, Skippable)
    jumping, plain = ByteReader(reader, first), ByteReader([whole[first:]], first)
    for take, length in steps:
        assert_same_step(jumping, plain, length, take=take)
        place = reader.place_of(plain.offset, 1)
        if place is not None and plain.offset < len(whole):
            number = urls.index(place[0])
            assert objects[number][place[1]] == whole[plain.offset]
    assert reader.place_of(first - 1, 1) is None


def test_adjacent_ranges_are_one_segment() -> None:
    url = put(bytes(4096))
    view = ShardView(
        (url,), np.array([1, 1, 1]), np.array([0, 0, 0]), np.array([0, 512, 2048]), np.array([512, 1024, 2560])
    )
    assert segments_of(view, 0, 1536) == [Segment(url, 0, 1024, 0), Segment(url, 2048, 2560, 1024)]
    reader = SegmentReader(segments_of(view, 0, 1536), opened)
    assert reader.place_of(1000, 24) == (url, 1000)
    assert reader.place_of(1000, 25) is None, "in two places"


def test_a_stream_is_read_in_pieces_as_in_parts() -> None:
    """For a pipe between the prefetching and the reader."""
    data = bytes(range(256)) * 1000
    session = FetchSession(FetchOptions(), StorageOptions())
    for url, stream in stream_by_jumps([put(data), put(data)], session):
        assert stream.read(1000) == data[:1000]
        assert stream.read(0) == b""
        assert b"".join(stream.parts()) + stream.read() == data[1000:]
        assert stream.place_of(5) == (url, 5)
        stream.close()
        assert stream.closed
