"""Read selected samples of shards: their bytes in order, whatever the store does, and within the memory budget."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_store import FakeStore, options, store_of
from tests.support.waiting import engine_threads, wait_for
from torchdata_remote.core.options import FetchOptions, StorageOptions
from torchdata_remote.core.shard_view import ShardView, view_url
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import ObjectChangedError, TransientStorageError, UrlError
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects
from torchdata_remote.fetch.view_stream import ViewStream

BLOCK = 512
CONTENTS = {f"s3://b/{at}.tar": np.random.default_rng(at).bytes(60 * BLOCK) for at in range(3)}
ROWS = st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(1, 8))  # object, first block, number of blocks


@pytest.fixture
def store() -> Iterator[FakeStore]:
    with shards_in_memory() as store:
        yield store


@contextlib.contextmanager
def shards_in_memory() -> Iterator[FakeStore]:
    """Let every shard be read from one store."""
    with store_of(dict(CONTENTS)) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "torchdata_remote.fetch.view_download.open_store", lambda url, options, connection: (store, str(url))
        )
        yield store


def view_of(rows: list[tuple[int, int, int]], *, sizes: bool = True) -> ShardView:
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    urls = tuple(
        RemoteUrl(url, len(data) if sizes else None, f"etag of {url}" if sizes else None)
        for url, data in CONTENTS.items()
    )
    return ShardView(
        urls, np.ones(len(rows), np.int64), columns[0], columns[1] * BLOCK, (columns[1] + columns[2]) * BLOCK
    )


def bytes_of(view: ShardView) -> bytes:
    shards = list(CONTENTS.values())
    return b"".join(
        shards[at][start:stop] for at, start, stop in zip(view.objects, view.starts, view.stops, strict=True)
    )


def session_of(fetch: FetchOptions) -> FetchSession:
    return FetchSession(fetch, StorageOptions())


@given(
    listed=st.lists(st.lists(ROWS, max_size=10) | st.integers(0, 2), max_size=6),
    part_blocks=st.integers(1, 12),
    budget_blocks=st.integers(1, 60),
    max_in_flight=st.integers(1, 4),
    piece_bytes=st.integers(100, 5000),
    sizes=st.booleans(),
    ignores_ranges=st.booleans(),
)
def test_views_and_shards_are_read_in_the_order_of_their_urls(
    listed: list[list[tuple[int, int, int]] | int],
    part_blocks: int,
    budget_blocks: int,
    max_in_flight: int,
    piece_bytes: int,
    sizes: bool,
    ignores_ranges: bool,
) -> None:
    """Each is complete, whatever the budget, the pieces in which bytes arrive, and the server does with ranges."""
    shards = list(CONTENTS)
    views = [one if isinstance(one, int) else view_of(one, sizes=sizes) for one in listed]
    urls = [shards[one] if isinstance(one, int) else view_url(one) for one in views]
    expected = [CONTENTS[shards[one]] if isinstance(one, int) else bytes_of(one) for one in views]
    fetch = options(max_in_flight, part_blocks * BLOCK, budget_blocks * BLOCK)
    with shards_in_memory() as store:
        store.piece_bytes, store.may_ignore_ranges = piece_bytes, ignores_ranges
        got = [(url, stream.read()) for url, stream in stream_objects(urls, session_of(fetch))]
        assert got == list(zip(urls, expected, strict=True))
        assert store.running == 0
        unordered = options(max_in_flight, part_blocks * BLOCK, budget_blocks * BLOCK, in_order=False)
        again = [(str(url), stream.read()) for url, stream in stream_objects(urls, session_of(unordered))]
        assert sorted(again) == sorted((str(url), data) for url, data in got)


@given(rows=st.lists(ROWS, min_size=1, max_size=10), data=st.data())
def test_a_part_is_read_from_any_byte(rows: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Positions are those of the whole view; each of them is a byte of a shard."""
    view, whole = view_of(rows), bytes_of(view_of(rows))
    ends = [0, *np.cumsum(view.stops - view.starts).tolist()]
    first = data.draw(st.integers(0, len(rows) - 1))
    last = data.draw(st.integers(first + 1, len(rows)))
    byte = data.draw(st.integers(0, view.num_bytes - 1))
    with shards_in_memory():
        state = {"next": 1, "again": [[0, byte]]}
        url = view_url(view).part(first, last)
        ((_, stream),) = stream_objects([url], session_of(options(part_bytes=3 * BLOCK)), state)
        assert isinstance(stream, ViewStream)
        start = max(byte, ends[first])
        assert (stream.first_byte, stream.last_byte, stream.num_bytes) == (start, ends[last], view.num_bytes)
        assert stream.selected.starts.tolist() == ends[first : last + 1]
        assert stream.read() == whole[start : ends[last]]
        shard, place = stream.place_of(byte)
        assert CONTENTS[shard][place] == whole[byte]


