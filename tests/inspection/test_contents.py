"""Inspection of a shard by its headers."""

from __future__ import annotations

import lzma
import re
import uuid
from pathlib import Path
from statistics import median
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.support.archive_bytes import make_header, make_member, pack_tar
from tests.support.requested_bytes import requested_bytes
from torchdata_remote import ShardTarReader, ShardWriter
from torchdata_remote.errors import ObjectNotFoundError, ShardReadError
from torchdata_remote.formats.tar import END_OF_ARCHIVE
from torchdata_remote.inspection.contents import Sizes, inspect_shard

KEYS = st.text("abcé01 \n\x1b'\"%", min_size=1, max_size=4).filter(lambda key: key.strip("/")) | st.just(
    "p" * 160 + "/é"
)
SAMPLES = st.lists(
    st.builds(
        lambda key, members: {"__key__": key, **members},
        KEYS,
        st.dictionaries(
            st.sampled_from(["jpg", "cls", "seg.png", "json"]),
            st.binary(max_size=90) | st.just(bytes(200_000)),
            min_size=1,
        ),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda sample: sample["__key__"],
)


def put(url: str, data: bytes) -> str:
    with fsspec.open(url, "wb", auto_mkdir=True) as file:
        file.write(data)
    return url


def big_shard(folder: str, num_samples: int, sample_bytes: int, **options: Any) -> str:
    """A shard of large members, and its index."""
    with ShardWriter(f"{folder}/{{shard}}.tar", **options) as writer:
        for number in range(num_samples):
            writer.write({"__key__": f"{number:04d}", "cls": number % 3, "jpg": bytes(sample_bytes)})
    return f"{folder}/0.tar"


@settings(max_examples=30)
@given(samples=SAMPLES, index=st.sampled_from(["there", "missing", "of another shard"]))
def test_inspect_shard_agrees_with_the_reader(samples: list[dict[str, Any]], index: str) -> None:
    """Keys, counts, sizes and labels, with an index, without one, and with a wrong one."""
    root = f"memory://{uuid.uuid4().hex}"
    with ShardWriter(f"{root}/{{shard}}.tar") as writer:
        for sample in samples:
            writer.write(sample)
    if index == "missing":
        fsspec.filesystem("memory").rm(f"{root}/0.tar.idx")
    elif index == "of another shard":
        put(f"{root}/0.tar.idx", (0).to_bytes(8, "little") + (1024).to_bytes(8, "little"))
    read = list(ShardTarReader(IterableWrapper([f"{root}/0.tar"])))
    members = [(name, value) for sample in read for name, value in sample.items() if not name.startswith("__")]
    contents = inspect_shard(f"{root}/0.tar", num_samples=3)
    assert contents.num_samples == len(read)
    assert contents.num_members == len(members)
    assert [first["key"] for first in contents.first] == [sample["__key__"] for sample in read[:3]]
    assert [first["bytes"] for first in contents.first] == [
        {name: len(value) for name, value in sample.items() if not name.startswith("__")} for sample in read[:3]
    ]
    assert set(contents.extensions) == {name for name, _ in members}
    for extension, sizes in contents.extensions.items():
        lengths = [len(value) for name, value in members if name == extension]
        assert sizes == Sizes(len(lengths), min(lengths), median(lengths), max(lengths), sum(lengths))
    labels = [value for name, value in members if name == "cls" and len(value) <= 64]
    assert sum(contents.labels.values()) == len(labels)
    fsspec.filesystem("memory").rm(root, recursive=True)


@pytest.mark.parametrize("with_index", [True, False])
def test_inspect_shard_reads_less_than_one_percent_of_large_members(moto: S3Server, with_index: bool) -> None:
    """Of a shard of 16 members of 1 MiB, less than one byte in a hundred is requested."""
    bucket = moto.new_bucket()
    big_shard(f"s3://{bucket}", 16, (1 << 20) - 1536, storage_options=moto.storage_options)
    if not with_index:
        moto.client().delete_object(Bucket=bucket, Key="0.tar.idx")
    with faulty(moto) as (server, store):
        contents = inspect_shard(f"s3://{bucket}/0.tar", storage_options=server.storage_options)
    assert (contents.num_samples, contents.num_members, contents.labels) == (16, 32, {"0": 6, "1": 5, "2": 5})
    requested = requested_bytes(store, "/0.tar")
    assert requested < 0.01 * contents.num_bytes
    index_bytes = 17 * 8 if with_index else 0
    assert contents.fetched_bytes == requested + index_bytes
    assert contents.notes == ([] if with_index else ["there is no index beside it; followed the headers one by one"])


def test_inspect_shard_skips_members_of_100_kb_and_reads_small_ones_in_few_requests(memory_folder: str) -> None:
    """Less than 5 % is read, by a request for each; of samples of 1 kB all, by few requests."""
    contents = inspect_shard(big_shard(f"{memory_folder}/a", 100, 100_000))
    assert contents.fetched_bytes < 0.05 * contents.num_bytes
    contents = inspect_shard(big_shard(f"{memory_folder}/b", 5000, 1000))
    assert contents.num_samples == 5000
    assert contents.num_requests < 20
    assert contents.fetched_bytes < 1.01 * contents.num_bytes


@pytest.mark.parametrize("cut", [512, 100_000, 3 << 20, (3 << 20) + 700])
@pytest.mark.parametrize("with_index", [True, False])
def test_inspect_shard_of_a_truncated_shard_fails_at_the_readers_byte(
    memory_folder: str, cut: int, with_index: bool
) -> None:
    """The error has the same byte as the reader's, with or without an index."""
    url = big_shard(memory_folder, 40, 100_000)
    filesystem = fsspec.filesystem("memory")
    put(url, filesystem.cat_file(url.removeprefix("memory:/"))[:cut])
    if not with_index:
        filesystem.rm(f"{url}.idx")
    with pytest.raises(ShardReadError) as caught:
        inspect_shard(url)
    with pytest.raises(ShardReadError) as from_reader:
        list(ShardTarReader(IterableWrapper([url])))
    prefix = re.compile(re.escape(url) + r": at byte [\d,]+: ").match
    inspected, read = prefix(str(caught.value)), prefix(str(from_reader.value))
    assert inspected is not None
    assert read is not None
    assert inspected[0] == read[0]


def test_inspect_shard_finds_a_damaged_header_between_samples(memory_folder: str) -> None:
    """A flipped bit between two samples of the index is found."""
    url = big_shard(memory_folder, 40, 100_000)
    filesystem = fsspec.filesystem("memory")
    data = bytearray(filesystem.cat_file(url.removeprefix("memory:/")))
    sample = 512 + 512 + 512 + 100_352
    data[20 * sample + 130] ^= 1
    put(url, bytes(data))
    with pytest.raises(ShardReadError, match=f"at byte {20 * sample:,}: a header whose checksum"):
        inspect_shard(url)


def test_index_of_another_shard_is_noted_and_ignored(memory_folder: str) -> None:
    """All samples are found nevertheless."""
    url, other = big_shard(f"{memory_folder}/a", 20, 100_000), big_shard(f"{memory_folder}/b", 20, 99_000)
    filesystem = fsspec.filesystem("memory")
    filesystem.cp_file(f"{other}.idx".removeprefix("memory:/"), f"{url}.idx".removeprefix("memory:/"))
    contents = inspect_shard(url)
    assert contents.num_samples == 20
    assert len(contents.notes) == 1
    assert "of another shard" in contents.notes[0]


def test_index_of_every_second_sample_is_noted(memory_folder: str) -> None:
    """Its places are headers, and yet they are not where samples begin."""
    url = big_shard(memory_folder, 20, 100_000)
    filesystem = fsspec.filesystem("memory")
    offsets = filesystem.cat_file(f"{url}.idx".removeprefix("memory:/"))
    put(f"{url}.idx", b"".join(offsets[at : at + 8] for at in range(0, len(offsets), 16)))
    contents = inspect_shard(url)
    assert contents.num_samples == 20
    assert contents.notes == ["the index beside it is of another shard, or damaged: write it again"]


def test_compressed_shard_is_read_whole_and_noted(tmp_path: Path) -> None:
    """It is read whole, and counted as any other."""
    tar = pack_tar([("a.cls", b"1"), ("a.txt", b"text"), ("b.cls", b"2")])
    contents = inspect_shard(put(f"{tmp_path}/0.tar.xz", lzma.compress(tar)))
    assert (contents.compression, contents.num_samples, contents.num_members) == ("xz", 2, 3)
    assert contents.labels == {"1": 1, "2": 1}
    assert contents.notes == ["compressed by xz: read as a whole"]


def test_entries_outside_samples_are_counted(tmp_path: Path) -> None:
    """Directories, links, and names like ``__this__``; labels that are long or no numbers do no harm."""
    data = make_header(b"d/", kind=b"5") + make_header(b"l", kind=b"2") + make_member(b"__meta__", b"m")
    data += make_member(b"d/a.cls", b"\xff cat\n") + make_member(b"d/b.cls", b"9" * 65)
    contents = inspect_shard(put(f"{tmp_path}/0.tar", data + END_OF_ARCHIVE))
    assert contents.passed_over == {"directory": 1, "link": 1, "meta": 1}
    assert (contents.num_samples, contents.labels) == (2, {"\\xff cat": 1})


def test_inspect_shard_of_one_empty_member(tmp_path: Path) -> None:
    """The smallest possible shard."""
    url = put(f"{tmp_path}/0.tar", pack_tar([("a.txt", b"")]))
    assert inspect_shard(url, num_samples=0).first == []
    assert inspect_shard(url).first == [{"key": "a", "label": None, "bytes": {"txt": 0}}]
    with pytest.raises(ObjectNotFoundError):
        inspect_shard(f"{tmp_path}/1.tar")


def test_labels_that_are_too_large_are_noted(memory_folder: str) -> None:
    """Else classes would be missing without a word."""
    members = [(f"{number}.cls", b"9" * (63 + number)) for number in range(5)]
    found = inspect_shard(put(f"{memory_folder}/0.tar", pack_tar(members)))
    assert list(found.labels.values()) == [1, 1]
    assert "3 of 5 samples have a cls member of more than 64 bytes: they are not counted in the classes" in found.notes
