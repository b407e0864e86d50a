"""The folder of one template's shards."""

from __future__ import annotations

import pytest

from tests.servers.s3 import S3Server
from tests.support.shard_places import Place, memory_place
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import ManifestError, ObjectExistsError
from torchdata_remote.formats.manifest import ShardInfo, dump_manifest
from torchdata_remote.writing.shard_folder import ShardFolder
from torchdata_remote.writing.template import ShardTemplate

SHARDS = {
    "t-0.tar": b"0",
    "t-0.tar.idx": b"i",
    "t-0.tar.keys": b"k",
    "t-1.tar": b"1",
    "t-1.tar.idx": b"i",
    "t-1.tar.keys": b"k",
    "t-12.tar": b"12",
}
OTHERS = {"t-x.tar": b"", "t-01.tar": b"", "t-1.tar.gz": b"", "t-1.tar.bak": b"", "u-1.tar": b"", "deep/t-1.tar": b""}
DESCRIPTION = {"classes.json": b"{}", "provenance.json": b"{}"}


def destination(place: Place, name: str = "t-{shard}.tar") -> ShardFolder:
    return ShardFolder(ShardTemplate(f"{place.url}{name}"), StorageOptions(place.options))


def shard(place: Place, name: str) -> ShardInfo:
    return ShardInfo(f"{place.url}{name}", 1, 1, "0" * 32)


def test_small_objects_are_written_read_and_removed(place: Place) -> None:
    """They appear, are read, replaced only if that is meant, and removed; what is not there is fine."""
    folder = destination(place)
    assert folder.read("a.json") is None
    folder.delete("a.json")
    folder.publish("a.json", b"1", overwrite=False)
    assert folder.read("a.json") == b"1"
    with pytest.raises(ObjectExistsError, match=r"a\.json"):
        folder.publish("a.json", b"2", overwrite=False)
    folder.publish("a.json", b"3")
    assert place.files() == {"a.json": b"3"}
    folder.delete("a.json")
    assert folder.read("a.json") is None


def test_shards_are_those_of_the_template(place: Place) -> None:
    """With what is beside them, by the exact spelling of the number; nothing of other folders."""
    folder = destination(place)
    assert folder.shards() == {}
    folder.require_empty(has_manifest=False)
    place.put({**OTHERS, **DESCRIPTION})
    assert folder.shards() == {}
    folder.require_empty(has_manifest=False)
    place.put(SHARDS)
    numbers = {name: int(name.partition(".")[0].removeprefix("t-")) for name in SHARDS}
    assert folder.shards() == numbers
    with pytest.raises(ObjectExistsError, match=r"t-\d.*overwrite=True"):
        folder.require_empty(has_manifest=False)


def test_a_manifest_without_shards_is_an_existing_data_set(place: Place) -> None:
    """It is an error to write there without ``overwrite``."""
    with pytest.raises(ObjectExistsError, match=r"index\.json exists already") as caught:
        destination(place).require_empty(has_manifest=True)
    assert caught.value.url is not None
    assert caught.value.url.endswith("index.json")


def test_list_returns_urls_with_the_prefix_in_this_folder(place: Place) -> None:
    """URLs whose names begin so, sorted, of this folder only."""
    place.put({**SHARDS, **OTHERS})
    names = ["t-1.tar", "t-1.tar.bak", "t-1.tar.gz", "t-1.tar.idx", "t-1.tar.keys", "t-12.tar"]
    found = destination(place).list("t-1")
    assert [url.rpartition("/")[2] for url in found] == names
    assert len({url.rpartition("/")[0] for url in found}) == 1
    assert destination(place).list("v") == []


def test_keep_only_removes_other_shards_of_the_template(place: Place) -> None:
    """With their indexes and keys; other files stay."""
    place.put({**SHARDS, **OTHERS, **DESCRIPTION})
    folder = destination(place)
    folder.keep_only([shard(place, "t-1.tar"), shard(place, "t-7.tar")])
    assert set(place.files()) == {"t-1.tar", "t-1.tar.idx", "t-1.tar.keys", *OTHERS, *DESCRIPTION}
    folder.keep_only([])
    assert set(place.files()) == {*OTHERS, *DESCRIPTION}


def test_keep_only_removes_index_and_keys_of_a_compressed_shard() -> None:
    """They belong to a shard that was replaced."""
    place = memory_place()
    place.put({"t-0.tar.gz": b"", "t-0.tar.gz.idx": b"", "t-0.tar.gz.keys": b"", "t-0.tar": b"", "t-0.tar.idx": b""})
    destination(place, "t-{shard}.tar.gz").keep_only([shard(place, "t-0.tar.gz")])
    assert set(place.files()) == {"t-0.tar.gz", "t-0.tar", "t-0.tar.idx"}


def test_remove_description_removes_manifest_classes_and_provenance(place: Place) -> None:
    """Manifest, classes and provenance, as far as they are there; shards stay."""
    folder = destination(place)
    folder.remove_description()
    place.put({**SHARDS, **DESCRIPTION, "index.json": b"{}"})
    folder.remove_description()
    assert place.files() == SHARDS


def test_the_manifest_is_read_with_its_jobs(place: Place) -> None:
    """``None`` without a manifest."""
    folder = destination(place)
    assert folder.manifest() is None
    shards = [shard(place, "t-0.tar"), shard(place, "t-1.tar")]
    place.put({"index.json": dump_manifest(shards)})
    found = folder.manifest()
    assert found is not None
    assert [info.url.rpartition("/")[2] for info in found[0]] == ["t-0.tar", "t-1.tar"]
    assert found[1] == []
    place.put({"index.json": dump_manifest(shards, [{"plan": "x"}])})
    assert (folder.manifest() or ([], []))[1] == [{"plan": "x"}]


def test_a_manifest_of_other_shards_is_an_error() -> None:
    """One folder is one template's: the error names a shard. What is no manifest is an error too."""
    place = memory_place()
    place.put({"index.json": dump_manifest([shard(place, "t-0.tar"), shard(place, "u-0.tar")])})
    with pytest.raises(ObjectExistsError, match=r"describes other shards, such as .*u-0\.tar"):
        destination(place).manifest()
    place.put({"index.json": b"[]"})
    with pytest.raises(ManifestError):
        destination(place).manifest()


def test_leftovers_are_those_of_the_template(moto: S3Server) -> None:
    """Uploads of killed writers, unless they have other names; also in an empty folder."""
    place = Place(f"s3://{moto.new_bucket()}/d/", moto)
    folder, client = destination(place), moto.client()
    folder.remove_leftovers()
    bucket = place.url.split("/")[2]
    for key in (
        "d/t-3.tar",
        "d/t-4.tar.keys",
        "d/t-4.tar.idx",
        "d/t-x.tar",
        "d/t-x.tar.keys",
        "d/t-3.tar.gz",
        "d/deep/t-3.tar",
        "t-3.tar",
    ):
        client.create_multipart_upload(Bucket=bucket, Key=key)
    folder.remove_leftovers()
    left = [upload["Key"] for upload in client.list_multipart_uploads(Bucket=bucket)["Uploads"]]
    assert sorted(left) == ["d/deep/t-3.tar", "d/t-3.tar.gz", "d/t-x.tar", "d/t-x.tar.keys", "t-3.tar"]
