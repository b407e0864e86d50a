"""Temporary objects."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.shard_places import Place, memory_place
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.sharding.temporary_objects import Kept, TemporaryObjects
from torchdata_remote.storage.listing.folder import list_folder


def scratch_in(place: Place, object_bytes: int = 10) -> TemporaryObjects:
    return TemporaryObjects(f"{place.url}unpacked-", StorageOptions(place.options), object_bytes=object_bytes)


def listed(place: Place) -> list[str]:
    """Names of what anybody sees, which files that are being written are not."""
    found = list_folder(place.url, recursive=True, options=StorageOptions(place.options), retry=RetryPolicy())
    return [url.rpartition("/")[2] for url in found]


@given(
    pieces=st.lists(st.binary(max_size=12), max_size=12),
    object_bytes=st.integers(1, 20),
    ends=st.sets(st.integers(0, 12)),
)
def test_stored_bytes_are_at_the_returned_location(pieces: list[bytes], object_bytes: int, ends: set[int]) -> None:
    """Pieces of any size, objects that are full or finished early; a piece is never split."""
    place = memory_place()
    scratch = scratch_in(place, object_bytes)
    kept: list[Kept] = []
    for number, piece in enumerate(pieces):
        kept.append(scratch.put(memoryview(piece)))
        if number in ends:
            scratch.finish()
    scratch.finish()
    files = place.files()
    assert scratch.used == bool(pieces)
    for piece, (url, start) in zip(pieces, kept, strict=True):
        assert files[url.removeprefix(place.url)][start : start + len(piece)] == piece
    assert b"".join(files[name] for name in sorted(files)) == b"".join(pieces)
    assert all(start < object_bytes for _, start in kept), "an object that is full gets no more"


def test_an_object_is_published_when_it_is_full_or_finished(place: Place) -> None:
    """An object appears when it is full or finished; what is aborted leaves nothing."""
    scratch = scratch_in(place)
    scratch.put(b"1234567890")
    assert listed(place) == []
    scratch.put(b"next")
    assert listed(place) == ["unpacked-000000"]
    scratch.abort()
    assert place.files() == {"unpacked-000000": b"1234567890"}
    scratch.finish()
    assert place.files() == {"unpacked-000000": b"1234567890"}


def test_bytes_after_an_abort_go_into_a_new_object(place: Place) -> None:
    """Not into the aborted one."""
    scratch = scratch_in(place)
    scratch.put(b"lost")
    scratch.abort()
    scratch.abort()
    kept = scratch.put(b"kept")
    scratch.finish()
    assert (kept.url.rpartition("/")[2], kept.start) == ("unpacked-000001", 0)
    assert place.files() == {"unpacked-000001": b"kept"}


def test_remove_removes_all_objects_and_nothing_else(place: Place) -> None:
    """And nothing else; where there is nothing, nothing is done."""
    scratch_in(place).remove()
    scratch = scratch_in(place, 1)
    for _ in range(3):
        scratch.put(b"x")
    scratch.finish()
    place.put({"t-0.tar": b"", "unpacked": b""})
    assert len(place.files()) == 5
    scratch_in(place).remove()
    assert set(place.files()) == {"t-0.tar", "unpacked"}


def test_nothing_is_written_before_the_first_bytes() -> None:
    """It makes no object before something is put into it."""
    place = memory_place()
    scratch = scratch_in(place)
    scratch.finish()
    scratch.abort()
    assert not scratch.used
    assert place.files() == {}
