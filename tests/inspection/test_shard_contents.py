"""``torchdata-remote inspect`` of one shard: what it counts, how little it reads, and which damage it finds."""

from __future__ import annotations

import gzip
import io
import lzma
import re
import struct
import uuid
import zipfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.servers.scripted import Request, Response, scripted
from tests.support.archive_bytes import make_header, make_member, pack_tar
from tests.support.requested_bytes import requested_bytes

from .shards import Said, get, put, remove

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


def shard_of(said: Said, url: str, *arguments: str, options: Any = None) -> Any:
    return said("inspect", url, *arguments, options=options)["shard"]


def big_shard(folder: str, num_samples: int, sample_bytes: int, **options: Any) -> str:
    """A shard of large members, and its index."""
    with tdr.ShardWriter(f"{folder}/{{shard}}.tar", **options) as writer:
        for number in range(num_samples):
            writer.write({"__key__": f"{number:04d}", "cls": number % 3, "jpg": bytes(sample_bytes)})
    return f"{folder}/0.tar"


@given(samples=SAMPLES, index=st.sampled_from(["there", "missing", "of another shard"]))
def test_keys_counts_sizes_and_labels_are_those_that_a_reader_finds(
    said: Said, samples: list[dict[str, Any]], index: str
) -> None:
    """With an index, without one, and with a wrong one."""
    root = f"memory://{uuid.uuid4().hex}"
    with tdr.ShardWriter(f"{root}/{{shard}}.tar") as writer:
        for sample in samples:
            writer.write(sample)
    if index == "missing":
        remove(f"{root}/0.tar.idx")
    elif index == "of another shard":
        put(f"{root}/0.tar.idx", struct.pack("<2Q", 0, 1024))
    read = list(tdr.IterableWrapper([f"{root}/0.tar"]).shard_tar_reader())
    members = [(name, value) for sample in read for name, value in sample.items() if not name.startswith("__")]
    contents = shard_of(said, f"{root}/0.tar", "--samples", "3")
    assert (contents["num_samples"], contents["num_members"]) == (len(read), len(members))
    assert [(first["key"], first["bytes"]) for first in contents["first"]] == [
        (sample["__key__"], {name: len(value) for name, value in sample.items() if not name.startswith("__")})
        for sample in read[:3]
    ]
    assert set(contents["extensions"]) == {name for name, _ in members}
    for extension, sizes in contents["extensions"].items():
        lengths = [len(value) for name, value in members if name == extension]
        assert list(sizes.values()) == [len(lengths), min(lengths), median(lengths), max(lengths), sum(lengths)]
    assert sum(contents["labels"].values()) == sum(name == "cls" and len(value) <= 64 for name, value in members)
    remove(root)


@settings(max_examples=10)
@given(sizes=st.lists(st.integers(0, 2_000) | st.integers(0, 300_000), min_size=1, max_size=12))
def test_the_histogram_of_sizes_has_each_sample_in_one_bin(said: Said, sizes: list[int]) -> None:
    """The bins follow each other without a gap, and none is empty at either end."""
    url = put(f"memory://{uuid.uuid4().hex}/0.tar", pack_tar([(f"{i}.bin", bytes(n)) for i, n in enumerate(sizes)]))
    edges, counts = shard_of(said, url)["sample_bytes"].values()
    bins = list(pairwise(edges))
    assert counts == [sum(low <= size < high for size in sizes) for low, high in bins]
    assert sum(counts) == len(sizes)
    assert counts[0] > 0 < counts[-1]
    remove(url)


@pytest.mark.parametrize("with_index", [True, False])
def test_less_than_one_percent_of_large_members_is_read(moto: S3Server, said: Said, with_index: bool) -> None:
    bucket = moto.new_bucket()
    big_shard(f"s3://{bucket}", 16, (1 << 20) - 1536, storage_options=moto.storage_options)
    if not with_index:
        moto.client().delete_object(Bucket=bucket, Key="0.tar.idx")
    with faulty(moto) as (server, store):
        contents = shard_of(said, f"s3://{bucket}/0.tar", options=server.storage_options)
    assert (contents["num_samples"], contents["num_members"]) == (16, 32)
    assert contents["labels"] == {"0": 6, "1": 5, "2": 5}
    requested = requested_bytes(store, "/0.tar")
    assert requested < 0.01 * contents["num_bytes"]
    assert contents["fetched_bytes"] == requested + (17 * 8 if with_index else 0)
    assert contents["notes"] == ([] if with_index else ["there is no index beside it; followed the headers one by one"])


def test_members_of_100_kb_are_skipped_and_small_ones_are_read_in_few_requests(memory_folder: str, said: Said) -> None:
    contents = shard_of(said, big_shard(f"{memory_folder}/a", 100, 100_000))
    assert contents["fetched_bytes"] < 0.05 * contents["num_bytes"]
    contents = shard_of(said, big_shard(f"{memory_folder}/b", 5000, 1000))
    assert contents["num_samples"] == 5000
    assert contents["num_requests"] < 20
    assert contents["fetched_bytes"] < 1.01 * contents["num_bytes"]


