"""One range of an object, against a store that follows a script of faults."""

from __future__ import annotations

import itertools
import pickle
import re
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.core.test_retry import Clock
from torchdata_remote.core.concurrency_limit import ConcurrencyLimit
from torchdata_remote.core.options import PROGRESS_BYTES, RetryPolicy
from torchdata_remote.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
)
from torchdata_remote.fetch.range_download import CHANGED_ANSWERS, ObjectVersion, RangeRequest
from torchdata_remote.fetch.range_reader import read_range
from torchdata_remote.storage import Answer, RangeNotSatisfiableError

AT_ONCE = RetryPolicy(deadline_s=3600, first_wait_s=0, max_wait_s=0)
MOST_REQUESTS = 200  # a reader that asks for ever is a failure, not a test that hangs


class Fault(NamedTuple):
    """Faults of one response: of its headers, and of its body."""

    headers: str = "right"
    breaks_after: int | None = None  # bytes of the body
    how: str = "reset"  # or "end": the body just ends


WELL = Fault()


class Body(Generator[memoryview, None, None]):
    """Bytes in chunks; records whether it was closed."""

    def __init__(self, chunks: Iterator[memoryview]) -> None:
        self._chunks = chunks
        self.closed = False

    def send(self, value: None, /) -> memoryview:
        assert not self.closed
        return next(self._chunks)

    def throw(self, *error: Any) -> memoryview:
        raise error[0]

    def close(self) -> None:
        self.closed = True


class ScriptedStore:
    """One object; each request meets the next fault of the script, and none when that has ended."""

    def __init__(self, data: bytes, script: list[Fault], *, etag: str | None = "v1", chunks: list[int] | None = None):
        self.data, self.etag, self.chunks = data, etag, chunks or [7]
        self.script = iter(script)
        self.requests: list[tuple[int, int | None, str | None]] = []
        self.bodies: list[Body] = []
        self.on_chunk: Callable[[], None] = lambda: None
        self.on_request: Callable[[int, int | None, str | None], None] = lambda start, end, etag: None

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        assert path == "a"
        assert all(body.closed for body in self.bodies), "one request at a time"
        self.on_request(start, end, etag)
        self.requests.append((start, end, etag))
        assert len(self.requests) < MOST_REQUESTS, "it asks for ever"
        fault = next(self.script, WELL)
        total, its_etag = len(self.data), self.etag
        if fault.headers == "denied":
            raise AccessDeniedError("denied", url="s3://b/a")
        if fault.headers == "missing":
            raise ObjectNotFoundError("missing", url="s3://b/a")
        if fault.headers == "refused":
            raise TransientStorageError("refused", url="s3://b/a")
        if fault.headers == "416" or (end is not None and start >= total):
            raise RangeNotSatisfiableError("behind the end", url="s3://b/a")
        end = total if end is None else min(end, total)
        surplus = b""
        if fault.headers == "short":
            end = max(start, end - 1)
        elif fault.headers == "shifted on":
            start, end = start + 1, min(end + 1, total)
        elif fault.headers == "shifted back":
            start, end = max(start - 1, 0), end - 1
        elif fault.headers == "whole":
            start, end = 0, total
        elif fault.headers == "longer":
            surplus = b"surplus" + self.data
        elif fault.headers == "etag":
            its_etag = "v2"
        elif fault.headers == "grown":
            total += 1
        elif fault.headers == "shrunk":
            total -= 1
        body = Body(self._send(self.data[start:end] + surplus, fault))
        self.bodies.append(body)
        return Answer(start, end, total, its_etag, body)

    def _send(self, data: bytes, fault: Fault) -> Iterator[memoryview]:
        at = 0
        until = len(data) if fault.breaks_after is None else min(fault.breaks_after, len(data))
        for size in itertools.cycle(self.chunks):
            if at == until:
                break
            self.on_chunk()
            yield memoryview(data)[at : min(at + size, until)]
            at = min(at + size, until)
        if fault.breaks_after is not None and fault.how == "reset":
            raise TransientStorageError("reset", url="s3://b/a")


