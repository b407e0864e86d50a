"""Shards that are replaced, moved or signed anew between a stop and a resume."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import torchdata_remote as tdr
from tests.servers.files_over_http import files_over_http
from tests.servers.s3 import S3Server
from tests.support.loaders import said, through_json
from tests.support.shard_places import Place, memory_place
from torchdata_remote.errors import RemoteDataError, StateError

NUM_SHARDS, SAMPLES = 6, 5


def write(place: Place, version: str = "v1") -> None:
    """Shards of samples; of each version the shards have the same names and sizes."""
    with tdr.ShardWriter(
        f"{place.url}{{shard:02d}}.tar", max_shard_samples=SAMPLES, overwrite=True, storage_options=place.options
    ) as writer:
        for i in range(NUM_SHARDS * SAMPLES):
            writer.write({"__key__": f"{version}-{i:03d}", "txt": f"{version} {i:03d}"})


def chain(place: Place, source: str = "", *, shuffled: bool = True) -> Any:
    urls = tdr.IterableWrapper([place.url + source])
    pattern = None if source else "*.tar"
    pipe = urls.list_remote(pattern=pattern, storage_options=place.options).shuffle_shards(seed=3)
    reader = pipe.sharding_filter_rank().async_prefetch(storage_options=place.options).shard_tar_reader()
    return (reader.shuffle_samples(buffer_size=7, seed=1) if shuffled else reader).to_tuple("__key__")


def stopped(place: Place, source: str = "", **options: Any) -> tuple[list[str], dict[str, Any]]:
    """The items before the stop, and the state."""
    data = tdr.Resumable(chain(place, source, **options), num_streams=2)
    keys = [key for (key,) in islice(data, 11)]
    return keys, through_json(data.state_dict())


def rest(place: Place, state: dict[str, Any], source: str = "", **options: Any) -> list[str]:
    data = tdr.Resumable(chain(place, source, **options), num_streams=2)
    data.load_state_dict(state)
    return [key for (key,) in data]


def replace_one(place: Place, *, manifest: bool = False) -> None:
    """Another shard of equal name and size, as written by a job that is run again with other data."""
    other = memory_place()
    write(other, version="v2")
    name, before, after = "04.tar", place.files(), other.files()
    assert len(before[name]) == len(after[name])
    assert before[name] != after[name]
    place.put({name: after[name]})
    if manifest:
        tdr.index_shards(place.url, overwrite=True, storage_options=place.options)


@pytest.mark.parametrize("source", ["", "index.json"])
def test_a_replaced_shard_of_equal_size_is_named(place: Place, source: str) -> None:
    """In each kind of store, with a manifest and without; no other shard is named."""
    write(place)
    _, state = stopped(place, source)
    replace_one(place, manifest=bool(source))
    what = "MD5" if source else ("etag" if place.url.startswith("s3:") else "content")
    with pytest.raises(StateError, match=rf"here: .*{place.url}04\.tar differs in its {what}\. Objects were"):
        rest(place, state, source)
    state["listing"] = None  # to resume all the same
    assert rest(place, state, source)


@pytest.mark.parametrize("source", ["", "index.json"])
def test_shards_that_were_written_again_alike_resume(place: Place, source: str) -> None:
    """With a manifest that was rebuilt from them; and by a listing what was saved by a manifest, and vice versa, unless
    samples are shuffled, where a manifest divides shards."""
    write(place)
    saved = {shuffled: stopped(place, source, shuffled=shuffled) for shuffled in (False, True)}
    write(place)
    tdr.index_shards(place.url, overwrite=True, storage_options=place.options)
    everything = sorted(key for (key,) in tdr.Resumable(chain(place, source)))
    assert len(everything) == NUM_SHARDS * SAMPLES
    for shuffled, (keys, state) in saved.items():
        for other in ("", "index.json"):
            if shuffled and other != source:
                with pytest.raises(StateError, match="split by samples, where a manifest with indexes is listed"):
                    rest(place, state, other)
                continue
            assert sorted(keys + rest(place, state, other, shuffled=shuffled)) == everything


@pytest.mark.parametrize(("before", "after"), [("", "index.json"), ("index.json", "")])
def test_another_order_of_the_same_shards_is_refused(memory_folder: str, before: str, after: str) -> None:
    """A manifest has its writer's order, a listing that of the names: 10.tar is after 9.tar, or before 2.tar."""
    place = Place(f"{memory_folder}/")
    with tdr.ShardWriter(f"{place.url}{{shard}}.tar", max_shard_samples=1) as writer:
        for i in range(12):
            writer.write({"__key__": str(i), "cls": i})
    _, state = stopped(place, before)
    with pytest.raises(StateError, match="in another order"):
        rest(place, state, after)


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
def test_a_loader_notices_a_replaced_shard_in_its_workers(tmp_path: Path, num_workers: int) -> None:
    place = Place(f"{tmp_path}/d/")
    write(place)

    def loader() -> Any:
        options = {"num_workers": num_workers, "num_streams": 2, "batch_size": 5}
        return tdr.stateful_loader(chain(place), multiprocessing_context="fork", **options)  # type: ignore[arg-type]

    before, after = loader(), loader()
    for _ in islice(before, 3):
        state = before.state_dict()
    assert tdr.merge_states([state]) == state
    replace_one(place)
    after.load_state_dict(state)
    with pytest.raises(StateError, match=r"04\.tar differs in its content"):
        next(iter(after))


