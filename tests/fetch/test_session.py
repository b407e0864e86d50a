"""What the iterations of a pipe share: threads, requests, and the bound on bytes in memory."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.fake_store import options, store_of
from tests.support.waiting import engine_threads, wait_for
from torchdata_remote import AsyncPrefetch
from torchdata_remote.core.options import FetchOptions, StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import StorageError
from torchdata_remote.fetch.object_stream import ObjectStream
from torchdata_remote.fetch.scheduler import PartScheduler
from torchdata_remote.fetch.session import FetchSession

SIZE = 1000


def session_of(chosen: FetchOptions, num_lanes: int = 1) -> FetchSession:
    return FetchSession(chosen, StorageOptions({"name": "value"}), num_lanes)


@contextmanager
def lanes_of(session: FetchSession, num_lanes: int) -> Iterator[list[PartScheduler]]:
    """That many iterations at once; those that the test has not taken out are released at the end."""
    schedulers = [PartScheduler(session) for _ in range(num_lanes)]
    try:
        yield schedulers
    finally:
        for scheduler in schedulers:
            scheduler.release()


def large_object() -> RemoteUrl:
    return RemoteUrl("a", SIZE, "etag of a")


@settings(max_examples=40)
@given(num_lanes=st.integers(1, 12), part_bytes=st.integers(1, 40), bound=st.integers(1, 400))
def test_lanes_share_the_byte_bound(num_lanes: int, part_bytes: int, bound: int) -> None:
    """Each lane may exceed it by one part, which it needs to proceed."""
    with store_of({"a": bytes(SIZE)}), ExitStack() as stack:
        session = session_of(options(part_bytes=part_bytes, max_buffer_bytes=bound), num_lanes)
        schedulers = stack.enter_context(lanes_of(session, num_lanes))
        streams = [stack.enter_context(closing(ObjectStream(scheduler, large_object()))) for scheduler in schedulers]
        planned = [stream.download.planned_bytes for stream in streams]
        share = bound // num_lanes
        assert planned == [min(SIZE, max(1, share // part_bytes) * part_bytes)] * num_lanes
        assert sum(planned) <= max(bound, num_lanes * part_bytes)
        assert [stream.read(100) for stream in streams] == [bytes(100)] * num_lanes


def held_bytes(stream: ObjectStream) -> int:
    """Bytes that are planned and not yet consumed."""
    return stream.download.planned_bytes - stream.tell()


def read_a_piece(stream: ObjectStream) -> None:
    """Give one part back and take the next."""
    assert stream.read(10)
    stream.peek()


def test_a_lane_that_ended_leaves_its_share_to_the_others() -> None:
    """They plan more with the next bytes that they consume."""
    with store_of({"a": bytes(SIZE)}), lanes_of(session_of(options(max_buffer_bytes=120), 3), 3) as schedulers:
        streams = [ObjectStream(scheduler, large_object()) for scheduler in schedulers]
        for num_left, share in ((3, 40), (2, 60), (1, 120)):
            read_a_piece(streams[0])
            assert held_bytes(streams[0]) == share
            if num_left > 1:
                streams.pop().close()
                schedulers.pop().release()
        streams[0].close()


def test_a_single_lane_has_the_whole_bound() -> None:
    """Also without a number of expected lanes."""
    with store_of({"a": bytes(SIZE)}), lanes_of(session_of(options(max_buffer_bytes=120)), 1) as [scheduler]:
        stream = ObjectStream(scheduler, large_object())
        assert stream.download.planned_bytes == 120
        stream.close()


def test_streams_that_are_read_after_the_last_was_opened_keep_to_the_bound() -> None:
    """With interleave the last streams of a lane are open after its URLs have ended."""
    with store_of({"a": bytes(SIZE)}), lanes_of(session_of(options(max_buffer_bytes=120), 3), 3) as schedulers:
        streams = [ObjectStream(scheduler, large_object()) for scheduler in schedulers]
        while schedulers:
            schedulers.pop().release()
        for stream in streams:
            read_a_piece(stream)
        assert sum(map(held_bytes, streams)) <= 120
        for stream in streams:
            stream.close()


def test_lanes_have_their_shares_while_a_stream_of_the_pass_before_is_open() -> None:
    """Whoever keeps a stream of one pass, and begins the next one, has the same threads and the same bound for all."""
    with store_of({"a": bytes(SIZE)}):
        session = session_of(options(max_buffer_bytes=120), 3)
        with lanes_of(session, 3) as schedulers:
            kept = ObjectStream(schedulers[0], RemoteUrl("a", SIZE))
        with lanes_of(session, 3) as schedulers:
            streams = [ObjectStream(scheduler, large_object()) for scheduler in schedulers]
            planned = [stream.download.planned_bytes for stream in streams]
            for stream in [kept, *streams]:
                stream.close()
    assert planned == [30, 30, 30]


def test_lanes_share_threads_and_requests() -> None:
    """No more than ``max_in_flight`` at once, of all lanes together."""
    with store_of({"a": bytes(SIZE)}) as store:
        may_go_on = threading.Event()

        def wait(path: str, start: int) -> None:
            assert may_go_on.wait(20)

        store.before_read = wait
        before = engine_threads()
        with lanes_of(session_of(options(max_in_flight=3, max_buffer_bytes=4 * SIZE), 4), 4) as schedulers:
            streams = [ObjectStream(scheduler, large_object()) for scheduler in schedulers]
            wait_for(lambda: store.running == 3)
            assert len(engine_threads() - before) == 3
            may_go_on.set()
            assert [stream.read() for stream in streams] == [bytes(SIZE)] * 4
        assert store.most == 3
        wait_for(lambda: not engine_threads() - before)


def test_threads_end_with_the_last_user() -> None:
    """With the last lane, or with the last stream that outlives its lane."""
    with store_of({"a": bytes(SIZE)}):
        before = engine_threads()
        with lanes_of(session := session_of(options(), 2), 2) as schedulers:
            streams = [ObjectStream(scheduler, large_object()) for scheduler in schedulers]
            first = session.start()
            first.leave()
        closed = [first.pool.closed]
        streams[0].close()
        closed.append(first.pool.closed)
        assert streams[1].read() == bytes(SIZE)
        closed.append(first.pool.closed)
        assert closed == [False, False, True]
        wait_for(lambda: not engine_threads() - before)


def test_a_forgotten_lane_holds_no_threads() -> None:
    """In a reference cycle."""
    with store_of({"a": bytes(SIZE)}):
        before = engine_threads()
        scheduler = PartScheduler(session_of(options()))
        scheduler.release()
        forgotten: list[object] = [ObjectStream(scheduler, "a")]
        forgotten.append(forgotten)
        del scheduler, forgotten
        gc.collect()
        wait_for(lambda: not engine_threads() - before)


def test_a_new_pass_starts_new_threads() -> None:
    """Threads of an ended pass are gone; overlapping lanes share threads."""
    session = session_of(options())
    first, again = session.start(), session.start()
    assert first is again
    first.leave()
    assert first.join()
    for _ in range(2):
        first.leave()
    assert first.pool.closed
    assert not first.join()
    second = session.start()
    assert second is not first
    assert not second.pool.closed
    second.leave()
    with store_of({"a": b"123"}):
        for _ in range(2):
            with lanes_of(session, 1) as [scheduler]:
                assert ObjectStream(scheduler, "a").read() == b"123"


def test_a_copy_in_another_process_has_threads_of_its_own() -> None:
    """It takes limits and options along, and nothing that runs."""
    session = session_of(options(part_bytes=7), 5)
    running = session.start()
    twin: FetchSession = pickle.loads(pickle.dumps(session))
    assert (twin.options, dict(twin.storage_options), twin.num_lanes) == (session.options, {"name": "value"}, 5)
    other = twin.start()
    assert other is not running
    assert other.pool is not running.pool
    other.leave()
    assert not running.pool.closed
    running.leave()


def test_for_lanes_returns_another_session_with_equal_limits() -> None:
    """Of the same limits."""
    session = session_of(options(part_bytes=7), 5)
    other = session.for_lanes(2)
    assert (other.options, other.storage_options, other.num_lanes) == (session.options, session.storage_options, 2)
    first, second = session.start(), other.start()
    assert first is not second
    first.leave()
    assert not second.pool.closed
    second.leave()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    """The parent's threads continue."""
    with store_of({"a": bytes(SIZE)}):
        session = session_of(options())
        with lanes_of(session, 1) as [scheduler], closing(ObjectStream(scheduler, large_object())) as stream:
            read_a_piece(stream)
            running = session.start()
            child = os.fork()
            if child == 0:
                try:
                    signal.alarm(20)
                    own = session.start()
                    data = ObjectStream(PartScheduler(session), large_object()).read()
                    os._exit(7 if own is not running and not running.join() and data == bytes(SIZE) else 8)
                finally:
                    os._exit(9)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            running.leave()
            assert stream.read() == bytes(SIZE - 10)


