from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote import ShardedDataset, ShardWriter, shard_dataset, stream_shards
from torchdata_remote.errors import ManifestError
from torchdata_remote.formats.manifest import MANIFEST_NAME, ShardInfo, dump_manifest, load_manifest
from torchdata_remote.inspection import verify_shards
from torchdata_remote.testing import write_small_shards

URL = "s3://b/train/index.json"
BASE_NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda name: name not in (".", ".."))
SHARDS = st.lists(
    st.builds(
        ShardInfo,
        url=BASE_NAMES.map(lambda name: f"s3://b/train/{name}"),
        num_samples=st.integers(0, 10**9),
        num_bytes=st.integers(0, 10**13),
        md5=st.text("0123456789abcdef", min_size=32, max_size=32),
        index_crc32=st.none() | st.integers(0, 2**32 - 1),
        keys_crc32=st.none() | st.integers(0, 2**32 - 1),
    ),
    max_size=5,
    unique_by=lambda shard: unicodedata.normalize("NFC", shard.url),
)
ENTRY: dict[str, Any] = {"url": "0.tar", "md5sum": "00", "nsamples": 1, "filesize": 1536}


def _document(**changes: Any) -> bytes:
    document = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": [ENTRY], **changes}
    return json.dumps(document).encode()


@given(SHARDS)
def test_a_manifest_preserves_its_shards(shards: list[ShardInfo]) -> None:
    """Whatever their names and numbers."""
    assert load_manifest(dump_manifest(shards), URL) == shards


@given(SHARDS)
def test_the_folder_can_move(shards: list[ShardInfo]) -> None:
    """The manifest holds base names, so that shards are where the manifest is."""
    moved = load_manifest(dump_manifest(shards), "file:///data/index.json")
    assert [shard.url for shard in moved] == [
        "file:///data/" + shard.url.removeprefix("s3://b/train/") for shard in shards
    ]


def test_the_fields_are_those_of_wids() -> None:
    """Name, type and meaning of each, as WebDataset's ``widsindex`` writes them."""
    document = json.loads(dump_manifest([ShardInfo("s3://b/train/0.tar", 3, 4096, "ab" * 16)]))
    assert document == {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "shardlist": [{"url": "0.tar", "md5sum": "ab" * 16, "nsamples": 3, "filesize": 4096}],
    }


def test_wids_reads_our_manifest(tmp_path: Path) -> None:
    """WebDataset's random access finds every sample through the manifest."""
    wids = pytest.importorskip("wids", reason="webdataset before 1.0 has it")
    with ShardWriter(str(tmp_path / "t-{shard:03d}.tar"), max_shard_samples=3) as writer:
        for i in range(8):
            writer.write({"__key__": f"a/{i}", "cls": i, "txt": f"line {i}"})
    dataset = wids.ShardListDataset(
        str(tmp_path / MANIFEST_NAME), base=str(tmp_path), cache_dir=str(tmp_path / "cache"), transformations=[]
    )
    assert len(dataset) == 8
    got = [dataset[i] for i in range(8)]
    assert [(sample["__key__"], sample[".cls"].read(), sample[".txt"].read()) for sample in got] == [
        (f"a/{i}", str(i).encode(), f"line {i}".encode()) for i in range(8)
    ]


def test_what_wids_writes_is_read() -> None:
    """Its index has more fields than ours; they are no error."""
    data = _document(name="train", description="", shardlist=[{**ENTRY, "other": 1}])
    assert load_manifest(data, URL) == [ShardInfo("s3://b/train/0.tar", 1, 1536, "00")]


@pytest.mark.parametrize("name", ["../0.tar", "/0.tar", "a/0.tar", "..", ".", "", "s3://other/0.tar", 3, None])
def test_a_shard_outside_the_folder_is_refused(name: Any) -> None:
    """An untrusted manifest cannot make a reader access other objects; the error names manifest and shard."""
    with pytest.raises(ManifestError) as caught:
        load_manifest(_document(shardlist=[{**ENTRY, "url": name}]), URL)
    assert URL in str(caught.value)
    assert repr(name) in str(caught.value)
    assert caught.value.url == URL


@pytest.mark.parametrize(
    ("url", "first", "second"),
    [
        (URL, "0.tar", "0.tar"),
        ("https://host/a/index.json", "0.tar", "%30.tar"),
        ("https://host/a/index.json", "%C3%A9.tar", "%c3%a9.tar"),
        ("https://host/a/index.json", "\u00e9.tar", "%C3%A9.tar"),
        ("http://host/a/index.json", "0.tar#one", "0.tar#two"),
        ("http://host/a/index.json", "0.tar", "0.tar?"),
        ("file:///data/index.json", "\u00e9.tar", "e\u0301.tar"),
    ],
)
def test_a_shard_named_twice_is_refused(url: str, first: str, second: str) -> None:
    """Also in two spellings that the store takes for one; the error gives both entries, and the remedy."""
    entries = [{**ENTRY, "url": "before.tar"}, {**ENTRY, "url": first}, {**ENTRY, "url": second, "md5sum": "01"}]
    with pytest.raises(ManifestError, match="torchdata-remote manifest --overwrite") as caught:
        load_manifest(_document(shardlist=entries), url)
    assert url in str(caught.value)
    assert repr(second) in str(caught.value)
    assert "entries 1 and 2" in str(caught.value)
    folder = url[: url.rindex("/") + 1]
    with pytest.raises(ManifestError, match="entries 0 and 1"):
        dump_manifest([ShardInfo(folder + name, 1, 1536, "00") for name in (first, second)])


