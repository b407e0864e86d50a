"""The usual chains in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.iter_datapipe import IterableWrapper, IterDataPipe
from ...core.world import World
from ...fetch.listing.source_argument import urls_of
from ...formats.error_policy import OnBadMember, OnBadShard, raise_error
from ...formats.sample import Sample
from ..async_prefetch import AsyncPrefetch
from ..file_reader import FileReader
from ..list_remote import ListRemote
from ..shard_tar_reader import ShardTarReader
from ..sharding_filter_rank import ShardingFilterRank
from ..shuffle_shards import ShuffleShards

Source = str | os.PathLike[str]

_TARS = "*.tar"


def stream_shards(
    url: Source | Sequence[Source],
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
    """Samples from tar shards: listed, shuffled by shard, split over ranks and workers, fetched ahead, read.

    Args:
        url: source URL, or several: a prefix, a glob, a brace range, a manifest, or one shard. ``escape_url(name)`` is
            no pattern.
        pattern: glob over base names; ``None`` takes all objects. The default chooses in folders only: what ``url``
            names itself, by a manifest, as one shard, by a brace range or by a glob such as ``*.tar.gz``, is taken
            whatever it is called.
        seed: of the shards' order, which is new each epoch. ``None`` keeps the listing's order.
        world: this reader's place, such as ``World.from_mesh(mesh, dp=...)``; ``None`` asks torch.
        max_in_flight: requests under way at once, per worker.
        interleave: shards that are read at once, a sample of each by turns.
        on_bad_shard: what becomes of a shard that cannot be read: ``raise_error``, ``skip_with_warning``, your own.
        on_bad_member: what becomes of a member that cannot be part of a sample, such as ``README``: the same.
        cache_dir: local folder in which whole objects are kept for the next epochs; needs ``cache_bytes``.
        cache_bytes: bound on what is kept there, shared by all processes of the host.
        storage_options: for the store, in fsspec's vocabulary.

    Returns:
        A pipe of samples with members as ``bytes``; go on with ``.decode_sample().to_tuple("jpg", "cls")``.

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


def stream_files(
    url: Source | Sequence[Source],
    *,
    pattern: str | None = None,
    seed: int | None = 0,
    world: World | None = None,
    max_in_flight: int = 32,
    cache_dir: str | None = None,
    cache_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> IterDataPipe[Sample]:
    """Samples from loose files: listed, shuffled, split over ranks and workers, fetched ahead, one sample each.

    Args:
        url: source URL, or several: a prefix, a glob, a brace range, or one file. ``escape_url(name)`` is no pattern.
        pattern: glob over base names, such as ``*.jpg``; ``None`` takes all objects.
        seed: of the files' order, which is new each epoch. ``None`` keeps the listing's order.
        world: this reader's place, such as ``World.from_mesh(mesh, dp=...)``; ``None`` asks torch.
        max_in_flight: requests under way at once, per worker.
        cache_dir: local folder in which whole objects are kept for the next epochs; needs ``cache_bytes``.
        cache_bytes: bound on what is kept there, shared by all processes of the host.
        storage_options: for the store, in fsspec's vocabulary.

    Returns:
        A pipe of samples with one member as ``bytes``; go on with ``.label_from_path(classes=[...]).decode_sample()``.

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
    """This reader's URLs, opened and fetched ahead."""
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
