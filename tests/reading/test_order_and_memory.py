"""The order of objects, how many requests run at once, and how many bytes are held in memory."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.reading.wire import wire
from tests.support.scripted_store import ScriptedStore, held_by, numbered, store_of
from tests.support.waiting import wait_for
from torchdata_remote.errors import AccessDeniedError, ObjectNotFoundError, StorageError

END_S = 60  # of waits that a correct engine ends at once
OBJECTS = st.lists(st.binary(max_size=60), max_size=8).map(lambda them: {f"{n}": data for n, data in enumerate(them)})


def in_time(function: Callable[[], object]) -> None:
    """Call it in a thread, which must end: an engine that waits for itself is a failure, and no test that hangs."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(END_S)
    assert not thread.is_alive(), "hangs"
    for error in raised:
        raise error


def counted_bytes(store: ScriptedStore, part_bytes: int) -> tuple[Callable[[int], None], list[int]]:
    """A function to call with bytes that were consumed, and the most that were fetched or in flight, and not consumed.

    Where nothing was consumed, this is what the engine may hold.
    """
    held, most = [0], [0]

    def before_read(name: str, start: int) -> None:
        with store.lock:
            held[0] += min(part_bytes, len(store.objects[name]) - start)
            most[0] = max(most[0], held[0])

    def consumed(num_bytes: int) -> None:
        with store.lock:
            held[0] -= num_bytes

    store.before_read = before_read
    return consumed, most


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    part_bytes=st.integers(1, 70),
    bound=st.integers(1, 100),
    listed=st.booleans(),
    in_order=st.booleans(),
)
def test_fetched_bytes_stay_within_max_buffer_bytes_and_one_part(
    sizes: list[int], part_bytes: int, bound: int, listed: bool, in_order: bool
) -> None:
    with store_of({f"{number}": bytes(size) for number, size in enumerate(sizes)}) as store:
        consumed, most = counted_bytes(store, part_bytes)

        def run() -> None:
            limits: dict[str, Any] = {
                "part_bytes": part_bytes,
                "max_buffer_bytes": bound,
                "max_in_flight": 8,
                "in_order": in_order,
            }
            for _, stream in store.open(listed=listed, **limits):
                before = b""
                while piece := stream.read1():
                    consumed(len(before))  # the part before is given back with the next one
                    before = piece
                consumed(len(before))

        in_time(run)
    assert most[0] <= bound + 2 * min(part_bytes, max(sizes))


def test_large_objects_of_unknown_size_hold_no_memory_before_their_turn() -> None:
    with store_of(numbered(20, 40)) as store:
        is_open = threading.Event()
        store.before_read = held_by(is_open)
        streams = store.open(listed=False, max_in_flight=30, max_buffer_bytes=80)
        _, first = next(streams)
        is_open.set()
        wait_for(lambda: len(store.reads) == 8 and store.running == 0)
        assert {read.name for read in store.reads} <= {"0", "1", "2"}
        assert [first.read(), *(stream.read() for _, stream in streams)] == list(store.objects.values())
        assert len(store.reads) == 4 * 20, "the first part of an object reports its size"


def test_objects_of_unknown_size_are_asked_for_twice_the_largest_that_came_whole() -> None:
    """Each first request reserves memory of the bound, which would keep others waiting."""
    sizes = [100_000, 90_000] * 20 + [250_000]
    with wire() as server:
        made = [server.put(bytes(size)) for size in sizes]
        read = server.open(*(one.url for one in made), part_bytes=8 << 20)
        assert [len(stream.read()) for _, stream in read] == sizes
    assert [made[at].requests[0].end for at in (0, 39, 40)] == [1 << 20, 200_000, 200_000]
    assert [len(one.requests) for one in made] == [1] * 40 + [2], "a larger one takes a second request"