def first_part_bytes(session: FetchSession) -> int:
    """How long the first part is that a lane asks for."""
    scheduler = PartScheduler(session)
    with closing(ObjectStream(scheduler, RemoteUrl("a", 4 << 20, "etag of a"))) as stream:
        scheduler.release()
        part = stream.download.parts[0]
        assert part.end is not None
        return part.end - part.start


@pytest.mark.parametrize(("num_lanes", "part_bytes"), [(1, 768 << 10), (2, 768 << 10), (4, 384 << 10), (9, 256 << 10)])
def test_parts_are_smaller_the_more_lanes_there_are(num_lanes: int, part_bytes: int) -> None:
    """So that each lane has two of them, down to 256 KiB; a size that was chosen is taken."""
    with store_of({"a": bytes(4 << 20)}):
        chosen = FetchOptions(max_in_flight=4, max_buffer_bytes=4 << 20)
        assert first_part_bytes(session_of(chosen, num_lanes)) == part_bytes
        assert first_part_bytes(session_of(options(part_bytes=11), num_lanes)) == 11


def test_copies_of_a_pipe_share_its_session() -> None:
    """Two that are read at once in one process send no more requests than one."""
    with store_of({str(number): bytes(40) for number in range(20)}) as store:
        pipe = AsyncPrefetch(IterableWrapper(list(store.objects)), max_in_flight=2, part_bytes=10)
        before = engine_threads()
        twin = copy.copy(pipe)
        twin.source_datapipe = IterableWrapper(list(store.objects))  # torch lets only one iterator of a pipe go on
        got = []
        for (_, stream), (_, second) in zip(pipe, twin, strict=True):
            got += [stream.read(), second.read()]
            assert len(engine_threads() - before) <= 2
        assert got == [bytes(40)] * 40
        assert store.most <= 2
        wait_for(lambda: not engine_threads() - before)


