"""Keys of shards: from the file beside them, or from their headers; a file of another shard is an error."""

from __future__ import annotations

import gzip
import tarfile
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.scripted import Response, scripted
from tests.support.shard_places import tar_of
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import BadMemberError, ManifestError, ShardReadError
from torchdata_remote.fetch.read_ahead import ReadAhead
from torchdata_remote.fetch.selections.key_indexes import key_indexes
from torchdata_remote.formats.key_index import KeyIndex, dump_keys

URL = "memory://key-indexes/0.tar"


def _tar(members: Sequence[tuple[str, bytes]], *, kind: int = tarfile.USTAR_FORMAT) -> bytes:
    return tar_of(members, tar_format=kind)


def _store(tar: bytes, keys: bytes | None = None, **known: Any) -> RemoteUrl:
    memory = fsspec.filesystem("memory")
    memory.pipe("/key-indexes/0.tar", tar)
    if memory.exists("/key-indexes/0.tar.keys"):
        memory.rm("/key-indexes/0.tar.keys")
    if keys is not None:
        memory.pipe("/key-indexes/0.tar.keys", keys)
    return RemoteUrl(URL, len(tar), **known)


def _read(url: RemoteUrl) -> KeyIndex:
    ((_, index),) = key_indexes([url], StorageOptions(), RetryPolicy())
    return index


def _scanned(tar: bytes) -> KeyIndex:
    with pytest.warns(RuntimeWarning, match="torchdata-remote manifest --overwrite"):
        return _read(_store(tar))


def _members(index: KeyIndex) -> list[tuple[str, str, int, int]]:
    keys = np.repeat(np.array(index.keys, dtype=object), index.counts).tolist()
    names = [index.extensions[member] for member in index.members]
    return list(zip(keys, names, index.starts.tolist(), index.sizes.tolist(), strict=True))


SMALL = [("a.jpg", b"12"), ("a.cls", b"3"), ("b.jpg", b"4567"), ("b.cls", b"8")]


@given(
    samples=st.lists(st.lists(st.integers(0, 9_000), min_size=1, max_size=3), min_size=1, max_size=40),
    kind=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    key_length=st.sampled_from([1, 30, 180]),
)
def test_headers_give_the_places_of_all_members(samples: list[list[int]], kind: int, key_length: int) -> None:
    """Whatever the sizes and headers of members, the data of each are where the index says; the file says the same."""
    suffix = "é" * key_length if kind != tarfile.USTAR_FORMAT else ""
    members = [
        (f"k{at}{suffix}.{name}", bytes([at % 251]) * size)
        for at, sizes in enumerate(samples)
        for name, size in zip(("jpg", "cls", "txt"), sizes, strict=False)
    ]
    tar = _tar(members, kind=kind)
    index = _scanned(tar)
    found = [(f"{key}.{name}", tar[start : start + size]) for key, name, start, size in _members(index)]
    assert found == members
    from_file = _read(_store(tar, dump_keys(index), num_samples=len(samples)))
    assert _members(from_file) == _members(index)


def test_members_are_grouped_as_readers_group_them() -> None:
    """Leading ./ is dropped, extensions are lower, members named like __this__ and folders are left out."""
    tar = _tar([("__meta__", b"no"), ("./x/a.JPG", b"1"), ("x/a.cls", b"2"), ("__end__", b"no"), ("b.seg.PNG", b"")])
    index = _scanned(tar)
    assert [row[:2] for row in _members(index)] == [("x/a", "jpg"), ("x/a", "cls"), ("b", "seg.png")]


def test_member_without_a_place_is_an_error() -> None:
    """A member that cannot be part of a sample is an error, as it is for readers."""
    with pytest.raises(BadMemberError, match="no extension"):
        _read(_store(_tar([("README", b"")])))


