"""Any source into shards: every sample once, with its bytes, key and label; and what is refused."""

from __future__ import annotations

import bz2
import gzip
import inspect
import json
import lzma
import os
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import torchdata_remote as tdr
from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.support.archive_bytes import make_header, make_member
from tests.support.shard_places import (
    Place,
    compressed_by_zstd,
    header_places,
    members_of,
    memory_place,
    some_files,
    tar_of,
)
from torchdata_remote import labels
from torchdata_remote.core.options import RetryPolicy
from torchdata_remote.errors import (
    EmptyListingError,
    EncodeError,
    LabelError,
    ObjectChangedError,
    ObjectExistsError,
    RemoteDataError,
    ShardReadError,
    ShardWriteError,
    StorageError,
)
from torchdata_remote.formats.manifest import load_manifest
from torchdata_remote.sharding.shard_dataset import shard_dataset
from torchdata_remote.testing import Faults, FaultyStore

FILES = some_files(30)
LONG = "a" * 90 + "/" + "b" * 120
# Samples with several members, empty ones, names that need extended headers
PHOTOS = {
    "cat/1.jpg": b"\xff\xd8 a cat",
    "cat/1.json": b"{}",
    "cat/1.seg.png": b"a mask" * 200,
    "cat/2.jpg": b"",
    f"cat/{LONG}.jpg": b"a name too long for a header",
    "dog/1.jpg": b"x" * 512,
    "dog/häuser/ΩΩ-雪.jpg": b"not ASCII",
    "dog/" + "é" * 60 + ".jpg": b"long and not ASCII",
}


@pytest.fixture
def disk(tmp_path: Path) -> Place:
    """An empty local folder."""
    return Place(f"{tmp_path}/")


def shard(source: Any, to: Place, *, ending: str = ".tar", **given: Any) -> list[tdr.ShardInfo]:
    """Shards of a source, written quietly."""
    given = {"storage_options": to.options, "progress": False, **given}
    return shard_dataset(source, to.template(ending), **given)


def base_name(info: tdr.ShardInfo) -> str:
    return info.url.rpartition("/")[2]


# Sources


class Folder:
    """A map-style dataset as torchvision's ``ImageFolder`` is one."""

    classes = ("cat", "dog")

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def test_files_of_each_store(place: Place) -> None:
    """Files whose paths differ in the extension only are one sample; names and bytes are unchanged."""
    source, to = place.below("photos"), place.below("shards")
    infos = shard(source.put(PHOTOS), to, max_shard_bytes=5_000)
    assert to.members() == PHOTOS
    assert sum(info.num_samples for info in infos) == 6
    keys = [sample["__key__"] for sample in tdr.stream_shards(to.url, storage_options=to.options)]
    assert sorted(keys) == sorted({name.partition(".")[0] for name in PHOTOS})


@contextmanager
def written_files() -> Iterator[list[str]]:
    """The paths of files that this process opens for writing."""
    _seen.append([])
    try:
        yield _seen[-1]
    finally:
        _seen.pop()


_seen: list[list[str]] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and _seen and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        _seen[-1].append(str(args[0]))


sys.addaudithook(_hook)


def test_from_bucket_to_bucket_without_a_local_file(moto: S3Server, tmp_path: Path) -> None:
    """From S3 to S3, from files, archives or a gzip, the local disk is never used."""
    source, to = (Place(f"s3://{moto.new_bucket()}/", moto) for _ in range(2))
    source.below("files").put(FILES)
    source.put({"all.tar": tar_of(FILES), "all.tar.gz": gzip.compress(tar_of(FILES))})
    with written_files() as local:
        for name in ("files/", "all.tar", "all.tar.gz"):
            shard(source.url + name, to.below(name.strip("/")), max_shard_samples=8)
    assert local == []
    for name in ("files/", "all.tar", "all.tar.gz"):
        assert to.below(name.strip("/")).members() == FILES
    with written_files() as local:
        Path(tmp_path, "seen").write_bytes(b"")
    assert len(local) == 1


def test_one_bucket_into_another_with_other_keys(moto: S3Server) -> None:
    """``source_options`` are for the source, ``storage_options`` for the shards."""
    source = Place(f"s3://{moto.new_bucket()}/", moto)
    source.put(FILES)
    to = memory_place()
    shard(source.url, to, storage_options=None, source_options=moto.storage_options)
    assert to.members() == FILES


def without_folder(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name.partition("/")[2]: data for name, data in files.items()}


def of_class(files: Mapping[str, bytes], name: str) -> dict[str, bytes]:
    return without_folder({path: data for path, data in files.items() if path.startswith(f"{name}/")})


COMPRESSED: dict[str, Any] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": compressed_by_zstd}


def inner_tars(ending: str = ".tar", how: Any = bytes) -> dict[str, bytes]:
    """A tar for each class."""
    return {f"class-{number}{ending}": how(tar_of(of_class(FILES, f"class-{number}"))) for number in range(3)}


