"""A snapshot reads what was there when it was written, or is an error; its digest stands for the samples."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.scripted_store import AT_ONCE, store_of
from tests.support.shard_places import memory_place
from torchdata_remote import IterableWrapper, RemoteUrl, Snapshot, write_snapshot
from torchdata_remote.errors import (
    EmptyListingError,
    ManifestError,
    ObjectChangedError,
    ObjectNotFoundError,
    ShardCorruptError,
    UrlError,
)
from torchdata_remote.testing import all_worlds, write_small_shards


def _shards(folder: str) -> tuple[Any, list[str]]:
    samples = write_small_shards(folder, num_shards=3, samples_per_shard=4)
    return IterableWrapper([f"{folder}/index.json"]).list_remote(), [sample["__key__"] for sample in samples]


def _keys(source: Any) -> list[str]:
    return [sample["__key__"] for sample in source.shard_tar_reader()]


def _free(name: str) -> str:
    """A URL at which nothing is."""
    memory = fsspec.filesystem("memory")
    if memory.exists(f"/snapshots/{name}"):
        memory.rm(f"/snapshots/{name}")
    return f"memory://snapshots/{name}"


@settings(max_examples=25)  # each writes shards
@given(numbers=st.sets(st.integers(0, 11), min_size=1), members=st.sampled_from([None, ["cls"]]))
def test_a_snapshot_is_read_like_the_pipe_that_it_was_written_of(numbers: set[int], members: list[str] | None) -> None:
    urls, keys = _shards("memory://snapshots/a")
    chosen = [key for at, key in enumerate(keys) if at in numbers]
    pipe = urls.select(keys=chosen, members=members)
    written = write_snapshot(_free("a.snapshot.json"), pipe)
    assert (written.num_samples, written.num_bytes) == (len(chosen), sum(url.size for url in pipe))
    read = IterableWrapper([written.url]).list_remote()
    assert [url.__getnewargs__() for url in read] == [url.__getnewargs__() for url in written.urls]
    assert [dict(sample) for sample in read.shard_tar_reader()] == [dict(sample) for sample in pipe.shard_tar_reader()]
    assert Snapshot.read(written.url) == written
    shares = [_keys(read.sharding_filter_rank(world=world)) for world in all_worlds(min(2, len(chosen)), 1)]
    assert sorted(key for share in shares for key in share) == sorted(chosen)


def test_a_snapshot_that_an_earlier_release_wrote_is_read() -> None:
    code = (
        "eAGrViotyilWsoqOVlLSMTS1MDfSySvNydFRMrMwMzI3MrNItDQ3NzcyNLSwTDUyN081TUpMNTFLNUlRio3VUUrOzynNzYNor8k0VNIxjtWJ"
        "VsLDiq3lYmRkZGBgYGXiZWJmAQCDSB9v"
    )
    shard = {"url": f"view+{code}+memory://gold/0.tar+view", "filesize": 4608, "etag": "85c42527", "nsamples": 3}
    head = {"__kind__": "torchdata-remote-snapshot-v1", "digest": "df39edb2ed408b1f6fcda6dfeae23044", "num_samples": 3}
    url = _free("gold.snapshot.json")
    fsspec.filesystem("memory").pipe(url.removeprefix("memory:/"), json.dumps({**head, "shards": [shard]}).encode())
    with tdr.ShardWriter("memory://gold/{shard}.tar", overwrite=True) as writer:
        for number in range(6):
            writer.write({"__key__": f"k{number}", "txt": b"x" * (number * 300), "cls": number})
    found = list(IterableWrapper([url]).list_remote().shard_tar_reader())
    assert [(sample["__key__"], len(sample["txt"])) for sample in found] == [("k1", 300), ("k2", 600), ("k5", 1500)]
    again = write_snapshot(_free("again.snapshot.json"), IterableWrapper([url]).list_remote())
    assert (again.digest, again.num_samples) == (head["digest"], 3)


def test_the_digest_is_that_of_samples_and_their_order(tmp_path: Path) -> None:
    urls, keys = _shards(str(tmp_path / "here"))
    chosen = urls.select(keys=keys[2:7])
    first = write_snapshot(tmp_path / "1.snapshot.json", chosen)  # type: ignore[arg-type]
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    for name in os.listdir(tmp_path / "there"):
        os.utime(tmp_path / "there" / name, (1, 1))
    copies = IterableWrapper([f"{tmp_path}/there/index.json"]).list_remote()
    digest = write_snapshot(f"{tmp_path}/2.snapshot.json", copies.select(keys=keys[2:7])).digest
    assert digest == first.digest
    others = [
        list(chosen)[::-1],
        urls.select(keys=keys[2:8]),
        urls.select(keys=keys[2:7], members=["cls"]),
        urls,
    ]
    digests = {first.digest}
    for number, other in enumerate(others):
        digests.add(write_snapshot(f"{tmp_path}/other-{number}.snapshot.json", other).digest)
    assert len(digests) == 1 + len(others)


def test_shards_without_a_manifest_count_by_url_size_and_etag() -> None:
    def digest(*urls: RemoteUrl) -> str:
        for url in urls:
            store.objects[url.removeprefix(store.url)] = bytes(url.size or 0)
        return write_snapshot(_free("etags.snapshot.json"), list(urls)).digest

    with store_of({}) as store:
        store.etag = lambda name: None  # type: ignore[method-assign]  # what the listing said stays
        one = RemoteUrl(f"{store.url}0.tar", 9, '"1"')
        assert digest(one) == digest(RemoteUrl(f"{store.url}0.tar", 9, "1"))
        others = [(f"{store.url}1.tar", 9, "1"), (f"{store.url}0.tar", 8, "1"), (f"{store.url}0.tar", 9, "2")]
        assert len({digest(url) for url in [one, *(RemoteUrl(*other) for other in others)]}) == 4


def test_it_has_what_the_store_says_of_each_shard_and_is_read_without_a_listing() -> None:
    """Nor is the manifest read again, or a file of keys: the selected ranges are in it."""
    place, folders = memory_place(), ("a", "b")
    for folder in folders:
        write_small_shards(f"{place.url}{folder}", num_shards=3, samples_per_shard=4)
    with store_of(place.files()) as store:
        urls = IterableWrapper([f"{store.url}{folder}/index.json" for folder in folders]).list_remote()
        for number, pipe in enumerate((urls, urls.select(where=lambda sample: sample.key.endswith(("0", "1"))))):
            written, listings = write_snapshot(_free(f"versions-{number}.snapshot.json"), pipe), store.listings
            store.reads.clear()
            read = _keys(IterableWrapper([written.url]).list_remote())
            assert len(read) == written.num_samples == (24, 8)[number]
            assert {one.name.rpartition(".")[2] for one in store.reads} == {"tar"}
            assert store.listings == listings
        whole = Snapshot.read("memory://snapshots/versions-0.snapshot.json")
        for url, listed in zip(whole.urls, urls, strict=True):
            name = url.removeprefix(store.url)
            assert (url.size, url.etag) == (len(store.objects[name]), store.etag(name))
            assert (url.md5, url.num_samples) == (hashlib.md5(store.objects[name]).hexdigest(), 4)
            assert listed.etag is None
        assert whole.num_bytes == sum(len(store.objects[url.removeprefix(store.url)]) for url in whole.urls)


@pytest.mark.parametrize("selected", [False, True])
def test_streams_equal_ranks_loaders_and_joins_read_a_snapshot_as_they_read_a_manifest(
    memory_folder: str, selected: bool
) -> None:
    """Joins that of whole shards."""
    urls, keys = _shards(memory_folder)
    where, expected = f"{memory_folder}/x.snapshot.json", keys[1:11] if selected else keys
    write_snapshot(where, urls.select(keys=expected) if selected else urls)
    assert sorted(sample["__key__"] for sample in tdr.stream_shards(where)) == sorted(expected)
    shares = [tdr.stream_shards(where, world=world).equalize_ranks() for world in all_worlds(2, 1)]
    assert sorted(sample["__key__"] for share in shares for sample in share) == sorted(expected)
    loader = tdr.stateful_loader(tdr.stream_shards(where).equalize_ranks().to_tuple("__key__"), batch_size=1)
    assert len(loader) == len(list(loader)) == len(expected)
    if not selected:
        joined = tdr.join({"class": where, "text": where}, members={"class": "cls", "text": "txt"}, shuffle=False)
        assert [sample["__key__"] for sample in joined] == expected


def test_without_etags_a_replaced_shard_is_found_by_its_size_or_by_the_checksums_of_what_is_read_whole() -> None:
    place = memory_place()
    write_small_shards(place.url, num_shards=1, samples_per_shard=4)
    with store_of(place.files()) as store:
        store.has_etags = False
        urls = IterableWrapper([f"{store.url}index.json"]).list_remote()
        whole = write_snapshot(_free("no-etags.snapshot.json"), urls)
        data = store.objects["000000.tar"]
        store.objects["000000.tar"] = data[:512] + bytes([data[512] ^ 1]) + data[513:]
        with pytest.raises(ShardCorruptError, match=r"000000\.tar"):
            list(IterableWrapper([whole.url]).list_remote().async_prefetch(retry=AT_ONCE).shard_tar_reader())
        store.objects["000000.tar"] = data + bytes(512)
        with pytest.raises(ObjectChangedError, match=r"000000\.tar"):
            list(IterableWrapper([whole.url]).list_remote().async_prefetch(retry=AT_ONCE).shard_tar_reader())


def test_numbers_that_no_manifest_has_are_unknown() -> None:
    place = memory_place()
    write_small_shards(place.url, num_shards=2, samples_per_shard=4)
    listed = list(IterableWrapper([place.url]).list_remote(pattern="*.tar"))
    written = write_snapshot(f"{place.url}x.snapshot.json", listed)
    assert (written.num_samples, written.num_bytes) == (None, sum(url.size or 0 for url in listed))
    assert [url.num_samples for url in written.urls] == [None, None]
    assert len(_keys(IterableWrapper([written.url]).list_remote())) == 8


def test_what_is_missing_or_no_list_of_shards_is_an_error(memory_folder: str) -> None:
    urls, _ = _shards(memory_folder)
    with pytest.raises(ObjectNotFoundError, match=r"none\.snapshot\.json"):
        Snapshot.read(f"{memory_folder}/none.snapshot.json")
    with pytest.raises(UrlError, match="a pipe of shards"):
        write_snapshot(f"{memory_folder}/x.snapshot.json", f"{memory_folder}/index.json")
    with pytest.raises(UrlError, match=r"ends in \.snapshot\.json"):
        write_snapshot(f"{memory_folder}/x.json", urls)
    assert {path.rpartition(".")[2] for path in fsspec.filesystem("memory").find(memory_folder)} >= {"tar"}
    assert not fsspec.filesystem("memory").glob(f"{memory_folder}/x.*")


def test_a_shard_that_was_replaced_is_an_error(tmp_path: Path) -> None:
    urls, keys = _shards(str(tmp_path))
    whole = write_snapshot(f"{tmp_path}/whole.snapshot.json", urls)
    some = write_snapshot(f"{tmp_path}/some.snapshot.json", urls.select(keys=keys[::2]))
    shard = tmp_path / "000001.tar"
    data = shard.read_bytes()
    shard.unlink()
    shard.write_bytes(data[:-1] + b"\0")  # as long as before, and of another time
    for snapshot in (whole, some):
        with pytest.raises(ObjectChangedError, match=r"000001\.tar"):
            _keys(IterableWrapper([snapshot.url]).list_remote())
    shard.write_bytes(data + bytes(512))
    with pytest.raises(ObjectChangedError, match="bytes, and its manifest says"):
        write_snapshot(f"{tmp_path}/new.snapshot.json", urls)
    shard.unlink()
    with pytest.raises(ObjectNotFoundError, match=r"000001\.tar"):
        write_snapshot(f"{tmp_path}/new.snapshot.json", urls)


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["shards"].reverse(),
        lambda document: document["shards"].pop(),
        lambda document: document["shards"][0].update(md5sum="0" * 32),
        lambda document: document["shards"][0].update(nsamples=5),
        lambda document: document["shards"][0].pop("url"),
        lambda document: document["shards"][0].update(crc32_block_bytes=0),
        lambda document: document["shards"][0].update(crc32="123456789"),
        lambda document: document.update(digest="0" * 32),
        lambda document: document.update(__kind__="wids-shard-index-v1"),
        lambda document: document.update(shards=[]),
    ],
)
def test_a_changed_snapshot_is_an_error(change: Any) -> None:
    urls, _ = _shards("memory://snapshots/c")
    where = write_snapshot(_free("c.snapshot.json"), urls).url
    memory = fsspec.filesystem("memory")
    document = json.loads(memory.cat("/snapshots/c.snapshot.json"))
    change(document)
    memory.pipe("/snapshots/c.snapshot.json", json.dumps(document).encode())
    for read in (lambda: Snapshot.read(where), lambda: list(IterableWrapper([where]).list_remote())):
        with pytest.raises(ManifestError, match=r"memory://snapshots/c\.snapshot\.json"):
            read()


def test_it_holds_no_credentials() -> None:
    with pytest.raises(UrlError, match="query or user-info") as caught:
        write_snapshot(_free("d.snapshot.json"), [RemoteUrl("https://host/0.tar?X-Amz-Signature=SECRET", 9, "1")])
    assert "SECRET" not in str(caught.value)


def test_what_has_no_fixed_order_is_refused() -> None:
    urls, _ = _shards("memory://snapshots/e")
    where = _free("e.snapshot.json")
    shuffled = urls.shuffle_shards()
    between = [shuffled.filter(bool), shuffled.select(where=bool)]
    for pipe in (shuffled, *between, urls.sharding_filter_rank(), urls.sharding_filter_rank().map(str)):
        with pytest.raises(ValueError, match="another order in each epoch"):
            write_snapshot(where, pipe)
    with pytest.raises(UrlError, match="range of samples"):
        write_snapshot(where, list(urls.sharding_filter_rank(world=tdr.World(0, 6)))[:1])
    with pytest.raises(EmptyListingError):
        write_snapshot(where, [])