# The contents of local files and of memory are compared by samples


def listed(urls: list[Any]) -> tdr.Resumable:
    return tdr.Resumable(tdr.IterableWrapper(urls).sharding_filter_rank())


def difference_of_contents(before: list[Any], change: Callable[[], object], after: list[Any] | None = None) -> str:
    data, again = listed(before), listed(before if after is None else after)
    next(iter(data))
    change()
    again.load_state_dict(through_json(data.state_dict()))
    return said(lambda: next(iter(again), None))


@given(size=st.integers(1, 60_000), data=st.data())
def test_a_changed_byte_at_the_begin_the_middle_or_the_end_of_a_file_is_noticed(size: int, data: st.DataObject) -> None:
    """Of the first 4 KiB, 4 KiB in the middle, and the last 16 KiB."""
    whole = bytes(number * number % 251 for number in range(size))
    middle = range(size // 2, min(size, size // 2 + 4096))
    at = data.draw(st.sampled_from([*range(min(size, 4096)), *middle, *range(max(0, size - 16_384), size)]))
    memory = fsspec.filesystem("memory")
    memory.pipe("/content/0", whole)
    changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    message = difference_of_contents(["memory://content/0"], lambda: memory.pipe("/content/0", changed))
    assert "memory://content/0 differs in its content" in message


def test_a_copy_with_another_inode_and_time_has_the_same_content(tmp_path: Path) -> None:
    """By a path, a ``file:`` URL or a ``pathlib.Path``; a file that was cut short, or begun anew, has not."""
    file = tmp_path / "0"
    file.write_bytes(os.urandom(100_000))

    def copied() -> None:
        shutil.copy(file, tmp_path / "1")
        (tmp_path / "1").replace(file)
        os.utime(file, (1, 1))

    for url in (f"file://{file}", f"{file}", file):
        assert difference_of_contents([url], copied) == ""
        assert "differs in its content" in difference_of_contents([url], lambda: file.write_bytes(os.urandom(100_000)))


def test_of_many_files_some_are_sampled_evenly(tmp_path: Path) -> None:
    """1,024 of them, always the same ones: among ten in a row there is one."""
    files = [tmp_path / f"{number:04d}" for number in range(3_000)]
    for file in files:
        file.write_bytes(b"0")

    def changed_from(first: int) -> Callable[[], object]:
        return lambda: [file.write_bytes(os.urandom(4)) for file in files[first : first + 10]]

    for first in (0, 1_501, 2_990):
        assert "differ in their content" in difference_of_contents(files, changed_from(first))


@pytest.mark.parametrize("url", ["s3://b/0.tar", "https://host/0", "file:///no/such/file", "word", "a::b"])
def test_remote_and_unreadable_objects_and_named_pipes_are_not_read_for_a_state(url: str, tmp_path: Path) -> None:
    """No store is contacted, and nothing blocks."""
    os.mkfifo(tmp_path / "pipe")
    assert difference_of_contents([url, f"file://{tmp_path}", f"file://{tmp_path}/pipe"], lambda: None) == ""


# Selected and joined shards, and row groups

WAYS = ["select", "order", "keys", "row groups"]
KEYS = [f"k{number}" for number in range(6)]
SHOWN_SECRETS = re.compile(r"secret|(?:joined|view)\+(?!\.\.\.\+)")  # and codes, which may hold one


def put_together(folder: str, way: str, query: str = "", *, lists: bool = True) -> Any:
    """Samples of two sets of shards in a folder, which is listed as http is: by names."""

    def urls(name: str) -> Any:
        named = tdr.IterableWrapper([f"{folder}/{name}/{number}{query}" for number in ("0.tar", "1.tar", "2.tar")])
        return named.list_remote() if lists else named

    if way == "row groups":
        table = tdr.IterableWrapper([f"{folder}/table.parquet{query}"]).list_row_groups()
        return table.sharding_filter_rank().table_reader(key="number")
    if way == "select":
        return urls("one").select(keys=KEYS[::2]).sharding_filter_rank().async_prefetch().shard_tar_reader()
    return tdr.join({name: urls(name) for name in ("one", "two")}, align=way, shuffle="shards")  # type: ignore[arg-type]


def write_sets(folder: Path, text: str = "first") -> None:
    for name in ("one", "two"):
        with tdr.ShardWriter(f"{folder}/{name}/{{shard}}.tar", max_shard_samples=2, overwrite=True) as writer:
            for key in KEYS:
                writer.write({"__key__": key, name: f"{text} {key}".encode()})
    rows = pa.table({"number": KEYS, "text": [f"{text} {key}" for key in KEYS]})
    parquet.write_table(rows, folder / "table.parquet", row_group_size=2, compression="none", use_dictionary=False)


def resumed(pipes: tuple[Any, Any], between: Callable[[], object] = lambda: None) -> list[str]:
    """The keys of a pass that stops after one sample, and is resumed by another chain."""
    before, after = map(tdr.Resumable, pipes)
    keys = [sample["__key__"] for sample in islice(before, 1)]
    state = json.dumps(before.state_dict())
    assert not SHOWN_SECRETS.search(state)
    between()
    after.load_state_dict(json.loads(state))
    return keys + [sample["__key__"] for sample in after]


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_what_is_put_together_resumes_and_other_content_is_noticed(way: str, tmp_path: Path) -> None:
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
    assert not SHOWN_SECRETS.search(str(caught.value))


@pytest.mark.parametrize("signature", ["", "?X-Amz-Signature=secret"])
def test_joined_shards_that_were_moved_are_named_without_their_signatures(signature: str, tmp_path: Path) -> None:
    write_sets(tmp_path / "a")
    write_sets(tmp_path / "b")
    with files_over_http(tmp_path) as url:
        chains = [put_together(f"{url}/{name}", "order", signature) for name in "ab"]
        with pytest.raises(
            StateError, match=r"/b/one/0.tar joined with http.*/b/two/0.tar differs in its URL"
        ) as caught:
            resumed((chains[0], chains[1]))
    assert not SHOWN_SECRETS.search(str(caught.value))


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_urls_that_are_signed_anew_resume_and_their_signatures_are_shown_nowhere(
    way: str, lists: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in the log of the library that sends the requests; a replaced object is noticed where it was listed."""
    write_sets(tmp_path)
    caplog.set_level(logging.DEBUG)
    with files_over_http(tmp_path) as url:
        chains = [put_together(url, way, f"?X-Amz-Signature=secret{number}", lists=lists) for number in range(2)]
        assert sorted(resumed((chains[0], chains[1]))) == KEYS[:: 2 if way == "select" else 1]
        (tmp_path / "one" / "1.tar").write_bytes(b"no tar" * 1_000)
        (tmp_path / "table.parquet").write_bytes(b"no table" * 1_000)
        with pytest.raises(RemoteDataError) as caught:
            list(put_together(url, way, "?X-Amz-Signature=secret2", lists=lists))
    assert not SHOWN_SECRETS.search(f"{caught.value!r} {vars(caught.value)} {caplog.text}")