@pytest.mark.parametrize("max_in_flight", [1, 2, 7])
@pytest.mark.parametrize("num_objects", [1, 30])
def test_as_many_requests_as_allowed_run_at_once_and_no_more(max_in_flight: int, num_objects: int) -> None:
    objects = numbered(num_objects, 10 if num_objects > 1 else 300)
    with store_of(objects) as store:
        full = threading.Event()

        def before_read(name: str, start: int) -> None:
            if store.running == max_in_flight:
                full.set()
            assert full.wait(END_S)

        store.before_read = before_read
        assert store.read_all(max_in_flight=max_in_flight) == objects
        assert store.most == max_in_flight


@pytest.mark.parametrize("interleave", [1, 6])
def test_small_objects_and_streams_read_in_turn_are_requested_at_once_without_known_sizes(interleave: int) -> None:
    num_bytes, num_objects = (100, 6) if interleave > 1 else (5, 60)
    with store_of(numbered(num_objects, num_bytes)) as store:
        full, in_flight = threading.Event(), interleave if interleave > 1 else 8

        def before_read(name: str, start: int) -> None:
            if store.running == in_flight:
                full.set()
            if interleave > 1 or int(name) >= 20:
                assert full.wait(END_S)

        store.before_read = before_read
        streams = store.open(listed=False, max_in_flight=in_flight, max_buffer_bytes=100, interleave=interleave)
        opened = [next(streams) for _ in range(num_objects)] if interleave > 1 else streams
        assert {name: stream.read() for name, stream in opened} == store.objects


@settings(max_examples=20)  # each starts seven threads
@given(order=st.permutations(range(6)), one_object=st.booleans())
def test_bytes_are_in_order_whatever_the_order_of_responses(order: list[int], one_object: bool) -> None:
    whole = bytes(range(60))
    objects = {"0": whole} if one_object else {f"{n}": whole[10 * n : 10 * n + 10] for n in range(6)}
    with store_of(objects) as store:
        gates, answered = ([threading.Event() for _ in range(6)] for _ in range(2))

        def before_read(name: str, start: int) -> None:
            number = start // 10 if one_object else int(name)
            assert gates[number].wait(END_S)
            answered[number].set()

        def open_gates() -> None:
            wait_for(lambda: store.running == 6)
            for number in order:
                gates[number].set()
                assert answered[number].wait(END_S)

        store.before_read = before_read
        opener = threading.Thread(target=open_gates)
        opener.start()
        assert b"".join(store.read_all(max_in_flight=6).values()) == whole
        opener.join(END_S)


def test_urls_are_pulled_a_few_ahead_and_in_the_consumers_thread_only() -> None:
    with store_of(numbered(2_000, 10)) as store:
        pulled: list[threading.Thread] = []

        def urls() -> Iterator[str]:
            for url in store.urls():
                pulled.append(threading.current_thread())
                yield url

        streams = store.open(urls(), max_in_flight=2, max_buffer_bytes=50)
        next(streams)
        assert len(pulled) < 40
        assert sum(1 for _ in streams) == 1_999
        assert set(pulled) == {threading.current_thread()}


@pytest.mark.parametrize(
    ("options", "part_bytes"),
    [
        ({}, 8 << 20),
        ({"max_in_flight": 32}, 3 << 20),
        ({"max_in_flight": 4, "max_buffer_bytes": 4 << 20}, 768 << 10),
        ({"max_in_flight": 4, "max_buffer_bytes": 4 << 20, "interleave": 4}, 512 << 10),
        ({"max_in_flight": 64, "max_buffer_bytes": 4 << 20}, 256 << 10),
        ({"part_bytes": 11 << 20}, 11 << 20),
    ],
)
def test_a_part_is_8_mib_or_what_the_buffer_has_room_for_and_256_kib_at_least(
    options: dict[str, Any], part_bytes: int
) -> None:
    with store_of({"a": bytes(part_bytes + 1)}) as store:
        [(_, stream)] = store.open(**{"part_bytes": None, **options})
        assert len(stream.read()) == part_bytes + 1
        assert sorted(store.reads)[0] == ("a", 0, part_bytes)


