"""Manifests (index.json): what they tell, and what is refused."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.servers.files_over_http import files_over_http
from tests.support.scripted_store import AT_ONCE
from tests.support.shard_places import Place, memory_place
from torchdata_remote.cli import main
from torchdata_remote.errors import ManifestError, ObjectChangedError
from torchdata_remote.testing import write_small_shards

ENTRY: dict[str, Any] = {"url": "0.tar", "md5sum": "00", "nsamples": 1, "filesize": 1536}


def document(**changes: Any) -> bytes:
    return json.dumps({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": [ENTRY], **changes}).encode()


def listed(data: bytes, place: Place | None = None) -> list[tdr.RemoteUrl]:
    """The shards of a manifest."""
    place = place or memory_place()
    place.put({"index.json": data})
    return list(tdr.IterableWrapper([f"{place.url}index.json"]).list_remote())


def refused(data: bytes, place: Place | None = None) -> str:
    with pytest.raises(ManifestError) as caught:
        listed(data, place)
    assert "index.json" in str(caught.value)
    assert str(caught.value.url).endswith("/index.json")
    return str(caught.value)


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    st.lists(
        st.tuples(NAMES.filter(lambda name: name not in (".", "..")), st.integers(0, 10**9), st.integers(0, 10**13)),
        max_size=5,
        unique_by=lambda shard: unicodedata.normalize("NFC", shard[0]),
    )
)
def test_shards_are_where_the_manifest_is(shards: list[tuple[str, int, int]]) -> None:
    """Under any name, with any numbers; so a folder can move. Fields of other tools are no error."""
    entries = [{"url": name, "md5sum": "", "nsamples": n, "filesize": size, "other": 1} for name, n, size in shards]
    place = memory_place()
    if shards:
        found = listed(document(name="train", description="", shardlist=entries), place)
        assert [(str(url), url.num_samples, url.size) for url in found] == [
            (f"{place.url}{name}", number, size) for name, number, size in shards
        ]


@pytest.mark.parametrize("name", ["../0.tar", "/0.tar", "a/0.tar", "..", ".", "", "s3://other/0.tar", 3, None])
def test_a_shard_outside_the_folder_is_refused(name: Any) -> None:
    """An untrusted manifest cannot make a reader access other objects; the error names manifest and shard."""
    assert repr(name) in refused(document(shardlist=[{**ENTRY, "url": name}]))


@pytest.mark.parametrize(
    ("first", "second"), [("0.tar", "0.tar"), ("0.tar", "\u00e9.tar"), ("\u00e9.tar", "e\u0301.tar")]
)
def test_a_shard_named_twice_is_refused(first: str, second: str, tmp_path: Path) -> None:
    """On a disk also in two spellings that it may take for one; the error gives both entries, and the remedy."""
    entries = [{**ENTRY, "url": "before.tar"}, {**ENTRY, "url": first}, {**ENTRY, "url": second, "md5sum": "01"}]
    data = document(shardlist=entries)
    if unicodedata.normalize("NFC", first) == unicodedata.normalize("NFC", second):
        message = refused(data, Place(f"{tmp_path}/"))
        assert repr(second) in message
        assert "entries 1 and 2" in message
        assert "torchdata-remote manifest --overwrite" in message
    if first != second:
        assert [url.rpartition("/")[2] for url in listed(data)] == ["before.tar", first, second]


@pytest.mark.parametrize(
    ("names", "is_refused"),
    [
        *((names, True) for names in (["..%2F0.tar"], ["%2e%2e"], ["a%2f0.tar"], ["0.tar", "%30.tar"])),
        (["get?shard=0", "get?shard=1"], False),
    ],
)
def test_names_on_a_web_server_are_those_that_it_decodes(names: list[str], is_refused: bool, tmp_path: Path) -> None:
    """They cannot leave the folder, nor be one object in two spellings; a query is part of what is asked for.

    In a bucket and on a disk all of them are characters.
    """
    data = document(shardlist=[{**ENTRY, "url": name} for name in names])
    assert [url.rpartition("/")[2] for url in listed(data)] == names
    (tmp_path / "index.json").write_bytes(data)
    with files_over_http(tmp_path) as url:
        urls = tdr.IterableWrapper([f"{url}/index.json"]).list_remote()
        if is_refused:
            with pytest.raises(ManifestError, match=r"is not a base name|entries 0 and 1"):
                list(urls)
        else:
            assert [str(one).rpartition("/")[2] for one in urls] == names


def test_a_manifest_that_names_a_shard_twice_is_read_by_no_reader(memory_folder: str) -> None:
    """Neither a stream, nor the map-style dataset, nor a job that takes the shards as its source doubles samples."""
    write_small_shards(memory_folder, num_shards=2, samples_per_shard=3)
    place = Place(f"{memory_folder}/")
    found = json.loads(place.files()["index.json"])
    found["shardlist"].append(found["shardlist"][0])
    place.put({"index.json": json.dumps(found).encode()})
    manifest = f"{memory_folder}/index.json"
    readers: list[Callable[[], Any]] = [
        lambda: list(tdr.stream_shards(manifest)),
        lambda: tdr.ShardedDataset(memory_folder),
        lambda: tdr.shard_dataset(manifest, f"{memory_folder}-out/{{shard}}.tar", seed=0),
    ]
    for read in readers:
        with pytest.raises(ManifestError, match=r"000000\.tar"):
            read()
    assert main(["verify", memory_folder]) == 1


NO_MANIFESTS = [b"", b"{", b"[]", b"3", b"null", b"{}", b"\xff\xfe\xfd", b"[" * 100_000]
NO_MANIFESTS += [document(shardlist=None), document(shardlist={}).replace(b"{}", b"3"), document(shardlist=[3])]
NO_MANIFESTS += [document(shardlist=[{"url": "0.tar"}])]
WRONG: list[tuple[str, Any]] = [("nsamples", "many"), ("nsamples", -1), ("filesize", None), ("filesize", -1)]
WRONG += [("nsamples", float("inf"))]


@pytest.mark.parametrize("data", NO_MANIFESTS, ids=range(len(NO_MANIFESTS)))
def test_what_is_no_manifest_is_an_error_that_names_the_object(data: bytes) -> None:
    refused(data)


def test_a_manifest_of_another_kind_is_refused_by_name() -> None:
    message = refused(document(__kind__="litdata"))
    assert "wids-shard-index-v1" in message
    assert "'litdata'" in message


SUMS: list[tuple[str, Any]] = [("crc32_block_bytes", size) for size in (0, 1, 1 << 40)]
SUMS += [("crc32", text) for text in ("zz", "", 7)]
SUMS += [(f"{name}_crc32", text) for name in ("index", "keys") for text in ("zz", "-1", "123456789", 7)]


@pytest.mark.parametrize(("field", "value"), [*WRONG, *SUMS])
def test_a_manifest_with_impossible_numbers_is_refused(field: str, value: object) -> None:
    """It cannot make a reader hold more than a block of reasonable size, nor fail in odd ways."""
    place = memory_place()
    with tdr.ShardWriter(place.template()) as writer:
        writer.write({"__key__": "a", "txt": "1"})
    found = json.loads(place.files()["index.json"])
    assert len(listed(json.dumps(found).encode(), place)) == 1
    found["shardlist"][0][field] = value
    refused(json.dumps(found).encode(), place)


def stale(place: Place, num_samples: int) -> str:
    """A manifest without checksums, of which one shard was replaced by another one of so many samples; its URL."""
    other = memory_place()
    write_small_shards(other.url, num_shards=1, samples_per_shard=num_samples)
    source = memory_place()
    write_small_shards(source.url, num_shards=2, samples_per_shard=4)
    files = source.files()
    found = json.loads(files["index.json"])
    for entry in found["shardlist"]:
        for name in [name for name in entry if "crc32" in name]:
            del entry[name]
    place.put({**files, "index.json": json.dumps(found).encode(), "000001.tar": other.files()["000000.tar"]})
    return f"{place.url}index.json"


STREAMS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda urls: urls.async_prefetch(retry=AT_ONCE).shard_tar_reader(),
    "as it comes": lambda urls: urls.shard_tar_reader(),
    "a part": lambda urls: urls.sharding_filter_rank(world=tdr.World(2, 3)).shard_tar_reader(),
    "selected": lambda urls: urls.select(keys=["5/000005"]).async_prefetch(retry=AT_ONCE).shard_tar_reader(),
    "lazy": lambda urls: urls.async_prefetch(retry=AT_ONCE).shard_tar_reader(lazy={"txt"}),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("num_samples", [3, 6])
def test_a_shard_of_another_size_than_its_manifest_says_is_an_error(
    name: str, num_samples: int, tmp_path: Path
) -> None:
    """Also without checksums, in stores without etags, and for readers of a part of it."""
    for place in (memory_place(), Place(f"{tmp_path}/")):
        url = stale(place, num_samples)
        with pytest.raises((ObjectChangedError, ManifestError), match=r"000001\.tar"):
            list(STREAMS[name](tdr.IterableWrapper([url]).list_remote()))


@pytest.mark.parametrize("num_samples", [3, 6])
def test_a_map_style_dataset_notices_a_shard_of_another_size_than_its_manifest_says(
    num_samples: int, tmp_path: Path
) -> None:
    for place in (memory_place(), Place(f"{tmp_path}/")):
        with pytest.raises(ObjectChangedError, match=r"000001\.tar has [\d,]+ bytes, and its manifest says"):
            tdr.ShardedDataset(stale(place, num_samples))
