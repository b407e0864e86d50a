"""Open URLs as streams, from the start or from a state; yield the bytes of any file."""

from __future__ import annotations

import io
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote  # noqa: F401  # registers the pipes' names
from tests.support.fake_store import options, store_of
from tests.support.waiting import engine_threads, wait_for
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import RemoteDataError, StateError
from torchdata_remote.fetch import streams as streams_module
from torchdata_remote.fetch.object_download import ObjectDownload
from torchdata_remote.fetch.object_stream import ObjectStream
from torchdata_remote.fetch.scheduler import PartScheduler
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import parts_of, stream_objects
from torchdata_remote.pipes.base.input_streams import number_of, open_first, require_number, streams_of


def test_a_readers_source_is_urls_or_pairs_but_not_both() -> None:
    """A reader's source may be URLs or pairs, not both."""
    with store_of({"a": b"1", "b": b"2"}):
        got = [
            (url, stream.read()) for url, stream in streams_of(["a", "b"], FetchSession(options(), StorageOptions()))
        ]
        assert got == [("a", b"1"), ("b", b"2")]
        pairs = [("x", io.BytesIO(b"3")), ("y", io.BytesIO(b"4"))]
        assert list(streams_of(iter(pairs), FetchSession(options(), StorageOptions()))) == pairs
        assert list(streams_of([], FetchSession(options(), StorageOptions()))) == []
        with pytest.raises(RemoteDataError, match="Expected a URL, as the items before it, got tuple"):
            list(streams_of(["a", pairs[0]], FetchSession(options(), StorageOptions())))
        for wrong in (1, None, ("x", b"bytes"), ("x",), b"bytes", {"__key__": "1"}):
            with pytest.raises(RemoteDataError, match=r"Expected a URL or a \(url, file_like\) pair"):
                list(streams_of([wrong], FetchSession(options(), StorageOptions())))


@given(data=st.binary(max_size=100), piece_bytes=st.integers(1, 30))
def test_parts_of_yields_all_bytes_of_any_file(data: bytes, piece_bytes: int) -> None:
    """In pieces of at most ``piece_bytes``."""
    assert b"".join(parts_of("x", io.BytesIO(data), piece_bytes)) == data


def test_a_file_opened_as_text_is_an_error() -> None:
    """A file that was opened as text is named as such."""
    with pytest.raises(RemoteDataError, match="mode='rb'"):
        list(parts_of("x", io.StringIO("text")))


@given(
    sizes=st.lists(st.integers(1, 40), max_size=8),
    following=st.integers(0, 8),
    again=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 39)), max_size=4, unique_by=lambda one: one[0]),
    max_in_flight=st.integers(1, 4),
)
def test_a_pass_resumes_from_its_state(
    sizes: list[int], following: int, again: list[tuple[int, int]], max_in_flight: int
) -> None:
    """First the objects that are wanted again, in that order, each from its byte on; then all that follow, numbered."""
    following = min(following, len(sizes))
    again = [(number, start % sizes[number]) for number, start in again if number < following]
    objects = {str(number): bytes([number]) * size for number, size in enumerate(sizes)}
    state = {"next": following, "again": [list(one) for one in again]}
    with store_of(objects) as store:
        session = FetchSession(options(max_in_flight=max_in_flight), StorageOptions())
        got = [
            (url, stream.number, stream.first_byte, stream.read())
            for url, stream in stream_objects(objects, session, state)
        ]
        expected = [*again, *((number, 0) for number in range(following, len(sizes)))]
        assert got == [(str(n), n, start, bytes([n]) * (sizes[n] - start)) for n, start in expected]
        assert {path for path, *_ in store.reads} == {str(number) for number, _ in expected}


@pytest.mark.parametrize("waits", [False, True])
def test_more_objects_are_opened_ahead_the_more_of_them_are_waited_for(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many as may be requested at once, then one more for each object, or four."""
    num_opened, open_one = 0, streams_module._open

    def counted(scheduler: PartScheduler, *arguments: Any) -> ObjectStream:
        nonlocal num_opened
        num_opened += 1
        scheduler.num_waits += waits
        return open_one(scheduler, *arguments)

    def no_wait(scheduler: PartScheduler, download: ObjectDownload, consumed_bytes: int) -> None:
        return None

    monkeypatch.setattr(streams_module, "_open", counted)
    monkeypatch.setattr(PartScheduler, "next_piece", no_wait)
    names = [f"{number:04d}" for number in range(400)]
    with store_of({}):
        urls = [RemoteUrl(name, 1, "etag") for name in names]
        session = FetchSession(options(max_in_flight=64, max_buffer_bytes=1 << 20), StorageOptions())
        with closing(stream_objects(urls, session)) as streams:
            for number in range(10):
                _, stream = next(streams)
                stream.close()
                assert num_opened == 128 + number * (5 if waits else 2)


def test_a_state_that_expects_more_objects_is_refused() -> None:
    """Before anything is opened, with both numbers."""
    with store_of({"a": b"1", "b": b"2"}):
        state = {"next": 5, "again": [[1, 0], [4, 0]]}
        streams = stream_objects(["a", "b"], FetchSession(options(), StorageOptions()), state)
        with pytest.raises(StateError, match="expects 5 URLs, and there are 2"):
            next(streams)


def test_a_state_after_the_last_object_is_refused() -> None:
    """A listing that has become shorter is no pass that has ended."""
    with store_of({"a": b"1", "b": b"2"}), pytest.raises(StateError):
        list(stream_objects(["a", "b"], FetchSession(options(), StorageOptions()), {"next": 5}))


def test_streams_are_numbered_through_a_wrapper() -> None:
    """Foreign streams have no number, and a state with them is refused."""
    assert number_of(io.BytesIO()) is None
    assert require_number(0) == 0
    with pytest.raises(StateError, match=r"chain the reader after URLs, or after async_prefetch\(in_order=True\)"):
        require_number(None)
    with store_of({"a": b"1", "b": b"2"}):
        pipe = IterableWrapper(["a", "b"]).async_prefetch()
        assert [
            require_number(number_of(stream))
            for _, stream in streams_of(pipe, FetchSession(options(), StorageOptions()))
        ] == [
            0,
            1,
        ]


def test_prefetched_streams_are_the_same_streams() -> None:
    """The first one is opened at once; closing leaves none open, also without any stream."""
    with store_of({"a": b"1", "b": b"2"}):
        for urls in (["a", "b"], []):
            streams = open_first(stream_objects(urls, FetchSession(options(), StorageOptions())))
            assert [(url, stream.read()) for url, stream in streams] == list(zip(urls, [b"1", b"2"], strict=False))
        before = engine_threads()
        streams = open_first(stream_objects(["a", "b"], FetchSession(options(), StorageOptions())))
        assert engine_threads() - before
        _, stream = next(streams)
        streams.close()
        stream.close()
        wait_for(lambda: not engine_threads() - before)


def test_consumed_streams_are_refused_when_a_state_skips_them() -> None:
    """Else samples would be returned twice."""
    session = FetchSession(options(), StorageOptions())
    with store_of({"a": b"1", "b": b"2"}):
        pairs = list(stream_objects(["a", "b"], session))
        assert len(list(streams_of(pairs, session, {"next": 1, "again": [[0, 0]]}))) == 2
        with pytest.raises(StateError, match=r"a was read before .* is yielded again"):
            list(streams_of(pairs, session, {"next": 1, "again": []}))
        for _, stream in pairs:
            stream.close()
