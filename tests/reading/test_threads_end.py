"""Threads and requests end with what they were started for: an iterator, a stream, a program, a forked process."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.reading.wire import wire
from tests.support.paths import ROOT
from tests.support.scripted_store import held_by, numbered, store_of
from tests.support.waiting import new_threads, wait_for

END_S = 60
PATIENT = tdr.RetryPolicy(deadline_s=3600, first_wait_s=3000, max_wait_s=3000)


@pytest.fixture(autouse=True)
def _all_threads_end() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    gc.collect()
    wait_for(lambda: not new_threads(before))


def at_the_end(streams: Any) -> None:
    for _, stream in streams:
        stream.read()


def break_off(streams: Any) -> None:
    for _, stream in streams:
        stream.read(1)
        break


def fail(streams: Any) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        for _, stream in streams:
            stream.read(1)
            raise ZeroDivisionError


def unread(streams: Any) -> None:
    for _ in streams:
        pass


def first_only(streams: Any) -> None:
    next(streams)


def never_begun(streams: Any) -> None:
    del streams


def in_a_cycle(streams: Any) -> None:
    cycle: list[object] = list(streams)
    cycle.append(cycle)


def several(streams: Any) -> None:
    kept = [stream for _, stream in itertools.islice(streams, 5)]
    kept[2].read(5)


WAYS = [at_the_end, break_off, fail, unread, first_only, never_begun, in_a_cycle, several]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("in_order", [True, False])
def test_threads_end_with_the_iterator_and_its_streams(way: Callable[[Any], None], in_order: bool) -> None:
    with store_of(numbered(20, 100)) as store:
        way(store.open(max_in_flight=3, max_buffer_bytes=120, in_order=in_order))


def test_a_stream_outlives_its_iterator() -> None:
    with store_of({"a": os.urandom(300), "b": os.urandom(300)}) as store:
        name, stream = next(store.open(max_buffer_bytes=20))
        gc.collect()
        assert stream.read() == store.objects[name]


def test_a_closed_stream_ends_its_wait_for_another_attempt_and_makes_room_at_once() -> None:
    with store_of(numbered(2, 10)) as store:

        def before_read(name: str, start: int) -> None:
            if name == "0":
                raise ConnectionError("never")

        store.before_read = before_read
        streams = store.open(max_in_flight=1, retry=PATIENT)
        _, stream = next(streams)
        wait_for(lambda: len(store.reads) == 1 and store.running == 0)
        stream.close()
        _, other = next(streams)
        assert other.read() == store.objects["1"]


def test_after_a_close_what_is_queued_is_not_requested() -> None:
    with store_of(numbered(1, 500)) as store:
        gate = threading.Event()
        store.before_read = held_by(gate)
        _, stream = next(store.open(max_in_flight=1))
        wait_for(lambda: store.running == 1)
        stream.close()
        gate.set()
    assert len(store.reads) == 1


def test_closing_a_stream_in_mid_body_ends_the_request_of_a_store() -> None:
    with wire() as server, tdr.testing.FaultyStore(server.endpoint_url, tdr.testing.Faults(trickle_s=0.05)) as store:
        store.script("trickle")
        made = server.put(bytes(1_000_000))
        options = {**server.storage_options, "endpoint_url": store.endpoint_url}
        [(_, stream)] = server.open(made.listed(), storage_options=options)
        wait_for(lambda: bool(store.requests))
        stream.close()


@pytest.mark.parametrize("in_order", [True, False])
def test_what_a_parent_has_opened_is_refused_in_a_forked_child_and_goes_on_in_the_parent(in_order: bool) -> None:
    with store_of(numbered(9, 25)) as store:
        streams = store.open(max_in_flight=1, max_buffer_bytes=20, in_order=in_order)
        name, stream = next(streams)
        child = os.fork()
        if child == 0:
            refused = 0
            for use in (stream.read, lambda: list(streams)):
                try:
                    use()
                except RuntimeError as error:
                    refused += "another process" in str(error)
            os._exit(refused + 5 * (store.read_all() == store.objects))  # it has threads of its own
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert {name: stream.read(), **{name: stream.read() for name, stream in streams}} == store.objects


def test_one_thread_is_enough_where_the_system_gives_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started, here = threading.Thread.start, list[threading.Thread](), threading.current_thread()

    def limited(thread: threading.Thread) -> None:
        if threading.current_thread() is here:
            started.append(thread)
            if len(started) > 1 + (thread.name != "torchdata_remote"):
                raise RuntimeError("can't start new thread")
        start(thread)

    with store_of(numbered(9, 25)) as store:
        store.read_all()  # what else starts a thread has it
        monkeypatch.setattr(threading.Thread, "start", limited)
        assert store.read_all() == store.objects


# --- when a program ends

READ_AT_EXIT = """
import atexit, sys
last = []
def read_on():  # registered before torchdata_remote is imported, so it runs after its threads were ended
    for read in last:
        try:
            print("bytes", len(read()), flush=True)
        except Exception as error:
            print(type(error).__name__, isinstance(error, tdr.errors.RemoteDataError), error, flush=True)
atexit.register(read_on)
import torchdata_remote as tdr
from tests.support.scripted_store import numbered, store_of
store = store_of(numbered(3, 1_000_000))
opened = store.__enter__()
streams = opened.open(max_in_flight=1, part_bytes=1_000, max_buffer_bytes=500_000, retry=tdr.RetryPolicy(deadline_s=5))
_, stream = next(streams)
print(len(stream.read(10)))
last += [stream.read, stream.read]

import threading
begun = threading.Event()
def never(name, start):
    begun.set()
    threading.Event().wait()
managed = store_of(numbered(3, 10))
stalled = managed.__enter__()
stalled.before_read = never
pair = next(stalled.open())
begun.wait()
print("end", flush=True)
"""


def test_a_program_ends_although_a_request_stalls_and_an_exit_handler_reads_on() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", READ_AT_EXIT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, *lines = done.stdout.splitlines()
    assert (first, second) == ("10", "end")
    assert len(lines) == 2
    assert all(line == "bytes 999990" or (" True " in line and "shuts down" in line) for line in lines), lines
