"""``torchdata-remote verify``: any fault of shards, indexes, keys and manifest is named, and hides no other."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.servers.scripted import Request, Response, scripted
from tests.support.archive_bytes import pack_tar
from torchdata_remote import ShardWriter, index_shards
from torchdata_remote.testing import Faults, write_small_shards

from .shards import Said, get, put, remove

SHARDS, SAMPLES = 3, 4


@pytest.fixture
def folder(memory_folder: str) -> str:
    write_small_shards(memory_folder, num_shards=SHARDS, samples_per_shard=SAMPLES)
    return memory_folder


def flip(url: str, byte: int, bit: int = 0) -> None:
    data = bytearray(get(url))
    data[byte] ^= 1 << bit
    put(url, bytes(data))


def edit_manifest(folder: str, edit: Callable[[list[dict[str, Any]]], object]) -> None:
    document = json.loads(get(f"{folder}/index.json"))
    edit(document["shardlist"])
    put(f"{folder}/index.json", json.dumps(document).encode())


def faults(said: Said, folder: str) -> dict[str, list[str]]:
    """Base name -> descriptions of its faults."""
    found: dict[str, list[str]] = {}
    for fault in said("verify", folder, status=1)["faults"]:
        found.setdefault(fault["url"].removeprefix(f"{folder}/"), []).append(fault["what"])
    return found


def test_intact_shards_have_no_faults_and_the_counts_of_the_manifest(folder: str, said: Said) -> None:
    num_bytes = sum(len(get(f"{folder}/{number:06d}.tar")) for number in range(SHARDS))
    for url in (folder, f"{folder}/", f"{folder}/index.json"):
        assert said("verify", url) == {
            "manifest_url": f"{folder}/index.json", "num_shards": SHARDS, "num_samples": SHARDS * SAMPLES,
            "num_bytes": num_bytes, "faults": [], "bad_members": {}, "num_links": 0,
        }  # fmt: skip


@given(data=st.data(), shard=st.integers(0, SHARDS - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found_with_its_shard(said: Said, data: st.DataObject, shard: int, bit: int) -> None:
    """Wherever it is in a shard: that shard is named, with the block, and no other."""
    folder = f"memory://{uuid.uuid4().hex}"
    write_small_shards(folder, num_shards=SHARDS, samples_per_shard=SAMPLES)
    name = f"{shard:06d}.tar"
    flip(f"{folder}/{name}", data.draw(st.integers(0, len(get(f"{folder}/{name}")) - 1), label="byte"), bit)
    found = faults(said, folder)
    assert {name} <= set(found) <= {name, f"{name}.idx", f"{name}.keys"}
    assert any("has the MD5" in what for what in found[name])
    assert any("1 of 1 blocks" in what and "those at byte 0" in what for what in found[name])
    remove(folder)


def test_each_fault_is_named_and_hides_no_other(folder: str, said: Said) -> None:
    """A truncated shard, a missing one, an unnamed one, and a wrong index."""
    put(f"{folder}/000000.tar", get(f"{folder}/000000.tar")[:1000])
    remove(f"{folder}/000001.tar")
    put(f"{folder}/000002.tar.idx", get(f"{folder}/000000.tar.idx")[:-8])
    put(f"{folder}/extra.tar.gz", b"")
    found = faults(said, folder)
    assert found.pop("000001.tar") == ["the manifest names it, but it does not exist"]
    assert found.pop("extra.tar.gz") == ["the manifest does not name it, so readers of the manifest leave it out"]
    cut, size = found.pop("000000.tar")
    assert "at byte" in cut
    assert size.startswith("has 1,000 bytes, the manifest has ")
    assert found.pop("000002.tar.idx") == ["has 32 bytes, where the index of 4 samples has 40"]
    assert found == {}
    put(f"{folder}/000002.tar.idx", bytes(40))
    (what,) = faults(said, folder)["000002.tar.idx"]
    assert what.startswith("does not hold the offsets of the samples: it is of another shard, or damaged")


def test_sizes_sums_and_counts_of_the_manifest_are_compared(folder: str, said: Said) -> None:
    """Capital letters of a sum are no difference, nor is a sum that is missing."""

    def edit(shards: list[dict[str, Any]]) -> None:
        shards[0]["filesize"] += 512
        shards[1]["nsamples"] = 7
        shards[1]["md5sum"] = "0" * 32
        shards[2].pop("crc32")
        shards[2]["md5sum"] = shards[2]["md5sum"].upper()

    edit_manifest(folder, edit)
    found = faults(said, folder)
    size = len(get(f"{folder}/000000.tar"))
    assert found.pop("000000.tar") == [f"has {size:,} bytes, the manifest has {size + 512:,}"]
    md5, samples = found.pop("000001.tar")
    assert md5.endswith(f"the manifest has {'0' * 32}")
    assert samples == "has 4 samples, the manifest has 7"
    assert found == {}


@pytest.mark.parametrize("ending", ["idx", "keys"])
def test_a_file_beside_a_shard_that_differs_from_its_sum_is_a_fault(folder: str, said: Said, ending: str) -> None:
    """Readers would refuse the file, which is right."""
    field = {"idx": "index_crc32", "keys": "keys_crc32"}[ending]
    edit_manifest(folder, lambda shards: shards[1].update({field: "00000007"}))
    [(name, [fault])] = faults(said, folder).items()
    assert name == f"000001.tar.{ending}"
    assert fault.startswith("has the CRC-32 ")
    assert fault.endswith(", the manifest has 00000007")


@pytest.mark.parametrize("ending", ["idx", "keys"])
def test_a_missing_index_or_missing_keys_are_a_fault_that_the_named_command_repairs(
    folder: str, said: Said, ending: str
) -> None:
    remove(f"{folder}/000001.tar.{ending}")
    what = {"idx": "index", "keys": "file of keys"}[ending]
    expected = f"the shard has no {what}. Write it: torchdata-remote manifest --overwrite FOLDER"
    assert faults(said, folder) == {f"000001.tar.{ending}": [expected]}
    index_shards(folder, overwrite=True)
    assert said("verify", folder)["faults"] == []


def test_keys_that_the_manifest_does_not_name_may_be_missing(folder: str, said: Said) -> None:
    edit_manifest(folder, lambda shards: [shard.pop("keys_crc32") for shard in shards])
    remove(f"{folder}/000001.tar.keys")
    assert said("verify", folder)["faults"] == []


def keys_of_others() -> bytes:
    url = f"memory://{uuid.uuid4().hex}"
    with ShardWriter(f"{url}/{{shard}}.tar") as writer:
        for number in range(SAMPLES):
            writer.write({"__key__": f"{number}", "cls": 1, "txt": "x"})
    return get(f"{url}/0.tar.keys")


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(
    ("damaged", "what"),
    [
        (lambda data: b"", "cannot be read: is not a file of keys (BadZipFile: File is not a zip file)"),
        (lambda data: data[:-30], "cannot be read: is not a file of keys (BadZipFile: File is not a zip file)"),
        (
            lambda data: keys_of_others(),
            "does not hold the keys of the samples: it is of another shard, or damaged",
        ),
        (lambda data: bytes(100_000), "has 100,000 bytes, where the file of keys of 4 samples has "),
    ],
    ids=["empty", "cut", "of another shard", "large"],
)
def test_other_keys_are_a_fault_whether_the_manifest_has_their_sum_or_not(
    folder: str, said: Said, damaged: Callable[[bytes], bytes], what: str, is_known: bool
) -> None:
    put(f"{folder}/000000.tar.keys", damaged(get(f"{folder}/000000.tar.keys")))
    if not is_known:
        edit_manifest(folder, lambda shards: [shard.pop("keys_crc32") for shard in shards])
    [(name, [found])] = faults(said, folder).items()
    assert name == "000000.tar.keys"
    assert found.startswith(what)


def test_damaged_blocks_are_listed_by_byte(tmp_path: Path, said: Said) -> None:
    """Those of the manifest are compared; of many that are wrong a few are named."""
    with ShardWriter(f"{tmp_path}/{{shard}}.tar") as writer:
        writer.write({"__key__": "a", "bin": bytes(10 << 20)})
    data = bytearray((tmp_path / "0.tar").read_bytes())
    data[9 << 20] ^= 1
    (tmp_path / "0.tar").write_bytes(data)
    _, blocks = said("verify", str(tmp_path), status=1)["faults"]
    assert blocks["what"] == "1 of 3 blocks of 4,194,304 bytes do not match their CRC-32: those at byte 8,388,608"
    document = json.loads((tmp_path / "index.json").read_bytes())
    document["shardlist"][0] |= {"crc32_block_bytes": 1 << 20, "crc32": " ".join(["00000000"] * 11)}
    (tmp_path / "index.json").write_text(json.dumps(document))
    _, blocks = said("verify", str(tmp_path), status=1)["faults"]
    named = "0, 1,048,576, 2,097,152, 3,145,728, 4,194,304, ..."
    assert blocks["what"] == f"11 of 11 blocks of 1,048,576 bytes do not match their CRC-32: those at byte {named}"


def test_an_index_of_a_compressed_shard_is_a_fault(memory_folder: str, said: Said) -> None:
    put(f"{memory_folder}/0.tar.gz", gzip.compress(pack_tar([("a.txt", b"a"), ("b.txt", b"b")])))
    index_shards(memory_folder, pattern="*.tar.gz")
    assert said("verify", memory_folder)["num_samples"] == 2
    put(f"{memory_folder}/0.tar.gz.idx", b"")
    [(name, [what])] = faults(said, memory_folder).items()
    assert name == "0.tar.gz.idx"
    assert "compressed by gzip, which cannot have one" in what


def test_shards_with_one_sample_and_odd_names_are_verified(memory_folder: str, said: Said) -> None:
    """Keys with pax names, several members, and bytes that look like headers."""
    with ShardWriter(f"{memory_folder}/odd é %20 name-{{shard}}.tar") as writer:
        nested = pack_tar([("inner.txt", b"inner")])
        writer.write({"__key__": f"{'k' * 300}/\n\x1b[2J", "jpg": b"", "seg.png": nested, "cls": 1})
    assert said("verify", memory_folder)["faults"] == []


def test_a_manifest_that_is_missing_damaged_or_empty_is_an_error(folder: str, said: Said) -> None:
    remove(f"{folder}/index.json")
    for url in (folder, f"{folder}/index.json"):
        assert "torchdata-remote manifest" in said.error("verify", url)
    put(f"{folder}/index.json", b"[]")
    assert "index.json" in said.error("verify", folder)
    put(f"{folder}/index.json", b'{"__kind__": "wids-shard-index-v1", "shardlist": []}')
    assert "index.json" in said.error("verify", folder)


def test_faults_of_the_store_that_pass_are_no_faults_of_the_shards(moto: S3Server, said: Said) -> None:
    bucket = moto.new_bucket()
    write_small_shards(f"s3://{bucket}/a", num_shards=6, samples_per_shard=3, storage_options=moto.storage_options)
    with faulty(moto, Faults.storm(0.2), seed=3) as (server, _):
        found = said("verify", f"s3://{bucket}/a", options=server.storage_options)
    assert (found["faults"], found["num_samples"]) == ([], 18)


def test_a_shard_that_cannot_be_read_is_a_fault_and_the_others_are_read(folder: str, said: Said) -> None:
    """The fault has the store's error; its samples are not counted."""
    files = {
        name.rpartition("/")[2]: get(f"memory:/{name}") for name in fsspec.filesystem("memory").find(f"/{folder[9:]}")
    }

    def respond(request: Request) -> Response:
        name = request.target.rpartition("/")[2]
        if name == "000001.tar" or name not in files:
            return Response(403 if name in files else 404)
        return Response.of_object(request, files[name])

    with scripted(respond) as server:
        found = said("verify", f"{server.url}/index.json", status=1)
    (fault,) = found["faults"]
    assert fault["url"].endswith("/000001.tar")
    assert fault["what"].startswith(f"cannot be read: {fault['url']}: ")
    assert found["num_samples"] == 2 * SAMPLES