def test_large_members_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a shard with large members only the headers are requested."""
    opened: list[ReadAhead] = []

    class Recorded(ReadAhead):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            opened.append(self)

    monkeypatch.setattr("torchdata_remote.fetch.selections.key_indexes.ReadAhead", Recorded)
    index = _scanned(_tar([(f"{at}.bin", bytes(2 << 20)) for at in range(4)]))
    assert index.starts.tolist() == [512 + at * (512 + (2 << 20)) for at in range(4)]
    assert sum(one.fetched_bytes for one in opened) < 64 << 10


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"not an archive",
        lambda data: data[:100] + b"\xff" * 20 + data[120:],
    ],
)
def test_damaged_file_is_an_error(damage: Any) -> None:
    """A file that is cut short, empty or changed is refused, with what to do."""
    tar = _tar(SMALL)
    good = dump_keys(_scanned(tar))
    url = _store(tar, damage(good), num_samples=2)
    with pytest.raises(ManifestError, match="manifest --overwrite"):
        _read(url)


def test_checksum_in_the_manifest_is_verified() -> None:
    """With the checksum of the manifest the file needs no look at the shard; another file is refused."""
    tar = _tar(SMALL)
    data = dump_keys(_scanned(tar))
    url = _store(b"\1" * len(tar), data, num_samples=2)
    known = RemoteUrl(url, len(tar), num_samples=2)
    known.keys_crc32 = zlib.crc32(data)
    assert list(_read(known).keys) == ["a", "b"]
    known.keys_crc32 = zlib.crc32(data) ^ 1
    with pytest.raises(ManifestError, match="CRC-32"):
        _read(known)


@pytest.mark.parametrize(
    "other",
    [
        [("a.jpg", b"12"), ("a.cls", b"3"), ("c.jpg", b"4567"), ("c.cls", b"8")],
        [("a.jpg", b"12"), ("a.cls", b"3"), ("b.png", b"4567"), ("b.cls", b"8")],
        [("a.jpg", b"12"), ("a.cls", b"3"), ("b.jpg", b"45678"), ("b.cls", b"8")],
        [("a.jpg", b"12" * 900), ("a.cls", b"3"), ("b.jpg", b"4567"), ("b.cls", b"8")],
        [*SMALL, ("c.jpg", b"1"), ("c.cls", b"1")],
        SMALL[:2],
    ],
)
def test_file_of_another_version_is_an_error(other: list[tuple[str, bytes]]) -> None:
    """Without a checksum, a shard that has another last sample than its file shows that they do not belong together."""
    data = dump_keys(_scanned(_tar(SMALL)))
    with pytest.raises(ManifestError, match=r"another version|another one|none begins"):
        _read(_store(_tar(other), data))


def test_a_query_stays_behind_the_name_of_the_file() -> None:
    """A server that ignores queries would give the shard itself, whole, as the file of its keys."""
    tar = _tar([("a.txt", b"a"), ("b.txt", b"b")])
    objects = {"/0.tar": tar, "/0.tar.keys": dump_keys(_scanned(tar))}
    with scripted(lambda request: Response.of_object(request, objects[request.target.partition("?")[0]])) as server:
        url = RemoteUrl(f"{server.url}/0.tar?download=true", len(tar))
        assert list(_read(url).keys) == ["a", "b"]
        assert server.requests[0].target == "/0.tar.keys?download=true"


def test_keys_that_were_damaged_on_their_way_are_read_again() -> None:
    """As a block of a shard that does not match its checksum."""
    tar = _tar([("a.txt", b"a"), ("b.txt", b"b")])
    keys = dump_keys(_scanned(tar))
    answers = [keys[:-1] + b"x", keys]
    with scripted(lambda request: Response.of_object(request, answers.pop(0))) as server:
        url = RemoteUrl(f"{server.url}/0.tar", len(tar), num_samples=2, keys_crc32=zlib.crc32(keys))
        assert list(_read(url).keys) == ["a", "b"]
    assert not answers


def test_compressed_and_zip_shards_are_refused() -> None:
    """Samples of compressed shards cannot be read one by one: the error says what to do."""
    with pytest.raises(ManifestError, match=r"compressed by gzip.*uncompressed"):
        _read(_store(gzip.compress(_tar(SMALL))))
    with pytest.raises(ShardReadError, match="is a zip"):
        _read(_store(b"PK\x03\x04" + bytes(100)))


def test_number_of_samples_in_the_manifest_is_verified() -> None:
    """A shard whose headers have another number of samples than the manifest was replaced."""
    with pytest.raises(ManifestError, match="has 2 samples, and its manifest has 3"):
        _read(_store(_tar(SMALL), num_samples=3))


def test_many_shards_in_order_with_one_warning() -> None:
    """Indexes come in the order of the shards, and those without files warn once."""
    memory, urls = fsspec.filesystem("memory"), []
    for at in range(40):
        tar = _tar([(f"{at}.txt", b"x")])
        memory.pipe(f"/key-indexes/many/{at}.tar", tar)
        urls.append(RemoteUrl(f"memory://key-indexes/many/{at}.tar", len(tar)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = list(key_indexes(urls, StorageOptions(), RetryPolicy()))
    assert [(str(url), list(index.keys)) for url, index in found] == [
        (str(url), [str(at)]) for at, url in enumerate(urls)
    ]
    assert len([one for one in caught if "manifest --overwrite" in str(one.message)]) == 1