@given(
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=12),
    interleave=st.integers(1, 5),
    num_parts=st.integers(1, 12),
    max_in_flight=st.integers(1, 4),
)
def test_the_buffer_holds_what_is_read_next_and_nothing_that_is_behind_it(
    sizes: list[int], interleave: int, num_parts: int, max_in_flight: int
) -> None:
    """Streams are read by turns: before a part is read, only those of the next turns were requested."""
    turns: dict[tuple[str, int], int] = {}  # of each part, in the order in which they are read
    waiting = [(f"{number}", list(range(0, size, 10))) for number, size in enumerate(sizes)]
    reading, waiting = waiting[:interleave], waiting[interleave:]
    while reading:
        for at, (name, starts) in enumerate(list(reading)):
            turns[name, starts.pop(0)] = len(turns)
            if not starts and waiting:
                reading[at] = waiting.pop(0)
        reading = [one for one in reading if one[1]]

    with store_of({f"{number}": bytes([number]) * size for number, size in enumerate(sizes)}) as store:
        options: dict[str, Any] = {"interleave": interleave, "max_in_flight": max_in_flight}

        def read_by_turns() -> None:
            source = store.open(**options, max_buffer_bytes=10 * num_parts)
            reading = [*itertools.islice(source, interleave)]
            at = 0
            while reading:
                for place, (name, stream) in enumerate(list(reading)):
                    assert set(stream.read1()) == {int(name)}
                    furthest = max(turns[one.name, one.start] for one in store.reads)
                    assert furthest <= at + num_parts + 2 * interleave
                    at += 1
                    if stream.tell() == sizes[int(name)] and (following := next(source, None)) is not None:
                        reading[place] = following
                reading = [one for one in reading if one[1].tell() < sizes[int(one[0])]]

        in_time(read_by_turns)


# --- several streams of one process


@pytest.mark.parametrize("num_streams", [1, 3])
def test_all_streams_of_a_process_share_the_requests_and_the_buffer(num_streams: int) -> None:
    with store_of(numbered(12, 100)) as store:
        consumed, most = counted_bytes(store, 10)
        pipe = IterableWrapper(store.urls()).sharding_filter_rank()
        pipe = pipe.async_prefetch(max_in_flight=2, part_bytes=10, max_buffer_bytes=120)

        def length(pair: tuple[str, Any]) -> tuple[str, int]:
            pieces = [b""]
            while piece := pair[1].read1():
                consumed(len(pieces[-1]))  # given back with the next one
                pieces.append(piece)
            consumed(len(pieces[-1]))
            return pair[0], len(b"".join(pieces))

        loader = tdr.Resumable(pipe.map(length), num_streams=num_streams)
        assert sorted(loader) == sorted((url, 100) for url in store.urls())
        assert store.most <= 2
        assert most[0] <= 120 + num_streams * 20
        assert len(store.reads) == 120


# --- however streams are consumed, in order or as objects are complete


