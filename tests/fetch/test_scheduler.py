"""The scheduler of parts, over a store whose responses a test controls."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tests.support.fake_store import AT_ONCE, FakeStore, options, store_of
from tests.support.waiting import DEADLINE_S, engine_threads, wait_for
from torchdata_remote.core.options import FetchOptions, RetryPolicy, StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
)
from torchdata_remote.fetch.object_stream import ObjectStream
from torchdata_remote.fetch.scheduler import PartScheduler
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects
from torchdata_remote.fetch.unordered_scheduler import UnorderedScheduler
from torchdata_remote.storage import Answer


def streams(store: FakeStore, chosen: FetchOptions, *, listed: bool) -> Iterator[tuple[str, ObjectStream]]:
    """Stream all objects of the store, from listed or from plain URLs."""
    urls = [RemoteUrl(url, len(data), "etag of " + url) if listed else url for url, data in store.objects.items()]
    return stream_objects(urls, FetchSession(chosen, StorageOptions()))


OBJECTS = st.lists(st.binary(max_size=60), max_size=8).map(lambda them: {f"{n}": data for n, data in enumerate(them)})


@given(
    objects=OBJECTS,
    part_bytes=st.integers(1, 70),
    bound=st.integers(1, 100),
    in_flight=st.integers(1, 5),
    listed=st.booleans(),
)
def test_every_byte_is_requested_once_and_yielded_in_order(
    objects: dict[str, bytes], part_bytes: int, bound: int, in_flight: int, listed: bool
) -> None:
    """The requested ranges cover each object exactly once."""
    with store_of(objects) as store:
        got = {
            url: stream.read() for url, stream in streams(store, options(in_flight, part_bytes, bound), listed=listed)
        }
        assert got == objects
        assert list(got) == list(objects)
        for url, data in objects.items():
            spans = sorted(
                ((start, end) for path, start, end, _ in store.reads if path == url), key=lambda span: span[0]
            )
            if not data:
                assert {start for start, _ in spans} == {0}
                assert len(spans) <= (1 if listed else 2)
                continue
            ends = [len(data) if end is None else min(end, len(data)) for _, end in spans]
            assert [start for start, _ in spans] == [0, *ends[:-1]]
            assert ends[-1] == len(data)
            assert all(end - start <= part_bytes for (start, _), end in zip(spans, ends, strict=True))


@given(objects=OBJECTS, part_bytes=st.integers(1, 70))
def test_a_store_that_ignores_ranges_is_requested_once_per_object(objects: dict[str, bytes], part_bytes: int) -> None:
    """Each object is complete."""
    with store_of(objects) as store:
        store.may_ignore_ranges = True
        got = {url: stream.read() for url, stream in streams(store, options(part_bytes=part_bytes), listed=True)}
        assert got == objects
        assert len(store.reads) <= 2 * len(objects)
        assert len(store.reads) == sum(1 if data else 2 for data in objects.values())


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    part_bytes=st.integers(1, 70),
    bound=st.integers(1, 100),
    listed=st.booleans(),
)
@settings(max_examples=60)
def test_bytes_in_memory_are_bounded(sizes: list[int], part_bytes: int, bound: int, listed: bool) -> None:
    """What is fetched or being fetched and not yet consumed stays below the bound, but for one part."""
    objects = {f"{number}": bytes(size) for number, size in enumerate(sizes)}
    with store_of(objects) as store:
        begun, consumed, most = 0, 0, 0

        def before_read(path: str, start: int) -> None:
            nonlocal begun, most
            with store.lock:
                begun += min(part_bytes, len(objects[path]) - start)
                most = max(most, begun - consumed)

        store.before_read = before_read
        for _, stream in streams(store, options(8, part_bytes, bound), listed=listed):
            for part in stream.parts():
                # Asking for the next part gives this one back, and the scheduler may fetch as much at once.
                with store.lock:
                    consumed += len(part)
        assert consumed == sum(sizes)
    largest_part = min(part_bytes, max(sizes))
    assert most <= max(bound, largest_part) if listed else most <= bound + largest_part


def test_requests_wait_for_the_consumer_at_the_bound() -> None:
    """Once the bound is reached, requests wait for the consumer."""
    with store_of({f"{number}": bytes(10) for number in range(100)}) as store:
        iterator = streams(store, options(max_in_flight=50, part_bytes=10, max_buffer_bytes=70), listed=True)
        url, stream = next(iterator)
        wait_for(lambda: len(store.reads) == 7 and store.running == 0)
        assert (url, stream.read()) == ("0", bytes(10))
        wait_for(lambda: len(store.reads) == 8 and store.running == 0)
        assert len(list(iterator)) == 99
        assert len(store.reads) <= 8 + 99


def test_large_objects_of_unknown_size_hold_no_memory_before_their_turn() -> None:
    """While the first one is read, the bound is spent on it and the next ones, as if sizes were listed."""
    with store_of({f"{number}": bytes(40) for number in range(20)}) as store:
        opened = threading.Event()

        def wait_until_opened(path: str, start: int) -> None:
            opened.wait(DEADLINE_S)

        store.before_read = wait_until_opened
        iterator = streams(store, options(max_in_flight=30, part_bytes=10, max_buffer_bytes=80), listed=False)
        _, first = next(iterator)
        opened.set()
        wait_for(lambda: len(store.reads) == 8 and store.running == 0)
        paths = [path for path, *_ in store.reads]
        assert set(paths) <= {"0", "1", "2"}
        assert first.read() == bytes(40)
        assert [stream.read() for _, stream in iterator] == [bytes(40)] * 19
        assert len(store.reads) <= 4 * 20, "the first part of an object reports its size"


def test_small_objects_of_unknown_size_are_fetched_as_many_at_once_as_listed_ones() -> None:
    """Once responses show that they are small, each costs one request, and all in flight are used."""
    with store_of({f"{number}": bytes(5) for number in range(60)}) as store:
        full = threading.Event()

        def before_read(path: str, start: int) -> None:
            if store.running == 8:
                full.set()
            if int(path) >= 20:
                assert full.wait(DEADLINE_S)

        store.before_read = before_read
        for _, stream in streams(store, options(max_in_flight=8, part_bytes=10, max_buffer_bytes=100), listed=False):
            stream.read()
        assert len(store.reads) == 60


def test_streams_of_unknown_size_that_are_read_in_turn_are_all_requested_at_once() -> None:
    """None of them waits for its first part because others were opened before it."""
    with store_of({f"{number}": bytes(100) for number in range(6)}) as store:
        chosen = replace(options(max_in_flight=6, part_bytes=10, max_buffer_bytes=60), interleave=6)
        full = threading.Event()

        def before_read(path: str, start: int) -> None:
            if store.running == 6:
                full.set()
            assert full.wait(DEADLINE_S)

        store.before_read = before_read
        iterator = streams(store, chosen, listed=False)
        opened = [next(iterator) for _ in range(6)]
        assert [stream.read() for _, stream in opened] == [bytes(100)] * 6


def test_an_object_larger_than_the_bound_streams() -> None:
    """An object streams through a bound that is smaller than itself, and than one part."""
    data = os.urandom(5_000)
    for bound in (1, 99, 100, 250):
        with store_of({"a": data, "b": data}) as store:
            assert [stream.read() for _, stream in streams(store, options(4, 100, bound), listed=True)] == [data, data]
            assert store.most <= max(1, bound // 100)


@pytest.mark.parametrize("max_in_flight", [1, 2, 7])
def test_no_more_requests_than_allowed_are_in_flight(max_in_flight: int) -> None:
    """As many as allowed, over parts and over objects."""
    for objects in ({"a": bytes(300)}, {f"{number}": bytes(10) for number in range(30)}):
        with store_of(objects) as store:
            full = threading.Event()

            def before_read(path: str, start: int, store: FakeStore = store, full: threading.Event = full) -> None:
                if store.running == max_in_flight:
                    full.set()
                assert full.wait(DEADLINE_S)

            store.before_read = before_read
            for _, stream in streams(store, options(max_in_flight), listed=True):
                stream.read()
            assert store.most == max_in_flight


@settings(max_examples=30)
@given(order=st.permutations(range(6)), one_object=st.booleans())
def test_bytes_are_in_order_whatever_the_order_of_responses(order: list[int], one_object: bool) -> None:
    """Over parts and over objects."""
    whole = bytes(range(60))
    objects = {"0": whole} if one_object else {f"{n}": whole[10 * n : 10 * n + 10] for n in range(6)}
    with store_of(objects) as store:
        gates = [threading.Event() for _ in range(6)]
        answered = [threading.Event() for _ in range(6)]

        def before_read(path: str, start: int) -> None:
            number = start // 10 if one_object else int(path)
            assert gates[number].wait(DEADLINE_S)
            answered[number].set()

        def open_gates() -> None:
            wait_for(lambda: store.running == 6)
            for number in order:
                gates[number].set()
                assert answered[number].wait(DEADLINE_S)

        store.before_read = before_read
        opener = threading.Thread(target=open_gates)
        opener.start()
        got = b"".join(stream.read() for _, stream in streams(store, options(max_in_flight=6), listed=True))
        opener.join(DEADLINE_S)
        assert got == whole


def test_urls_are_read_in_the_consumers_thread_only() -> None:
    """URLs are pulled from the thread that iterates, and not all at once."""
    with store_of({f"{number}": bytes(10) for number in range(2_000)}) as store:
        pulled: list[threading.Thread] = []

        def urls() -> Iterator[str]:
            for url in store.objects:
                pulled.append(threading.current_thread())
                yield RemoteUrl(url, 10)

        iterator = stream_objects(urls(), FetchSession(options(max_in_flight=2, max_buffer_bytes=50), StorageOptions()))
        next(iterator)
        assert len(pulled) < 40
        assert sum(1 for _ in iterator) == 1_999
        assert set(pulled) == {threading.current_thread()}


def test_all_parts_are_requested_by_one_etag() -> None:
    """Of the listing or, without one, of the first response."""
    for listed in (True, False):
        with store_of({"a": bytes(35)}) as store:
            [(_, stream)] = streams(store, options(), listed=listed)
            stream.read()
            [first, *others] = sorted(store.reads, key=lambda read: read[1])
            assert first[3] == ("etag of a" if listed else None)
            assert [etag for *_, etag in others] == ["etag of a"] * 3


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 24, 26, 35, 100])
def test_a_size_other_than_listed_is_an_error(size: int) -> None:
    """An ObjectChangedError, never more or fewer bytes."""
    with store_of({"a": bytes(size)}):
        for listed_size in (0, 25):
            if size == listed_size:
                continue
            stream = ObjectStream(PartScheduler(FetchSession(options(), StorageOptions())), RemoteUrl("a", listed_size))
            with pytest.raises(ObjectChangedError, match=r"^a"):
                stream.read()
            stream.close()


def test_a_size_that_changes_while_reading_is_an_error() -> None:
    """An object that shrinks or grows while it is read is an ObjectChangedError."""
    for size_then in (0, 5, 15, 20, 29, 31, 100):
        with store_of({"a": bytes(30)}) as store:
            stream = ObjectStream(PartScheduler(FetchSession(options(max_buffer_bytes=10), StorageOptions())), "a")
            assert len(stream.read(10)) == 10
            store.objects["a"] = bytes(size_then)
            with pytest.raises(ObjectChangedError):
                stream.read()
            stream.close()


@pytest.mark.parametrize("extra", [-1, 1])
def test_a_body_of_the_wrong_length_is_never_used(extra: int) -> None:
    """Shorter or longer than the range."""
    with store_of({"a": bytes(40)}) as store:
        honest = store.read

        def dishonest(path: str, start: int, end: int | None, etag: str | None) -> Answer:
            assert end is not None
            return honest(path, start, end + extra, etag) if start == 10 else honest(path, start, end, etag)

        store.read = dishonest  # type: ignore[method-assign]
        three_attempts = FetchOptions(part_bytes=10, retry=RetryPolicy(max_attempts=3, first_wait_s=0))
        for url in (RemoteUrl("a", 40), "a"):
            stream = ObjectStream(PartScheduler(FetchSession(three_attempts, StorageOptions())), url)
            with pytest.raises(StorageError):
                stream.read()
            stream.close()


@settings(max_examples=30)
@given(faults=st.dictionaries(st.integers(0, 5), st.integers(1, 4)))
def test_transient_faults_are_retried_per_part(faults: dict[int, int]) -> None:
    """Other parts are not requested again, and the consumer sees no error."""
    data = os.urandom(60)
    with store_of({"a": data}) as store:
        left = dict(faults)

        def before_read(path: str, start: int) -> None:
            with store.lock:
                failing = left.get(start // 10, 0)
                left[start // 10] = failing - 1
            if failing > 0:
                raise TransientStorageError("try again")

        store.before_read = before_read
        [(_, stream)] = streams(store, options(), listed=True)
        assert stream.read() == data
        assert len(store.reads) == 6 + sum(faults.values())


@pytest.mark.parametrize("listed", [True, False])
def test_an_error_belongs_to_its_object_only(listed: bool) -> None:
    """An error belongs to its object: those before and after it can be read."""
    faults = {"1": ObjectNotFoundError("gone"), "3": AccessDeniedError("denied"), "4": ZeroDivisionError("a bug")}
    with store_of({f"{number}": bytes([number]) * 25 for number in range(6)}) as store:

        def before_read(path: str, start: int) -> None:
            if path in faults and start == (10 if path == "4" else 0):
                raise faults[path]

        store.before_read = before_read
        for url, stream in streams(store, options(), listed=listed):
            if url in faults:
                with pytest.raises(type(faults[url])):
                    stream.read()
                stream.close()
            else:
                assert stream.read() == bytes([int(url)]) * 25


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("broken_part", [0, 1, 2])
def test_every_read_after_an_error_raises_it_again(listed: bool, broken_part: int) -> None:
    """After an error every further read raises it again: neither a hole nor an early end passes for the object."""
    with store_of({"a": os.urandom(40)}) as store:

        def before_read(path: str, start: int) -> None:
            if start == 10 * broken_part:
                raise AccessDeniedError("denied")

        store.before_read = before_read
        [(_, stream)] = streams(store, options(), listed=listed)
        with pytest.raises(AccessDeniedError):
            stream.read()
        for again in (
            lambda: stream.read(),
            lambda: stream.read(1),
            lambda: stream.readline(),
            lambda: list(stream.parts()),
        ):
            with pytest.raises(AccessDeniedError):
                again()
        stream.close()


def test_an_error_of_the_url_source_follows_the_objects_before_it() -> None:
    """As without prefetching."""
    with store_of({f"{number}": bytes([number]) for number in range(5)}) as store:

        def urls() -> Iterator[str]:
            yield from store.objects
            raise ZeroDivisionError

        got = []
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the loop is what raises, at its end
            for _, stream in stream_objects(urls(), FetchSession(options(), StorageOptions())):
                got.append(stream.read())
        assert got == list(store.objects.values())


def test_a_failed_part_releases_its_bytes() -> None:
    """Errors do not eat up the byte bound: many in a row leave room for the rest."""
    with store_of({f"{number}": bytes(10) for number in range(50)}) as store:

        def before_read(path: str, start: int) -> None:
            if int(path) < 49:
                raise AccessDeniedError("denied")

        store.before_read = before_read
        for listed in (True, False):
            for url, stream in streams(store, options(2, 10, 20), listed=listed):
                if url == "49":
                    assert stream.read() == bytes(10)
                else:
                    with pytest.raises(AccessDeniedError):
                        stream.read()
                    stream.close()


def test_closed_streams_release_their_bytes() -> None:
    """Half-read ones too; parts that were not requested are not fetched."""
    with store_of({f"{number}": bytes(100) for number in range(20)}) as store:
        for number, (_, stream) in enumerate(streams(store, options(2, 10, 40), listed=True)):
            if number < 19:
                assert stream.read(5) == bytes(5)
                stream.close()
            else:
                assert stream.read() == bytes(100)
        assert len(store.reads) < 19 * 6 + 10


def test_threads_end_with_the_iterator() -> None:
    """Threads end when iteration does: at the end, on ``break``, on ``del``, on an exception, and unread."""
    with store_of({f"{number}": bytes(100) for number in range(20)}) as store:
        before = engine_threads()

        def all_gone() -> bool:
            return not engine_threads() - before

        for _, stream in streams(store, options(), listed=True):
            stream.read()
        wait_for(all_gone)

        for _, stream in streams(store, options(), listed=True):
            stream.read(1)
            break
        assert engine_threads() - before
        del _, stream
        gc.collect()
        wait_for(all_gone)

        def fail() -> None:
            for _, stream in streams(store, options(), listed=True):
                stream.read(1)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        gc.collect()
        wait_for(all_gone)

        iterator = streams(store, options(), listed=True)
        next(iterator)
        del iterator
        gc.collect()
        wait_for(all_gone)

        for _ in streams(store, options(), listed=True):
            pass
        del _
        gc.collect()
        wait_for(all_gone)


def test_threads_end_while_requests_are_repeated() -> None:
    """Also while a request waits for its next attempt."""
    with store_of({"a": bytes(100)}) as store:
        before = engine_threads()

        def before_read(path: str, start: int) -> None:
            raise TransientStorageError("never")

        store.before_read = before_read
        patient = FetchOptions(retry=RetryPolicy(deadline_s=3600, first_wait_s=3000, max_wait_s=3000))
        iterator = streams(store, patient, listed=True)
        _, stream = next(iterator)
        wait_for(lambda: len(store.reads) == 1 and store.running == 0)
        stream.close()
        iterator.close()  # type: ignore[attr-defined]
        wait_for(lambda: not engine_threads() - before)


def test_a_stream_outlives_its_iterator() -> None:
    """``next(iter(pipe))`` gives a stream that can be read to its end."""
    data = os.urandom(300)
    with store_of({"a": data, "b": data}) as store:
        before = engine_threads()
        _, stream = next(streams(store, options(max_buffer_bytes=20), listed=True))
        gc.collect()
        assert stream.read() == data
        wait_for(lambda: not engine_threads() - before)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("backwards", [False, True])
def test_all_streams_can_be_opened_before_any_is_read(listed: bool, backwards: bool) -> None:
    """A list of more streams than the bound holds can be read afterwards, in any order."""
    objects = {f"{number}": os.urandom(45) for number in range(300)}
    with store_of(objects) as store:
        pairs = list(streams(store, options(3, 10, 100), listed=listed))
        assert sum(min(end or 45, 45) - start for _, start, end, _ in store.reads) <= 100
        for url, stream in reversed(pairs) if backwards else pairs:
            assert stream.read() == objects[url]


def test_streams_read_in_turn_need_a_small_bound_only() -> None:
    """Reading many streams a little at a time works within a small bound."""
    objects = {f"{number}": os.urandom(40) for number in range(30)}
    with store_of(objects) as store:
        open_streams = list(streams(store, options(3, 10, 30), listed=True))
        got = dict.fromkeys(objects, b"")
        for _ in range(8):
            for url, stream in open_streams:
                got[url] += stream.read(5)
        assert got == objects


def test_streams_read_in_turn_share_the_bound() -> None:
    """Each of several that are read at once is fetched ahead, although the first one alone would fill the bound."""
    objects = {f"{number}": os.urandom(1000) for number in range(3)}
    with store_of(objects) as store:
        open_streams = list(streams(store, options(3, 10, 120), listed=True))
        for _ in range(40):
            for _, stream in open_streams:
                stream.read(10)
        wait_for(lambda: store.running == 0 and len(store.reads) == 3 * 40 + 9)
        fetched = [sum(path == url for path, *_ in store.reads) for url in objects]
        assert min(fetched) >= 42, "two parts ahead and one at hand, of the four that are its share"
        assert all(stream.read() == objects[url][400:] for url, stream in open_streams)


@pytest.mark.parametrize("interleave", [2, 3, 4])
def test_streams_that_will_be_read_at_once_share_the_bound_from_the_start(interleave: int) -> None:
    """Before a byte is read, each has its share of the bound, and nothing more is requested."""
    objects = {f"{number}": os.urandom(1000) for number in range(6)}
    with store_of(objects) as store:
        chosen = replace(options(12, 10, 120), interleave=interleave)
        open_streams = dict(itertools.islice(streams(store, chosen, listed=True), interleave))
        wait_for(lambda: store.running == 0 and len(store.reads) == 12)
        fetched = [sum(path == url for path, *_ in store.reads) for url in open_streams]
        assert fetched == [12 // interleave] * interleave
        assert all(stream.read() == objects[url] for url, stream in open_streams.items())


def test_streams_in_several_threads() -> None:
    """Streams of one pass may be read in different threads."""
    objects = {f"{number}": os.urandom(95) for number in range(40)}
    with store_of(objects) as store:
        pairs = list(streams(store, options(4, 10, 50), listed=True))
        got: dict[str, bytes] = {}

        def read(share: list[tuple[str, ObjectStream]]) -> None:
            for url, stream in share:
                got[url] = stream.read()

        readers = [threading.Thread(target=read, args=(pairs[n::4],), daemon=True) for n in range(4)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(DEADLINE_S)
        assert got == objects


def test_many_streams_take_linear_time() -> None:
    """Eight times the objects take about eight times as long, also when none of them is read."""
    seconds = []
    for count in (500, 4_000):
        with store_of({f"{number}": b"1" for number in range(count)}) as store:
            start = time.process_time()
            kept = list(streams(store, options(1, 1, 10), listed=True))
            seconds.append(time.process_time() - start)
            for _, stream in kept:
                stream.close()
    assert seconds[1] < 24 * seconds[0], seconds


COLLECTED_UNDER_THE_LOCK = """
import gc, os, threading
from torchdata_remote.core.options import FetchOptions, StorageOptions
from torchdata_remote.fetch import object_download, scheduler
from torchdata_remote.fetch.object_stream import ObjectStream
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.storage import Answer, single_chunk

