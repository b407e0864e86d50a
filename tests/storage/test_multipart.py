"""Uploads in parts, with requests that are recorded instead of sent."""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.options import RetryPolicy
from torchdata_remote.errors import AccessDeniedError, ObjectExistsError, ObjectNotFoundError, TransientStorageError
from torchdata_remote.storage import multipart
from torchdata_remote.storage.multipart import MAX_PARTS_IN_FLIGHT, MultipartWriter, make_visible

AT_ONCE = RetryPolicy(first_wait_s=0, max_wait_s=0)


class RecordingWriter(MultipartWriter[int]):
    """Keeps parts in memory; ``before_part`` runs in the thread of each."""

    def __init__(self, before_part: Callable[[int], object] = lambda number: None) -> None:
        super().__init__()
        self.before_part = before_part
        self.parts: dict[int, tuple[int, bytes]] = {}
        self.visible: bytes | None = None
        self.num_started, self.discarded = 0, False

    def _put(self, data: bytearray) -> None:
        self.visible = bytes(data)

    def _start_upload(self) -> str:
        self.num_started += 1
        return "upload"

    def _send_part(self, upload_id: str, number: int, start: int, data: bytearray) -> int:
        assert upload_id == "upload"
        self.before_part(number)
        self.parts[number] = start, bytes(data)
        return number

    def _complete(self, upload_id: str) -> None:
        assert self._buffer, "the last part is never empty"
        self._submit_part()
        assert self._wait_for_parts() == sorted(self.parts)
        self.visible = b"".join(data for _, (_, data) in sorted(self.parts.items()))

    def _discard(self, upload_id: str) -> None:
        self.discarded = True


@given(sizes=st.lists(st.integers(0, 30), max_size=8), part_bytes=st.integers(1, 20))
def test_an_object_is_what_was_written_whatever_its_pieces(sizes: list[int], part_bytes: int) -> None:
    """One request stores up to one part; a larger object is made of full parts and a last one that is not empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multipart, "UPLOAD_PART_BYTES", part_bytes)
        writer = RecordingWriter()
        pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
        for piece in pieces:
            writer.write(piece)
            assert writer.visible is None
        writer.commit()
        writer.abort()  # harmless after a commit
    assert writer.visible == b"".join(pieces)
    assert not writer.discarded
    assert writer.num_started == (sum(sizes) > part_bytes)
    sent = [writer.parts[number] for number in sorted(writer.parts)]
    assert all(len(data) == part_bytes for _, data in sent[:-1])
    assert [start for start, _ in sent] == [part_bytes * number for number in range(len(sent))]


def test_parts_grow_so_that_10_000_of_them_hold_1_tebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 and the dataset service accept 10,000 parts at most; the first 1,400 have the smallest size."""
    monkeypatch.setattr(multipart, "UPLOAD_PART_BYTES", 1)
    writer = RecordingWriter()
    writer.write(bytes(2_700))
    writer.commit()
    sizes = [len(writer.parts[number][1]) for number in sorted(writer.parts)]
    assert sum(sizes) == 2_700
    assert set(sizes[:1_400]) == {1}
    assert set(sizes[1_400:-1]) == {2}
    assert sum((16 << 20) * max(1, number // multipart.PARTS_PER_SIZE) for number in range(10_000)) >= 1 << 40


def test_at_most_four_parts_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """``write`` waits for one of four parts before it reads on, so that memory is bounded."""
    monkeypatch.setattr(multipart, "UPLOAD_PART_BYTES", 1)
    started: queue.SimpleQueue[int] = queue.SimpleQueue()
    may_end: queue.SimpleQueue[None] = queue.SimpleQueue()
    num_running: list[int] = []

    def before_part(number: int) -> None:
        started.put(number)
        num_running.append(len(writer._in_flight))
        may_end.get()

    writer = RecordingWriter(before_part)
    writer.write(bytes(MAX_PARTS_IN_FLIGHT + 1))  # the last byte is kept for ``commit``
    assert sorted(started.get() for _ in range(MAX_PARTS_IN_FLIGHT)) == [1, 2, 3, 4]
    for _ in range(3 * MAX_PARTS_IN_FLIGHT):
        may_end.put(None)
        writer.write(b"1")
    for _ in range(MAX_PARTS_IN_FLIGHT + 1):
        may_end.put(None)
    writer.commit()
    assert max(num_running) <= MAX_PARTS_IN_FLIGHT
    assert writer.visible is not None
    assert len(writer.visible) == 4 * MAX_PARTS_IN_FLIGHT + 1


@pytest.mark.parametrize("num_bytes", [3, 30])
def test_a_part_that_failed_is_raised_by_write_or_commit_and_abort_discards_all(
    monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    """The object does not become visible, and the upload's parts are deleted."""
    monkeypatch.setattr(multipart, "UPLOAD_PART_BYTES", 1)

    def refuse(number: int) -> None:
        raise AccessDeniedError("no")

    writer = RecordingWriter(refuse)

    def write_all() -> None:
        writer.write(bytes(num_bytes))
        writer.commit()

    with pytest.raises(AccessDeniedError):
        write_all()
    writer.abort()
    assert writer.discarded
    assert writer.visible is None


@pytest.mark.parametrize("look_before_retry", [True, False])
@pytest.mark.parametrize("error", [ObjectExistsError("exists"), ObjectNotFoundError("no such upload")])
def test_a_lost_response_is_made_up_for_by_a_retry(error: Exception, look_before_retry: bool) -> None:
    """The first request works, its response is lost, and the retry is refused because of what the first one did."""
    stored: list[bool] = []

    def send() -> None:
        if stored:
            raise error
        stored.append(True)
        raise TransientStorageError("connection reset")

    make_visible(send, lambda: bool(stored), AT_ONCE, look_before_retry=look_before_retry)


@pytest.mark.parametrize("error", [ObjectExistsError("exists"), ObjectNotFoundError("no such bucket")])
def test_a_refusal_of_the_first_request_is_not_looked_into(error: Exception) -> None:
    """An object with the same bytes that existed before is an error all the same."""

    def send() -> None:
        raise error

    with pytest.raises(type(error)):
        make_visible(send, lambda: True, AT_ONCE)


def test_a_retry_that_finds_another_object_is_refused() -> None:
    """An object of another writer is not mistaken for the own one."""
    errors = iter([TransientStorageError("connection reset"), ObjectExistsError("exists")])

    def send() -> None:
        raise next(errors)

    with pytest.raises(ObjectExistsError):
        make_visible(send, lambda: False, AT_ONCE)


def test_requests_that_would_start_anew_are_not_repeated_once_the_object_is_visible() -> None:
    """With ``look_before_retry`` the store is searched first."""
    calls: list[str] = []

    def send() -> None:
        calls.append("send")
        raise TransientStorageError("connection reset")

    make_visible(send, lambda: True, AT_ONCE, look_before_retry=True)
    assert calls == ["send"]
