"""The manifest and the indexes of shards that others wrote."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import shutil
import struct
import subprocess
import tarfile
import uuid
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.s3 import S3Server
from tests.support.archive_bytes import make_member, pack_tar
from torchdata_remote import ShardInfo, ShardTarReader, ShardWriter
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import EmptyListingError, ObjectExistsError, ShardReadError
from torchdata_remote.formats.key_index import KeyIndex, parse_keys
from torchdata_remote.formats.manifest import MANIFEST_NAME, load_manifest
from torchdata_remote.formats.tar import END_OF_ARCHIVE
from torchdata_remote.sharding.index_shards import index_shards
from torchdata_remote.sharding.shard_dataset import shard_dataset
from torchdata_remote.testing import write_small_shards

Sample = dict[str, Any]
KEYS = st.text("abcé01", min_size=1, max_size=4) | st.just("n" * 120) | st.just("p" * 160 + "/é")
SAMPLES = st.lists(
    st.builds(
        lambda key, members: {"__key__": key, **members},
        KEYS,
        st.dictionaries(st.sampled_from(["jpg", "cls", "seg.png"]), st.binary(max_size=1500), min_size=1),
    ),
    min_size=1,
    max_size=9,
    unique_by=lambda sample: sample["__key__"],
)


def files_in(folder: str) -> dict[str, bytes]:
    """Base name -> bytes."""
    filesystem, path = fsspec.core.url_to_fs(folder)
    return {str(name)[len(path) + 1 :]: filesystem.cat_file(name) for name in filesystem.find(path)}


def put(url: str, data: bytes) -> None:
    with fsspec.open(url, "wb", auto_mkdir=True) as file:
        file.write(data)


def check_by_parts(folder: str, **options: Any) -> list[int]:
    """Whether the manifest counts each shard's samples, and each is found alone; returns how many there are."""
    counts = []
    for url in IterableWrapper([f"{folder}/{MANIFEST_NAME}"]).list_remote(**options):
        assert isinstance(url, RemoteUrl)
        assert url.num_samples is not None
        whole = list(ShardTarReader(IterableWrapper([str(url)]), **options))
        parts = IterableWrapper([url.part(number, number + 1) for number in range(url.num_samples)])
        assert list(ShardTarReader(parts, **options)) == whole
        counts.append(len(whole))
    return counts


@settings(max_examples=40)
@given(samples=SAMPLES, max_shard_samples=st.integers(1, 4))
def test_index_shards_writes_what_the_shard_writer_writes(samples: list[Sample], max_shard_samples: int) -> None:
    """Manifest, indexes and keys are the same, byte for byte, and so is what is returned."""
    root = f"memory://{uuid.uuid4().hex}"
    with ShardWriter(f"{root}/ours/{{shard:03d}}.tar", max_shard_samples=max_shard_samples) as writer:
        for sample in samples:
            writer.write(sample)
    ours = files_in(f"{root}/ours")
    for name in ours:
        if name.endswith(".tar"):
            put(f"{root}/theirs/{name}", ours[name])
    reported: list[ShardInfo] = []
    shards = index_shards(f"{root}/theirs", on_shard=reported.append)
    assert files_in(f"{root}/theirs") == ours
    assert shards == reported == load_manifest(ours[MANIFEST_NAME], f"{root}/theirs/{MANIFEST_NAME}")
    fsspec.filesystem("memory").rm(root, recursive=True)


