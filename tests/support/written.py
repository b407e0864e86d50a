"""What tests of writing share: quiet jobs, and what has to be beside shards, found without the package under test."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import struct
import sys
import tarfile
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

import torchdata_remote as tdr
from tests.support.shard_places import Place

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Told = list[tuple[str, int, int, str]]


def shard(source: Any, to: Place, *, ending: str = ".tar", **given: Any) -> list[tdr.ShardInfo]:
    """Shards of a source, written quietly."""
    return tdr.shard_dataset(source, to.template(ending), **{"storage_options": to.options, "progress": False, **given})


def with_beside(*shards: str) -> list[str]:
    """Names of shards, of their indexes and of their keys, sorted."""
    return sorted(name + ending for name in shards for ending in ("", ".idx", ".keys"))


def unpacked(name: str, data: bytes) -> bytes:
    """The tar of a shard."""
    if name.endswith(".zst"):
        return bytes(zstd.decompress(data))
    return gzip.decompress(data) if name.endswith("gz") else data


def told(shards: Iterable[tdr.ShardInfo]) -> Told:
    """What the package says of shards: base name, samples, bytes and MD5."""
    return [(info.url.rpartition("/")[2], info.num_samples, info.num_bytes, info.md5) for info in shards]


def listed(place: Place) -> Told:
    """The same from the manifest."""
    entries = json.loads(place.files()["index.json"])["shardlist"]
    return [(entry["url"], entry["nsamples"], entry["filesize"], entry["md5sum"]) for entry in entries]


def split_name(name: str) -> tuple[str, str]:
    """Key and extension of a member."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return folder + slash + stem, extension


def members_at(tar: bytes) -> dict[str, list[tuple[str, tarfile.TarInfo]]]:
    """Extension and header of the members of each key, as ``tarfile`` sees them."""
    samples: dict[str, list[tuple[str, tarfile.TarInfo]]] = {}
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            key, extension = split_name(member.name)
            samples.setdefault(key, []).append((extension, member))
    return samples


def check_beside(place: Place) -> None:
    """The manifest, indexes and keys say what is where, to the byte; compressed shards have neither of the latter."""
    files = place.files()
    document = json.loads(files["index.json"])
    assert (document["__kind__"], document["wids_version"]) == ("wids-shard-index-v1", 1)
    for entry in document["shardlist"]:
        name, data = entry["url"], files[entry["url"]]
        tar, block = unpacked(name, data), entry["crc32_block_bytes"]
        samples = members_at(tar)
        assert entry["md5sum"] == hashlib.md5(data).hexdigest()
        assert (entry["filesize"], entry["nsamples"]) == (len(data), len(samples))
        assert entry["crc32"].split() == [
            f"{zlib.crc32(data[at : at + block]):08x}" for at in range(0, len(data), block)
        ]
        if not name.endswith(".tar"):
            assert not {f"{name}.idx", f"{name}.keys"} & set(files)
            assert not {"index_crc32", "keys_crc32"} & set(entry)
            continue
        index, keys = files[f"{name}.idx"], files[f"{name}.keys"]
        assert (entry["index_crc32"], entry["keys_crc32"]) == (f"{zlib.crc32(index):08x}", f"{zlib.crc32(keys):08x}")
        members = list(itertools.chain.from_iterable(samples.values()))
        ends = [0, *(member.offset_data + -(-member.size // 512) * 512 for _, member in members)]
        begins = [found[0][1].offset for found in samples.values()]
        assert index == struct.pack(f"<{len(begins) + 1}Q", *begins, ends[-1])
        columns = np.load(io.BytesIO(keys))
        assert bytes(columns["keys"]).decode().split("\0") == list(samples)
        assert columns["counts"].tolist() == list(map(len, samples.values()))
        extensions = bytes(columns["extensions"]).decode().split("\0")
        assert [extensions[number] for number in columns["members"]] == [extension for extension, _ in members]
        assert columns["sizes"].tolist() == [member.size for _, member in members]
        gaps = [member.offset_data - end for (_, member), end in zip(members, ends, strict=False)]
        assert columns["gaps"].tolist() == gaps
    assert len({entry["url"] for entry in document["shardlist"]}) == len(document["shardlist"])


class Items(list[Any]):
    """A map-style dataset as torchvision's ``ImageFolder`` is one."""

    classes = ("cat", "dog")


def without_url(samples: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in samples]


def read(place: Place, **options: Any) -> list[dict[str, Any]]:
    """All samples that the manifest names, in order, without their URLs."""
    return without_url(tdr.stream_shards(f"{place.url}index.json", seed=None, storage_options=place.options, **options))
