"""Write shard sets with manifests, indexes and files of keys, with any borders."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence

import fsspec
import fsspec.core

from tests.support.archive_bytes import pack_tar
from torchdata_remote.formats.key_index import dump_keys, key_index, keys_url
from torchdata_remote.formats.manifest import dump_manifest
from torchdata_remote.formats.sample import split_key
from torchdata_remote.formats.sample_index import dump_index, index_url
from torchdata_remote.formats.shard_digest import ShardDigest, sample_offsets

Samples = Sequence[tuple[str, dict[str, bytes]]]


def write_set(folder: str, shards: Sequence[Samples], *, keys: bool = True) -> str:
    """Write shards ``0000.tar``, ``0001.tar``, ... and their manifest; return the manifest's URL."""
    objects: dict[str, bytes] = {}
    infos = []
    for number, samples in enumerate(shards):
        data = pack_tar((f"{key}.{name}", value) for key, members in samples for name, value in members.items())
        url = f"{folder}/{number:04d}.tar"
        digest = ShardDigest([data])
        index = dump_index(sample_offsets(url, digest)[1])
        infos.append(digest.info(url, len(samples), index))
        objects |= {url: data, index_url(url): index}
        if keys:
            objects[keys_url(url)] = keys_of(data)
    manifest = f"{folder}/index.json"
    objects[manifest] = dump_manifest(infos)
    files, _ = fsspec.core.url_to_fs(folder)
    files.makedirs(folder, exist_ok=True)
    files.pipe(objects)
    return manifest


def keys_of(data: bytes) -> bytes:
    """Return the file of keys of a tar."""
    found: dict[str, list[tuple[str, int, int]]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            key, extension = split_key(member.name)
            found.setdefault(key, []).append((extension, member.offset_data, member.size))
    return dump_keys(key_index(found.items()))
