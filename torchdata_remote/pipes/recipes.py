"""The usual chains, built by one call."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from ..core.arguments import check
from ..core.arguments.amounts import seed_of, whole
from ..core.arguments.calls import explained
from ..core.arguments.scalars import bool_of
from ..core.options import MIB, StorageOptions
from ..core.world import World
from ..fetch.listing.source_argument import urls_of
from ..formats.error_policy import OnBadMember, OnBadShard, raise_error
from ..formats.sample import Sample
from ..formats.split_name import SplitName, splitter
from ..storage import check_options
from .file_reader import FileReader
from .listing import ListRemote, Select, ShuffleShards
from .shuffle import ShuffleSamples
from .split import ShardingFilterRank
from .streams import AsyncPrefetch
from .tar_reader import ShardTarReader
from .typed import IterableWrapper, IterDataPipe

Url = str | os.PathLike[str]

_INTERLEAVE = 16  # shards of one class each then give 0.7 of a full shuffle's entropy, with samples of any size


@explained
def stream_shards(
    url: Url | Sequence[Url],
    *,
    pattern: str | None = None,
    shuffle: bool | Literal["shards"] = True,
    seed: int | None = 0,
    shuffle_buffer_size: int = 10_000,
    shuffle_buffer_bytes: int = 64 * MIB,
    world: World | None = None,
    max_in_flight: int = 16,
    interleave: int | None = None,
    on_bad_shard: OnBadShard = raise_error,
    on_bad_member: OnBadMember = raise_error,
    lazy: Collection[str] | None = None,
    select: Mapping[str, Any] | None = None,
    cache_dir: str | None = None,
    cache_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> IterDataPipe[Sample]:
    """Stream samples from tar shards: list, shuffle, split over ranks and workers, prefetch, read.

    By default the order suits a training: shards come in a random order, 16 of them are read concurrently, and samples
    are shuffled in a buffer of up to 10,000 samples and 64 MiB in each worker. Shards that are sorted by class then
    give batches with 0.7 to 0.8 of a full shuffle's entropy, instead of 0.03. The price, measured on samples of 94 kB
    and a store that answers after 20 ms (``benchmarks/bench_defaults.py``): 0.75 of the speed of ``shuffle="shards"``,
    0.2 s until the first batch, and 120 MiB.

    Pass ``shuffle=False`` to evaluate: samples then come in the order of the listing.

    Args:
        url: source URL, or several: a prefix, a glob, a brace range, a manifest, or one shard. ``escape_url(name)``
            prevents that a name is read as a pattern.
        pattern: glob over base names; ``"*"`` selects all objects. ``None`` selects the tars of a folder, in any case
            and compression (``*.tar``, ``*.tgz``, ``*.TAR.ZST``), and all objects that ``url`` names itself: by a
            manifest, as one shard, by a brace range or by a glob such as ``*.shard``. A zip is named by a warning.
        shuffle: ``True`` shuffles shards and samples; ``False`` keeps the order of the listing; ``"shards"`` shuffles
            shards only, for a chain that continues with a ``shuffle_samples`` of its own.
        seed: of the order, which differs each epoch. ``None`` keeps the order of the listing, too.
        shuffle_buffer_size: maximum number of samples in the buffer.
        shuffle_buffer_bytes: bound on the bytes of these samples. Each stream of a ``Resumable`` has its own buffer, so
            a worker holds ``num_streams / num_slots`` of them.
        world: rank and worker of this reader, such as ``World.from_mesh(mesh, dp=...)``; ``None`` asks torch.
        max_in_flight: maximum number of concurrent requests per worker.
        interleave: number of shards that are read concurrently, one sample of each in turn. ``None`` is 16 where
            samples are shuffled, and otherwise 1.
        on_bad_shard: policy for a shard that cannot be read: ``raise_error``, ``skip_with_warning``, or a function.
        on_bad_member: policy for a member that cannot be part of a sample, such as ``README``.
        lazy: extensions of members that are read where they are needed, such as ``{"mp4"}``: files instead of bytes.
            Excludes ``cache_dir``. See ``shard_tar_reader``.
        select: arguments of ``select``, such as ``{"keys": "s3://b/train.parquet"}``: only these samples are read.
        cache_dir: local folder in which complete objects are cached for later epochs; requires ``cache_bytes``.
        cache_bytes: bound on the size of the cache, which all processes of the host share.
        storage_options: for the store, in fsspec's vocabulary.

    Returns:
        A pipe of samples with members as ``bytes``; continue with ``.decode_sample().to_tuple("jpg", "cls")``. It has
        ``skipped``, with which shards and members its reader left out in the last pass, and ``set_epoch``.

    Example:
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://shards/{shard}.tar", overwrite=True) as writer:
        ...     _ = writer.write({"__key__": "a", "cls": 1})
        >>> list(stream_shards("memory://shards/").to_tuple("__key__", "cls"))
        [('a', b'1')]
    """
    seed = seed_or_none(seed)
    mode = shuffle_of(shuffle)
    shuffle_buffer_size = whole("shuffle_buffer_size", shuffle_buffer_size)
    shuffle_buffer_bytes = whole("shuffle_buffer_bytes", shuffle_buffer_bytes)
    mixes_samples = mode is True and seed is not None
    interleave = interleave_of(interleave, mixes_samples=mixes_samples)
    options: Any = select
    if options is not None and not isinstance(options, Mapping):
        advice = 'expected arguments of select, such as {"keys": "s3://b/train.parquet"}'
        raise check.marked(TypeError(f"select: {advice}, got {check.shown(select)}."))
    select = select and {"on_bad_member": on_bad_member, **select}
    urls = urls_of(url, of="stream_shards")
    shuffled = seed if mode else None
    listing = _listing(urls, pattern, storage_options).take_tars()
    streams = _streams(
        listing, shuffled, world, max_in_flight, cache_dir, cache_bytes, storage_options, interleave, select
    )
    samples = ShardTarReader(
        streams, interleave=interleave, on_bad_shard=on_bad_shard, on_bad_member=on_bad_member, lazy=lazy
    )
    if seed is None or not mixes_samples:
        return samples
    return ShuffleSamples(samples, buffer_size=shuffle_buffer_size, max_buffer_bytes=shuffle_buffer_bytes, seed=seed)


@explained
def stream_files(
    url: Url | Sequence[Url],
    *,
    pattern: str | None = None,
    shuffle: bool = True,
    seed: int | None = 0,
    split_name: SplitName = None,
    world: World | None = None,
    max_in_flight: int = 64,
    cache_dir: str | None = None,
    cache_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> IterDataPipe[Sample]:
    """Stream samples from loose files: list, shuffle, split over ranks and workers, prefetch, read.

    Args:
        url: source URL, or several: a prefix, a glob, a brace range, or one file. ``escape_url(name)`` prevents
            that a name is read as a pattern.
        pattern: glob over base names, such as ``*.jpg``; ``None`` selects all objects.
        shuffle: ``True`` shuffles all files of the listing, fully; ``False`` keeps its order.
        seed: of the order, which differs each epoch. ``None`` keeps the order of the listing, too.
        split_name: how names of files are split into key and extension: at the ``"first"`` dot, as readers of shards
            do; at the ``"last"`` one (``22.05.png`` is ``22_05``); or by a function from a base name to ``(key,
            extension)``, such as ``os.path.splitext``. Dots of the key become underscores, dots before the extension
            are dropped. ``None`` is the first dot. Two files with one key are named by a warning: of
            any extensions for ``None``, of one extension for ``"last"`` and a function, none for ``"first"``.
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
    shuffle, seed = check.flag("shuffle", shuffle), seed_or_none(seed)
    urls = urls_of(url, of="stream_files")
    listing = _listing(urls, pattern, storage_options)
    if split_name != "first":
        listing.warn_of_shared_keys(splitter(split_name))
    streams = _streams(
        listing, seed if shuffle else None, world, max_in_flight, cache_dir, cache_bytes, storage_options
    )
    return FileReader(streams, split_name=split_name)