def test_every_stream_knows_the_place_of_its_bytes(tmp_path: Path) -> None:
    """The object itself, if it is no view."""
    (tmp_path / "a.bin").write_bytes(b"local")
    local = RemoteUrl(f"file://{tmp_path}/a.bin", 5)
    for url in (local, str(local)):
        ((_, stream),) = stream_objects([url], session_of(FetchOptions()))
        found, byte = stream.place_of(3)
        assert (found, found.size, byte) == (local, 5 if url is local else None, 3)
        stream.close()
    with shards_in_memory():
        ((_, stream),) = stream_objects(["s3://b/1.tar"], session_of(options()))
        assert stream.place_of(700) == ("s3://b/1.tar", 700)
        stream.close()


def test_a_view_is_read_in_order_only(store: FakeStore) -> None:
    """Ranges at other places would need requests of other shards."""
    ((_, stream),) = stream_objects([view_url(view_of([(0, 0, 1)]))], session_of(options()))
    with pytest.raises(io.UnsupportedOperation, match="in order only"):
        stream.read_range(0, 3)
    stream.close()


def test_a_window_of_consecutive_samples_is_one_request_and_one_piece(store: FakeStore) -> None:
    """Consecutive samples cost no requests of their own."""
    view = view_of([(0, block, 1) for block in range(60)])
    (pieces,) = (
        list(stream.parts())
        for _, stream in stream_objects([view_url(view)], session_of(options(part_bytes=30 * BLOCK)))
    )
    assert list(map(len, pieces)) == [30 * BLOCK, 30 * BLOCK]
    assert all(piece.readonly for piece in pieces)
    assert len(store.reads) == 2


def test_memory_is_bounded_while_the_consumer_waits(store: FakeStore) -> None:
    """No further window is requested than the budget holds, of one view or of many."""
    before = engine_threads()
    many = [view_url(view_of([(at % 3, 2 * at % 50, 2)])) for at in range(40)]
    large = view_url(view_of([(0, block, 1) for block in range(60)]))
    for urls in ([large], many):
        store.reads.clear()
        streams = stream_objects(urls, session_of(options(part_bytes=2 * BLOCK, max_buffer_bytes=8 * BLOCK)))
        _, stream = next(streams)
        wait_for(lambda: len(store.reads) >= 4)
        next(stream.parts())
        assert len(store.reads) <= 5
        stream.close()
        streams.close()
    wait_for(lambda: not engine_threads() - before)


def test_many_small_views_are_requested_at_once(store: FakeStore) -> None:
    """As many as requests are allowed, because one of them does not fill the link."""
    barrier = threading.Barrier(4)

    def before(path: str, start: int) -> None:
        barrier.wait(20)  # broken if fewer come

    store.before_read = before
    urls = [view_url(view_of([(at % 3, at, 1)])) for at in range(8)]
    assert [len(stream.read()) for _, stream in stream_objects(urls, session_of(options(max_in_flight=4)))] == [
        BLOCK
    ] * 8


