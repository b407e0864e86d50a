"""Shards that are replaced between a stop and a resume."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.files_over_http import files_over_http
from tests.servers.s3 import S3Server
from tests.support.shard_places import Place, memory_place
from torchdata_remote import Resumable, ShardWriter, index_shards, join, merge_states, stateful_loader
from torchdata_remote.errors import RemoteDataError, StateError

NUM_SHARDS, SAMPLES = 10, 10


def write(place: Place, version: str = "v1") -> None:
    """Ten shards of ten samples; of each version the shards have the same names and sizes."""
    with ShardWriter(
        f"{place.url}{{shard:02d}}.tar", max_shard_samples=SAMPLES, overwrite=True, storage_options=place.options
    ) as writer:
        for i in range(NUM_SHARDS * SAMPLES):
            writer.write({"__key__": f"{version}-{i:03d}", "txt": f"{version} {i:03d}"})


def chain(place: Place, source: str = "") -> Any:
    urls = IterableWrapper([place.url + source])
    pattern = None if source else "*.tar"
    pipe = urls.list_remote(pattern=pattern, storage_options=place.options).shuffle_shards(seed=3)
    reader = pipe.sharding_filter_rank().async_prefetch(storage_options=place.options).shard_tar_reader()
    return reader.shuffle_samples(buffer_size=7, seed=1).to_tuple("__key__")


def stopped(place: Place, source: str = "") -> tuple[list[str], dict[str, Any]]:
    """The items before the stop, and the state."""
    data = Resumable(chain(place, source), num_streams=2)
    keys = [key for (key,) in islice(data, 33)]
    state: dict[str, Any] = json.loads(json.dumps(data.state_dict()))
    return keys, state


def rest(place: Place, state: dict[str, Any], source: str = "") -> list[str]:
    data = Resumable(chain(place, source), num_streams=2)
    data.load_state_dict(state)
    return [key for (key,) in data]


def replace_one(place: Place, manifest: bool) -> None:
    """Another shard of equal name and size, as written by a job that is run again with other data."""
    other = memory_place()
    write(other, version="v2")
    name, before, after = "04.tar", place.files(), other.files()
    assert len(before[name]) == len(after[name])
    assert before[name] != after[name]
    place.put({name: after[name]})
    if manifest:
        index_shards(place.url, overwrite=True, storage_options=place.options)


@pytest.mark.parametrize("source", ["", "index.json"])
def test_a_replaced_shard_of_equal_size_is_detected(place: Place, source: str) -> None:
    """In each kind of store, with a manifest and without; the error names the shard and no other one."""
    write(place)
    _, state = stopped(place, source)
    replace_one(place, manifest=bool(source))
    what = "MD5" if source else ("etag" if place.url.startswith("s3:") else "content")
    with pytest.raises(StateError, match=rf"here: .*{place.url}04\.tar differs in its {what}\. Objects were"):
        rest(place, state, source)
    state["listing"] = None  # to resume all the same
    assert rest(place, state, source)


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_an_outdated_manifest_is_detected(kind: str, tmp_path: Path) -> None:
    """It has an MD5 of each shard; the content is compared as well."""
    place = memory_place() if kind == "memory" else Place(f"{tmp_path}/d/")
    write(place)
    manifest = json.loads(place.files()["index.json"])
    for entry in manifest["shardlist"]:
        del entry["crc32"], entry["crc32_block_bytes"], entry["index_crc32"], entry["keys_crc32"]
    place.put({"index.json": json.dumps(manifest).encode()})
    keys, state = stopped(place, "index.json")
    assert len({*keys, *rest(place, state, "index.json")}) == NUM_SHARDS * SAMPLES
    replace_one(place, manifest=False)
    with pytest.raises(StateError, match=r"04\.tar differs in its content\. Objects were"):
        rest(place, state, "index.json")


def test_shards_can_be_passed_as_paths(tmp_path: Path) -> None:
    """The content of a ``pathlib.Path`` is compared as that of a ``str``."""
    place = Place(f"{tmp_path}/d/")
    write(place)
    paths = [Path(place.url, f"{number:02d}.tar") for number in range(NUM_SHARDS)]

    def data() -> Resumable:
        return Resumable(IterableWrapper(paths).sharding_filter_rank().shard_tar_reader().to_tuple("__key__"))

    before = data()
    next(iter(before))
    replace_one(place, manifest=False)
    after = data()
    after.load_state_dict(before.state_dict())
    with pytest.raises(StateError, match=r"04\.tar differs in its content"):
        next(iter(after))


@pytest.mark.parametrize("source", ["", "index.json"])
def test_an_identical_rewritten_shard_is_no_difference(place: Place, source: str) -> None:
    """The same shards, with a manifest that was rebuilt from them."""
    write(place)
    keys, state = stopped(place, source)
    write(place)
    index_shards(place.url, overwrite=True, storage_options=place.options)
    everything = sorted(key for (key,) in Resumable(chain(place, source)))
    assert sorted(keys + rest(place, state, source)) == everything
    assert len(everything) == NUM_SHARDS * SAMPLES


@pytest.mark.parametrize(("before", "after"), [("", "index.json"), ("index.json", "")])
def test_a_listing_and_a_manifest_resume_each_other(place: Place, before: str, after: str) -> None:
    """The fields of both agree: names, sizes and their order."""
    write(place)
    keys, state = stopped(place, before)
    assert len({*keys, *rest(place, state, after)}) == NUM_SHARDS * SAMPLES


@pytest.mark.parametrize(("before", "after"), [("", "index.json"), ("index.json", "")])
def test_another_order_of_the_same_shards_is_refused(memory_folder: str, before: str, after: str) -> None:
    """A manifest has its writer's order, a listing that of the names: 10.tar is after 9.tar, or before 2.tar."""
    place = Place(f"{memory_folder}/")
    with ShardWriter(f"{place.url}{{shard}}.tar", max_shard_samples=1) as writer:
        for i in range(40):
            writer.write({"__key__": str(i), "cls": i})
    _, state = stopped(place, before)
    with pytest.raises(StateError, match="in another order"):
        rest(place, state, after)


