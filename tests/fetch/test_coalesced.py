"""Many ranges of many objects at once."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.shard_places import Place, memory_place
from torchdata_remote.core.options import FetchOptions, StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import ObjectChangedError, ObjectNotFoundError, StorageError
from torchdata_remote.fetch import coalesced as coalesced_module
from torchdata_remote.fetch.coalesced import RangeCoalescer
from torchdata_remote.fetch.sample_table import Members
from torchdata_remote.fetch.session import FetchSession

GAP, CHUNK = 64, 256  # instead of 128 KiB and 8 MiB
CONTENT = np.random.default_rng(0).bytes(40_000)
NEAR_GAP = st.sampled_from([0, 0, 1, GAP - 1, GAP, GAP + 1, 3 * GAP])
NEAR_CHUNK = st.sampled_from([0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK]) | st.integers(0, 40)
LAYOUT = st.lists(st.lists(st.tuples(NEAR_GAP, NEAR_CHUNK), max_size=6), max_size=4)  # gaps and sizes, by object
Ranges = list[tuple[int, int, int]]


@pytest.fixture
def small_steps() -> Iterator[None]:
    """Split ranges of some hundred bytes into several requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coalesced_module, "GAP_BYTES", GAP)
        patch.setattr(coalesced_module, "_CHUNK_BYTES", CHUNK)
        yield


def members(urls: list[RemoteUrl], ranges: Ranges) -> Members:
    """Ranges: number of the object, first byte, length."""
    objects, starts, sizes = np.array(ranges, np.int64).reshape(-1, 3).T
    return Members(urls, [str(index) for index in range(len(ranges))], objects, starts, sizes, np.ones_like(sizes))


def coalescer_of(place: Place) -> RangeCoalescer:
    options = StorageOptions(place.options)
    return RangeCoalescer(FetchSession(FetchOptions(max_in_flight=4), options), lambda url: options)


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("torchdata_remote")}


@settings(max_examples=20)
@given(layout=LAYOUT, order=st.randoms(use_true_random=False))
@example(layout=[], order=None)
@example(layout=[[(0, 0)]], order=None)
@pytest.mark.usefixtures("small_steps")
def test_any_ranges_are_returned_in_the_requested_order(
    place: Place, layout: list[list[tuple[int, int]]], order: object
) -> None:
    """With any gaps, sizes and order."""
    ranges: Ranges = []
    lengths = []
    for number, spans in enumerate(layout):
        end = 0
        for gap, size in spans:
            ranges.append((number, end + gap, size))
            end += gap + size
        lengths.append(end)
    if order is not None:
        order.shuffle(ranges)  # type: ignore[attr-defined]
    folder = place.below(uuid.uuid4().hex)
    contents = [CONTENT[7 * number :][:length] for number, length in enumerate(lengths)]
    folder.put({f"{number}.bin": content for number, content in enumerate(contents)})
    urls = [RemoteUrl(f"{folder.url}{number}.bin", length) for number, length in enumerate(lengths)]
    with coalescer_of(place) as coalescer:
        found = coalescer.start_read(members(urls, ranges)).wait()
    assert [bytes(data) for data in found] == [contents[number][start : start + size] for number, start, size in ranges]
    assert all(data.readonly for data in found)


def test_members_larger_than_a_request_beside_small_and_empty_ones(place: Place) -> None:
    """A member larger than a request, next to small ones, far apart ones and empty ones."""
    content = np.random.default_rng(1).bytes(20 << 20)
    place.put({"a.bin": content, "b.bin": b"", "c.bin": b"end"})
    urls = [RemoteUrl(f"{place.url}{name}.bin", size) for name, size in (("a", len(content)), ("b", 0), ("c", 3))]
    ranges = [(2, 0, 3), (0, 19 << 20, 100), (0, 1, 17 << 20), (1, 0, 0), (0, 0, 1), (0, 18 << 20, 0), (2, 3, 0)]
    with coalescer_of(place) as coalescer:
        found = coalescer.start_read(members(urls, ranges)).wait()
    assert bytes(found[0]) == b"end"
    assert found[1] == content[19 << 20 :][:100]
    assert found[2] == content[1 : 1 + (17 << 20)]
    assert [len(data) for data in found] == [size for _, _, size in ranges]


def test_several_reads_can_be_pending(place: Place) -> None:
    """Each returns its own members, also after the session ended."""
    place.put({"a.bin": CONTENT})
    urls = [RemoteUrl(f"{place.url}a.bin", len(CONTENT))]
    cuts = list(pairwise(range(0, len(CONTENT) + 1, 4000)))
    with coalescer_of(place) as coalescer:
        begun = [coalescer.start_read(members(urls, [(0, start, end - start)])) for start, end in cuts]
        found = [one.wait() for one in begun]
    assert b"".join(bytes(data) for (data,) in found) == CONTENT