@pytest.mark.parametrize(
    ("url", "first", "second"),
    [
        (URL, "0.tar", "%30.tar"),
        (URL, "\u00e9.tar", "e\u0301.tar"),
        (URL, "0.tar#one", "0.tar#two"),
        ("file:///data/index.json", "0.tar", "%30.tar"),
        ("https://host/a/index.json", "get?shard=0", "get?shard=1"),
        ("https://host/a/index.json", "0%2Etar", "1%2Etar"),
    ],
)
def test_names_of_two_objects_are_two_shards(url: str, first: str, second: str) -> None:
    """In a bucket and on a disk a percent sign is a character; a query is part of what a server is asked for."""
    found = load_manifest(_document(shardlist=[{**ENTRY, "url": first}, {**ENTRY, "url": second}]), url)
    assert [shard.url.rpartition("/")[2] for shard in found] == [first, second]


@pytest.mark.parametrize("name", ["..%2F0.tar", "%2e%2e", "%2E%2e?a=1", "%2e", "?a=1", "#0.tar", "a%2f0.tar"])
def test_a_percent_encoded_name_cannot_leave_the_manifests_folder(name: str) -> None:
    """A web server may decode it before it looks for the object; elsewhere it is a character."""
    data = _document(shardlist=[{**ENTRY, "url": name}])
    with pytest.raises(ManifestError, match="is not a base name"):
        load_manifest(data, "HTTPS://host/a/index.json")
    assert load_manifest(data, URL)[0].url == URL[: URL.rindex("/") + 1] + name


def test_a_manifest_that_names_a_shard_twice_is_read_by_no_reader(memory_folder: str) -> None:
    """Neither a stream, nor the map-style dataset, nor a job that takes the shards as its source doubles samples."""
    write_small_shards(memory_folder, num_shards=2, samples_per_shard=3)
    path = f"{memory_folder.removeprefix('memory:/')}/{MANIFEST_NAME}"
    document = json.loads(fsspec.filesystem("memory").cat(path))
    document["shardlist"].append(document["shardlist"][0])
    fsspec.filesystem("memory").pipe({path: json.dumps(document).encode()})
    manifest_url = f"{memory_folder}/{MANIFEST_NAME}"
    readers: list[Callable[[], Any]] = [
        lambda: list(stream_shards(manifest_url)),
        lambda: ShardedDataset(memory_folder),
        lambda: shard_dataset(manifest_url, f"{memory_folder}-out/{{shard}}.tar", seed=0),
        lambda: verify_shards(memory_folder),
    ]
    for read in readers:
        with pytest.raises(ManifestError, match=r"000000\.tar"):
            read()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b"{}",
        b"\xff\xfe\xfd",
        b"[" * 100_000,
        _document(__kind__="something else"),
        _document(shardlist=None),
        _document(shardlist={}).replace(b"{}", b"3"),
        _document(shardlist=[3]),
        _document(shardlist=[{"url": "0.tar"}]),
        _document(shardlist=[{**ENTRY, "nsamples": "many"}]),
        _document(shardlist=[{**ENTRY, "filesize": None}]),
        _document(shardlist=[{**ENTRY, "nsamples": -1}]),
    ],
    ids=range(16),
)
def test_what_is_no_manifest_is_an_error(data: bytes) -> None:
    """Each is one error, which names the object."""
    with pytest.raises(ManifestError) as caught:
        load_manifest(data, URL)
    assert URL in str(caught.value)


def test_a_manifest_of_another_kind_is_refused_by_name() -> None:
    """The error shows which kind of file was passed."""
    with pytest.raises(ManifestError, match=r"wids-shard-index-v1.*'litdata'"):
        load_manifest(_document(__kind__="litdata"), URL)


def test_the_manifest_tells_the_truth_about_the_files(tmp_path: Path) -> None:
    """MD5, size and number of samples are those of the files on disk."""
    with ShardWriter(str(tmp_path / "t-{shard}.tar"), max_shard_samples=2) as writer:
        for i in range(5):
            writer.write({"__key__": str(i), "bin": os.urandom(i * 700)})
    shards = load_manifest((tmp_path / MANIFEST_NAME).read_bytes(), f"file://{tmp_path}/{MANIFEST_NAME}")
    assert tuple(shards) == writer.shards
    assert [shard.num_samples for shard in shards] == [2, 2, 1]
    for shard in shards:
        data = Path(shard.url.removeprefix("file://")).read_bytes()
        assert (shard.num_bytes, shard.md5) == (len(data), hashlib.md5(data).hexdigest())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("crc32_block_bytes", 0),
        ("crc32_block_bytes", 1),
        ("crc32_block_bytes", 1 << 40),
        ("crc32", "zz"),
        ("crc32", ""),
        ("crc32", 7),
        ("index_crc32", "zz"),
        ("index_crc32", "-1"),
        ("index_crc32", "123456789"),
        ("index_crc32", 7),
        ("keys_crc32", "zz"),
        ("keys_crc32", "-1"),
        ("keys_crc32", "123456789"),
        ("keys_crc32", 7),
        ("nsamples", float("inf")),
        ("filesize", -1),
    ],
)
def test_a_manifest_with_impossible_numbers_is_refused(field: str, value: object, tmp_path: Path) -> None:
    """A manifest cannot make a reader hold more than a block of reasonable size, nor fail in odd ways."""
    with ShardWriter(f"{tmp_path}/{{shard}}.tar") as writer:
        writer.write({"__key__": "a", "txt": "1"})
    document = json.loads((tmp_path / MANIFEST_NAME).read_text())
    assert load_manifest(json.dumps(document).encode(), f"{tmp_path}/{MANIFEST_NAME}")[0].checksums is not None
    document["shardlist"][0][field] = value
    with pytest.raises(ManifestError, match=MANIFEST_NAME):
        load_manifest(json.dumps(document).encode(), f"{tmp_path}/{MANIFEST_NAME}")