@settings(max_examples=15)
@given(samples=SAMPLES, seed=st.integers(0, 9), is_archive=st.booleans())
def test_index_shards_writes_what_shard_dataset_writes(samples: list[Sample], seed: int, is_archive: bool) -> None:
    """From an archive, whose members are read by ranges, and from files: indexes and keys are the same."""
    root = f"memory://{uuid.uuid4().hex}"
    names = [(f"{sample['__key__']}.{name}", data) for sample in samples for name, data in list(sample.items())[1:]]
    if is_archive:
        put(f"{root}/source/0.tar", pack_tar(names))
    else:
        for name, data in names:
            put(f"{root}/source/{name}", data)
    shard_dataset(f"{root}/source", f"{root}/ours/{{shard:03d}}.tar", seed=seed, max_shard_samples=3, progress=False)
    ours = files_in(f"{root}/ours")
    for name in ours:
        if name.endswith(".tar"):
            put(f"{root}/theirs/{name}", ours[name])
    index_shards(f"{root}/theirs", progress=False)
    theirs = files_in(f"{root}/theirs")
    manifests = [json.loads(files.pop(MANIFEST_NAME))["shardlist"] for files in (ours, theirs)]
    assert theirs == ours
    assert manifests[0] == manifests[1]
    assert len([name for name in ours if name.endswith(".keys")]) == -(-len(samples) // 3)
    fsspec.filesystem("memory").rm(root, recursive=True)


def cut_out(keys: KeyIndex, data: bytes) -> list[list[tuple[str, bytes]]]:
    """Extension and data of the members of each sample, by the file of keys."""
    members = [
        (keys.extensions[extension], data[start : start + size])
        for extension, start, size in zip(keys.members, keys.starts, keys.sizes, strict=True)
    ]
    return [members[first:last] for first, last in pairwise(keys.firsts())]


def by_program(*command: str) -> Callable[[Path, Path], None]:
    def write(archive: Path, files: Path) -> None:
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        names = sorted(os.listdir(files))
        subprocess.run(
            [*command, "-cf", archive, "-C", files, "--", *names], check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )

    return write


def by_python(form: int) -> Callable[[Path, Path], None]:
    def write(archive: Path, files: Path) -> None:
        with tarfile.open(archive, "w", format=form) as tar:
            for name in sorted(os.listdir(files)):
                tar.add(files / name, name, filter=lambda info: info.replace(uname="é" * 40, deep=False))

    return write


def by_webdataset(archive: Path, files: Path) -> None:
    with webdataset.TarWriter(str(archive)) as writer:
        for text in sorted(files.rglob("*.txt")):
            key = str(text.relative_to(files)).removesuffix(".txt")
            writer.write({"__key__": key, "txt": text.read_bytes(), "bin": text.with_suffix(".bin").read_bytes()})


WRITERS: dict[str, Callable[[Path, Path], None]] = {
    "GNU tar, gnu": by_program("tar", "--format=gnu", "--sort=name"),
    "GNU tar, posix": by_program("tar", "--format=posix", "--sort=name"),
    "bsdtar, gnutar": by_program("bsdtar", "--format=gnutar"),
    "bsdtar, pax": by_program("bsdtar", "--format=pax"),
    "python, gnu": by_python(tarfile.GNU_FORMAT),
    "python, pax": by_python(tarfile.PAX_FORMAT),
    "webdataset": by_webdataset,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_shards_of_other_writers_are_indexed(tmp_path: Path, write: Callable[[Path, Path], None]) -> None:
    """Of any writer and dialect, with directories before the samples, long names and pax records: each is found."""
    for number in range(5):
        folder = "long" * 40 + "/" + "é" * 80 if number % 2 else "d"
        file = tmp_path / "files" / f"{number}-dir" / folder / f"sample-{number}.txt"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"line\n" * 200 * number)
        file.with_suffix(".bin").write_bytes(bytes(number * 512))
    (tmp_path / "train").mkdir()
    write(tmp_path / "train" / "0.tar", tmp_path / "files")
    (shard,) = index_shards(str(tmp_path / "train"))
    data = (tmp_path / "train" / "0.tar").read_bytes()
    assert (shard.num_samples, shard.num_bytes) == (5, len(data))
    offsets = struct.unpack("<6Q", (tmp_path / "train" / "0.tar.idx").read_bytes())
    assert offsets[0] == 0
    keys = parse_keys((tmp_path / "train" / "0.tar.keys").read_bytes(), num_samples=5, shard_bytes=len(data))
    samples = list(ShardTarReader(IterableWrapper([f"file://{tmp_path}/train/0.tar"])))
    assert keys.keys == [sample["__key__"] for sample in samples]
    assert cut_out(keys, data) == [list(sample.items())[2:] for sample in samples]
    assert not data[offsets[-1] :].strip(b"\0"), "the last entry is where the end-of-archive blocks begin"
    assert data[offsets[-1] - 512 : offsets[-1]].strip(b"\0") or offsets[-1] == len(data) - len(END_OF_ARCHIVE)
    assert check_by_parts(f"file://{tmp_path}/train") == [5]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress])