def test_an_early_end_sends_no_further_requests(store: FakeStore) -> None:
    """Closing the streams drops what is queued."""
    before, started, go = engine_threads(), threading.Event(), threading.Event()

    def wait_to_answer(path: str, start: int) -> None:
        started.set()
        go.wait(20)

    store.before_read = wait_to_answer
    url = view_url(view_of([(at % 3, at, 1) for at in range(50)]))
    streams = stream_objects([url], session_of(options(max_in_flight=1, part_bytes=BLOCK, max_buffer_bytes=50 * BLOCK)))
    _, stream = next(streams)
    assert started.wait(20)
    stream.close()
    streams.close()
    go.set()
    wait_for(lambda: not engine_threads() - before)
    assert len(store.reads) == 1


def test_faults_are_repeated_and_name_the_shard(store: FakeStore) -> None:
    """A fault that does not heal is an error of the shard that has the bytes, after the windows before it."""
    url = view_url(view_of([(0, 0, 2), (1, 4, 2), (2, 5, 1)]))
    failures = iter([True, True])

    def sometimes(path: str, start: int) -> None:
        if next(failures, False):
            raise TransientStorageError("busy")

    store.before_read = sometimes
    fetch = options(part_bytes=2 * BLOCK)
    ((_, stream),) = stream_objects([url], session_of(fetch))
    assert stream.read() == bytes_of(view_of([(0, 0, 2), (1, 4, 2), (2, 5, 1)]))
    del store.objects["s3://b/1.tar"]
    ((_, stream),) = stream_objects([url], session_of(fetch))
    parts = stream.parts()
    assert next(parts) == CONTENTS["s3://b/0.tar"][: 2 * BLOCK]
    with pytest.raises(KeyError, match=r"s3://b/1\.tar"):
        next(parts)
    with pytest.raises(KeyError, match=r"s3://b/1\.tar"):
        stream.read()
    stream.close()


@pytest.mark.parametrize("sizes", [False, True])
def test_a_replaced_shard_is_an_error(store: FakeStore, sizes: bool) -> None:
    """Of another size than listed, or shorter than the ranges."""
    store.objects["s3://b/1.tar"] = CONTENTS["s3://b/1.tar"][: 20 * BLOCK]
    ((_, stream),) = stream_objects([view_url(view_of([(1, 18, 4)], sizes=sizes))], session_of(options()))
    with pytest.raises(ObjectChangedError, match=r"^s3://b/1\.tar"):
        stream.read()
    stream.close()


def test_two_versions_are_never_mixed(store: FakeStore) -> None:
    """Also if the listing had neither size nor etag."""
    numbers = iter(range(100))

    def replaced(path: str, start: int) -> None:
        store.objects["s3://b/1.tar"] = CONTENTS["s3://b/1.tar"][: (60 - next(numbers)) * BLOCK]

    store.before_read = replaced
    rows = [(1, 0, 2), (0, 0, 1), (1, 20, 2)]
    fetch = options(max_in_flight=1, part_bytes=2 * BLOCK)
    ((_, stream),) = stream_objects([view_url(view_of(rows, sizes=False))], session_of(fetch))
    with pytest.raises(ObjectChangedError, match=r"^s3://b/1\.tar.*replaced"):
        stream.read()
    stream.close()


def test_samples_that_the_view_does_not_have_are_refused(store: FakeStore) -> None:
    """A part of another view."""
    before = engine_threads()
    url = view_url(view_of([(0, 0, 1), (0, 5, 1)]))
    for first, last in ((1, 3), (2, 2), (2, 1)):
        with pytest.raises(UrlError, match=r"view\+\.\.\.\+s3://b/0\.tar\+view: no samples .* in a view of 2 samples"):
            list(stream_objects([url.part(first, last)], session_of(options())))
    wait_for(lambda: not engine_threads() - before)
