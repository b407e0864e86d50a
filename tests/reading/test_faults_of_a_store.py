"""Faults of a store: what is repeated and from where, what is an error and when, and what errors say."""

from __future__ import annotations

import logging
import pickle
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.reading.wire import Fault, Wire, wire
from tests.servers.scripted import Response, scripted
from tests.support.scripted_store import numbered, store_of
from tests.support.waiting import wait_for
from torchdata_remote import RetryPolicy
from torchdata_remote.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
)

END_S = 60
PROGRESS_BYTES = 16 << 10  # as the manual says
WIRE_EXAMPLES = 15  # each sends some requests to a real server


@pytest.fixture(scope="module")
def server() -> Iterator[Wire]:
    with wire() as running:
        yield running


@pytest.fixture
def new_server() -> Iterator[Wire]:
    """Whose responses have never been broken: a store remembers that for a while."""
    with wire() as running:
        yield running


PASSING = ["right", "refused", "slow down", "short", "shifted on", "shifted back", "whole"]
BREAKS = st.none() | st.integers(0, 70)


@settings(max_examples=WIRE_EXAMPLES)
@given(
    data=st.binary(min_size=1, max_size=60),
    part_bytes=st.integers(5, 70),
    script=st.lists(st.builds(Fault, st.sampled_from(PASSING), BREAKS), max_size=7),
    listed=st.booleans(),
)
def test_bytes_are_right_through_any_faults_and_only_missing_ones_are_requested_again(
    server: Wire, data: bytes, part_bytes: int, script: list[Fault], listed: bool
) -> None:
    made = server.put(data, *script)
    assert server.read(made.listed() if listed else made.url, part_bytes=part_bytes) == data
    for one, following in pairwise(made.requests):
        assert following.start >= one.start
    assert all(asked.if_match == '"v1"' for asked in (made.requests if listed else made.requests[len(script) + 1 :]))
    if not any(fault.head == "whole" for fault in script):
        assert all(asked.end is None or asked.end - asked.start <= part_bytes for asked in made.requests)


@pytest.mark.parametrize("listed", [True, False])
def test_an_attempt_continues_at_the_byte_after_the_last_one_received(new_server: Wire, listed: bool) -> None:
    """A body of up to 1 MiB is one buffer: the first one that breaks is asked for again; then they come in pieces."""
    broken = Fault(breaks_after=20)
    made = new_server.put(bytes(range(60)), broken, broken, Fault("refused"), Fault(breaks_after=0))
    assert new_server.read(made.listed() if listed else made.url) == made.data
    assert [asked.start for asked in made.requests] == [0, 0, 20, 20, 20]
    assert [asked.if_match for asked in made.requests] == ['"v1"' if listed else None, *['"v1"'] * 4]


@pytest.mark.parametrize(
    ("head", "kind"),
    [("denied", AccessDeniedError), ("missing", ObjectNotFoundError), ("412", ObjectChangedError)],
)
@pytest.mark.parametrize("num_before", [0, 1])
def test_a_refusal_is_an_error_at_once(server: Wire, head: str, kind: type[StorageError], num_before: int) -> None:
    made = server.put(bytes(60), *[Fault("refused")] * num_before, *[Fault(head)] * 20)
    with pytest.raises(kind, match=f"^{made.url}") as caught:
        server.read(made.listed(), part_bytes=50, max_buffer_bytes=50)
    assert len(made.requests) == num_before + 1
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is type(caught.value.__cause__) is kind
    assert (error.url, error.start_byte, error.end_byte, error.etag) == (made.url, 0, 50, '"v1"')
    assert error.attempts == num_before + 1
    assert error.elapsed_s is not None
    assert 0 <= error.elapsed_s < END_S
    assert f'Bytes 0 to 50, etag "v1", attempt {num_before + 1}, after ' in str(error)


def test_attempts_end_with_the_deadline(server: Wire) -> None:
    made = server.put(bytes(60), *[Fault("refused")] * 99)
    policy = RetryPolicy(deadline_s=0.3, first_wait_s=0.15, max_wait_s=0.15)
    with pytest.raises(TransientStorageError, match=r"Gave up after \d+ attempts in .* s \(deadline_s=0\.3, max"):
        server.read(made.listed(), retry=policy)
    assert 2 <= len(made.requests) < 99


@pytest.mark.parametrize("max_attempts", [2, 3])
def test_attempts_that_bring_16_kib_do_not_count(new_server: Wire, max_attempts: int) -> None:
    made = new_server.put(bytes(PROGRESS_BYTES * 12), *[Fault(breaks_after=PROGRESS_BYTES)] * 10)
    policy = RetryPolicy(max_attempts=max_attempts, first_wait_s=0)
    assert new_server.read(made.listed(), retry=policy) == made.data
    assert [asked.start for asked in made.requests] == [0, *(PROGRESS_BYTES * number for number in range(10))]