class Store:
    may_ignore_ranges = False
    maps_files = False
    def read(self, path, start, end, etag):
        data = bytes(100)[start:end]
        return Answer(start, start + len(data), 100, None, single_chunk(data))

object_download.open_store = lambda url, options, connection: (Store(), url)
fetcher = scheduler.PartScheduler(FetchSession(FetchOptions(part_bytes=10), StorageOptions()))
gc.disable()
forgotten = [ObjectStream(fetcher, "a")]
forgotten.append(forgotten)  # what an exception's traceback does
del forgotten
Part = object_download.Part

def part_that_collects(*arguments):
    gc.collect()
    return Part(*arguments)

object_download.Part = part_that_collects
done = []
reader = threading.Thread(target=lambda: done.append(ObjectStream(fetcher, "b").read()), daemon=True)
reader.start()
reader.join(10)
os._exit(0 if done == [bytes(100)] else 3)
"""


def test_a_forgotten_stream_is_collected_at_any_moment() -> None:
    """Also while the scheduler runs in the same thread and holds its lock."""
    command = [sys.executable, "-c", COLLECTED_UNDER_THE_LOCK]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_forgotten_streams_release_the_threads() -> None:
    """Unread ones, and ones in a reference cycle."""
    with store_of({f"{number}": bytes(100) for number in range(10)}) as store:
        before = engine_threads()
        cycle: list[object] = list(streams(store, options(), listed=True))
        cycle.append(cycle)
        del cycle
        gc.collect()
        wait_for(lambda: not engine_threads() - before)


def test_reads_in_a_forked_child_are_refused() -> None:
    """A stream that was opened before a fork says so in the child, and does not hang."""
    with store_of({"a": bytes(100)}) as store:
        iterator = streams(store, options(), listed=True)
        _, stream = next(iterator)
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                try:
                    stream.read()
                except RuntimeError as error:
                    code = 7 if "another process" in str(error) else 2
                stream.close()
                del iterator
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert stream.read() == bytes(100)


def test_nothing_stays_reserved_after_all_kinds_of_ends() -> None:
    """After all sorts of ends nothing is reserved any more."""
    with store_of({f"{number}": bytes(7 * number) for number in range(12)}) as store:
        scheduler = PartScheduler(FetchSession(options(3, 10, 40), StorageOptions()))
        opened = [
            ObjectStream(scheduler, RemoteUrl(url, len(data)) if number % 2 else url)
            for number, (url, data) in enumerate(store.objects.items())
        ]
        for stream, kind in zip(opened, itertools.cycle(["read", "half", "close"]), strict=False):
            if kind == "read":
                stream.read()
            elif kind == "half":
                stream.read(5)
            stream.close()
        wait_for(lambda: store.running == 0)
        assert scheduler._reserved_bytes == 0
        scheduler.release()
        assert scheduler._users == 0


def in_time(function: Callable[[], None]) -> None:
    """Run it in a thread that may hang: a deadlock is a failure, not the end of the tests."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "it hangs"
    if errors:
        raise errors[0]