def test_a_compressed_shard_is_counted_and_gets_neither_index_nor_keys(
    memory_folder: str, compress: Callable[[bytes], bytes]
) -> None:
    """It can be read from its beginning only; its size and MD5 are those of the object."""
    tar = pack_tar([(f"{number}.txt", b"text" * number) for number in range(4)])
    put(f"{memory_folder}/a.tgz", compress(tar))
    put(f"{memory_folder}/b.tgz", tar)
    compressed, plain = index_shards(memory_folder, pattern="*.tgz")
    assert (compressed.num_samples, plain.num_samples) == (4, 4)
    assert (compressed.num_bytes, plain.num_bytes) == (len(compress(tar)), len(tar))
    assert sorted(files_in(memory_folder)) == ["a.tgz", "b.tgz", "b.tgz.idx", "b.tgz.keys", MANIFEST_NAME]


def test_names_that_are_no_samples_take_no_part(memory_folder: str) -> None:
    """Directories, ``./`` and members named like ``__this__``: before, between and after samples."""
    data = make_member(b"./", b"", b"5") + make_member(b"./__meta__", b"{}")
    for number in range(3):
        data += make_member(b"./%d/" % number, b"", b"5") + make_member(b"./%d/a.txt" % number, b"x" * 600)
        data += make_member(b"__meta__", b"{}")
    put(f"{memory_folder}/0.tar", data + END_OF_ARCHIVE)
    (shard,) = index_shards(memory_folder)
    assert shard.num_samples == 3
    assert check_by_parts(memory_folder) == [3]


def test_a_manifest_is_refused_before_anything_is_read(memory_folder: str) -> None:
    """A terabyte is not read in order to say so; the error names it and the way out, and nothing is changed."""
    put(f"{memory_folder}/0.tar", b"not read, else this were an error")
    put(f"{memory_folder}/{MANIFEST_NAME}", b"{}")
    before = files_in(memory_folder)
    reported: list[ShardInfo] = []
    with pytest.raises(ObjectExistsError, match=r"index\.json exists already.*--overwrite") as caught:
        index_shards(memory_folder, on_shard=reported.append)
    assert isinstance(caught.value, FileExistsError)
    assert (files_in(memory_folder), reported) == (before, [])


@pytest.mark.parametrize("ending", ["idx", "keys"])
def test_an_index_or_keys_are_not_replaced_unless_asked_for(memory_folder: str, ending: str) -> None:
    """With ``overwrite=True`` all are written again."""
    write_small_shards(memory_folder, num_shards=3, samples_per_shard=2)
    right = files_in(memory_folder)
    fsspec.filesystem("memory").rm(f"{memory_folder}/{MANIFEST_NAME}".removeprefix("memory:/"))
    put(f"{memory_folder}/000001.tar.{ending}", b"of somebody else")
    for number in (0, 1, 2):
        for other in {"idx", "keys"} - ({ending} if number else set()):
            fsspec.filesystem("memory").rm(f"{memory_folder}/00000{number}.tar.{other}".removeprefix("memory:/"))
    fsspec.filesystem("memory").rm(f"{memory_folder}/000002.tar.{ending}".removeprefix("memory:/"))
    with pytest.raises(ObjectExistsError, match=rf"000001\.tar\.{ending}"):
        index_shards(memory_folder)
    assert files_in(memory_folder)[f"000001.tar.{ending}"] == b"of somebody else"
    assert MANIFEST_NAME not in files_in(memory_folder)
    index_shards(memory_folder, overwrite=True)
    assert files_in(memory_folder) == right
    put(f"{memory_folder}/{MANIFEST_NAME}", b"damaged")
    index_shards(memory_folder, overwrite=True)
    assert files_in(memory_folder) == right


