"""The usual chains, built by one call."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from ..core import arguments as check
from ..core.arguments import bool_of, explained, seed_of, whole
from ..core.options import MIB, RetryPolicy, StorageOptions
from ..core.world import World
from ..fetch.listing.source_argument import urls_of
from ..fetch.listing.sources import OfKind, Tars
from ..formats.error_policy import OnBadMember, OnBadShard, raise_error
from ..formats.sample import Sample
from ..formats.split_name import SplitName, splitter
from ..storage import check_options
from .lines import MAX_LINE_BYTES, LineReader, ListLineRanges
from .listing import ListRemote, ListRowGroups, Select, ShuffleShards
from .other_readers import FileReader, TableReader
from .shuffle import ShuffleSamples
from .split import ShardingFilterRank
from .streams import AsyncPrefetch
from .tar_reader import ShardTarReader
from .typed import IterableWrapper, IterDataPipe

Url = str | os.PathLike[str]

_TABLES = partial(OfKind, names=r"\.(parquet|pq|arrow|feather)$", what="tables")
_TEXTS = partial(OfKind, names=r"\.(txt|jsonl|ndjson|csv|tsv)(\.(gz|gzip|bz2|xz|zst))?$", what="files of text")
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
    order = Order(shuffle, seed, shuffle_buffer_size, shuffle_buffer_bytes, interleave)
    options: Any = select
    if options is not None and not isinstance(options, Mapping):
        advice = 'expected arguments of select, such as {"keys": "s3://b/train.parquet"}'
        raise check.marked(TypeError(f"select: {advice}, got {check.shown(options)}."))
    urls: IterDataPipe[str] = listing_of(urls_of(url, of="stream_shards"), pattern, storage_options).take_kind(Tars)
    if options is not None:
        urls = Select(urls, **{"on_bad_member": on_bad_member, "storage_options": storage_options, **options})
    streams = AsyncPrefetch(
        order.share(urls, world),
        max_in_flight=max_in_flight,
        interleave=order.interleave,
        cache_dir=cache_dir,
        cache_bytes=cache_bytes,
        storage_options=storage_options,
    )
    return order.mixed(
        ShardTarReader(
            streams, interleave=order.interleave, on_bad_shard=on_bad_shard, on_bad_member=on_bad_member, lazy=lazy
        )
    )


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
    order = Order(check.flag("shuffle", shuffle), seed)
    listing = listing_of(urls_of(url, of="stream_files"), pattern, storage_options)
    if split_name != "first":
        listing.warn_of_shared_keys(splitter(split_name))
    streams = AsyncPrefetch(
        order.share(listing, world),
        max_in_flight=max_in_flight,
        cache_dir=cache_dir,
        cache_bytes=cache_bytes,
        storage_options=storage_options,
    )
    return FileReader(streams, split_name=split_name)


@explained
def stream_tables(
    url: Url | Sequence[Url],
    *,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    key: str | None = None,
    optional: Collection[str] = (),
    filter: Any = None,  # noqa: A002  # as pyarrow calls it
    pattern: str | None = None,
    shuffle: bool | Literal["shards"] = True,
    seed: int | None = 0,
    shuffle_buffer_size: int = 10_000,
    shuffle_buffer_bytes: int = 64 * MIB,
    world: World | None = None,
    max_in_flight: int = 16,
    interleave: int | None = None,
    on_bad_shard: OnBadShard = raise_error,
    retry: RetryPolicy | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> IterDataPipe[Sample]:
    """Stream the rows of Parquet and Arrow files: list row groups, shuffle, split over ranks and workers, read.

    Needs pyarrow: ``pip install 'torchdata_remote[tables]'``. What else is said of ``stream_shards`` holds here, with
    row groups in place of shards.

    Args:
        url: source URL, or several, as of ``stream_shards``: ``hf://datasets/OWNER/NAME/data/train-*.parquet``.
        columns: to read, or a mapping to their names in samples, as of ``table_reader``.
        key: column that has the keys, as of ``table_reader``.
        optional: columns that a file may lack, as of ``table_reader``.
        filter: rows to yield, as of ``table_reader``; row groups without one are not fetched.
        pattern: glob over base names. ``None`` selects files of a folder by the end of their names (``.parquet``,
            ``.arrow``, ``.feather``), and all objects that ``url`` names itself.
        shuffle: ``True`` shuffles row groups and rows; ``False`` keeps their order; ``"shards"`` shuffles row groups.
        seed: of the order, which differs each epoch. ``None`` keeps the order of the listing, too.
        shuffle_buffer_size: maximum number of samples in the buffer.
        shuffle_buffer_bytes: bound on the bytes of these samples.
        world: rank and worker of this reader; ``None`` asks torch.
        max_in_flight: maximum number of concurrent requests per worker.
        interleave: number of row groups that are read concurrently. ``None`` is 16 where samples are shuffled, else 1.
        on_bad_shard: policy for a file or row group that cannot be read.
        retry: policy for transient errors.
        storage_options: for the store, in fsspec's vocabulary.

    Returns:
        A pipe of samples with one value for each column.

    Example:
        >>> import fsspec, pyarrow as pa, pyarrow.parquet as pq
        >>> with fsspec.open("memory://zoo-table/a.parquet", "wb") as file:
        ...     pq.write_table(pa.table({"name": ["ape", "bee"], "legs": [2, 6]}), file, row_group_size=1)
        >>> list(stream_tables("memory://zoo-table/", shuffle=False).to_tuple("name", "legs"))
        [('ape', 2), ('bee', 6)]
    """
    order = Order(shuffle, seed, shuffle_buffer_size, shuffle_buffer_bytes, interleave)
    urls = listing_of(urls_of(url, of="stream_tables"), pattern, storage_options, retry).take_kind(_TABLES)
    of_store: dict[str, Any] = {"retry": retry, "storage_options": storage_options}
    reader = TableReader(
        order.share(ListRowGroups(urls, filter=filter, **of_store), world),
        columns=columns,
        key=key,
        optional=optional,
        filter=filter,
        interleave=order.interleave,
        max_in_flight=max_in_flight,
        on_bad_shard=on_bad_shard,
        **of_store,
    )
    return order.mixed(reader)


@explained
def stream_lines(
    url: Url | Sequence[Url],
    *,
    member: str | None = None,
    pattern: str | None = None,
    range_bytes: int = 32 * MIB,
    max_line_bytes: int = MAX_LINE_BYTES,
    shuffle: bool | Literal["shards"] = True,
    seed: int | None = 0,
    shuffle_buffer_size: int = 10_000,
    shuffle_buffer_bytes: int = 64 * MIB,
    world: World | None = None,
    max_in_flight: int = 16,
    interleave: int | None = None,
    on_bad_shard: OnBadShard = raise_error,
    retry: RetryPolicy | None = None,
    cache_dir: str | None = None,
    cache_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> IterDataPipe[Sample]:
    r"""Stream the lines of text files: list ranges of lines, shuffle, split over ranks and workers, prefetch, read.

    Large files of plain text are divided among readers; those that are compressed, and tables of text, are not. Fewer
    ranges and files than readers are an ``EmptyShareError``. The number of lines is not known before they are read, so
    there is no ``len``, and a loader says once that ranks may get different numbers of batches. What else is said of
    ``stream_shards`` holds here, with ranges in place of shards.

    Args:
        url: source URL, or several, as of ``stream_shards``.
        member: name of the member that has a line; ``None`` for ``json`` or ``txt``, as of ``line_reader``.
        pattern: glob over base names. ``None`` selects files of a folder by the end of their names (``.txt``,
            ``.jsonl``, ``.ndjson``, ``.csv``, ``.tsv``, compressed or not), and all objects that ``url`` names itself.
        range_bytes: about the length of a range, as of ``list_line_ranges``.
        max_line_bytes: a longer line is an error.
        shuffle: ``True`` shuffles ranges and lines; ``False`` keeps their order; ``"shards"`` shuffles ranges only.
        seed: of the order, which differs each epoch. ``None`` keeps the order of the listing, too.
        shuffle_buffer_size: maximum number of samples in the buffer.
        shuffle_buffer_bytes: bound on the bytes of these samples.
        world: rank and worker of this reader; ``None`` asks torch.
        max_in_flight: maximum number of concurrent requests per worker.
        interleave: number of ranges that are read concurrently. ``None`` is 16 where samples are shuffled, else 1.
        on_bad_shard: policy for a file that cannot be read.
        retry: policy for transient errors.
        cache_dir: local folder in which complete files are cached for later epochs; requires ``cache_bytes``. Files
            that are divided are not.
        cache_bytes: bound on the size of the cache, which all processes of the host share.
        storage_options: for the store, in fsspec's vocabulary.

    Returns:
        A pipe of samples with a line as ``bytes``; continue with ``.decode_sample()``.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe("/poems/a.txt", b"roses are red\nviolets are blue\n")
        >>> list(stream_lines("memory://poems/", shuffle=False).decode_sample().to_tuple("txt"))
        [('roses are red',), ('violets are blue',)]
    """
    order = Order(shuffle, seed, shuffle_buffer_size, shuffle_buffer_bytes, interleave)
    urls = listing_of(urls_of(url, of="stream_lines"), pattern, storage_options, retry).take_kind(_TEXTS)
    limits = {"range_bytes": range_bytes, "max_line_bytes": max_line_bytes}
    streams = AsyncPrefetch(
        order.share(ListLineRanges(urls, **limits, retry=retry, storage_options=storage_options), world),
        max_in_flight=max_in_flight,
        interleave=order.interleave,
        retry=retry,
        cache_dir=cache_dir,
        cache_bytes=cache_bytes,
        storage_options=storage_options,
    )
    reader = LineReader(
        streams,
        member=member,
        interleave=order.interleave,
        max_line_bytes=max_line_bytes,
        on_bad_shard=on_bad_shard,
    )
    return order.mixed(reader)


class Order:
    """The order of a recipe, by its arguments: what is shuffled, and how many shards are read in turn.

    Args:
        shuffle: ``True`` for shards and samples, ``"shards"``, or ``False``.
        seed: ``None`` for the order of the listing, too.
        buffer_size: maximum number of samples in the buffer.
        buffer_bytes: bound on their bytes.
        interleave: number of shards; ``None`` for the usual one.
    """

    def __init__(
        self, shuffle: Any, seed: Any, buffer_size: int = 1, buffer_bytes: int = 1, interleave: int | None = None
    ) -> None:
        mode = shuffle if isinstance(shuffle, str) and shuffle == "shards" else bool_of(shuffle)
        if mode is None:
            expected = "True, False (the order of the listing) or 'shards' (shards only)"
            raise check.marked(ValueError(f"shuffle must be {expected}, got {check.shown(shuffle)}."))
        seed = None if seed is None else seed_of(seed)
        self._seed: int | None = seed if mode else None
        self._mixes_samples = self._seed is not None and mode is True
        self._size = whole("shuffle_buffer_size", buffer_size)
        self._bytes = whole("shuffle_buffer_bytes", buffer_bytes)
        usual = _INTERLEAVE if self._mixes_samples else 1
        self.interleave = usual if interleave is None else whole("interleave", interleave, or_none=True)

    def share(self, urls: IterDataPipe[str], world: World | None) -> IterDataPipe[str]:
        """Shuffle shards, and split them."""
        shuffled = urls if self._seed is None else ShuffleShards(urls, self._seed)
        return ShardingFilterRank(shuffled, world=world)

    def mixed(self, samples: IterDataPipe[Sample]) -> IterDataPipe[Sample]:
        """Shuffle samples."""
        if not self._mixes_samples or self._seed is None:
            return samples
        return ShuffleSamples(samples, buffer_size=self._size, max_buffer_bytes=self._bytes, seed=self._seed)


def listing_of(
    sources: list[str], pattern: str | None, storage_options: Any, retry: RetryPolicy | None = None
) -> ListRemote:
    """List URLs with these options, which are checked."""
    options = StorageOptions(storage_options)
    for source in sources:
        check_options(source, options)
    return ListRemote(IterableWrapper(sources), pattern=pattern, retry=retry, storage_options=options)