@settings(max_examples=40)
@given(order=st.permutations(range(6)), listed=st.booleans())
def test_out_of_order_objects_follow_the_order_of_responses(order: list[int], listed: bool) -> None:
    """With ``in_order=False``."""
    with store_of({f"{number}": bytes([number]) * 10 for number in range(6)}) as store:
        gates = [threading.Event() for _ in range(6)]

        def before_read(path: str, start: int) -> None:
            assert gates[int(path)].wait(DEADLINE_S)

        store.before_read = before_read
        iterator = streams(store, options(6, in_order=False), listed=listed)
        got: list[tuple[int, bytes]] = []

        def consume() -> None:
            for number in order:
                gates[number].set()
                url, stream = next(iterator)
                got.append((int(url), stream.read()))
            assert next(iterator, None) is None

        in_time(consume)
        assert got == [(number, bytes([number]) * 10) for number in order]


def consume(pairs: Iterator[tuple[str, ObjectStream]], how: str) -> dict[str, bytes]:
    """Take streams as consumers do, and read each to its end."""
    got: dict[str, bytes] = {}
    kept: list[tuple[str, ObjectStream]] = []
    for url, stream in pairs:
        assert url not in got
        got[url] = stream.read(3) if how == "a little of each first" else b""
        if how == "one after another" or (how == "every second at once" and len(got) % 2):
            got[url] += stream.read()
        else:
            kept.append((url, stream))
    for url, stream in reversed(kept) if how == "backwards" else kept:
        got[url] += stream.read()
    return got


