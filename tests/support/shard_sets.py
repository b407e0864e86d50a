"""Write shard sets with manifests, indexes and files of keys, with any borders."""

from __future__ import annotations

from collections.abc import Sequence

import fsspec

import torchdata_remote as tdr
from tests.support.shard_places import tar_of

Samples = Sequence[tuple[str, dict[str, bytes]]]


def write_set(folder: str, shards: Sequence[Samples]) -> str:
    """Write shards ``0000.tar``, ``0001.tar``, ... and their manifest; return the manifest's URL."""
    files, root = fsspec.core.url_to_fs(folder)
    files.makedirs(root, exist_ok=True)
    for number, samples in enumerate(shards):
        members = [(f"{key}.{name}", value) for key, found in samples for name, value in found.items()]
        files.pipe_file(f"{root}/{number:04d}.tar", tar_of(members))
    tdr.index_shards(folder, overwrite=True)
    return f"{folder}/index.json"
