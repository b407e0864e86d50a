"""The usual chains, built by one call."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.arguments.calls import explained
from ...core.options import StorageOptions
from ...core.world import World
from ...fetch.listing.source_argument import urls_of
from ...formats.error_policy import OnBadMember, OnBadShard, raise_error
from ...formats.sample import Sample
from ...storage import check_options
from ..async_prefetch import AsyncPrefetch
from ..base.typed import IterableWrapper, IterDataPipe
from ..file_reader import FileReader
from ..list_remote import ListRemote
from ..shard_tar_reader import ShardTarReader
from ..sharding_filter_rank import ShardingFilterRank
from ..shuffle_shards import ShuffleShards

Url = str | os.PathLike[str]

_TARS = "*.tar"


@explained
def stream_shards(
    url: Url | Sequence[Url],
    *,
    pattern: str | None = _TARS,
    seed: int | None = 0,
    world: World | None = None,
    max_in_flight: int = 16,
    interleave: int = 1,
    on_bad_shard: OnBadShard = raise_error,
    on_bad_member: OnBadMember = raise_error,
    cache_dir: str | None = None,
    cache_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> IterDataPipe[Sample]:
    """Stream samples from tar shards: list, shuffle by shard, split over ranks and workers, prefetch, read.

    Args:
        url: source URL, or several: a prefix, a glob, a brace range, a manifest, or one shard. ``escape_url(name)``
            prevents that a name is read as a pattern.
        pattern: glob over base names; ``None`` selects all objects. The default applies to folders only, not to objects
            that ``url`` names itself: by a manifest, as one shard, by a brace range or by a glob such as ``*.tar.gz``.
        seed: of the shuffle of the shards, which differs each epoch. ``None`` keeps the order of the listing.
        world: rank and worker of this reader, such as ``World.from_mesh(mesh, dp=...)``; ``None`` asks torch.
        max_in_flight: maximum number of concurrent requests per worker.
        interleave: number of shards that are read concurrently, one sample of each in turn.
        on_bad_shard: policy for a shard that cannot be read: ``raise_error``, ``skip_with_warning``, or a function.
        on_bad_member: policy for a member that cannot be part of a sample, such as ``README``.
        cache_dir: local folder in which complete objects are cached for later epochs; requires ``cache_bytes``.
        cache_bytes: bound on the size of the cache, which all processes of the host share.
        storage_options: for the store, in fsspec's vocabulary.

    Returns:
        A pipe of samples with members as ``bytes``; continue with ``.decode_sample().to_tuple("jpg", "cls")``.

    Example:
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://shards/{shard}.tar", overwrite=True) as writer:
        ...     _ = writer.write({"__key__": "a", "cls": 1})
        >>> list(stream_shards("memory://shards/").to_tuple("__key__", "cls"))
        [('a', b'1')]
    """
    urls = urls_of(url, of="stream_shards")
    streams = _streams(urls, pattern, seed, world, max_in_flight, cache_dir, cache_bytes, storage_options, interleave)
    return ShardTarReader(streams, interleave=interleave, on_bad_shard=on_bad_shard, on_bad_member=on_bad_member)


@explained
def stream_files(
    url: Url | Sequence[Url],
    *,
    pattern: str | None = None,
    seed: int | None = 0,
    world: World | None = None,
    max_in_flight: int = 32,
    cache_dir: str | None = None,
    cache_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> IterDataPipe[Sample]:
    """Stream samples from loose files: list, shuffle, split over ranks and workers, prefetch, read.

    Args:
        url: source URL, or several: a prefix, a glob, a brace range, or one file. ``escape_url(name)`` prevents
            that a name is read as a pattern.
        pattern: glob over base names, such as ``*.jpg``; ``None`` selects all objects.
        seed: of the shuffle of the files, which differs each epoch. ``None`` keeps the order of the listing.
        world: rank and worker of this reader, such as ``World.from_mesh(mesh, dp=...)``; ``None`` asks torch.
        max_in_flight: maximum number of concurrent requests per worker.
        cache_dir: local folder in which complete objects are cached for later epochs; requires ``cache_bytes``.
        cache_bytes: bound on the size of the cache, which all processes of the host share.
        storage_options: for the store, in fsspec's vocabulary.

    Returns:
        A pipe of samples with one ``bytes`` member; continue with ``.label_from_path(classes=[...]).decode_sample()``.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/loose/3/a.txt", b"hi")
        >>> list(stream_files("memory://loose/").label_from_path().to_tuple("txt", "cls"))
        [(b'hi', 3)]
    """
    urls = urls_of(url, of="stream_files")
    return FileReader(_streams(urls, pattern, seed, world, max_in_flight, cache_dir, cache_bytes, storage_options))


def _streams(
    sources: list[str],
    pattern: str | None,
    seed: int | None,
    world: World | None,
    max_in_flight: int,
    cache_dir: str | None,
    cache_bytes: int | None,
    storage_options: Mapping[str, Any] | None,
    interleave: int = 1,
) -> AsyncPrefetch:
    """Open and prefetch the URLs of this reader's share."""
    for source in sources:
        check_options(source, StorageOptions(storage_options))
    urls: IterDataPipe[str] = ListRemote(
        IterableWrapper(sources), pattern=pattern, match_named=pattern != _TARS, storage_options=storage_options
    )
    if seed is not None:
        urls = ShuffleShards(urls, seed)
    return AsyncPrefetch(
        ShardingFilterRank(urls, world=world),
        max_in_flight=max_in_flight,
        interleave=interleave,
        cache_dir=cache_dir,
        cache_bytes=cache_bytes,
        storage_options=storage_options,
    )