@given(
    objects=OBJECTS,
    part_bytes=st.integers(1, 70),
    bound=st.integers(1, 100),
    in_flight=st.integers(1, 5),
    listed=st.booleans(),
    how=st.sampled_from(["one by one", "all kept", "backwards", "a little of each first", "every second at once"]),
    in_order=st.booleans(),
)
@example({"0": bytes(35), "1": bytes(5), "2": bytes(35)}, 10, 10, 1, True, "a little of each first", False)
@example({"0": bytes(35), "1": bytes(5), "2": bytes(35)}, 10, 10, 4, False, "all kept", False)
@example({f"{number}": bytes(range(95)) for number in range(30)}, 10, 20, 3, False, "a little of each first", False)
@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])  # a hang takes too long to shrink
def test_every_object_comes_once_and_whole_by_one_request_a_part_however_streams_are_consumed(
    objects: dict[str, bytes], part_bytes: int, bound: int, in_flight: int, listed: bool, how: str, in_order: bool
) -> None:
    def consume(pairs: Iterator[tuple[str, Any]]) -> dict[str, bytes]:
        got: dict[str, bytes] = {}
        kept: list[tuple[str, Any]] = []
        for name, stream in pairs:
            assert name not in got
            got[name] = stream.read(3) if how == "a little of each first" else b""
            if how == "one by one" or (how == "every second at once" and len(got) % 2):
                got[name] += stream.read()
            else:
                kept.append((name, stream))
        for name, stream in reversed(kept) if how == "backwards" else kept:
            got[name] += stream.read()
        return got

    with store_of(objects) as store:
        limits: dict[str, Any] = {"part_bytes": part_bytes, "max_buffer_bytes": bound, "max_in_flight": in_flight}

        def run() -> None:
            got = consume(store.open(listed=listed, in_order=in_order, **limits))
            assert got == objects
            if in_order:
                assert list(got) == list(objects)

        in_time(run)
        for name, data in objects.items():
            starts = range(0, len(data), part_bytes)
            spans = [(start, min(start + part_bytes, len(data))) for start in starts]
            assert sorted(read[1:] for read in store.reads if read.name == name) == spans


def test_out_of_order_objects_come_as_they_are_complete() -> None:
    order = [3, 0, 5, 2, 4, 1]
    with store_of(numbered(6, 10)) as store:
        gates = [threading.Event() for _ in range(6)]

        def before_read(name: str, start: int) -> None:
            assert gates[int(name)].wait(END_S)

        store.before_read = before_read
        streams, got = store.open(max_in_flight=6, in_order=False), []

        def run() -> None:
            for number in order:
                gates[number].set()
                name, stream = next(streams)
                got.append((int(name), stream.read()))
            assert next(streams, None) is None

        in_time(run)
        assert got == [(number, bytes([number]) * 10) for number in order]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(("broken_part", "bound"), [(0, 5), (1, 20), (3, 1_000), (1, 5)])
def test_an_error_belongs_to_its_object_and_the_others_are_read(
    in_order: bool, listed: bool, broken_part: int, bound: int
) -> None:
    raised = {"1": FileNotFoundError("gone"), "3": PermissionError("denied"), "5": ZeroDivisionError("a bug")}
    kinds = {"1": ObjectNotFoundError, "3": AccessDeniedError, "5": StorageError}
    with store_of(numbered(6, 35)) as store:

        def before_read(name: str, start: int) -> None:
            if name in raised and start == 10 * broken_part:
                raise raised[name]

        store.before_read = before_read

        def run() -> None:
            seen = []
            for name, stream in list(store.open(listed=listed, max_buffer_bytes=bound, in_order=in_order)):
                seen.append(name)
                if name in raised:
                    for read in (stream.read, lambda stream=stream: stream.read(1), stream.readline):
                        with pytest.raises(kinds[name], match=store.url + name):
                            read()
                    stream.close()
                else:
                    assert stream.read() == store.objects[name]
            assert sorted(seen) == list(store.objects)

        in_time(run)


@given(count=st.integers(0, 8), bound=st.integers(1, 60), listed=st.booleans(), in_order=st.booleans())
def test_an_error_of_the_source_of_urls_follows_the_objects_before_it(
    count: int, bound: int, listed: bool, in_order: bool
) -> None:
    with store_of(numbered(count, 15)) as store:

        def urls() -> Iterator[str]:
            yield from store.urls(listed=listed)
            raise ZeroDivisionError

        got = {}

        def run() -> None:
            for name, stream in store.open(urls(), max_buffer_bytes=bound, in_order=in_order):
                got[name] = stream.read()

        with pytest.raises(ZeroDivisionError):
            in_time(run)
        assert got == store.objects