@pytest.mark.parametrize("cut", [512, 100_000, 3 << 20, (3 << 20) + 700])
@pytest.mark.parametrize("with_index", [True, False])
def test_a_truncated_shard_is_an_error_with_the_byte_that_a_reader_names(
    memory_folder: str, said: Said, cut: int, with_index: bool
) -> None:
    url = big_shard(memory_folder, 40, 100_000)
    put(url, get(url)[:cut])
    if not with_index:
        remove(f"{url}.idx")
    with pytest.raises(tdr.errors.ShardReadError) as from_reader:
        list(tdr.IterableWrapper([url]).shard_tar_reader())
    prefix = re.match(re.escape(url) + r": at byte [\d,]+: ", str(from_reader.value))
    assert prefix is not None
    assert said.error("inspect", url).startswith(prefix[0])


def test_a_damaged_header_between_two_samples_of_the_index_is_found(memory_folder: str, said: Said) -> None:
    url = big_shard(memory_folder, 40, 100_000)
    data = bytearray(get(url))
    sample = 512 + 512 + 512 + 100_352
    data[20 * sample + 130] ^= 1
    put(url, bytes(data))
    assert f"at byte {20 * sample:,}: a header whose checksum" in said.error("inspect", url)


SAMPLE = 512 + 512 + 512 + 100_352


@pytest.mark.parametrize(
    "offsets",
    [
        None,
        [0, 2 * SAMPLE, 4 * SAMPLE],  # of every second sample
        [512, 1024],
        [0, 1024, 1024],
        [0, 2048, 1024],
        [0, 1000],
        [0, 1 << 40],
        [0, (1 << 64) - 512],
        [],
        [0],
        b"1234567",
    ],
)
def test_an_index_that_is_not_of_this_shard_is_noted_and_ignored(
    memory_folder: str, said: Said, offsets: list[int] | bytes | None
) -> None:
    url = big_shard(f"{memory_folder}/a", 20, 100_000)
    if offsets is None:
        wrong = get(f"{big_shard(f'{memory_folder}/b', 20, 99_000)}.idx")
    else:
        wrong = offsets if isinstance(offsets, bytes) else struct.pack(f"<{len(offsets)}Q", *offsets)
    put(f"{url}.idx", wrong)
    contents = shard_of(said, url)
    assert (contents["num_samples"], contents["num_members"]) == (20, 40)
    (note,) = contents["notes"]
    assert note.startswith("the index beside it is of another shard, or damaged: write it again")


def test_a_compressed_shard_is_read_whole_and_noted(memory_folder: str, said: Said) -> None:
    tar = pack_tar([("a.cls", b"1"), ("a.txt", b"text"), ("b.cls", b"2")])
    for kind, compress in (("xz", lzma.compress), ("gzip", gzip.compress)):
        url = put(f"{memory_folder}/0.tar.{kind[:2]}", compress(tar))
        contents = shard_of(said, url)
        assert (contents["compression"], contents["num_samples"], contents["num_members"]) == (kind, 2, 3)
        assert contents["labels"] == {"1": 1, "2": 1}
        assert contents["notes"] == [f"compressed by {kind}: read as a whole"]
        assert contents["fetched_bytes"] >= len(get(url))


def test_entries_outside_samples_and_labels_that_are_too_large_are_counted(memory_folder: str, said: Said) -> None:
    """Directories, links, and names like ``__this__``; a label that is no text is escaped."""
    data = make_header(b"d/", kind=b"5") + make_header(b"l", kind=b"2") + make_member(b"__meta__", b"m")
    data += make_member(b"d/a.cls", b"\xff cat\n") + make_member(b"d/b.cls", b"9" * 65) + bytes(1024)
    contents = shard_of(said, put(f"{memory_folder}/0.tar", data))
    assert contents["passed_over"] == {"directory": 1, "link": 1, "meta": 1}
    assert (contents["num_samples"], contents["labels"]) == (2, {"\\xff cat": 1})
    note = "1 of 2 samples have a cls member of more than 64 bytes: they are not counted in the classes"
    assert note in contents["notes"]


def test_the_smallest_shard_a_missing_one_an_empty_one_and_a_zip(memory_folder: str, said: Said) -> None:
    url = put(f"{memory_folder}/0.tar", pack_tar([("a.txt", b"")]))
    assert shard_of(said, url, "--samples", "0")["first"] == []
    assert shard_of(said, url)["first"] == [{"key": "a", "label": None, "bytes": {"txt": 0}}]
    assert "no such object" in said.error("inspect", f"{memory_folder}/1.tar")
    assert "at byte 0" in said.error("inspect", put(f"{memory_folder}/2.tar", b""))
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        archive.writestr("a.txt", b"a")
    said_of_zip = said.error("inspect", put(f"{memory_folder}/3.tar", buffer.getvalue()))
    assert re.search(r"3\.tar is a zip.*shard_zip_reader", said_of_zip)


def test_a_server_that_ignores_ranges_sends_the_shard_once(said: Said, tmp_path: Path) -> None:
    """The index is not used, since each range would download the whole shard again."""
    tar = pack_tar([(f"{number}.bin", bytes([number]) * 100_000) for number in range(20)])

    def respond(request: Request) -> Response:
        return Response(200, tar) if request.target == "/0.tar" else Response(404)

    with scripted(respond) as server:
        contents = shard_of(said, f"{server.url}/0.tar")
        sent = [request.method for request in server.requests if request.target == "/0.tar"]
    assert contents["num_samples"] == 20
    assert (contents["fetched_bytes"], contents["num_requests"]) == (len(tar), 1)
    assert sent.count("GET") <= 2  # one of them to find out
    assert any("ignores ranges" in note for note in contents["notes"])