def shuffle_of(shuffle: Any) -> bool | Literal["shards"]:
    """Check what is shuffled."""
    if isinstance(shuffle, str) and shuffle == "shards":
        return "shards"
    mode = bool_of(shuffle)
    if mode is None:
        raise check.marked(
            ValueError(
                f"shuffle={shuffle!r:.200}: expected True, False (the order of the listing) or 'shards' (shards only). "
                "The size of the buffer is shuffle_buffer_size= (samples) and shuffle_buffer_bytes=."
            )
        )
    return mode


def interleave_of(interleave: int | None, *, mixes_samples: bool) -> int:
    """Check the number of shards that are read concurrently, and choose it if it is ``None``."""
    if interleave is None:
        return _INTERLEAVE if mixes_samples else 1
    return whole("interleave", interleave, or_none=True)


def seed_or_none(seed: Any) -> int | None:
    """Check the seed, also where the order does not depend on it."""
    return None if seed is None else seed_of(seed)


def _listing(sources: list[str], pattern: str | None, storage_options: Mapping[str, Any] | None) -> ListRemote:
    for source in sources:
        check_options(source, StorageOptions(storage_options))
    return ListRemote(IterableWrapper(sources), pattern=pattern, storage_options=storage_options)


def _streams(
    urls: IterDataPipe[str],
    seed: int | None,
    world: World | None,
    max_in_flight: int,
    cache_dir: str | None,
    cache_bytes: int | None,
    storage_options: Mapping[str, Any] | None,
    interleave: int = 1,
    select: Mapping[str, Any] | None = None,
) -> AsyncPrefetch:
    """Open and prefetch the URLs of this reader's share."""
    if select is not None:
        urls = Select(urls, **{"storage_options": storage_options, **select})
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
