"""Damaged objects of the cache: they are dropped and fetched, and their bytes are never returned."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cache_folder import ALONE, ETAG, LARGE, URL, Stored, bytes_in, keep, kept, objects_in, path_of
from tests.support.cached_store import CountingStore, cached, epoch, options
from torchdata_remote.core.checksums import Checksums
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import ShardCorruptError
from torchdata_remote.fetch.cache import block_checksums as cache_blocks
from torchdata_remote.fetch.cache import entry as cached_file
from torchdata_remote.fetch.cache.disk_cache import DiskCache
from torchdata_remote.fetch.cache.entry import DamagedError
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects


def flip(stored: Stored, bit: int) -> None:
    """Flip one bit of an object, as a failing disk does."""
    data = bytearray(stored.path.read_bytes())
    data[stored.offset + bit // 8 % stored.size] ^= 1 << bit % 8
    stored.path.write_bytes(data)


@settings(max_examples=60)
@given(
    size=st.integers(1, 60),
    bit=st.integers(0, 8 * 100),
    part_bytes=st.integers(1, 30),
    block_bytes=st.sampled_from([8, 32, 64]),
    in_order=st.booleans(),
)
def test_a_flipped_bit_is_never_returned(
    size: int, bit: int, part_bytes: int, block_bytes: int, in_order: bool
) -> None:
    """Wherever it is in the object, and however the object is cut: it is fetched, then kept again."""
    data = bytes(range(1, size + 1))
    with cached({"a": data}) as (store, folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_blocks, "BLOCK_BYTES", block_bytes)
        patch.setattr(cached_file, "BLOCK_BYTES", block_bytes)
        chosen = options(folder, ALONE, part_bytes=part_bytes, in_order=in_order)
        assert epoch(store, chosen, listed=True) == {"a": data}
        [stored] = objects_in(folder).values()
        flip(stored, bit)
        gets = store.gets
        assert epoch(store, chosen, listed=True) == {"a": data}
        assert store.gets > gets, "the damage was seen"
        assert epoch(store, chosen, listed=True) == {"a": data}  # which may be the pass that keeps it
        gets = store.gets
        assert epoch(store, chosen, listed=True) == {"a": data}
        assert store.gets == gets
        assert [bytes_in(stored) for stored in objects_in(folder).values()] == [data]


def read_with_checksums(store: CountingStore, folder: str, crc32: int, retry: RetryPolicy) -> bytes:
    """Read the object ``a`` as a manifest with checksums lists it."""
    url = RemoteUrl("a", len(store.objects["a"]), store.etag("a"), checksums=Checksums(1 << 16, (crc32,)))
    session = FetchSession(options(folder, retry=retry), StorageOptions())
    [data] = [stream.read() for _, stream in stream_objects([url], session)]
    return data


@pytest.mark.parametrize("max_attempts", [1, 4])
def test_the_store_is_not_blamed_for_the_cache(max_attempts: int) -> None:
    """Bytes that were damaged on the way into the cache, before there was a manifest, are dropped and fetched."""
    sound, retry = bytes(range(50)), RetryPolicy(first_wait_s=0, max_wait_s=0, max_attempts=max_attempts)
    with cached({"a": sound}) as (store, folder):
        etag = store.etag("a")
        keep(DiskCache(folder, LARGE), bytes(50), "a", str(etag))
        assert read_with_checksums(store, folder, zlib.crc32(sound), retry) == sound
        assert not objects_in(folder)
        assert read_with_checksums(store, folder, zlib.crc32(sound), retry) == sound
        assert [bytes_in(stored) for stored in objects_in(folder).values()] == [sound]


def test_an_object_that_is_damaged_in_the_store_is_an_error_with_a_cache_too() -> None:
    """The error is the store's, after a second request, and nothing is cached."""
    with cached({"a": bytes(50)}) as (store, folder):
        keep(DiskCache(folder, LARGE), bytes(50), "a", str(store.etag("a")))
        with pytest.raises(ShardCorruptError, match="also when it was fetched again"):
            read_with_checksums(store, folder, 1, RetryPolicy(first_wait_s=0, max_wait_s=0))
        assert store.gets == 2
        assert not objects_in(folder)


def test_each_block_is_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each opened object, in any order of requests."""
    monkeypatch.setattr(cache_blocks, "BLOCK_BYTES", 10)
    monkeypatch.setattr(cached_file, "BLOCK_BYTES", 10)
    keep(disk := DiskCache(str(tmp_path), ALONE), data := os.urandom(35))
    compared: list[int] = []

    def crc32(data: memoryview) -> int:
        compared.append(len(data))
        return zlib.crc32(data)

    monkeypatch.setattr(cached_file, "zlib", type("zlib", (), {"crc32": staticmethod(crc32)}))
    found = disk.find(URL, 35, ETAG)
    assert found is not None
    for start, end in ((12, 15), (12, 15), (9, 31), (0, None), (34, 99)):
        assert found.view(start, end) == data[start:end]
    assert sorted(compared) == [5, 10, 10, 10]


def test_a_file_in_place_of_another_one_is_not_handed_out(tmp_path: Path) -> None:
    """Checksums are in the index."""
    disk = DiskCache(str(tmp_path), ALONE)
    first, second = (path_of(disk, tmp_path, data, data.decode()) for data in (b"aaaa", b"bbbb"))
    os.replace(first, second)
    assert kept(disk, 4, "bbbb") is None


@pytest.mark.parametrize("num_bytes", [30, 300_000])
def test_bytes_that_a_crash_of_the_host_lost_are_noticed(tmp_path: Path, num_bytes: int) -> None:
    """A file of the right length that contains zeros from any byte on, and an index that contains the object."""
    disk = DiskCache(str(tmp_path), LARGE)
    data = os.urandom(num_bytes)
    for number in range(3):
        keep(disk, data, f"{number}")
    for number, stored in enumerate(objects_in(tmp_path).values()):
        with stored.path.open("r+b") as file:
            kept_bytes = number * stored.size // 3
            file.seek(stored.offset + kept_bytes)
            file.write(bytes(stored.size - kept_bytes))
    assert [kept(disk, num_bytes, f"{number}") for number in range(3)] == [None] * 3


def test_dropping_a_damaged_object_spares_its_replacement(tmp_path: Path) -> None:
    """Another thread may have stored a sound one since."""
    disk = DiskCache(str(tmp_path), LARGE)
    keep(disk, b"abcde")
    found = disk.find(URL, 5, ETAG)
    assert found is not None
    disk.drop(found)
    assert kept(disk, 5) is None
    keep(disk, b"abcde")
    disk.drop(found)
    assert kept(disk, 5) == b"abcde"


def test_other_processes_do_not_find_a_dropped_object(tmp_path: Path) -> None:
    """Also where there was no room to store it again."""
    disk = DiskCache(str(tmp_path), LARGE)
    keep(disk, b"abcde")
    found = disk.find(URL, 5, ETAG)
    assert found is not None
    disk.drop(found)
    keep(disk, b"x", "another")
    assert kept(DiskCache(str(tmp_path), LARGE), 5) is None


def test_a_shortened_file_is_an_error(tmp_path: Path) -> None:
    """And not fewer bytes."""
    disk = DiskCache(str(tmp_path), LARGE)
    path = path_of(disk, tmp_path, os.urandom(50))
    found = disk.find(URL, 50, ETAG)
    assert found is not None
    os.truncate(path, 20)
    with pytest.raises((EOFError, DamagedError)):
        found.view(0, None)