SOUND = pack_tar([(f"{number}.txt", bytes([65 + number]) * 700) for number in range(3)])
DAMAGED = {
    "cut in a member": SOUND[:2000],
    "cut before its end": SOUND[: -len(END_OF_ARCHIVE)],
    "bit in a header": SOUND[:3] + bytes([SOUND[3] ^ 1]) + SOUND[4:],
    "zeros": bytes(20_480),
    "empty": b"",
    "no tar": b"<html>" * 500,
    "scattered sample": pack_tar([("a.txt", b""), ("b.txt", b""), ("a.cls", b"")]),
    "cut compressed": gzip.compress(SOUND)[:-20],
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_shard_is_an_error(memory_folder: str, data: bytes) -> None:
    """It is named; there is no manifest, whose reader would take the dataset for whole, and no index of it."""
    put(f"{memory_folder}/0.tar", SOUND)
    put(f"{memory_folder}/1.tar", data)
    with pytest.raises(ShardReadError, match=r"1\.tar"):
        index_shards(memory_folder)
    assert not {MANIFEST_NAME, "1.tar.idx", "1.tar.keys"} & set(files_in(memory_folder))


def test_a_folder_without_shards_is_an_error(memory_folder: str) -> None:
    """Indexes and subfolders are not shards."""
    put(f"{memory_folder}/0.zip", b"PK")
    put(f"{memory_folder}/0.tar.idx", b"")
    put(f"{memory_folder}/below/0.tar", SOUND)
    with pytest.raises(EmptyListingError, match="are tars"):
        index_shards(memory_folder)
    assert MANIFEST_NAME not in files_in(memory_folder)


def test_shards_are_in_the_order_of_their_paths(memory_folder: str) -> None:
    """In the manifest, in the result and in the callbacks."""
    for name in ("10", "9", "2"):
        put(f"{memory_folder}/{name}.tar", SOUND)
    reported: list[ShardInfo] = []
    shards = index_shards(memory_folder + "/", on_shard=reported.append)
    assert [shard.url for shard in shards] == [f"{memory_folder}/{name}.tar" for name in ("10", "2", "9")]
    assert (
        reported == shards == load_manifest(files_in(memory_folder)[MANIFEST_NAME], f"{memory_folder}/{MANIFEST_NAME}")
    )


def test_index_shards_in_a_bucket(moto: S3Server) -> None:
    """In a bucket, with the options that reach it; in the bucket's root too."""
    for folder in (f"s3://{moto.new_bucket()}/a/train", f"s3://{moto.new_bucket()}"):
        client, options = moto.client(), moto.storage_options
        bucket, _, prefix = folder.removeprefix("s3://").partition("/")
        write_small_shards(folder, num_shards=3, samples_per_shard=4, storage_options=options)
        keys = [entry["Key"] for entry in client.list_objects_v2(Bucket=bucket)["Contents"]]
        right = {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}
        for key in keys:
            if not key.endswith(".tar"):
                client.delete_object(Bucket=bucket, Key=key)
        assert [shard.num_samples for shard in index_shards(folder, storage_options=options)] == [4, 4, 4]
        keys = [entry["Key"] for entry in client.list_objects_v2(Bucket=bucket)["Contents"]]
        assert {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys} == right
        assert all(key.startswith(prefix) for key in keys)
        assert check_by_parts(folder, storage_options=options) == [4, 4, 4]