def test_a_copy_of_a_local_folder_resumes(tmp_path: Path) -> None:
    """On another machine the files have other inodes and times."""
    place = Place(f"{tmp_path}/d/")
    write(place)
    keys, state = stopped(place)
    shutil.move(tmp_path / "d", tmp_path / "original")
    shutil.copytree(tmp_path / "original", tmp_path / "d", copy_function=shutil.copyfile)
    assert len({*keys, *rest(place, state)}) == NUM_SHARDS * SAMPLES


def test_a_copy_of_a_bucket_resumes_by_its_manifest(moto: S3Server) -> None:
    """Objects that were uploaded in parts have other etags: with a manifest on both sides the MD5 decides."""
    bucket = moto.new_bucket()
    place = Place(f"s3://{bucket}/", moto)
    write(place)
    states = {source: stopped(place, source) for source in ("", "index.json")}
    client = moto.client()
    for name, body in place.files().items():
        if name.endswith(".tar"):
            where = {"Bucket": bucket, "Key": name}
            upload = client.create_multipart_upload(**where)["UploadId"]
            part = client.upload_part(**where, UploadId=upload, PartNumber=1, Body=body)
            parts = {"Parts": [{"ETag": part["ETag"], "PartNumber": 1}]}
            client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload=parts)
    keys, state = states["index.json"]
    assert len({*keys, *rest(place, state, "index.json")}) == NUM_SHARDS * SAMPLES
    with pytest.raises(StateError, match=r"00\.tar differs in its etag; .*and more"):
        rest(place, states[""][1])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_detects_a_replaced_shard(tmp_path: Path, num_workers: int) -> None:
    """In its workers; the fingerprints of workers and ranks are merged."""
    place = Place(f"{tmp_path}/d/")
    write(place)

    def loader() -> Any:
        return stateful_loader(
            chain(place), num_workers=num_workers, num_streams=2, batch_size=5, multiprocessing_context="fork"
        )

    before = loader()
    for _ in islice(before, 3):
        state = before.state_dict()
    assert merge_states([state]) == state
    replace_one(place, manifest=False)
    after = loader()
    after.load_state_dict(state)
    with pytest.raises(StateError, match=r"04\.tar differs in its content"):
        next(iter(after))


WAYS = ["select", "order", "keys", "row groups"]


