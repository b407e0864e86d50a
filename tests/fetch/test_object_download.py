"""What is planned of an object that is fetched in parts."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_store import FakeStore, options, store_of
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import ObjectChangedError
from torchdata_remote.fetch.download import Part
from torchdata_remote.fetch.object_download import ObjectDownload
from torchdata_remote.fetch.object_stream import ObjectStream
from torchdata_remote.fetch.range_download import ObjectVersion
from torchdata_remote.fetch.scheduler import PartScheduler
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.storage import Answer, Connection, single_chunk


def an_object(url: str, *, may_ignore_ranges: bool = False) -> ObjectDownload:
    with store_of({}) as store:
        store.may_ignore_ranges = may_ignore_ranges
        return ObjectDownload(url, StorageOptions(), Connection(), None)


def plan_all(download: ObjectDownload, part_bytes: int) -> list[Part]:
    parts = []
    while download.can_plan():
        expected = download.next_part_bytes(part_bytes)
        parts.append(download.plan(part_bytes))
        assert parts[-1].reserved_bytes == expected
    return parts


@given(size=st.integers(0, 500), part_bytes=st.integers(1, 600))
def test_parts_of_a_listed_object_cover_it_once(size: int, part_bytes: int) -> None:
    """Parts follow one another from the first byte to the last, none longer than asked; an empty object has one."""
    download = an_object(RemoteUrl("a", size, "v1"))
    parts = plan_all(download, part_bytes)
    assert download.completely_planned()
    assert list(download.parts) == parts
    assert len(parts) == max(1, -(-size // part_bytes))
    ranges = [download.range_of(part.start, part.end) for part in parts]
    assert all((wanted.size, wanted.etag, wanted.path) == (size, "v1", "a") for wanted in ranges)
    if size == 0:
        assert [(wanted.start, wanted.end) for wanted in ranges] == [(0, None)]
    else:
        ends = [wanted.end or 0 for wanted in ranges]
        assert [wanted.start for wanted in ranges] == [0, *ends[:-1]]
        assert ends[-1] == size
        assert all(part.reserved_bytes == (part.end or 0) - part.start <= part_bytes for part in parts)


@given(size=st.integers(0, 500), part_bytes=st.integers(1, 600), whole=st.booleans(), listed=st.booleans())
def test_parts_of_an_object_of_unknown_size_cover_it_once(
    size: int, part_bytes: int, whole: bool, listed: bool
) -> None:
    """Without a size one part waits for the first answer; what that did not bring follows, once."""
    download = an_object(RemoteUrl("a", size, None) if listed else "a", may_ignore_ranges=listed)
    assert download.can_plan()
    [first] = plan_all(download, part_bytes)
    assert (first.start, first.end, first.reserved_bytes) == (0, part_bytes, part_bytes)
    assert not download.completely_planned()
    end = size if whole else min(size, part_bytes)
    download.learn(ObjectVersion(size, "v1", end))
    others = plan_all(download, part_bytes)
    assert download.completely_planned()
    ends = [end, *(part.end or 0 for part in others)]
    assert [part.start for part in others] == ends[:-1]
    assert ends[-1] == size
    assert all(download.range_of(part.start, part.end).etag == "v1" for part in others)


def test_the_first_etag_is_kept() -> None:
    """Of the listing or of the first response; a known size plans nothing again."""
    download = an_object(RemoteUrl("a", 30, "listed"))
    download.plan(10)
    download.learn(ObjectVersion(30, "listed", 10))
    assert (download.etag, download.planned_bytes) == ("listed", 10)


def test_no_part_is_planned_of_a_closed_object() -> None:
    """In any state."""
    for planned in (0, 1, 2):
        download = an_object(RemoteUrl("a", 25))
        for _ in range(planned):
            download.plan(10)
        download.close()
        assert download.completely_planned()
        assert not download.can_plan()


def test_parts_of_two_versions_are_not_mixed() -> None:
    """Of equal size, from a listing without etags: an ObjectChangedError."""

    class Replaced(FakeStore):
        def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
            both.wait(20)  # both parts are requested before either response
            assert end is not None
            version = "v1" if start == 0 else "v2"
            return Answer(start, end, 20, version, single_chunk(version[1:].encode() * (end - start)))

    both = threading.Barrier(2)
    with store_of({}) as store:
        store.read = Replaced({}).read  # type: ignore[method-assign]
        scheduler = PartScheduler(FetchSession(options(max_in_flight=2, part_bytes=10), StorageOptions()))
        stream = ObjectStream(scheduler, RemoteUrl("a", 20))
        scheduler.release()
        try:
            with pytest.raises(ObjectChangedError):
                stream.read()
        finally:
            stream.close()
            both.abort()