def a_pass(session: FetchSession) -> None:
    """One lane that reads something."""
    with lanes_of(session, 1) as [scheduler]:
        assert ObjectStream(scheduler, large_object()).read() == bytes(SIZE)


def test_a_kept_session_keeps_its_threads() -> None:
    """In later passes, until the session is collected."""
    with store_of({"a": bytes(SIZE)}):
        before = engine_threads()
        session = session_of(options(part_bytes=100))
        session.keep()
        assert engine_threads() == before, "they start with the first request"
        for _ in range(3):
            a_pass(session)
        first = engine_threads() - before
        assert 0 < len(first) <= 4
        session.keep()
        a_pass(session)
        assert engine_threads() - before >= first
        assert len(engine_threads() - before) <= 4
        del session
        gc.collect()
        wait_for(lambda: not engine_threads() - before)


def test_a_session_that_was_not_kept_ends_with_its_pass() -> None:
    """Before and after it is kept, passes end as they always do; a copy is kept by itself."""
    with store_of({"a": bytes(SIZE)}):
        session = session_of(options())
        running = session.start()
        running.open_no_more()
        running.leave()
        assert running.pool.closed
        session.keep()
        kept = session.start()
        kept.leave()
        twin: FetchSession = pickle.loads(pickle.dumps(session))
        copied = twin.start()
        copied.leave()
        assert (kept.pool.closed, copied.pool.closed) == (False, True)