HOW = ["one after another", "all kept", "backwards", "a little of each first", "every second at once"]


@settings(max_examples=200, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # a hang takes too long to shrink
@given(
    objects=OBJECTS,
    part_bytes=st.integers(1, 70),
    bound=st.integers(1, 100),
    in_flight=st.integers(1, 5),
    piece_bytes=st.integers(1, 80),
    listed=st.booleans(),
    how=st.sampled_from(HOW),
    in_order=st.booleans(),
    ignores_ranges=st.booleans(),
)
@example({"0": bytes(35), "1": bytes(5), "2": bytes(35)}, 10, 10, 1, 10, True, HOW[3], False, False)
@example({"0": bytes(35), "1": bytes(5), "2": bytes(35)}, 10, 10, 4, 3, False, HOW[1], False, False)
def test_every_object_is_yielded_once_however_it_is_consumed(
    objects: dict[str, bytes],
    part_bytes: int,
    bound: int,
    in_flight: int,
    piece_bytes: int,
    listed: bool,
    how: str,
    in_order: bool,
    ignores_ranges: bool,
) -> None:
    """In order or not, within any bound, in pieces of any size and read in any way: each object once, and whole."""
    with store_of(objects) as store:
        store.piece_bytes, store.may_ignore_ranges = piece_bytes, ignores_ranges
        chosen = options(in_flight, part_bytes, bound, in_order=in_order)

        def run() -> None:
            got = consume(streams(store, chosen, listed=listed), how)
            assert got == objects
            if in_order:
                assert list(got) == list(objects)

        in_time(run)
        if not ignores_ranges:
            asked = [(path, start) for path, start, end, _ in store.reads if objects[path]]
            assert len(asked) == len(set(asked))


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("read_bytes", [0, 1, 10, 11, 25])
def test_out_of_order_objects_larger_than_the_bound_are_all_yielded(listed: bool, read_bytes: int) -> None:
    """If nothing, a little or a part of each is read."""
    with store_of({f"{number}": os.urandom(95) for number in range(60)}) as store:

        def run() -> None:
            kept = [
                (url, stream, stream.read(read_bytes))
                for url, stream in streams(store, options(3, 10, 20, in_order=False), listed=listed)
            ]
            assert {url: first + stream.read() for url, stream, first in kept} == store.objects

        in_time(run)


def test_out_of_order_the_end_of_any_request_releases_the_next_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for an object gets one when the last request ends, whichever object that was for."""
    with store_of({"0": bytes(40), "1": bytes(40)}) as store:
        asked, gate, consumer = threading.Event(), threading.Event(), []

        def before_read(path: str, start: int) -> None:
            if (path, start) == ("0", 10):
                asked.set()
                assert gate.wait(DEADLINE_S)

        look = UnorderedScheduler._release_oldest_if_stuck

        def looked(scheduler: UnorderedScheduler) -> None:
            look(scheduler)
            if threading.current_thread() in consumer:
                gate.set()  # from here on, with the lock still held, the consumer only waits

        store.before_read = before_read
        monkeypatch.setattr(UnorderedScheduler, "_release_oldest_if_stuck", looked)
        iterator = streams(store, options(2, 10, 10, in_order=False), listed=True)

        def run() -> None:
            _, first = next(iterator)
            assert len(first.read(10)) == 10
            reader = threading.Thread(target=first.read, args=(1,), daemon=True)
            reader.start()  # releases the first part; the second one is requested, and held
            assert asked.wait(DEADLINE_S)
            consumer.append(threading.current_thread())
            assert next(iterator)[0] == "1"

        in_time(run)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("broken_part", [0, 1, 3])
def test_out_of_order_an_error_belongs_to_its_object(listed: bool, broken_part: int) -> None:
    """It is yielded once and raises when it is read; other objects are complete."""
    with store_of({f"{number}": bytes([number]) * 35 for number in range(6)}) as store:

        def before_read(path: str, start: int) -> None:
            if int(path) % 2 and start == 10 * broken_part:
                raise AccessDeniedError("denied")

        store.before_read = before_read

        def run(bound: int) -> None:
            seen = []
            for url, stream in list(streams(store, options(3, 10, bound, in_order=False), listed=listed)):
                seen.append(url)
                if int(url) % 2:
                    with pytest.raises(AccessDeniedError):
                        stream.read()
                    with pytest.raises(AccessDeniedError):
                        stream.read(1)
                    stream.close()
                else:
                    assert stream.read() == store.objects[url]
            assert sorted(seen) == list(store.objects)

        for bound in (5, 20, 70, 1000):
            in_time(lambda bound=bound: run(bound))  # type: ignore[misc]


@given(count=st.integers(0, 8), bound=st.integers(1, 60), listed=st.booleans())
def test_out_of_order_an_error_of_the_url_source_comes_last(count: int, bound: int, listed: bool) -> None:
    """After all objects before it."""
    with store_of({f"{number}": bytes([number]) * 15 for number in range(count)}) as store:

        def urls() -> Iterator[str]:
            yield from (RemoteUrl(url, 15) if listed else url for url in store.objects)
            raise ZeroDivisionError

        got = {}

        def run() -> None:
            for url, stream in stream_objects(
                urls(), FetchSession(options(2, 10, bound, in_order=False), StorageOptions())
            ):
                got[url] = stream.read()

        with pytest.raises(ZeroDivisionError):
            in_time(run)
        assert got == store.objects


@pytest.mark.parametrize("taken", [0, 1, 5])
@pytest.mark.parametrize("read_bytes", [0, 5])
def test_out_of_order_threads_end_on_break(taken: int, read_bytes: int) -> None:
    """Of iteration with ``in_order=False``."""
    with store_of({f"{number}": bytes(100) for number in range(20)}) as store:
        before = engine_threads()
        iterator = streams(store, options(3, 10, 120, in_order=False), listed=True)
        for _, stream in itertools.islice(iterator, taken):
            stream.read(read_bytes)
            del stream
        iterator.close()  # type: ignore[attr-defined]
        del iterator
        gc.collect()
        wait_for(lambda: not engine_threads() - before)


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    part_bytes=st.integers(1, 70),
    bound=st.integers(1, 100),
    piece_bytes=st.integers(1, 80),
    listed=st.booleans(),
    in_order=st.booleans(),
)
@settings(max_examples=100)
def test_bytes_in_memory_are_bounded_piece_by_piece(
    sizes: list[int], part_bytes: int, bound: int, piece_bytes: int, listed: bool, in_order: bool
) -> None:
    """The bound holds, but for one part, in order or not, when parts are consumed piece by piece."""
    objects = {f"{number}": bytes(size) for number, size in enumerate(sizes)}
    with store_of(objects) as store:
        store.piece_bytes = piece_bytes
        begun, consumed, most = 0, 0, 0

        def before_read(path: str, start: int) -> None:
            nonlocal begun, most
            with store.lock:
                begun += min(part_bytes, len(objects[path]) - start)
                most = max(most, begun - consumed)

        store.before_read = before_read

        def run() -> None:
            nonlocal consumed
            for _, stream in streams(store, options(8, part_bytes, bound, in_order=in_order), listed=listed):
                for piece in stream.parts():
                    with store.lock:
                        consumed += len(piece)

        in_time(run)
        assert consumed == sum(sizes)
    assert most <= bound + min(part_bytes, max(sizes))


def test_pieces_are_yielded_as_they_arrive() -> None:
    """The first bytes of a part can be read while the rest of it is on the way."""
    with store_of({"a": bytes(range(40))}) as store:
        rest = threading.Event()

        def slowly(path: str, start: int, end: int | None, etag: str | None) -> Answer:
            def chunks() -> Generator[memoryview, None, None]:
                yield memoryview(bytes(range(5)))
                assert rest.wait(DEADLINE_S)
                yield memoryview(bytes(range(5, 40)))

            return Answer(0, 40, 40, etag, chunks())

        store.read = slowly  # type: ignore[method-assign]
        [(_, stream)] = streams(store, options(part_bytes=40), listed=True)
        got: list[bytes] = []
        in_time(lambda: got.append(stream.read(5)))
        assert got == [bytes(range(5))]
        rest.set()
        assert stream.read() == bytes(range(5, 40))


# holds the frame that holds both the part and ``pieces``, so that the open answer lives until a collection.
@pytest.mark.parametrize("others_open", [True, False])
def test_closing_a_stream_ends_its_request(others_open: bool) -> None:
    """A stream that is closed in mid-body closes the answer with the next piece, without the garbage collector."""
    with store_of({"a": bytes(40)}) as store:
        asked, go_on, closed = threading.Event(), threading.Event(), threading.Event()

        def slowly(path: str, start: int, end: int | None, etag: str | None) -> Answer:
            def chunks() -> Generator[memoryview, None, None]:
                try:
                    for _ in range(4):
                        yield memoryview(bytes(10))
                        asked.set()
                        assert go_on.wait(DEADLINE_S)
                finally:
                    closed.set()

            return Answer(0, 40, 40, "v1", chunks())

        store.read = slowly  # type: ignore[method-assign]
        scheduler = PartScheduler(FetchSession(options(part_bytes=40), StorageOptions()))
        stream = ObjectStream(scheduler, RemoteUrl("a", 40))
        assert asked.wait(DEADLINE_S)
        gc.disable()
        try:
            stream.close()
            if not others_open:
                scheduler.release()
            go_on.set()
            assert closed.wait(5)
        finally:
            gc.enable()
            if others_open:
                scheduler.release()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, MemoryError])
def test_any_exception_of_a_thread_is_raised_in_the_consumer(kind: type[BaseException]) -> None:
    """Also one that is no ``Exception``, with its traceback."""
    with store_of({"a": bytes(30)}) as store:

        def before_read(path: str, start: int) -> None:
            if start == 10:
                raise kind("in a thread")

        store.before_read = before_read
        [(_, stream)] = streams(store, options(), listed=True)
        with pytest.raises(kind, match="in a thread") as caught:
            stream.read()
        assert any(entry.name == "before_read" for entry in caught.traceback)
        stream.close()


def test_an_error_of_iter_source_is_raised_at_once() -> None:
    """An error of ``iter(source)`` is raised at once, not waited for."""

    class Source:
        def __iter__(self) -> Iterator[str]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        next(stream_objects(Source(), FetchSession(options(), StorageOptions())))


def test_a_closed_stream_is_not_requested_again() -> None:
    """Although its requests fail, it makes room for others at once."""
    with store_of({"a": bytes(10), "b": bytes(10)}) as store:

        def before_read(path: str, start: int) -> None:
            if path == "a":
                raise TransientStorageError("never")

        store.before_read = before_read
        patient = FetchOptions(max_in_flight=1, retry=RetryPolicy(deadline_s=3600, first_wait_s=3000, max_wait_s=3000))
        iterator = streams(store, patient, listed=True)
        _, stream = next(iterator)
        wait_for(lambda: len(store.reads) == 1 and store.running == 0)
        stream.close()
        _, other = next(iterator)
        assert other.read() == bytes(10)


@pytest.mark.parametrize("in_order", [True, False])
def test_an_inherited_iterator_is_refused_in_a_forked_child(in_order: bool) -> None:
    """An iterator that a child inherits says so and does not wait for threads that are not there."""
    with store_of({f"{number}": bytes(10) for number in range(9)}) as store:
        chosen = FetchOptions(max_in_flight=1, max_buffer_bytes=20, in_order=in_order, retry=AT_ONCE)
        iterator = streams(store, chosen, listed=True)
        _, stream = next(iterator)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                list(iterator)
            except RuntimeError as error:
                code = 7 if "another process" in str(error) else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        stream.close()


def test_one_thread_is_enough_if_no_more_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system gives one thread only, that one does the work."""
    real, started = threading.Thread.start, list[str]()

    def start(thread: threading.Thread) -> None:
        if thread.name == "torchdata_remote":
            started.append(thread.name)
            if len(started) > 1:
                raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    objects = {f"{number}": bytes([number]) * 25 for number in range(9)}
    with store_of(objects) as store:
        assert {url: stream.read() for url, stream in streams(store, options(), listed=True)} == objects
    assert len(started) > 1