def put_together(folder: str, way: str, query: str = "", *, lists: bool = True) -> Any:
    """Samples of two sets of shards in a folder, which is listed as http is: by names."""

    def urls(name: str) -> Any:
        named = IterableWrapper([f"{folder}/{name}/{number}{query}" for number in ("0.tar", "1.tar", "2.tar")])
        return named.list_remote() if lists else named

    if way == "row groups":
        table = IterableWrapper([f"{folder}/table.parquet{query}"]).list_row_groups()
        return table.sharding_filter_rank().table_reader(key="number")
    if way == "select":
        return urls("one").select(keys=KEYS[::2]).sharding_filter_rank().async_prefetch().shard_tar_reader()
    return join({name: urls(name) for name in ("one", "two")}, align=way, shuffle="shards")  # type: ignore[arg-type]


KEYS = [f"k{number}" for number in range(6)]


def write_sets(folder: Path, text: str = "first") -> None:
    for name in ("one", "two"):
        with ShardWriter(f"{folder}/{name}/{{shard}}.tar", max_shard_samples=2, overwrite=True) as writer:
            for key in KEYS:
                writer.write({"__key__": key, name: f"{text} {key}".encode()})
    rows = pa.table({"number": KEYS, "text": [f"{text} {key}" for key in KEYS]})
    parquet.write_table(rows, folder / "table.parquet", row_group_size=2, compression="none", use_dictionary=False)


def resumed(pipes: tuple[Any, Any], between: Callable[[], object] = lambda: None) -> list[str]:
    """The keys of a pass that stops after one sample, and is resumed by another chain."""
    before, after = map(Resumable, pipes)
    keys = [sample["__key__"] for sample in islice(before, 1)]
    state = json.dumps(before.state_dict())
    assert not SECRETS.search(state)
    between()
    after.load_state_dict(json.loads(state))
    return keys + [sample["__key__"] for sample in after]


SECRETS = re.compile(r"secret|(?:joined|view)\+(?!\.\.\.\+)")  # and codes, which may hold one


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_what_is_put_together_resumes_and_other_content_is_detected(way: str, tmp_path: Path) -> None:
    """Of local files: their tags differ in a copy, and their contents are compared."""
    folder = tmp_path / "d"
    write_sets(folder)
    chains = put_together(str(folder), way), put_together(str(folder), way)

    def copy() -> None:
        shutil.move(folder, tmp_path / "original")
        shutil.copytree(tmp_path / "original", folder, copy_function=shutil.copyfile)

    assert sorted(resumed(chains, copy)) == KEYS[:: 2 if way == "select" else 1]
    with pytest.raises(StateError, match=r"differs in its content") as caught:
        resumed(chains, lambda: write_sets(folder, "later"))
    assert not SECRETS.search(str(caught.value))


@pytest.mark.parametrize("signature", ["", "?X-Amz-Signature=secret"])
def test_joined_shards_that_were_moved_are_named(signature: str, tmp_path: Path) -> None:
    """Each of them, without its signature."""
    write_sets(tmp_path / "a")
    write_sets(tmp_path / "b")
    with files_over_http(tmp_path) as url:
        chains = [put_together(f"{url}/{name}", "order", signature) for name in "ab"]
        with pytest.raises(
            StateError, match=r"/b/one/0.tar joined with http.*/b/two/0.tar differs in its URL"
        ) as caught:
            resumed((chains[0], chains[1]))
    assert not SECRETS.search(str(caught.value))


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_urls_that_are_signed_anew_resume_and_signatures_are_shown_nowhere(
    way: str, lists: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in the log of the library that sends the requests; a replaced object is detected where it was listed."""
    write_sets(tmp_path)
    caplog.set_level(logging.DEBUG)
    with files_over_http(tmp_path) as url:
        chains = [put_together(url, way, f"?X-Amz-Signature=secret{number}", lists=lists) for number in range(2)]
        assert sorted(resumed((chains[0], chains[1]))) == KEYS[:: 2 if way == "select" else 1]
        (tmp_path / "one" / "1.tar").write_bytes(b"no tar" * 1_000)
        (tmp_path / "table.parquet").write_bytes(b"no table" * 1_000)
        with pytest.raises(RemoteDataError) as caught:
            list(put_together(url, way, "?X-Amz-Signature=secret2", lists=lists))
    assert not SECRETS.search(f"{caught.value!r} {vars(caught.value)} {caplog.text}")