def test_a_stream_may_outlive_its_kept_session() -> None:
    """The threads end with the last stream."""
    with store_of({"a": bytes(SIZE)}):
        before = engine_threads()
        session = session_of(options(part_bytes=10, max_buffer_bytes=20))
        session.keep()
        with lanes_of(session, 1) as [scheduler]:
            stream = ObjectStream(scheduler, large_object())
        running = session.start()
        running.open_no_more()
        running.leave()
        del session, scheduler
        gc.collect()
        closed = [running.pool.closed]
        assert stream.read() == bytes(SIZE)
        closed.append(running.pool.closed)
        assert closed == [False, True]
        wait_for(lambda: not engine_threads() - before)


def test_lanes_of_a_kept_session_have_the_whole_bound() -> None:
    """Those of passes that ended do not count any longer, and being kept is no lane."""
    with store_of({"a": bytes(SIZE)}):
        session = session_of(options(max_buffer_bytes=120))
        for _ in range(3):
            session.keep()
            with lanes_of(session, 1) as [scheduler]:
                stream = ObjectStream(scheduler, large_object())
                assert stream.download.planned_bytes == 120
                stream.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_keeps_threads_of_its_own() -> None:
    """It starts with none; when its session is collected, the parent's threads still run."""
    with store_of({"a": bytes(SIZE)}):
        session = session_of(options())
        session.keep()
        a_pass(session)
        running = session.start()
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(20)
                session.keep()
                a_pass(session)
                own = session.start()
                own.leave()
                same = own is running
                del session
                gc.collect()
                os._exit(7 if not same and own.pool.closed and not running.pool.closed else 8)
            finally:
                os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        running.leave()
        a_pass(session)
        assert not running.pool.closed


def test_threads_that_start_at_once_each_get_a_lane() -> None:
    """Each has joined the running session that it uses, so none ends while another reads."""
    with store_of({"a": bytes(SIZE)}):
        before = engine_threads()
        for _ in range(30):
            session, together, wrong = session_of(options(part_bytes=500)), threading.Barrier(6), list[object]()

            def read(
                session: FetchSession = session, together: threading.Barrier = together, wrong: list[object] = wrong
            ) -> None:
                together.wait(20)
                try:
                    for _ in range(3):
                        session.keep()
                        a_pass(session)
                except Exception as error:
                    wrong.append(error)

            readers = [threading.Thread(target=read) for _ in range(6)]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
            assert not wrong
        del session, read
        gc.collect()
        wait_for(lambda: not engine_threads() - before)


@pytest.mark.parametrize("how", ["a file", "a link to nowhere", "a name with NUL", "a file in the folder"])
def test_a_cache_folder_that_cannot_be_used_is_a_storage_error(tmp_path: Path, how: str) -> None:
    """Whatever the operating system says, the exception is one of this package and names the folder."""
    cache = tmp_path / "cache"
    if how == "a file":
        cache.write_bytes(b"")
    elif how == "a link to nowhere":
        cache.symlink_to(tmp_path / "nowhere" / "at all")
    elif how == "a file in the folder":
        cache.mkdir()
        (cache / "v2").write_bytes(b"")
    cache_dir = f"{cache}\0" if how == "a name with NUL" else str(cache)
    (tmp_path / "a.bin").write_bytes(b"bytes")
    pipe = AsyncPrefetch(IterableWrapper([f"{tmp_path}/a.bin"]), cache_dir=cache_dir, cache_bytes=1 << 20)
    with pytest.raises(StorageError, match="cannot be used as a cache"):
        list(pipe)
