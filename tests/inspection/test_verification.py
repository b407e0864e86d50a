"""Shards against their manifest and indexes."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.support.archive_bytes import pack_tar
from torchdata_remote import ShardWriter, index_shards
from torchdata_remote.errors import AccessDeniedError, EmptyListingError, ManifestError, ObjectNotFoundError
from torchdata_remote.fetch.streams import parts_of
from torchdata_remote.formats.manifest import MANIFEST_NAME
from torchdata_remote.inspection.faults import Fault
from torchdata_remote.inspection.verification import Verification, verify_shards
from torchdata_remote.testing import Faults, write_small_shards

SHARDS, SAMPLES = 3, 4


class Folder:
    """A set of shards in memory, of which things can be damaged."""

    def __init__(self, url: str) -> None:
        self.url = url
        write_small_shards(url, num_shards=SHARDS, samples_per_shard=SAMPLES)

    def _path(self, name: str) -> str:
        return f"{self.url}/{name}".removeprefix("memory:/")

    def get(self, name: str) -> bytes:
        data: bytes = fsspec.filesystem("memory").cat_file(self._path(name))
        return data

    def put(self, name: str, data: bytes) -> None:
        fsspec.filesystem("memory").pipe(self._path(name), data)

    def remove(self, name: str) -> None:
        fsspec.filesystem("memory").rm(self._path(name))

    def flip(self, name: str, byte: int, bit: int = 0) -> None:
        data = bytearray(self.get(name))
        data[byte] ^= 1 << bit
        self.put(name, bytes(data))

    def edit_manifest(self, edit: Callable[[list[dict[str, Any]]], object]) -> None:
        document = json.loads(self.get(MANIFEST_NAME))
        edit(document["shardlist"])
        self.put(MANIFEST_NAME, json.dumps(document).encode())

    def faults(self) -> dict[str, list[str]]:
        """Base name -> descriptions of its faults."""
        found: dict[str, list[str]] = {}
        for url, what in verify_shards(self.url).faults:
            found.setdefault(url.removeprefix(f"{self.url}/"), []).append(what)
        return found


@pytest.fixture
def folder(memory_folder: str) -> Folder:
    return Folder(memory_folder)


def test_intact_shards_have_no_faults(folder: Folder) -> None:
    """No faults; the counts are those of the manifest, whether it or the folder is named."""
    for url in (folder.url, folder.url + "/", f"{folder.url}/{MANIFEST_NAME}"):
        checked: list[tuple[str, list[Fault]]] = []
        found = verify_shards(url, on_checked=lambda *arguments, checked=checked: checked.append(arguments))
        num_bytes = sum(len(folder.get(f"{number:06d}.tar")) for number in range(SHARDS))
        assert found == Verification(f"{folder.url}/{MANIFEST_NAME}", SHARDS, SHARDS * SAMPLES, num_bytes, [])
        assert [name.rpartition("/")[2] for name, _ in checked] == [
            MANIFEST_NAME,
            *(f"{number:06d}.tar" for number in range(SHARDS)),
        ]


@settings(max_examples=60)
@given(data=st.data(), shard=st.integers(0, SHARDS - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found_with_its_shard(data: st.DataObject, shard: int, bit: int) -> None:
    """Wherever it is in a shard: that shard is named, with the block, and no other."""
    folder = Folder(f"memory://{uuid.uuid4().hex}")
    name = f"{shard:06d}.tar"
    folder.flip(name, data.draw(st.integers(0, len(folder.get(name)) - 1), label="byte"), bit)
    faults = folder.faults()
    assert set(faults) == {name} or set(faults) == {name, f"{name}.idx"}
    assert any("has the MD5" in what for what in faults[name])
    assert any("1 of 1 blocks" in what and "those at byte 0" in what for what in faults[name])
    fsspec.filesystem("memory").rm(folder.url, recursive=True)


def test_each_fault_is_named_and_hides_no_other(folder: Folder) -> None:
    """A truncated shard, a missing one, an unnamed one, and a wrong index."""
    folder.put("000000.tar", folder.get("000000.tar")[:1000])
    folder.remove("000001.tar")
    folder.put("000002.tar.idx", folder.get("000000.tar.idx")[:-8])
    folder.put("extra.tar.gz", b"")
    faults = folder.faults()
    assert faults.pop("000001.tar") == ["the manifest names it, but it does not exist"]
    assert faults.pop("extra.tar.gz") == ["the manifest does not name it, so readers of the manifest leave it out"]
    cut, size = faults.pop("000000.tar")
    assert cut.startswith("at byte 0: member '0/000000.cls' holds") or "at byte" in cut
    assert size.startswith("has 1,000 bytes, the manifest has ")
    assert faults.pop("000002.tar.idx") == ["has 32 bytes, where an index of 4 samples has 40"]
    assert faults == {}


def test_damaged_header_is_found_and_checksums_are_still_compared(folder: Folder) -> None:
    """The byte is reported; the rest is read too, so that wrong checksums are reported at once."""
    folder.flip("000001.tar", 1024 + 20)
    header, md5, blocks = folder.faults()["000001.tar"]
    assert header.startswith("at byte 1,024: a header whose checksum field")
    assert "MD5" in md5
    assert "CRC-32" in blocks


def test_missing_and_wrong_indexes_are_faults(folder: Folder) -> None:
    """Missing; of another shard of the same length; of another length."""
    folder.remove("000000.tar.idx")
    other = bytearray(folder.get("000001.tar.idx"))
    other[8:16] = (512).to_bytes(8, "little")
    folder.put("000001.tar.idx", bytes(other))
    folder.put("000002.tar.idx", b"")
    missing, wrong, empty = folder.faults().items()
    assert missing[0] == "000000.tar.idx"
    assert "has no index. Write it: torchdata-remote manifest" in missing[1][0]
    assert wrong == (
        "000001.tar.idx",
        ["does not hold the offsets of the samples: it is the index of another shard, or damaged"],
    )
    assert empty == ("000002.tar.idx", ["has 0 bytes, where an index of 4 samples has 40"])


def test_wrong_sizes_checksums_and_counts_in_the_manifest_are_faults(folder: Folder) -> None:
    """Sizes, counts and checksums are compared as far as the manifest has them."""

    def edit(shards: list[dict[str, Any]]) -> None:
        shards[0]["filesize"] += 512
        shards[1]["nsamples"] = 7
        shards[1]["md5sum"] = "0" * 32
        shards[2].pop("crc32")
        shards[2]["md5sum"] = shards[2]["md5sum"].upper()

    folder.edit_manifest(edit)
    faults = folder.faults()
    size = len(folder.get("000000.tar"))
    assert faults["000000.tar"] == [f"has {size:,} bytes, the manifest has {size + 512:,}"]
    assert len(faults["000001.tar"]) == 2
    assert faults["000001.tar"][0].endswith(f"the manifest has {'0' * 32}")
    assert faults["000001.tar"][1] == "has 4 samples, the manifest has 7"
    assert set(faults) == {"000000.tar", "000001.tar"}


def test_index_that_differs_from_its_checksum_is_a_fault(folder: Folder) -> None:
    """Readers would refuse the index, which is right."""
    folder.edit_manifest(lambda shards: shards[1].update(index_crc32="00000007"))
    [(name, [fault])] = folder.faults().items()
    assert name == "000001.tar.idx"
    assert fault.startswith("has the CRC-32 ")
    assert fault.endswith(", the manifest has 00000007")


def test_damaged_blocks_are_listed_by_byte(tmp_path: Path) -> None:
    """Those of the manifest are compared; of many that are wrong a few are named."""
    with ShardWriter(f"{tmp_path}/{{shard}}.tar") as writer:
        writer.write({"__key__": "a", "bin": bytes(10 << 20)})
    path = tmp_path / "0.tar"
    data = bytearray(path.read_bytes())
    data[9 << 20] ^= 1
    path.write_bytes(data)
    _, blocks = verify_shards(str(tmp_path)).faults
    assert blocks.what == "1 of 3 blocks of 4,194,304 bytes do not match their CRC-32: those at byte 8,388,608"
    document = json.loads((tmp_path / MANIFEST_NAME).read_bytes())
    document["shardlist"][0]["crc32_block_bytes"] = 1 << 20
    document["shardlist"][0]["crc32"] = " ".join(["00000000"] * 11)
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(document))
    _, blocks = verify_shards(str(tmp_path)).faults
    named = "0, 1,048,576, 2,097,152, 3,145,728, 4,194,304, ..."
    assert blocks.what == f"11 of 11 blocks of 1,048,576 bytes do not match their CRC-32: those at byte {named}"


def test_index_of_a_compressed_shard_is_a_fault(memory_folder: str) -> None:
    """They are read as any other; an index beside one is a fault."""
    tar = pack_tar([("a.txt", b"a"), ("b.txt", b"b")])
    fsspec.filesystem("memory").pipe(f"/{memory_folder.removeprefix('memory://')}/0.tar.gz", gzip.compress(tar))
    index_shards(memory_folder, pattern="*.tar.gz")
    found = verify_shards(memory_folder)
    assert (found.faults, found.num_samples) == ([], 2)
    fsspec.filesystem("memory").pipe(f"/{memory_folder.removeprefix('memory://')}/0.tar.gz.idx", b"")
    (fault,) = verify_shards(memory_folder).faults
    assert fault.url == f"{memory_folder}/0.tar.gz.idx"
    assert "compressed by gzip, which cannot have one" in fault.what


def test_shards_with_one_sample_or_odd_names_are_verified(memory_folder: str) -> None:
    """The smallest set; keys with pax names, several members, and bytes that look like headers."""
    with ShardWriter(f"{memory_folder}/odd é %20 name-{{shard}}.tar") as writer:
        long, nested = "k" * 300, pack_tar([("inner.txt", b"inner")])
        writer.write({"__key__": f"{long}/\n\x1b[2J", "jpg": b"", "seg.png": nested, "cls": 1})
    assert verify_shards(memory_folder).faults == []


@pytest.mark.parametrize("what", ["manifest", "listing"])
def test_verify_without_a_manifest_raises(folder: Folder, what: str) -> None:
    """The error names the command that writes one."""
    folder.remove(MANIFEST_NAME)
    with pytest.raises(ObjectNotFoundError, match="torchdata-remote manifest"):
        verify_shards(folder.url if what == "listing" else f"{folder.url}/{MANIFEST_NAME}")
    folder.put(MANIFEST_NAME, b"[]")
    with pytest.raises(ManifestError):
        verify_shards(folder.url)
    folder.put(MANIFEST_NAME, b'{"__kind__": "wids-shard-index-v1", "shardlist": []}')
    with pytest.raises(EmptyListingError):
        verify_shards(folder.url)


def test_verify_retries_transient_faults(moto: S3Server) -> None:
    """Faults that pass are no faults of the shards."""
    bucket = moto.new_bucket()
    write_small_shards(f"s3://{bucket}/a", num_shards=6, samples_per_shard=3, storage_options=moto.storage_options)
    with faulty(moto, Faults.storm(0.2), seed=3) as (server, _):
        found = verify_shards(f"s3://{bucket}/a", storage_options=server.storage_options)
    assert (found.faults, found.num_samples) == ([], 18)


def test_unreadable_shard_is_a_fault_and_the_others_are_read(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault has the store's error; samples of that shard are not counted."""

    def parts(url: str, stream: Any) -> Iterator[bytes | memoryview]:
        for part in parts_of(url, stream):
            yield part[:100]
            if url.endswith("000001.tar"):
                raise AccessDeniedError(f"{url}: no longer", url=url)
            yield part[100:]

    monkeypatch.setattr("torchdata_remote.inspection.verification.parts_of", parts)
    assert folder.faults() == {"000001.tar": [f"cannot be read: {folder.url}/000001.tar: no longer"]}