@pytest.mark.parametrize("tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def test_a_tar_with_unusual_names_and_order_is_sharded(place: Place, tar_format: int) -> None:
    """An archive with long names, names that are not ASCII, empty members, and members apart from their folders."""
    source, to = place.below("source"), place.below("shards")
    source.put({"photos.tar": tar_of(PHOTOS, tar_format=tar_format)})
    shard(f"{source.url}photos.tar", to, max_shard_bytes=4_000)
    assert to.members() == PHOTOS


@pytest.mark.parametrize("kind", COMPRESSED)
def test_a_compressed_tar_is_unpacked_into_temporary_objects_that_are_removed(kind: str) -> None:
    """What cannot be read by ranges is put into temporary objects, and these are gone in the end."""
    source, to = memory_place(), memory_place()
    source.put({f"photos.tar.{kind}": COMPRESSED[kind](tar_of(PHOTOS))})
    shard(f"{source.url}photos.tar.{kind}", to, max_shard_bytes=4_000)
    assert to.members() == PHOTOS
    assert not [name for name in to.files() if name.startswith("_")]


@pytest.mark.parametrize("outer", [None, "gz", "zst"])
@pytest.mark.parametrize("inner", [None, "gz", "xz"])
def test_a_tar_of_tars_is_sharded_whichever_layers_are_compressed(outer: str | None, inner: str | None) -> None:
    """The inner archives' names are folders of the keys, whichever of the layers are compressed."""
    source, to = memory_place(), memory_place()
    tars = inner_tars() if inner is None else inner_tars(f".tar.{inner}", COMPRESSED[inner])
    name = "train.tar" if outer is None else f"train.tar.{outer}"
    source.put({name: tar_of(tars) if outer is None else COMPRESSED[outer](tar_of(tars))})
    shard(source.url + name, to, max_shard_samples=7, labels=labels.parent_directory())
    members = to.members()
    assert {path: data for path, data in members.items() if path.endswith(".txt")} == FILES
    assert all(members[path.replace(".txt", ".cls")] == path[6:7].encode() for path in FILES)


def test_a_tar_of_tars_of_which_some_are_compressed() -> None:
    """Samples of the archive and unpacked ones are mixed."""
    source, to = memory_place(), memory_place()
    tars = {**inner_tars(), "class-9.tgz": gzip.compress(tar_of({"00099.txt": b"99"}))}
    source.put({"train.tar": tar_of(tars)})
    shard(f"{source.url}train.tar", to)
    assert to.members() == {**FILES, "class-9/00099.txt": b"99"}


def test_several_class_archives_in_a_folder(place: Place) -> None:
    """Labels and provenance see the archives' names as folders; keys that differ without them are as they were."""
    source, to = place.below("source"), place.below("shards")
    source.put(inner_tars())
    shard(source.url, to, labels=labels.parent_directory(), provenance=True)
    names = {name for name in to.members() if name.endswith(".txt")}
    assert names == set(without_folder(FILES))
    assert json.loads(to.files()["provenance.json"]).keys() == FILES.keys()
    assert list(json.loads(to.files()["classes.json"])) == ["class-0", "class-1", "class-2"]


def test_keys_that_restart_in_each_archive_get_its_name() -> None:
    """Keys that are repeated in other shards get the shard's name as a folder."""
    source, to = memory_place(), memory_place()
    source.put({f"s-{number}.tar": tar_of({f"{i}.txt": b"%d %d" % (number, i) for i in range(3)}) for number in (0, 1)})
    shard(source.url, to)
    assert to.members() == {f"s-{number}/{i}.txt": b"%d %d" % (number, i) for number in (0, 1) for i in range(3)}


@pytest.mark.parametrize("choice", ["", "index.json", "*.tar", "{000000..000003}.tar", "pattern"])
@pytest.mark.parametrize("place", ["local", "memory"], indirect=True)
def test_existing_shards_are_a_source(place: Place, choice: str) -> None:
    """By folder, manifest, glob, brace range or pattern; companions are ignored."""
    source, middle, to = place.below("files"), place.below("first"), place.below("second")
    shard(source.put(FILES), middle, max_shard_samples=8, labels=labels.parent_directory(), provenance=True)
    chosen: dict[str, Any] = {"pattern": "*.tar"} if choice == "pattern" else {}
    infos = shard(middle.url + ("" if choice == "pattern" else choice), to, max_shard_samples=11, seed=1, **chosen)
    assert [info.num_samples for info in infos] == [11, 11, 8]
    assert to.members() == middle.members()
    first = [sample["__key__"] for sample in tdr.stream_shards(middle.url, seed=None, storage_options=middle.options)]
    second = [sample["__key__"] for sample in tdr.stream_shards(to.url, seed=None, storage_options=to.options)]
    assert first != second


def test_a_pattern_chooses_files() -> None:
    """By base name, or by path below the source if it has a slash."""
    source = memory_place()
    source.put({"a/1.jpg": b"1", "a/1.json": b"{}", "b/2.jpg": b"2"})
    by_name, by_path = memory_place(), memory_place()
    shard(source.url, by_name, pattern="*.jpg")
    shard(source.url, by_path, pattern="a/*")
    assert set(by_name.members()) == {"a/1.jpg", "b/2.jpg"}
    assert set(by_path.members()) == {"a/1.jpg", "a/1.json"}


def test_keys_of_a_glob_begin_at_its_folder() -> None:
    """Keys begin where the glob does."""
    source, to = memory_place(), memory_place()
    source.put({"train/a/1.txt": b"1", "train/b/2.txt": b"2", "val/a/3.txt": b"3"})
    shard(f"{source.url}train/*/*.txt", to)
    assert to.members() == {"a/1.txt": b"1", "b/2.txt": b"2"}


def test_local_paths_and_pathlike() -> None:
    """A source is a path too, as ``str`` or ``os.PathLike``, with or without a slash."""
    with pytest.MonkeyPatch.context() as patch:
        folder = Place(f"{os.environ.get('TMPDIR', '/tmp')}/{os.getpid()}-{id(patch)}/")
        source = Path(folder.put({"1.txt": b"1"}))
        try:
            for given in (source, str(source), f"{source}/", source.as_uri()):
                to = memory_place()
                shard(given, to)
                assert to.members() == {"1.txt": b"1"}
        finally:
            folder.delete("1.txt")
            source.rmdir()


def test_an_archive_of_a_web_server_is_a_source(moto: S3Server) -> None:
    """One archive of a web server."""
    source, to = Place(f"s3://{moto.new_bucket()}/", moto), memory_place()
    source.put({"all.tar": tar_of(FILES)})
    bucket = source.url.removeprefix("s3://").rstrip("/")
    moto.client().put_bucket_acl(Bucket=bucket, ACL="public-read")
    moto.client().put_object_acl(Bucket=bucket, Key="all.tar", ACL="public-read")
    shard(f"{moto.endpoint_url}/{bucket}/all.tar", to)
    assert to.members() == FILES


# Datasets


def test_a_dataset_of_images_and_labels() -> None:
    """``(image, label)``: pictures become PNG, arrays and tensors npy, bytes and str as they are; keys are numbers."""
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    items = [(picture, 0), (array, 1), (torch.ones(2), torch.tensor(1)), (b"raw", np.int64(0)), ("text", 1)]
    to = memory_place()
    (info,) = shard(Folder(items), to, seed=None)
    assert info.num_samples == 5
    samples = list(tdr.stream_shards(to.url, shuffle=False).decode_sample())
    assert [sample["__key__"] for sample in samples] == [f"{index:09d}" for index in range(5)]
    assert [int(sample["cls"]) for sample in samples] == [0, 1, 1, 0, 1]
    assert np.array_equal(np.asarray(samples[0]["png"]), np.asarray(picture))
    assert np.array_equal(samples[1]["npy"], array)
    assert np.array_equal(samples[2]["npy"], np.ones(2))
    assert samples[3]["bin"] == b"raw"
    assert samples[4]["txt"] == "text"
    assert json.loads(to.files()["classes.json"]) == {"cat": {"id": 0, "name": "cat"}, "dog": {"id": 1, "name": "dog"}}


def test_a_dataset_of_dicts() -> None:
    """With or without keys of their own."""
    to = memory_place()
    shard(Folder([{"txt": "a", "cls": 3}, {"__key__": "mine/1", "json": {"x": [1]}}]), to)
    assert to.members() == {"000000000.txt": b"a", "000000000.cls": b"3", "mine/1.json": b'{"x": [1]}'}


@pytest.mark.parametrize("item", [3, (b"x",), (b"x", 1, 2), (object(), 1), None, [b"x"]])
def test_an_item_that_is_not_a_sample_is_named(item: Any) -> None:
    """With the expected kinds."""
    with pytest.raises(ShardWriteError, match=r"Item 1 of the dataset .*expected"):
        shard(Folder([(b"x", 0), item]), memory_place())


def test_a_dataset_in_workers(disk: Place) -> None:
    """Processes of our own get the dataset once, and write what one process does."""
    dataset = Folder([(b"%d" % index, index % 2) for index in range(20)])
    alone, two = disk.below("0"), disk.below("2")
    shard(dataset, alone, max_shard_samples=4)
    shard(dataset, two, max_shard_samples=4, num_workers=2)
    assert alone.files() == two.files()


# Labels


NUMBERED = {f"val/ILSVRC2012_val_{number:08d}.JPEG": b"%d" % number for number in range(1, 5)}
LABEL_FORMS: dict[str, tuple[Any, dict[str, bytes], list[int], list[str]]] = {
    "parent_directory": (labels.parent_directory, {"b/1.x": b"", "a/2.x": b"", "c/b/3.x": b""}, [1, 0, 1], ["a", "b"]),
    "from_pattern": (
        lambda: labels.from_pattern(r"_(\w+)\."),
        {"1_dog.x": b"", "2_cat.x": b""},
        [1, 0],
        ["cat", "dog"],
    ),
    "classes_json": (
        lambda: labels.classes_json(
            {"n1": {"id": 2, "name": "fox"}, "n0": {"id": 1, "name": "dog"}, "n9": {"id": 3, "name": "none"}}, id_base=1
        ),
        {"n0_1.x": b"", "n1/2.x": b""},
        [0, 1],
        ["n0", "n1", "n9"],
    ),
    "by_number": (
        lambda: labels.by_number({"0": 490, "1": 361, "2": 490, "3": 1}, number_base=0, id_base=1),
        NUMBERED,
        [489, 360, 489, 0],
        ["0", "360", "489"],
    ),
    "ground_truth": (
        lambda: labels.ground_truth([3, 1, 2, 3], base_name="ILSVRC2012_val_"),
        NUMBERED,
        [2, 0, 1, 2],
        ["0", "1", "2"],
    ),
    "meta_mat": (
        lambda: labels.meta_mat(
            [
                {"ILSVRC2012_ID": 1, "WNID": "n1", "words": "fox", "num_children": 0},
                {"ILSVRC2012_ID": 2, "WNID": "n0", "words": "dog", "num_children": 0},
            ]
        ),
        {"n0_1.x": b"", "n1/2.x": b""},
        [1, 0],
        ["n1", "n0"],
    ),
    "your own": (lambda: lambda path: len(path), {"a.x": b"", "bb.x": b""}, [3, 4], ["3", "4"]),
}


@pytest.mark.parametrize("form", LABEL_FORMS)
def test_each_form_of_labels(form: str) -> None:
    """As member ``cls``, counted from 0; the class table is written beside the shards."""
    make, files, expected, keys = LABEL_FORMS[form]
    source, to = memory_place(), memory_place()
    shard(source.put(files), to, labels=make())
    members = to.members()
    assert [members[re.sub(r"\.\w+$", ".cls", name)] for name in files] == [b"%d" % label for label in expected]
    table = json.loads(to.files()["classes.json"])
    assert list(table) == keys
    assert [entry["id"] for entry in table.values()] == sorted(entry["id"] for entry in table.values())


@pytest.mark.parametrize("form", [name for name in LABEL_FORMS if name != "your own"])
def test_a_file_without_a_label_is_named_before_anything_is_written(form: str) -> None:
    """No shard, no manifest and no table is there; the file's path is in the error."""
    make, files, _, _ = LABEL_FORMS[form]
    source, to = memory_place(), memory_place()
    with pytest.raises(LabelError, match=r"stranger\.x"):
        shard(source.put({**files, "stranger.x": b""}), to, labels=make())
    assert to.files() == {}


def test_labels_replace_those_of_the_samples() -> None:
    """A ``cls`` that is there already is not what is written."""
    source, to = memory_place(), memory_place()
    shard(source.put({"a/1.cls": b"77", "a/1.txt": b"t", "a/2.cls": b"5"}), to, labels=labels.parent_directory())
    assert to.members() == {"a/1.cls": b"0", "a/1.txt": b"t", "a/2.cls": b"0"}


def test_a_tar_of_tars_is_labelled_by_the_inner_names() -> None:
    """ImageNet's training archive by its class file."""
    table = {"n01": {"id": 5, "name": "tench"}, "n02": {"id": 6, "name": "goldfish"}}
    source, to = memory_place(), memory_place()
    tars = {f"{key}.tar": tar_of({f"{key}_{i}.JPEG": b"%d" % i for i in range(3)}) for key in table}
    source.put({"ILSVRC2012_img_train.tar": tar_of(tars)})
    shard(f"{source.url}ILSVRC2012_img_train.tar", to, labels=labels.classes_json(table, id_base=5))
    members = to.members()
    assert {members[f"n01/n01_{i}.cls"] for i in range(3)} == {b"0"}
    assert {members[f"n02/n02_{i}.cls"] for i in range(3)} == {b"1"}


# Order, limits, and the objects beside the shards


def test_without_a_seed_the_order_is_that_of_the_source() -> None:
    """``seed=None`` keeps it; samples are then as they are listed or archived."""
    source = memory_place()
    unsorted = [("b.x", b"1"), ("a.x", b"2"), ("c.x", b"3")]
    source.put({"some.tar": tar_of(unsorted)})
    to = memory_place()
    shard(f"{source.url}some.tar", to, seed=None)
    assert next(iter(to.shards().values())) == unsorted


@pytest.mark.parametrize("ending", [".tar.gz", ".tgz", ".tar.zst"])
def test_compressed_shards_hold_the_same_samples_without_indexes(ending: str) -> None:
    """They hold what uncompressed ones hold, have no index, and the limit is that of the tar."""
    source, plain, to = memory_place(), memory_place(), memory_place()
    source.put(FILES)
    shard(source.url, plain, max_shard_bytes=8_000)
    shard(source.url, to, ending=ending, max_shard_bytes=8_000, provenance=True)
    assert [members_of(name, data) for name, data in sorted(to.files().items()) if name.endswith(ending)] == [
        *plain.shards().values()
    ]
    assert not [name for name in to.files() if name.endswith((".idx", ".keys"))]
    assert sorted(sample["__key__"] for sample in tdr.stream_shards(to.url, pattern=f"*{ending}")) == sorted(
        name.partition(".")[0] for name in FILES
    )


def check_beside(to: Place, sources: set[str] | None) -> None:
    """Indexes, manifest and provenance say where things are."""
    files, shards = to.files(), to.shards()
    infos = load_manifest(files["index.json"], f"{to.url}index.json")
    assert [info.url for info in infos] == [to.url + name for name in shards]
    document = json.loads(files["index.json"])
    assert document["__kind__"] == "wids-shard-index-v1"
    starts: dict[str, dict[str, int]] = {}
    for info, (name, members) in zip(infos, shards.items(), strict=True):
        first: dict[str, int] = {}
        for member, place in header_places(files[name]):
            first.setdefault(member.partition(".")[0] if "/" not in member else re.sub(r"\.[^/]*$", "", member), place)
        starts[name] = first
        assert info.num_samples == len(first)
        assert info.num_bytes == len(files[name])
        offsets = np.frombuffer(files[f"{name}.idx"], "<u8").tolist()
        assert offsets[:-1] == list(first.values())
        assert offsets[-1] == len(files[name]) - 1024
        assert members
    if sources is None:
        return
    sample_sources: dict[str, Any] = {}
    for name in files:
        if name.startswith("provenance"):  # one for each job
            sample_sources |= json.loads(files[name])
    assert set(sample_sources) == sources
    for source, entry in sample_sources.items():
        key = re.sub(r"\.[^/]*$", "", source)
        assert starts[entry["targetFile"]][key] == entry["position"]
        if entry["class"] is not None:
            assert dict(shards[entry["targetFile"]])[f"{key}.cls"] == b"%d" % entry["class"]


def first_members(files: Mapping[str, bytes]) -> set[str]:
    """The first member of each sample."""
    made: dict[str, str] = {}
    for name in sorted(files):
        made.setdefault(re.sub(r"\.[^/]*$", "", name), name)
    return set(made.values())


@pytest.mark.parametrize("labelled", [False, True])
def test_indexes_manifest_and_provenance_hold_true_offsets(labelled: bool) -> None:
    """Byte offsets are those of the first header of each sample, extended headers included."""
    source, to = memory_place(), memory_place()
    source.put({**PHOTOS, **FILES})
    labeller = labels.from_pattern("^([^/]+)/") if labelled else None
    shard(source.url, to, max_shard_bytes=6_000, provenance=True, labels=labeller)
    check_beside(to, first_members({**PHOTOS, **FILES}))


NAMES = st.builds(
    lambda folder, base: f"{folder}{base}",
    st.sampled_from(["", "a/", "p" * 99 + "/", "p" * 160 + "/", "é/"]),
    st.text("abcé01-", min_size=1, max_size=5),
)
SOURCES = st.dictionaries(
    st.builds(lambda name, extension: f"{name}.{extension}", NAMES, st.sampled_from(["jpg", "cls", "seg.png"])),
    st.sampled_from([0, 1, 511, 512, 513, 3000]).map(lambda size: b"x" * size),
    min_size=1,
    max_size=14,
)


@given(
    files=SOURCES,
    max_shard_bytes=st.integers(1, 12_000),
    max_shard_samples=st.integers(1, 6),
    seed=st.none() | st.integers(0, 3),
    labelled=st.booleans(),
    archived=st.booleans(),
)
@settings(max_examples=30)
def test_limits_are_kept_and_used(
    files: dict[str, bytes],
    max_shard_bytes: int,
    max_shard_samples: int,
    seed: int | None,
    labelled: bool,
    archived: bool,
) -> None:
    """No shard is above a limit, except one large sample; a shard ends only where the next sample did not fit."""
    source, to = memory_place(), memory_place()
    source.put({"all.tar": tar_of(sorted(files.items()))} if archived else files)
    shard(
        source.url + ("all.tar" if archived else ""),
        to,
        seed=seed,
        max_shard_bytes=max_shard_bytes,
        max_shard_samples=max_shard_samples,
        labels=(lambda path: len(path) % 7) if labelled else None,
        provenance=True,
    )
    members = to.members()
    kept = {name: data for name, data in files.items() if not (labelled and name.endswith(".cls"))}
    assert {name: data for name, data in members.items() if not (labelled and name.endswith(".cls"))} == kept
    check_beside(to, first_members(files))
    contents = to.files()
    sizes = [np.diff(np.frombuffer(contents[f"{name}.idx"], "<u8")).tolist() for name in to.shards()]
    for at, samples in enumerate(sizes):
        assert len(samples) <= max_shard_samples
        assert sum(samples) + 1024 <= max_shard_bytes or len(samples) == 1
        if at + 1 < len(sizes) and len(samples) < max_shard_samples:
            assert sum(samples) + sizes[at + 1][0] + 1024 > max_shard_bytes


@given(
    sizes=st.lists(st.sampled_from([0, 10, 3_000, 20_000]), min_size=1, max_size=40),
    max_shard_bytes=st.integers(2_000, 30_000),
    max_shard_samples=st.integers(1, 10),
)
@settings(max_examples=20)
def test_limits_of_a_dataset_whose_sizes_are_not_known(
    sizes: list[int], max_shard_bytes: int, max_shard_samples: int
) -> None:
    """Samples beyond the limit go into shards after the planned ones, in the same way in each run."""
    dataset, to, again = Folder([{"bin": bytes(size)} for size in sizes]), memory_place(), memory_place()
    limits: dict[str, Any] = {"max_shard_bytes": max_shard_bytes, "max_shard_samples": max_shard_samples}
    infos = shard(dataset, to, **limits)
    shard(dataset, again, **limits)
    assert to.files() == again.files()
    assert sum(info.num_samples for info in infos) == len(sizes) == len(to.members())
    for info in infos:
        assert info.num_samples <= max_shard_samples
        assert info.num_bytes <= max_shard_bytes or info.num_samples == 1
    check_beside(to, None)
    names = [info.url for info in infos]
    assert names == sorted(set(names))


# Transforms


def without_odd(sample: dict[str, Any]) -> dict[str, Any] | None:
    return None if int(sample["__key__"][-1]) % 2 else sample


def upper(sample: dict[str, Any]) -> dict[str, Any]:
    assert all(type(value) in (bytes, str, int) for value in sample.values())
    return {
        "__key__": sample["__key__"],
        "up": sample["txt"].upper(),
        **({"cls": sample["cls"]} if "cls" in sample else {}),
    }


def test_a_transform_leaves_out_samples(place: Place) -> None:
    """``None`` leaves a sample out, of files and of shards; provenance knows only those that are there."""
    source, middle, to = place.below("files"), place.below("middle"), place.below("shards")
    kept = {name: data for name, data in FILES.items() if int(name[-5]) % 2 == 0}
    shard(source.put(FILES), middle, max_shard_samples=7)
    for url in (source.url, middle.url):
        shard(url, to, transform=without_odd, max_shard_samples=4, provenance=True, overwrite=True)
        assert to.members() == kept
        check_beside(to, None)
        assert {re.sub("^[0-9]{6}/", "", name) for name in json.loads(to.files()["provenance.json"])} == set(kept)


def test_a_transform_makes_other_samples() -> None:
    """It gets bytes and the label as an int, and what it returns is written."""
    source, to = memory_place(), memory_place()
    shard(source.put({"a/1.txt": b"one", "b/2.txt": b"two"}), to, transform=upper, labels=labels.parent_directory())
    assert to.members() == {"a/1.up": b"ONE", "a/1.cls": b"0", "b/2.up": b"TWO", "b/2.cls": b"1"}


def test_a_transform_that_leaves_nothing_is_an_error() -> None:
    """No empty dataset is written."""
    source, to = memory_place(), memory_place()
    with pytest.raises(ShardWriteError, match="left out all"):
        shard(source.put(FILES), to, transform=lambda sample: None)
    assert "index.json" not in to.files()


def test_a_transform_that_fails_names_the_sample() -> None:
    """The source's path, and what was raised."""
    source = memory_place()
    with pytest.raises(ShardWriteError, match=r"class-0/00000\.txt.*KeyError"):
        shard(source.put({"class-0/00000.txt": b""}), memory_place(), transform=lambda sample: sample["nothing"])


def test_provenance_of_shards_that_have_labels() -> None:
    """Also if the label is bytes, as in shards."""
    source, middle, to = memory_place(), memory_place(), memory_place()
    shard(source.put(FILES), middle, labels=labels.parent_directory())
    shard(middle.url, to, provenance=True)
    assert len(json.loads(to.files()["provenance.json"])) == len(FILES)


@pytest.mark.parametrize("label", [np.int64(1), np.int32(1), torch.tensor(1)], ids=repr)
def test_provenance_of_a_dataset_with_labels_of_any_kind(label: Any) -> None:
    """A dict's label need not be a plain ``int``."""
    to = memory_place()
    shard(Folder([{"txt": "a", "cls": label}]), to, provenance=True)
    assert json.loads(to.files()["provenance.json"])["0"]["position"] == 0


# Append and overwrite


def test_append_adds_shards_and_keeps_class_numbers(place: Place) -> None:
    """Old shards are unchanged, new classes follow the old ones, and the manifest names all."""
    first, second, to = place.below("first"), place.below("second"), place.below("shards")
    first.put({"cat/1.x": b"1", "dog/2.x": b"2"})
    second.put({"ant/3.x": b"3", "dog/4.x": b"4"})
    given: dict[str, Any] = {"labels": labels.parent_directory(), "provenance": True, "max_shard_samples": 1}
    old = shard(first.url, to, **given)
    before = to.files()
    new = shard(second.url, to, append=True, **given)
    after = to.files()
    assert all(after[name] == data for name, data in before.items() if ".tar" in name)
    assert [base_name(info) for info in load_manifest(after["index.json"], f"{to.url}index.json")] == [
        base_name(info) for info in (*old, *new)
    ]
    table = json.loads(after["classes.json"])
    assert {key: entry["id"] for key, entry in table.items()} == {"cat": 0, "dog": 1, "ant": 2}
    members = to.members()
    assert (members["ant/3.cls"], members["dog/4.cls"], members["cat/1.cls"]) == (b"2", b"1", b"0")
    check_beside(to, {"cat/1.x", "dog/2.x", "ant/3.x", "dog/4.x"})


def test_appending_the_same_job_again_changes_nothing() -> None:
    """A job that is in the manifest is not done twice."""
    first, second, to = memory_place(), memory_place(), memory_place()
    shard(first.put({"1.x": b"1"}), to)
    new = shard(second.put({"2.x": b"2"}), to, append=True)
    before = to.files()
    assert shard(second.url, to, append=True) == new
    assert to.files() == before


def test_append_to_an_empty_folder_writes_shards() -> None:
    """As without ``append``."""
    source, to = memory_place(), memory_place()
    shard(source.put(FILES), to, append=True)
    assert to.members() == FILES


def test_append_keeps_the_class_numbers_of_a_dataset_too() -> None:
    """Classes of a dataset whose numbers are others than those in the table are refused, or numbered as there."""
    source, to = memory_place(), memory_place()
    shard(source.put({"dog/1.x": b"", "emu/2.x": b""}), to, labels=labels.parent_directory())
    before = json.loads(to.files()["classes.json"])
    with suppress(RemoteDataError):
        shard(Folder([(b"x", 0)]), to, append=True)
    table = json.loads(to.files()["classes.json"])
    assert {key: table[key] for key in before} == before


def test_existing_shards_are_an_error_and_stay_unchanged(place: Place) -> None:
    """With and without a manifest, however often it is tried."""
    source, to, bare = place.below("source"), place.below("shards"), place.below("bare")
    other = place.below("other")
    other.put({"1.x": b"1"})
    shard(source.put(FILES), to)
    bare.put({"000000.tar": b"precious"})
    for destination in (to, bare):
        before = destination.files()
        for _ in range(2):
            with pytest.raises(ObjectExistsError, match="overwrite=True"):
                shard(other.url, destination)
            assert destination.files() == before


def test_overwrite_removes_all_old_shards_and_descriptions() -> None:
    """No shard, index, class table or provenance of before is left."""
    source, to = memory_place(), memory_place()
    source.put(FILES)
    shard(source.url, to, max_shard_samples=3, labels=labels.parent_directory(), provenance=True)
    shard(source.url, to, max_shard_samples=20, overwrite=True)
    assert sorted(to.files()) == [
        *(f"{name}{ending}" for name in ("000000.tar", "000001.tar") for ending in ("", ".idx", ".keys")),
        "index.json",
    ]
    assert to.members() == FILES


def test_overwrite_replaces_what_was_appended() -> None:
    """Shards and provenance."""
    source, to = memory_place(), memory_place()
    shard(source.put({"1.x": b"1"}), to, provenance=True)
    shard(memory_place().put({"2.x": b"2"}), to, provenance=True, append=True)
    shard(source.url, to, overwrite=True)
    assert sorted(to.files()) == ["000000.tar", "000000.tar.idx", "000000.tar.keys", "index.json"]


def test_the_shards_of_several_jobs_are_a_source() -> None:
    """Their companions are ignored."""
    middle, to = memory_place(), memory_place()
    for name in ("1.x", "2.x"):
        shard(memory_place().put({name: name.encode()}), middle, provenance=True, append=True)
    shard(middle.url, to)
    assert to.members() == {"1.x": b"1.x", "2.x": b"2.x"}


def test_provenance_of_several_jobs_with_the_same_paths() -> None:
    """None of them hides another."""
    to = memory_place()
    for text in (b"one", b"two"):
        shard(memory_place().put({"1.x": text}), to, provenance=True, append=True)
    sample_sources = [
        json.loads(data)["1.x"] for name, data in sorted(to.files().items()) if name.startswith("provenance")
    ]
    assert sorted(entry["targetFile"] for entry in sample_sources) == ["000000.tar", "000001.tar"]


def test_a_folder_of_another_template_is_refused() -> None:
    """One folder holds the shards of one template, and this is no reason to leave anything there."""
    source, to = memory_place(), memory_place()
    shard(source.put(FILES), to)
    before = to.files()
    with pytest.raises(ObjectExistsError, match="other shards"):
        shard_dataset(source.url, f"{to.url}val-{{shard}}.tar", progress=False, overwrite=True)
    assert to.files() == before


# What is refused


def test_an_empty_source_is_an_error_and_changes_nothing() -> None:
    """No objects, or archives without samples; the destination is unchanged with any option."""
    source, to = memory_place(), memory_place()
    shard(source.put(FILES), to)
    before = to.files()
    empty = memory_place()
    with pytest.raises(EmptyListingError):
        shard(empty.url, to, overwrite=True)
    empty.put({"empty.tar": tar_of({})})
    with pytest.raises(RemoteDataError):
        shard(f"{empty.url}empty.tar", to, overwrite=True)
    with pytest.raises(RemoteDataError):
        shard(Folder([]), to, overwrite=True)
    assert to.files() == before


def test_archives_beside_files_are_an_error_that_names_both() -> None:
    """A mixture is refused, and both are named; a pattern chooses."""
    source = memory_place()
    source.put({"a.tar": tar_of({"1.x": b"1"}), "b.jpg": b"2"})
    with pytest.raises(ShardReadError, match=r"a\.tar.*b\.jpg.*pattern="):
        shard(source.url, memory_place())
    to = memory_place()
    shard(source.url, to, pattern="*.tar")
    assert to.members() == {"1.x": b"1"}


def test_files_beside_inner_archives_are_an_error() -> None:
    """An archive that holds archives and others is refused."""
    source = memory_place()
    source.put({"a.tar": tar_of({"1.tar": tar_of({"1.x": b"1"}), "2.x": b"2"})})
    with pytest.raises(ShardReadError, match=r"2\.x"):
        shard(f"{source.url}a.tar", memory_place())


@pytest.mark.parametrize("name", [".hidden", "README", "a/.backup", "a/__meta__.json__"])
def test_a_file_that_cannot_be_a_member_is_named_with_advice(name: str) -> None:
    """With what to do about it."""
    source = memory_place()
    with pytest.raises(ShardReadError, match=re.escape(name) + r".*pattern="):
        shard(source.put({"a/1.jpg": b"", name: b""}), memory_place())


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        ("truncated", lambda data: data[: len(data) // 2 - 100]),
        ("without its end", lambda data: data[:-10_240]),
        ("header flipped", lambda data: data[:1030] + bytes([data[1030] ^ 4]) + data[1031:]),
        ("no tar", lambda data: b"hello" * 300),
        ("empty", lambda data: b""),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_a_damaged_archive_is_named(what: str, damage: Any, compressed: bool) -> None:
    """Before anything is written."""
    source, to = memory_place(), memory_place()
    data = damage(tar_of(FILES))
    source.put({"bad.tar.gz" if compressed else "bad.tar": gzip.compress(data) if compressed else data})
    with pytest.raises(ShardReadError, match=r"bad\.tar"):
        shard(source.url, to)
    assert not [name for name in to.files() if ".tar" in name or name == "index.json"]


def test_a_damaged_inner_archive_is_named() -> None:
    """By the outer archive and its own name."""
    source = memory_place()
    source.put({"train.tar": tar_of({**inner_tars(), "class-9.tar": tar_of(FILES)[:5_000]})})
    with pytest.raises(ShardReadError, match=r"train\.tar.*class-9\.tar"):
        shard(f"{source.url}train.tar", memory_place())


@pytest.mark.parametrize(
    "members",
    [
        [("1.x", b"1"), ("2.x", b"2"), ("1.x", b"3")],
        [("1.x", b"1"), ("2.x", b"2"), ("1.y", b"3")],
        [("1.x", b"1"), ("./1.x", b"2")],
        [("1.x", b"1"), ("1.X", b"2")],
    ],
)
def test_a_key_that_comes_twice_is_named(members: list[tuple[str, bytes]]) -> None:
    """Two samples under one key, or a member twice, would not be read back."""
    source = memory_place()
    source.put({"a.tar": tar_of(members)})
    with pytest.raises(ShardReadError, match="1"):
        shard(f"{source.url}a.tar", memory_place())


@pytest.mark.parametrize("name", ["../up.x", "/absolute.x", "a/../../b.x"])
def test_names_that_leave_their_folder_are_refused(name: str) -> None:
    """Members of archives are named by others."""
    source = memory_place()
    source.put({"a.tar": make_member(name.encode(), b"x") + bytes(1024)})
    with pytest.raises(RemoteDataError, match=re.escape(name)):
        shard(f"{source.url}a.tar", memory_place())


def test_links_and_folders_in_archives_are_skipped() -> None:
    """Other members are kept."""
    source, to = memory_place(), memory_place()
    data = make_header(b"a/", kind=b"5") + make_member(b"a/1.x", b"one") + bytes(1024)
    source.put({"a.tar": data})
    shard(f"{source.url}a.tar", to)
    assert to.members() == {"a/1.x": b"one"}


@pytest.mark.parametrize(
    ("given", "error", "what"),
    [
        ({"max_shard_bytes": 0}, ValueError, "max_shard_bytes"),
        ({"max_shard_samples": 0}, ValueError, "max_shard_samples"),
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"append": True, "overwrite": True}, ValueError, "choose one"),
    ],
)
def test_invalid_arguments_are_refused_at_once(given: dict[str, Any], error: type[Exception], what: str) -> None:
    """With the reason."""
    source, to = memory_place(), memory_place()
    with pytest.raises(error, match=what):
        shard(source.put(FILES), to, **given)
    assert to.files() == {}


@pytest.mark.parametrize(
    "template", ["memory://x/a.tar", "memory://x/{shard}.zip", "memory://{shard}/a.tar", "{s}.tar"]
)
def test_an_invalid_template_is_shown_with_an_example(template: str) -> None:
    """Is shown, with an example of one."""
    with pytest.raises(ShardWriteError, match=r"\{shard"):
        shard_dataset(memory_place().put(FILES), template)


@pytest.mark.parametrize("source", [3, None, iter([]), {1, 2}])
def test_a_source_without_length_or_items_is_refused(source: Any) -> None:
    """Only what has a length and items is a dataset."""
    with pytest.raises(TypeError, match="map-style"):
        shard(source, memory_place())


@pytest.mark.parametrize("given", [{"labels": labels.parent_directory()}, {"pattern": "*.x"}])
def test_options_of_files_are_refused_for_a_dataset(given: dict[str, Any]) -> None:
    """They would be silently left out otherwise."""
    with pytest.raises(TypeError, match="for files"):
        shard(Folder([(b"x", 1)]), memory_place(), **given)


def test_a_value_that_cannot_be_encoded_is_named() -> None:
    """Sample and member."""
    with pytest.raises(EncodeError, match=r"'000000000'.*'jpg'"):
        shard(Folder([{"jpg": object()}]), memory_place())


@pytest.mark.parametrize("source", ["", "*.tar", "{000000..000001}.tar", "000000.tar", "index.json"])
def test_shards_are_not_written_over_their_source(disk: Place, source: str) -> None:
    """What is read would be replaced while it is read; so it is refused, and stays as it is."""
    files, to = memory_place(), disk.below("shards")
    shard(files.put(FILES), to, max_shard_samples=15)
    before = to.files()
    with pytest.raises(RemoteDataError):
        shard(to.url + source, to, max_shard_samples=4, overwrite=True)
    assert to.files() == before


def test_shards_are_not_written_into_the_source_folder(disk: Place) -> None:
    """They would be part of the source when the job is started again."""
    disk.put(FILES)
    with pytest.raises(ShardWriteError, match="is inside the source"):
        shard(disk.url, disk.below("shards"))
    assert disk.files() == FILES


def test_a_name_that_is_not_utf8_is_an_error(disk: Place) -> None:
    """It cannot be a key, and is named as such."""
    Path(disk.url, os.fsdecode(b"\xff.txt")).write_bytes(b"")
    with pytest.raises(RemoteDataError, match="udcff"):
        shard(disk.url, memory_place())


def test_members_with_the_names_of_companions() -> None:
    """In a folder of files ``.idx``, ``index.json`` and the like are members as others are."""
    source, to = memory_place(), memory_place()
    files = {"a.idx": b"1", "a.jpg": b"2", "b/index.json": b"{}", "b/index.txt": b"3", "classes.json": b"{}"}
    shard(source.put(files), to)
    assert to.members() == files


def test_a_folder_that_sorts_between_the_members_of_a_sample() -> None:
    """``a.cls``, ``a.d/x.jpg``, ``a.jpg``: the first and the last are one sample."""
    source, to = memory_place(), memory_place()
    files = {"a.cls": b"1", "a.d/x.jpg": b"2", "a.jpg": b"3"}
    shard(source.put(files), to)
    assert to.members() == files


def test_folders_are_listed_in_one_order_everywhere(moto: S3Server, disk: Place) -> None:
    """So the same files give the same shards."""
    names = ["a/1.x", "a-b/1.x", "a.b/1.x", "a0.x", "A.x", "é.x", "\uffee.x", "\U0001f600.x", "z/z/z.x", "z/z.x"]
    made = []
    for place in (disk.below("in"), memory_place(), Place(f"s3://{moto.new_bucket()}/in/", moto)):
        place.put({name: name.encode() for name in names})
        to = memory_place()
        shard(place.url, to, source_options=place.options)
        made.append(to.members())
        assert list(made[0].items()) == list(made[-1].items())


# Others read them


def test_webdataset_reads_the_shards(disk: Place) -> None:
    """Keys, members and order."""
    source, to = disk.below("in"), disk.below("out")
    shard(source.put(FILES), to, max_shard_samples=16, labels=labels.parent_directory())
    urls = sorted(str(path) for path in Path(to.url).glob("*.tar"))
    theirs = list(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False))
    ours = list(tdr.stream_shards(to.url, seed=None))
    assert [(sample["__key__"], sample["txt"], sample["cls"]) for sample in theirs] == [
        (sample["__key__"], sample["txt"], sample["cls"]) for sample in ours
    ]
    assert len(theirs) == len(FILES)