def test_requests_are_merged_where_they_are_close() -> None:
    """A gap of 128 KiB is read along, a larger one is not, and another object never."""
    urls = [RemoteUrl("memory://a", 1 << 30), RemoteUrl("memory://b", 1 << 30)]
    gap = coalesced_module.GAP_BYTES
    ranges = [(0, 10 + gap, 5), (1, 20 + gap, 1), (0, 0, 10), (0, 16 + 2 * gap, 1), (0, 7, 0)]
    chunks = [
        (index, chunk.start, chunk.end, chunk.members.tolist())
        for index, chunk in coalesced_module._chunks(members(urls, ranges))
    ]
    assert chunks == [
        (0, 0, 15 + gap, [2, 0]),
        (0, 16 + 2 * gap, 17 + 2 * gap, [3]),
        (1, 20 + gap, 21 + gap, [1]),
    ]


def test_no_request_is_larger_than_8_mib() -> None:
    """A long run is cut into requests of about one length, of which each knows its members."""
    size = 3 << 20
    ranges = [(0, number * size, size) for number in range(11)]
    chunks = [chunk for _, chunk in coalesced_module._chunks(members([RemoteUrl("memory://a")], ranges))]
    assert [chunk.start for chunk in chunks] == [0, *(chunk.end for chunk in chunks[:-1])]
    assert chunks[-1].end == 11 * size
    assert all(chunk.end - chunk.start <= 8 << 20 for chunk in chunks)
    for chunk in chunks:
        touched = [n for n in range(11) if n * size < chunk.end and (n + 1) * size > chunk.start]
        assert chunk.members.tolist() == touched


def test_a_missing_object_raises_its_error(place: Place) -> None:
    """No thread continues."""
    before = engine_threads()
    place.put({f"{number}.bin": CONTENT for number in range(6)})
    place.delete("3.bin")
    urls = [RemoteUrl(f"{place.url}{number}.bin", len(CONTENT)) for number in range(6)]
    with pytest.raises(ObjectNotFoundError, match=r"3\.bin"), coalescer_of(place) as coalescer:
        coalescer.start_read(members(urls, [(number, 100, 1000) for number in range(6)])).wait()
    for thread in engine_threads() - before:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("place", ["local", "s3"], indirect=True)
def test_a_changed_object_is_an_error(place: Place) -> None:
    """Bytes of another version than listed are never returned."""
    place.put({"a.bin": CONTENT})
    url = RemoteUrl(f"{place.url}a.bin", len(CONTENT), '"another"')
    with pytest.raises(ObjectChangedError, match=r"a\.bin"), coalescer_of(place) as coalescer:
        coalescer.start_read(members([url], [(0, 0, 10)])).wait()


def test_an_object_shorter_than_listed_is_an_error() -> None:
    """A member would end after its object."""
    place = memory_place()
    place.put({"a.bin": CONTENT[:50]})
    with pytest.raises(StorageError, match=r"a\.bin"), coalescer_of(place) as coalescer:
        coalescer.start_read(members([RemoteUrl(f"{place.url}a.bin", 100)], [(0, 40, 20)])).wait()


def test_local_and_remote_members_in_one_read(tmp_path: Path) -> None:
    """Each URL has its own options."""
    disk, memory = Place(f"{tmp_path}/"), memory_place()
    disk.put({"a.bin": CONTENT})
    memory.put({"a.bin": CONTENT[::-1]})
    urls = [RemoteUrl(f"{place.url}a.bin", len(CONTENT)) for place in (disk, memory)]
    asked: list[str] = []

    def options_of(url: str) -> StorageOptions:
        asked.append(url)
        return StorageOptions()

    with RangeCoalescer(FetchSession(FetchOptions(), StorageOptions()), options_of) as coalescer:
        found = coalescer.start_read(members(urls, [(1, 5, 10), (0, 5, 10)])).wait()
    assert [bytes(data) for data in found] == [CONTENT[::-1][5:15], CONTENT[5:15]]
    assert set(asked) == set(urls)


def test_a_file_that_is_read_whole_is_not_kept_open(tmp_path: Path) -> None:
    """Millions of files must not be mapped at once; an archive stays mapped, as more of it will be wanted."""
    place = Place(f"{tmp_path}/")
    place.put({"a.bin": CONTENT, "b.bin": CONTENT})
    urls = [RemoteUrl(f"{place.url}{name}.bin", len(CONTENT)) for name in "ab"]
    with coalescer_of(place) as coalescer:
        coalescer.start_read(members(urls, [(0, 0, len(CONTENT)), (1, 0, 10)])).wait()
        assert set(coalescer._mapped) == {urls[1]}
    assert not coalescer._mapped