@pytest.mark.parametrize("breaks_after", [0, 1, PROGRESS_BYTES // 3, PROGRESS_BYTES - 1])
@pytest.mark.parametrize("max_attempts", [2, 3])
def test_attempts_that_bring_less_than_16_kib_each_count(server: Wire, breaks_after: int, max_attempts: int) -> None:
    made = server.put(bytes(PROGRESS_BYTES * 12), *[Fault(breaks_after=breaks_after)] * 50)
    with pytest.raises(TransientStorageError, match=f"max_attempts={max_attempts}"):
        server.read(made.listed(), retry=RetryPolicy(max_attempts=max_attempts, first_wait_s=0))
    assert len(made.requests) == max_attempts


def test_a_violation_of_the_protocol_is_not_repeated_for_longer_than_eight_seconds(server: Wire) -> None:
    """However long the policy waits: nobody waits for an attempt that would begin later."""
    made = server.put(bytes(range(60)), *[Fault("short")] * 50)
    years = RetryPolicy(first_wait_s=1e9, max_wait_s=1e9)
    with pytest.raises(StorageError, match="repeating the request does not help") as caught:
        server.read(made.listed(), retry=years)
    assert not isinstance(caught.value, TransientStorageError)
    assert caught.value.attempts is not None
    assert caught.value.attempts < 8


def test_a_stalled_request_is_given_up_after_the_progress_timeout(server: Wire) -> None:
    made = server.put(bytes(range(60)))
    with tdr.testing.FaultyStore(server.endpoint_url, tdr.testing.Faults(stall_s=600, trickle_s=0.05)) as store:
        store.script("stall", "stall_in_body", "trickle", None)
        options = {**server.storage_options, "endpoint_url": store.endpoint_url}
        policy = RetryPolicy(progress_timeout_s=0.2, first_wait_s=0)
        assert server.read(made.listed(), retry=policy, storage_options=options) == made.data
        assert [request.fault for request in store.requests] == ["stall", "stall_in_body", "trickle", None]


# --- how an error reaches the consumer


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, MemoryError])
def test_any_exception_of_a_thread_is_raised_in_the_consumer(kind: type[BaseException]) -> None:
    with store_of({"a": bytes(30)}) as store:

        def before_read(name: str, start: int) -> None:
            if start == 10:
                raise kind("in a thread")

        store.before_read = before_read
        [(_, stream)] = store.open()
        with pytest.raises(kind, match="in a thread") as caught:
            stream.read()
        assert any(entry.name == "before_read" for entry in caught.traceback)
        stream.close()


def test_repetitions_draw_no_random_numbers_of_the_training() -> None:
    with store_of({"a": bytes(30)}) as store:
        failures = iter([True] * 3)

        def before_read(name: str, start: int) -> None:
            if next(failures, False):
                raise ConnectionError("try again")

        store.before_read = before_read
        random.seed(0)
        before = random.getstate()
        assert store.read_all(retry=RetryPolicy(first_wait_s=0.001)) == store.objects
        assert random.getstate() == before


# --- fewer requests at once


class SlowDownError(OSError):
    """As a library reports it."""

    status = 503


def test_a_busy_store_gets_half_as_many_requests_at_once_and_one_more_after_each_success() -> None:
    with store_of(numbered(80, 10)) as store:
        all_in, gate, too_many, full = threading.Barrier(8), threading.Event(), threading.Event(), threading.Event()
        refused, again = set[str](), set[str]()

        def before_read(name: str, start: int) -> None:
            if int(name) < 8 and name not in refused:
                refused.add(name)
                all_in.wait(END_S)
                raise SlowDownError("slow down")
            if not gate.is_set():
                again.add(name)
                if len(again) > 4:
                    too_many.set()
                assert gate.wait(END_S)
            if store.running == 8:
                full.set()
            if int(name) >= 40:
                assert full.wait(END_S), "the limit is back after so many successes"

        store.before_read = before_read
        streams = store.open(max_in_flight=8)
        first = next(streams)
        wait_for(lambda: bool(again))
        assert not too_many.wait(0.3)
        gate.set()
        assert {name: stream.read() for name, stream in [first, *streams]} == store.objects
        assert store.most == 8


# --- what is said meanwhile


def messages(caplog: pytest.LogCaptureFixture, url: str) -> list[str]:
    found = [record for record in caplog.records if record.levelno == logging.WARNING]
    return [record.getMessage() for record in found if url in record.getMessage()]


def test_faults_are_said_once_for_each_host_whatever_the_number_of_objects(caplog: pytest.LogCaptureFixture) -> None:
    left = {f"/{name}": 3 for name in "abc"}

    def respond_of(left: dict[str, int]) -> Any:
        def respond(request: Any) -> Response:
            left[request.target] -= 1
            return Response.of_object(request, b"123") if left[request.target] < 0 else Response.of_error(500, "Error")

        return respond

    with ExitStack() as stack:
        hosts = [stack.enter_context(scripted(respond_of(dict(left)))).url for _ in range(2)]
        urls = [f"{host}{name}" for name in left for host in hosts]
        streams = tdr.IterableWrapper(urls).async_prefetch(retry=RetryPolicy(first_wait_s=0), max_in_flight=1)
        assert [stream.read() for _, stream in streams] == [b"123"] * 6
        assert [len(messages(caplog, host)) for host in hosts] == [1, 1]