# Faults


READING: list[dict[str, Any]] = [
    {"slow_down": 0.2, "internal_error": 0.1},
    {"reset": 0.1, "early_end": 0.1, "reset_in_body": 0.1},
    {"cut_body": 0.1, "short_range": 0.1, "ignored_range": 0.1, "shifted_range": 0.1},
]


@pytest.mark.parametrize("faults", READING, ids=["busy", "resets", "short"])
def test_faults_while_reading_do_not_change_the_shards(moto: S3Server, faults: dict[str, Any]) -> None:
    """A store that breaks its answers gives the shards of one that does not."""
    source = Place(f"s3://{moto.new_bucket()}/", moto)
    source.put({"train.tar": tar_of(inner_tars())})
    source.below("files").put(FILES)
    for what in ("train.tar", "files/"):
        well, to = memory_place(), memory_place()
        shard(source.url + what, well, max_shard_samples=9, source_options=moto.storage_options)
        with faulty(moto, Faults(**faults), seed=1) as (server, store):
            shard(source.url + what, to, max_shard_samples=9, source_options=server.storage_options)
            assert sum(store.counts.values()) > store.counts["well"]
        assert to.files() == well.files()


def test_faults_while_writing_do_not_change_the_shards(moto: S3Server) -> None:
    """Uploads that fail are repeated; the shards are those of a sound store."""
    source, well = memory_place(), memory_place()
    source.put(FILES)
    shard(source.url, well, max_shard_samples=9)
    bucket = moto.new_bucket()
    to = Place(f"s3://{bucket}/", moto)
    faults = Faults(slow_down=0.1, internal_error=0.05, methods=frozenset({"GET", "PUT", "POST", "DELETE"}))
    with faulty(moto, faults, seed=3) as (server, store):
        shard(source.url, to, max_shard_samples=9, storage_options=server.storage_options)
        assert store.counts["slow_down"] > 0
    assert to.files() == well.files()
    assert to.uploads() == []