class Reader:
    """Reads a range and records bytes and version."""

    def __init__(
        self,
        store: Any,
        start: int = 0,
        end: int | None = None,
        *,
        size: int | None = None,
        etag: str | None = None,
        url: str = "s3://b/a",
        policy: RetryPolicy = AT_ONCE,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or Clock()
        self.got = b""
        self.found: list[ObjectVersion] = []
        self.in_flight = ConcurrencyLimit(3, check=lambda: None, clock=clock)
        self.pieces = read_range(
            store,
            RangeRequest(url, "a", start, end, size, etag),
            policy,
            in_flight=self.in_flight,
            on_found=self.found.append,
            sleep=clock.sleep,
            clock=clock,
        )

    def read(self) -> bytes:
        for piece in self.pieces:
            self.got += piece
        return self.got


CHUNKS = st.lists(st.integers(1, 40), min_size=1, max_size=4)
BREAKS = st.one_of(st.none(), st.integers(0, 70))
PASSING = st.builds(
    Fault,
    st.sampled_from(["right", "refused", "short", "shifted on", "shifted back", "whole", "longer"]),
    BREAKS,
    st.sampled_from(["reset", "end"]),
)
RANGED = st.builds(Fault, st.sampled_from(["right", "refused", "short", "shifted on", "shifted back"]), BREAKS)
DATA = st.binary(min_size=1, max_size=60)


@given(
    data=DATA,
    start=st.integers(0, 59),
    length=st.one_of(st.none(), st.integers(1, 80)),
    script=st.lists(PASSING, max_size=12),
    chunks=CHUNKS,
    size_listed=st.booleans(),
    etag_listed=st.booleans(),
    has_etag=st.booleans(),
)
def test_exactly_the_range_is_read_through_transient_faults(
    data: bytes,
    start: int,
    length: int | None,
    script: list[Fault],
    chunks: list[int],
    size_listed: bool,
    etag_listed: bool,
    has_etag: bool,
) -> None:
    """The bytes are the range's, each request begins where they end so far, and bodies of wrong ranges are not used."""
    start %= len(data)
    etag = "v1" if has_etag else None
    end = None if length is None else start + length
    store = ScriptedStore(data, script, etag=etag, chunks=chunks)
    reader = Reader(store, start, end, size=len(data) if size_listed else None, etag=etag if etag_listed else None)

    def on_request(asked: int, asked_end: int | None, asked_etag: str | None) -> None:
        assert asked == start + len(reader.got)
        assert asked_end == (reader.found[0].end if reader.found else end)
        assert asked_etag == (etag if etag_listed or reader.found else None)

    store.on_request = on_request
    reader.read()
    [found] = reader.found
    assert (found.size, found.etag) == (len(data), etag)
    ends = {len(data) if end is None else min(end, len(data))}
    if not size_listed and any(fault.headers == "whole" for fault in script):
        ends.add(len(data))  # then the whole object, which was sent
    assert found.end in ends
    assert reader.got == data[start : found.end]
    assert all(body.closed for body in store.bodies)


@given(
    data=DATA,
    start=st.integers(0, 59),
    before=st.lists(RANGED, max_size=6),
    end_of_it=st.sampled_from(["denied", "missing", "416", "etag", "grown", "shrunk"]),
    learned=st.booleans(),
    chunks=CHUNKS,
)
def test_permanent_faults_are_not_retried(
    data: bytes, start: int, before: list[Fault], end_of_it: str, learned: bool, chunks: list[int]
) -> None:
    """A refusal fails at once, another version after four responses; its bytes are never used."""
    start %= len(data)
    if learned:  # the first response has the version, and breaks before its first byte
        before = [Fault(breaks_after=0), *before]
    ends = [Fault(end_of_it)] * (CHANGED_ANSWERS if end_of_it in ("etag", "grown", "shrunk") else 1)
    store = ScriptedStore(data, [*before, *ends], chunks=chunks)
    reader = Reader(store, start, size=None if learned else len(data), etag=None if learned else "v1")
    kinds: dict[str, type[StorageError]] = {"denied": AccessDeniedError, "missing": ObjectNotFoundError}
    error: StorageError | None = None
    try:
        reader.read()
    except StorageError as raised:
        error = raised
    if error is None:
        assert len(store.requests) <= len(before), "it was complete before"
    else:
        assert type(error) is kinds.get(end_of_it, ObjectChangedError)
        assert len(store.requests) == error.attempts == len(before) + len(ends)
        assert len(reader.got) < len(data) - start
    assert data[start:].startswith(reader.got)
    assert all(body.closed for body in store.bodies)


@given(
    data=DATA, before=st.lists(RANGED, max_size=3), other=st.sampled_from(["etag", "grown", "shrunk"]), chunks=CHUNKS
)
def test_a_single_response_of_another_version_is_retried(
    data: bytes, before: list[Fault], other: str, chunks: list[int]
) -> None:
    """It may be another question's, from a proxy that mixes them up: it is repeated, and the bytes are right."""
    store = ScriptedStore(data, [*before, Fault(other)], chunks=chunks)
    assert Reader(store, size=len(data), etag="v1").read() == data


@pytest.mark.parametrize("headers", ["short", "shifted on", "shifted back"])
@pytest.mark.parametrize("known", [True, False])
def test_a_response_with_the_wrong_content_range_is_never_used(headers: str, known: bool) -> None:
    """No byte is yielded, and no version is recorded."""
    store = ScriptedStore(bytes(range(60)), [Fault(headers)] * 4)
    policy = RetryPolicy(max_attempts=4, first_wait_s=0)
    reader = Reader(store, 10, 40, size=60 if known else None, policy=policy)
    with pytest.raises(TransientStorageError, match="asked for bytes 10 to 40, got"):
        reader.read()
    assert (reader.got, reader.found, len(store.requests)) == (b"", [], 4)


@pytest.mark.parametrize("size", [None, 0])
@pytest.mark.parametrize("faults", [0, 3])
def test_an_empty_object_is_read(size: int | None, faults: int) -> None:
    """Also if only a request without a range succeeds."""
    store = ScriptedStore(b"", [Fault("refused")] * faults)
    reader = Reader(store, 0, 10 if size is None else None, size=size)
    assert reader.read() == b""
    assert reader.found == [ObjectVersion(0, "v1", 0)]
    assert len(store.requests) == faults + (2 if size is None else 1)
    assert all(body.closed for body in store.bodies)


@given(data=DATA, breaks=st.lists(st.integers(0, 70), max_size=6), part=st.integers(1, 80), chunks=CHUNKS)
def test_a_server_that_ignores_ranges_is_read_to_the_end(
    data: bytes, breaks: list[int], part: int, chunks: list[int]
) -> None:
    """Bytes before a break are not yielded twice."""
    script = [Fault("whole", breaks_after) for breaks_after in breaks] + [Fault("whole")] * 20
    reader = Reader(ScriptedStore(data, script, chunks=chunks), 0, part)
    assert reader.read() == data
    assert [found.end for found in reader.found] == [len(data)]


@given(data=DATA, start=st.integers(0, 59), length=st.integers(1, 30), chunks=CHUNKS)
def test_the_range_is_cut_out_of_a_whole_response(data: bytes, start: int, length: int, chunks: list[int]) -> None:
    """The body is closed after it."""
    start %= len(data)
    store = ScriptedStore(data, [Fault("whole")], chunks=chunks)
    assert Reader(store, start, start + length, size=len(data)).read() == data[start : start + length]
    assert [body.closed for body in store.bodies] == [True]


@pytest.mark.parametrize("headers", ["whole", "right"])
def test_a_range_after_the_objects_end_is_an_error(headers: str) -> None:
    """Whether the server returns 416 or the whole object."""
    store = ScriptedStore(bytes(10), [Fault(headers)] * MOST_REQUESTS)
    if headers == "whole":
        honest = store.read
        store.read = lambda path, start, end, etag: honest(path, 0, None, etag)  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        Reader(store, 20, 30, policy=RetryPolicy(max_attempts=3, first_wait_s=0)).read()


@pytest.mark.parametrize("max_attempts", [2, 3])
def test_progress_resets_the_number_of_attempts(max_attempts: int) -> None:
    """Ten breaks, each after ``PROGRESS_BYTES``, are survived with two attempts, and however long they take."""
    data, clock = bytes(PROGRESS_BYTES * 12), Clock()
    store = ScriptedStore(data, [Fault(breaks_after=PROGRESS_BYTES)] * 10, chunks=[4096])

    def each_takes_a_minute(start: int, end: int | None, etag: str | None) -> None:
        clock.now += 60

    store.on_request = each_takes_a_minute
    policy = RetryPolicy(deadline_s=100, max_attempts=max_attempts, first_wait_s=0)
    assert Reader(store, size=len(data), policy=policy, clock=clock).read() == data
    assert [start for start, *_ in store.requests] == [PROGRESS_BYTES * number for number in range(11)]


@pytest.mark.parametrize("breaks_after", [0, 1, PROGRESS_BYTES // 3])
def test_too_few_bytes_do_not_count_as_progress(breaks_after: int) -> None:
    """Attempts that bring less than ``PROGRESS_BYTES``, also taken together, are counted."""
    data = bytes(PROGRESS_BYTES * 12)
    store = ScriptedStore(data, [Fault(breaks_after=breaks_after)] * 20, chunks=[4096])
    with pytest.raises(TransientStorageError, match="max_attempts=2"):
        Reader(store, size=len(data), policy=RetryPolicy(max_attempts=2, first_wait_s=0)).read()
    assert len(store.requests) == 2


@pytest.mark.parametrize("max_attempts", [2, 3])
def test_progress_is_counted_per_attempt(max_attempts: int) -> None:
    """Attempts with a little less than ``PROGRESS_BYTES`` each do not add up to progress."""
    data = bytes(PROGRESS_BYTES * 12)
    store = ScriptedStore(data, [Fault(breaks_after=PROGRESS_BYTES - 1)] * 100, chunks=[4096])
    policy = RetryPolicy(max_attempts=max_attempts, first_wait_s=0)
    with pytest.raises(TransientStorageError, match="max_attempts="):
        Reader(store, size=len(data), policy=policy).read()
    assert len(store.requests) == max_attempts


@given(per_chunk=st.integers(1, 50), seconds=st.floats(0.2, 60), max_attempts=st.integers(1, 4))
def test_a_body_below_the_minimum_rate_fails(per_chunk: int, seconds: float, max_attempts: int) -> None:
    """After ``progress_timeout_s`` and one chunk; such attempts count."""
    clock = Clock()
    store = ScriptedStore(bytes(2 * PROGRESS_BYTES), [], chunks=[per_chunk])

    def slowly() -> None:
        clock.now += seconds

    store.on_chunk = slowly
    policy = RetryPolicy(deadline_s=3600, max_attempts=max_attempts, first_wait_s=0, progress_timeout_s=10)
    reader = Reader(store, size=2 * PROGRESS_BYTES, policy=policy, clock=clock)
    with pytest.raises(TransientStorageError, match=rf"bytes in .* s\..*max_attempts={max_attempts}"):
        reader.read()
    assert len(store.requests) == max_attempts
    assert clock.now - 1000 <= max_attempts * (10 + seconds) + 1e-6
    assert all(body.closed for body in store.bodies)


def test_a_slow_body_above_the_minimum_rate_succeeds() -> None:
    """A body that brings ``PROGRESS_BYTES`` in each window takes as long as it takes, in one request."""
    clock = Clock()
    store = ScriptedStore(bytes(100 * PROGRESS_BYTES), [], chunks=[PROGRESS_BYTES // 2])

    def slowly() -> None:
        clock.now += 4

    store.on_chunk = slowly
    policy = RetryPolicy(deadline_s=20, max_attempts=1, progress_timeout_s=10)
    assert len(Reader(store, policy=policy, clock=clock).read()) == 100 * PROGRESS_BYTES
    assert len(store.requests) == 1


def test_stalls_are_retried() -> None:
    """A transport's time-out, before the headers or in the body, is one more attempt at what is missing."""
    clock, data = Clock(), bytes(range(60))
    store = ScriptedStore(data, [Fault("refused"), Fault(breaks_after=20), Fault("refused"), Fault(breaks_after=0)])
    assert Reader(store, size=60, clock=clock).read() == data
    assert [start for start, *_ in store.requests] == [0, 0, 20, 20, 20]
    assert len(clock.waits) == 4


def test_the_final_error_holds_url_range_etag_attempts_and_seconds() -> None:
    """URL, range, etag, attempts, seconds and the last fault, as attributes and in the text, also after pickling."""
    clock = Clock()
    store = ScriptedStore(bytes(60), [Fault(breaks_after=5, how="end")] * 9)

    def takes_two_seconds(start: int, end: int | None, etag: str | None) -> None:
        clock.now += 2

    store.on_request = takes_two_seconds
    policy = RetryPolicy(max_attempts=3, first_wait_s=0)
    reader = Reader(store, 10, 50, size=60, etag="v1", policy=policy, clock=clock)
    with pytest.raises(TransientStorageError) as caught:
        reader.read()
    assert isinstance(caught.value.__cause__, TransientStorageError)
    assert "the body ended at byte 25 of 50" in str(caught.value.__cause__)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert type(error) is TransientStorageError
        assert (error.url, error.start_byte, error.end_byte, error.etag) == ("s3://b/a", 10, 50, "v1")
        assert (error.attempts, error.elapsed_s) == (3, 6.0)
        for told in ("s3://b/a", "10 to 50", "v1", "3 attempts", "6.0 s", "byte 25 of 50"):
            assert told in str(error)


@pytest.mark.parametrize(("headers", "kind"), [("denied", AccessDeniedError), ("etag", ObjectChangedError)])
def test_permanent_errors_hold_the_same_fields(headers: str, kind: type[StorageError]) -> None:
    """And keep type and cause."""
    clock = Clock()
    faults = ["refused", "denied"] if headers == "denied" else [headers] * CHANGED_ANSWERS
    store = ScriptedStore(bytes(60), [Fault(fault) for fault in faults])

    def takes_two_seconds(start: int, end: int | None, etag: str | None) -> None:
        clock.now += 2

    store.on_request = takes_two_seconds
    with pytest.raises(kind) as caught:
        Reader(store, 10, None, size=60, etag="v1", clock=clock).read()
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(caught.value.__cause__) is kind
    assert (error.url, error.start_byte, error.end_byte, error.etag) == ("s3://b/a", 10, None, "v1")
    attempts = len(faults)
    assert (error.attempts, error.elapsed_s) == (attempts, 2.0 * attempts)
    assert re.search(rf"Bytes 10 to the end, etag v1, attempt {attempts}, after {2 * attempts}\.0 s", str(error))


def test_the_final_error_has_the_url_if_the_transport_omits_it() -> None:
    """ "All with url": an error that a transport raised without one gets the range's."""

    class Failing:
        def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
            raise error

    for error in (TransientStorageError("reset"), AccessDeniedError("denied")):
        with pytest.raises(type(error)) as caught:
            Reader(Failing(), url="https://me:pw@host/a?sig=0", policy=RetryPolicy(max_attempts=1)).read()
        assert caught.value.url == "https://host/a"


def test_the_final_error_has_the_etag_of_the_first_response() -> None:
    """If the listing had none."""
    store = ScriptedStore(bytes(60), [Fault(breaks_after=5)] * 3)
    reader = Reader(store, policy=RetryPolicy(max_attempts=3, first_wait_s=0))
    with pytest.raises(TransientStorageError) as caught:
        reader.read()
    assert [etag for *_, etag in store.requests] == [None, "v1", "v1"]
    assert caught.value.etag == "v1"


@pytest.mark.parametrize(
    "script",
    [
        [Fault("short")],
        [Fault(breaks_after=3, how="end")],
        [Fault("etag")],
        [Fault("grown")],
        [Fault("416")],
    ],
)
def test_errors_hold_no_secret_of_the_url(script: list[Fault]) -> None:
    """Neither user-info nor query of a signed URL is in an error, its causes, its attributes or its pickle."""
    store = ScriptedStore(bytes(60), script * 2)
    reader = Reader(
        store,
        0,
        50,
        size=60,
        etag="v1",
        url="https://me:hush@host/a?X-Amz-Signature=canary#canary",
        policy=RetryPolicy(max_attempts=2, first_wait_s=0),
    )
    with pytest.raises(StorageError) as caught:
        reader.read()
    error: BaseException | None = caught.value
    assert caught.value.url == "https://host/a"
    while error is not None:
        shown = f"{error} {error!r} {error.args} {vars(error)} {pickle.dumps(error)!r}"
        assert not any(secret in shown for secret in ("hush", "canary", "X-Amz"))
        error = error.__cause__


@given(script=st.lists(RANGED, max_size=5), taken=st.integers(0, 10), chunks=CHUNKS)
def test_closing_the_iterator_ends_the_request_anywhere(script: list[Fault], taken: int, chunks: list[int]) -> None:
    """Wherever the iterator is closed: its body is closed, its permit is given back, and no request follows."""
    store = ScriptedStore(bytes(60), script, chunks=chunks)
    reader = Reader(store, size=60)
    reader.in_flight.slow_down()  # from now on permits are counted, and there is one
    for _ in itertools.islice(reader.pieces, taken):
        assert reader.in_flight._running == 1
    sent = len(store.requests)
    reader.pieces.close()
    assert len(store.requests) == sent
    assert all(body.closed for body in store.bodies)
    assert reader.in_flight._running == 0
    assert list(reader.pieces) == []


def test_an_error_of_sleep_or_permit_is_raised_unchanged() -> None:
    """At once; no further request is sent."""
    store = ScriptedStore(bytes(60), [Fault(breaks_after=10)] * 5)

    def stop(*seconds: float) -> None:
        raise InterruptedError

    arguments: dict[str, Any] = {
        "in_flight": ConcurrencyLimit(1, check=stop),
        "on_found": lambda found: None,
        "sleep": stop,
    }
    wanted = RangeRequest("s3://b/a", "a", 0, 60, 60, None)
    got = []
    with pytest.raises(InterruptedError):  # noqa: PT012  # the loop is what raises, at its end
        for piece in read_range(store, wanted, AT_ONCE, **arguments):
            got.append(bytes(piece))
    assert b"".join(got) == bytes(10)
    assert len(store.requests) == 1
    busy = arguments["in_flight"] = ConcurrencyLimit(2, check=stop)
    busy.slow_down()
    with busy.permit(), pytest.raises(InterruptedError):
        next(read_range(store, wanted, AT_ONCE, **arguments))
    assert len(store.requests) == 1


def test_no_permit_is_held_while_waiting() -> None:
    """Between attempts others may use the permit; the store's "slow down" lowers their number."""
    overloaded = TransientStorageError("slow down")
    overloaded.overloaded = True
    store = ScriptedStore(bytes(60), [])
    running: list[tuple[int, int]] = []

    class Slow:
        def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
            if not running:
                raise overloaded
            return store.read(path, start, end, etag)

    in_flight = ConcurrencyLimit(8, check=lambda: None)
    pieces = read_range(
        Slow(),
        RangeRequest("s3://b/a", "a", 0, 60, 60, None),
        AT_ONCE,
        in_flight=in_flight,
        on_found=lambda found: None,
        sleep=lambda seconds: running.append((in_flight._running, in_flight.limit)),
    )
    assert b"".join(pieces) == bytes(60)
    assert running == [(0, 4)]
    assert in_flight.limit == 5


def test_an_etag_of_a_later_response_is_pinned() -> None:
    """If the first response had none: two versions are never mixed."""
    store = ScriptedStore(b"1" * 60, [Fault(breaks_after=10), Fault(breaks_after=10)])

    def replaced(start: int, end: int | None, etag: str | None) -> None:
        store.etag, digit = {0: (None, b"1"), 10: ("v1", b"1")}.get(start, ("v2", b"2"))
        store.data = digit * 60

    store.on_request = replaced
    with pytest.raises(ObjectChangedError):
        Reader(store, size=60).read()


@given(data=st.binary(min_size=30, max_size=60), broken_at=st.integers(0, 29), same=st.booleans())
@example(data=bytes(30), broken_at=0, same=False)
def test_an_object_replaced_between_attempts_is_an_error(data: bytes, broken_at: int, same: bool) -> None:
    """An object that is replaced between two attempts is an ObjectChangedError, even by one of the same size."""
    store = ScriptedStore(data, [Fault(breaks_after=broken_at)])
    reader = Reader(store)

    def replaced(start: int, end: int | None, etag: str | None) -> None:
        if store.requests and not same:
            store.data, store.etag = bytes(byte ^ 255 for byte in data), "v2"

    store.on_request = replaced
    if same:
        assert reader.read() == data
    else:
        with pytest.raises(ObjectChangedError, match="v2"):
            reader.read()
        assert reader.got == data[:broken_at]
