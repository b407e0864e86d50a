"""Shards that others wrote: counted, and given the manifest and the indexes that ``write_shards`` leaves."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from .checksums import BLOCK_BYTES, BlockSummer
from .compression import CompressionLimits, decompressed
from .engine import Engine
from .errors import ObjectExistsError
from .grouping import samples_of
from .manifest import MANIFEST_NAME, ShardInfo, dump_manifest
from .options import FetchOptions, RetryPolicy, StorageOptions
from .place import Place
from .policies import MemberGuard, OnBadMember, Skipped, raise_error
from .sample_index import dump_index, index_url
from .sources import url_of
from .storage import publish
from .storage.listing import list_folder, list_source
from .storage.patterns import literal_url
from .streams import parts_of, stream_objects
from .tar import TarOptions, read_runs
from .urls import RemoteUrl, join_url, redact, split_url


class Summed:
    """An object's bytes, which are summed up while they pass. It is iterated once, but by several in turn.

    Args:
        parts: the bytes.
        block_bytes: of the blocks that have checksums of their own.
    """

    def __init__(self, parts: Iterable[bytes | memoryview], block_bytes: int = BLOCK_BYTES) -> None:
        self._parts = iter(parts)
        self._md5, self._blocks = hashlib.md5(usedforsecurity=False), BlockSummer(block_bytes)
        self._num_bytes = 0

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for part in self._parts:
            self._num_bytes += len(part)
            self._md5.update(part)
            self._blocks.update(part)
            yield part

    def info(self, url: str, num_samples: int, index: bytes | None = None) -> ShardInfo:
        """What a manifest is to say of the shard, once all has passed, and of its index."""
        index_crc32 = None if index is None else zlib.crc32(index)
        md5, checksums = self._md5.hexdigest(), self._blocks.checksums()
        return ShardInfo(url, num_samples, self._num_bytes, md5, checksums, index_crc32)


def index_shards(
    url: str | os.PathLike[str],
    *,
    pattern: str = "*.tar",
    overwrite: bool = False,
    on_shard: Callable[[ShardInfo], object] = lambda shard: None,
    on_bad_member: OnBadMember = raise_error,
    storage_options: Mapping[str, Any] | None = None,
) -> list[ShardInfo]:
    """Read the tar shards of a folder, and write an index beside each and their manifest, last.

    The manifest tells sizes, sample counts and checksums; the indexes, where samples begin. So ranks can be equalized,
    shards split, and damage noticed. Every byte is read once. A compressed shard gets no index.

    Args:
        url: the folder.
        pattern: glob that the shards' base names match.
        overwrite: replace what is there of these. Otherwise finding one is an error.
        on_shard: called with each shard when it was read.
        on_bad_member: called with the ``BadMemberError`` of a member that cannot be part of a sample (``README``). If
            it returns, as ``skip_with_warning`` does, the member is not counted: readers need the same policy.
        storage_options: for the store, in fsspec's vocabulary.

    Returns:
        list[ShardInfo]: in the manifest's order, sorted by path.

    Raises:
        EmptyListingError: if there are no shards.
        ObjectExistsError: if there is a manifest or an index, before anything is read.
        ShardReadError: for a shard that is damaged, or not made of samples.

    Example:
        >>> import fsspec
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://theirs/{shard}.tar", overwrite=True) as writer:
        ...     _ = [writer.write({"__key__": str(i), "cls": i}) for i in range(3)]
        >>> fsspec.filesystem("memory").rm(["/theirs/index.json", "/theirs/0.tar.idx"])
        >>> [(shard.url, shard.num_samples) for shard in index_shards("memory://theirs/")]
        [('memory://theirs/0.tar', 3)]
    """
    url = literal_url(url_of(url, of="index_shards"))
    folder = url if url.endswith("/") else url + "/"
    options, retry = StorageOptions(storage_options), RetryPolicy()
    manifest_url = join_url(*split_url(folder + MANIFEST_NAME))
    urls = list(list_source(RemoteUrl(folder), pattern=pattern, recursive=False, options=options, retry=retry))
    there = set(list_folder(folder, recursive=False, options=options, retry=retry))
    for written in [manifest_url, *map(index_url, urls)]:
        if written in there and not overwrite:
            raise ObjectExistsError(
                f"{redact(written)} exists already. Pass overwrite=True (--overwrite) to replace it.", url=written
            )
    shards = []
    for shard_url, stream in stream_objects(urls, Engine(FetchOptions(), options)):
        with closing(stream):
            summed = Summed(parts_of(shard_url, stream))
            compression, offsets = sample_offsets(str(shard_url), summed, MemberGuard(on_bad_member, Skipped()))
        index = dump_index(offsets) if compression is None else None
        info = summed.info(str(shard_url), len(offsets) - 1, index)
        if index is not None:
            publish(index_url(info.url), index, options, overwrite=overwrite)
        shards.append(info)
        on_shard(info)
    publish(manifest_url, dump_manifest(shards), options, overwrite=overwrite)
    return shards


def sample_offsets(
    url: str, parts: Iterable[bytes | memoryview], on_bad_member: OnBadMember = raise_error
) -> tuple[str | None, list[int]]:
    """A shard's compression (``None``: none), and where its samples begin and the last one ends, in the tar's bytes.

    Args:
        url: of the shard.
        parts: its bytes, all of which are taken.
        on_bad_member: asked about members that cannot be part of a sample; those that are left out lie within the bytes
            of the sample before them, or of the first one.

    Raises:
        ShardReadError: for a shard that is damaged, or not made of samples.
    """
    shown, place = redact(url), Place()
    compression, bare = decompressed(parts, url=shown, limits=CompressionLimits())
    with closing(bare):
        runs = read_runs(bare, url=shown, options=TarOptions(copy=False), place=place)
        samples = samples_of(runs, url=shown, on_bad_member=on_bad_member, of=place)
        return compression, [0, *(place.archive_end if place.ended else place.next_byte() for _ in samples)]