def test_a_permanent_upload_error_is_raised_and_the_job_can_be_resumed(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no manifest, and the next run writes the missing shards."""
    monkeypatch.setattr(inspect.unwrap(RetryPolicy.__init__), "__defaults__", (300.0, 3, 0.0, 0.0, 30.0))
    source, well = memory_place(), memory_place()
    source.put(FILES)
    to = Place(f"s3://{moto.new_bucket()}/", moto)
    num_calls = 0
    store = FaultyStore(moto.endpoint_url)

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 12 + len(FILES):  # all of them were measured before
            store.faults = Faults(slow_down=1.0, methods=frozenset({"PUT", "POST"}))
        return sample

    shard(source.url, well, max_shard_samples=9, transform=transform)
    num_calls = 0
    with store:
        options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
        with pytest.raises(StorageError, match="SlowDown"):
            shard(source.url, to, max_shard_samples=9, transform=transform, storage_options=options)
    assert {name for name in to.files() if ".tar" in name} <= {"000000.tar", "000000.tar.idx", "000000.tar.keys"}
    assert "index.json" not in to.files()
    shard(source.url, to, max_shard_samples=9, transform=transform)
    assert to.files() == well.files()
    assert to.uploads() == []


@pytest.mark.parametrize(
    ("where", "how"),
    [("local", "folder"), ("local", "braces"), ("local", "manifest"), ("s3", "glob"), ("s3", "file"), ("s3", "braces")],
)
def test_a_source_replaced_after_the_index_pass_is_an_error(
    how: str, where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """An archive that was replaced by another of the same size is an error, never a mixture."""
    if where == "local":
        source = Place(f"{tmp_path}/in/")
    else:
        server: S3Server = request.getfixturevalue("moto")
        source = Place(f"s3://{server.new_bucket()}/in/", server)
    with tdr.ShardWriter(source.template(), storage_options=source.options) as writer:
        for index in range(20):
            writer.write({"__key__": str(index), "txt": b"old" * 30})
    before = source.files()
    after = before["000000.tar"].replace(b"old", b"new")
    ending = {
        "folder": "",
        "glob": "*.tar",
        "file": "000000.tar",
        "braces": "{000000..000000}.tar",
        "manifest": "index.json",
    }
    replaced: list[str] = []

    def label(path: str) -> int:
        if not replaced:
            replaced.append(path)
            if where == "local":
                Path(source.url, "000000.tar").rename(Path(source.url, "old"))
            source.put({"000000.tar": after})
        return 0

    to = memory_place()
    with pytest.raises(ObjectChangedError):
        shard(source.url + ending[how], to, labels=label, source_options=source.options)
    assert "index.json" not in to.files()


def test_a_finished_job_of_a_dataset_is_not_recognised() -> None:
    """After its end a job over a dataset or with a transform is not known again: nothing is left out in silence."""
    to = memory_place()
    shard(Folder([("a", 1)] * 3), to)
    with pytest.raises(ObjectExistsError):
        shard(Folder([("b", 1)] * 3), to)
    shard(Folder([("b", 1)] * 3), to, append=True)
    shards = json.loads(to.files()["index.json"])["shardlist"]
    assert sum(entry["nsamples"] for entry in shards) == 6
    source, other = memory_place(), memory_place()
    shard(source.put({"1.x": b"1"}), other, transform=lambda sample: {**sample, "x": b"2"})
    with pytest.raises(ObjectExistsError):
        shard(source.url, other, transform=lambda sample: {**sample, "x": b"3"})
