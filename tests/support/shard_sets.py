"""Write shard sets with manifests, indexes and files of keys, with any borders."""

from __future__ import annotations

from collections.abc import Sequence

import fsspec
import fsspec.core

from tests.support.archive_bytes import pack_tar
from torchdata_remote.formats.key_index import keys_url
from torchdata_remote.formats.manifest import dump_manifest
from torchdata_remote.formats.sample_index import index_url
from torchdata_remote.formats.shard_digest import ShardDigest
from torchdata_remote.formats.shard_members import read_shard_members

Samples = Sequence[tuple[str, dict[str, bytes]]]


def write_set(folder: str, shards: Sequence[Samples]) -> str:
    """Write shards ``0000.tar``, ``0001.tar``, ... and their manifest; return the manifest's URL."""
    objects: dict[str, bytes] = {}
    infos = []
    for number, samples in enumerate(shards):
        data = pack_tar((f"{key}.{name}", value) for key, members in samples for name, value in members.items())
        url = f"{folder}/{number:04d}.tar"
        digest = ShardDigest([data])
        index, keys = read_shard_members(url, digest).beside()
        assert index is not None
        assert keys is not None
        infos.append(digest.info(url, len(samples), index, keys))
        objects |= {url: data, index_url(url): index, keys_url(url): keys}
    manifest = f"{folder}/index.json"
    objects[manifest] = dump_manifest(infos)
    files, _ = fsspec.core.url_to_fs(folder)
    files.makedirs(folder, exist_ok=True)
    files.pipe(objects)
    return manifest
