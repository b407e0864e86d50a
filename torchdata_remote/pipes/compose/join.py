"""``join``: shard sets with the same keys as one chain of samples with the members of all sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ...core.arguments import check
from ...core.arguments.amounts import whole
from ...core.arguments.calls import explained
from ...core.iter_datapipe import IterDataPipe as AnyPipe
from ...core.options import MIB, RetryPolicy
from ...core.world import World
from ...fetch.listing.source_argument import urls_of
from ...fetch.selections.joins import How
from ...formats.error_policy import OnBadMember, OnBadShard, raise_error
from ...formats.sample import Sample
from ..async_prefetch import AsyncPrefetch
from ..base.typed import IterableWrapper, IterDataPipe
from ..list_remote import ListRemote
from ..sharding_filter_rank import ShardingFilterRank
from ..shuffle_samples import ShuffleSamples
from ..shuffle_shards import ShuffleShards
from .join_arguments import members_of, options_of, sets_of
from .join_shards import Align, JoinShards, ShardsOfJoin
from .joined_reader import JoinedTarReader
from .recipes import Url, interleave_of, seed_or_none, shuffle_of


@explained
def join(
    sets: Mapping[str, Url | Sequence[Url] | AnyPipe[str]],
    *,
    how: Literal["inner", "left"] | None = None,
    align: Literal["auto", "order", "keys"] = "auto",
    members: Mapping[str, str | Sequence[str]] | None = None,
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
    cache_dir: str | None = None,
    cache_bytes: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> IterDataPipe[Sample]:
    """Join shard sets by key: stream samples with the members of all sets. New annotations need no rewrite of images.

    The first set leads: its shards, in its order, are shuffled, split and resumed as by ``stream_shards``, and each of
    its samples gets the members that the other sets have under the same key.

    There are two ways. By keys (``align="keys"``), the sets may have other shards, another order, or fewer samples: the
    files of keys beside the shards (``0.tar.keys``) are read once, when the sets are listed, and only the bytes that
    are needed are fetched. In order (``align="order"``), shards of the same names are read side by side and merged
    sample by sample, which needs no files of keys and is the fastest. The keys of all samples are compared, and a
    difference is an error. ``"auto"`` reads in order if manifests (``index.json``) list the same names and numbers of
    samples for all sets, and neither ``how`` nor ``members`` is passed; otherwise it joins by keys.

    The plan by keys takes about 80 MB for each million keys of each set in the process that lists, and seconds: 10 to
    18 for two sets of a million, timed by hand. ``stateful_loader`` hands the finished plan to its workers; those of a
    plain ``DataLoader`` plan by themselves.

    Args:
        sets: name -> source URL, or several, as of ``stream_shards``; or a pipe of URLs, such as
            ``list_remote(...).filter(...)``. The names are those of errors and of ``members``.
        how: what happens to samples of the first set whose key another set does not have. ``None`` makes them an
            error, ``"inner"`` leaves them out, ``"left"`` yields them without the members of that set. Samples whose
            key the first set does not have are never read; both are counted in the log (level ``INFO``).
        align: ``"auto"``, ``"order"`` or ``"keys"``, as above.
        members: name of a set -> the extensions of it to select, such as ``{"caption": ("txt",)}``. By keys, only their
            bytes are fetched. A sample without any of them counts as one that is missing; in order, an error.
        pattern: glob over base names, as of ``stream_shards``.
        shuffle: ``True`` shuffles shards and samples; ``False`` keeps the order of the first set; ``"shards"`` shuffles
            shards only.
        seed: of the order, which differs each epoch. ``None`` keeps the order of the listing, too.
        shuffle_buffer_size: maximum number of samples in the buffer.
        shuffle_buffer_bytes: bound on the bytes of these samples.
        world: rank and worker of this reader; ``None`` asks torch.
        max_in_flight: maximum number of concurrent requests per worker, for all sets together.
        interleave: number of joined shards that are read concurrently, one sample of each in turn. ``None`` is 16 where
            samples are shuffled, and otherwise 1.
        on_bad_shard: policy for a shard that cannot be read; the rest of the joined shard is skipped.
        on_bad_member: policy for a member that cannot be part of a sample, such as ``README``.
        cache_dir: local folder in which complete objects are cached for later epochs; requires ``cache_bytes``.
        cache_bytes: bound on the size of the cache, which all processes of the host share.
        storage_options: for the stores of all sets, in fsspec's vocabulary; or name of each set -> such options.

    Returns:
        A pipe of samples with members as ``bytes``. ``"__key__"`` and ``"__url__"`` are those of the first set.

    Raises:
        JoinError: while listing, for a key that is missing, or twice in a set, or for an extension that two sets have;
            while reading in order, for samples that differ.
        ManifestError: if a shard has no file of keys.

    Example:
        >>> from torchdata_remote import ShardWriter
        >>> for name, extension in (("pictures", "jpg"), ("captions", "txt")):
        ...     with ShardWriter(f"memory://joined/{name}/{{shard}}.tar", overwrite=True) as writer:
        ...         for key in ("a", "b"):
        ...             _ = writer.write({"__key__": key, extension: f"{extension} of {key}".encode()})
        >>> sets = {name: f"memory://joined/{name}/index.json" for name in ("pictures", "captions")}
        >>> list(join(sets, shuffle=False).to_tuple("__key__", "jpg", "txt"))
        [('a', b'jpg of a', b'txt of a'), ('b', b'jpg of b', b'txt of b')]
    """
    sets_of(sets)
    chosen_how = None if how is None else check.choice("how", how, How)
    aligned = check.choice("align", align, Align)
    if aligned is Align.ORDER and chosen_how is not None:
        raise check.marked(
            ValueError(f"how={chosen_how.value!r} needs align='keys': sets that are read in order miss no sample.")
        )
    selected = members_of(members, sets)
    seed, mode = seed_or_none(seed), shuffle_of(shuffle)
    shuffle_buffer_size = whole("shuffle_buffer_size", shuffle_buffer_size)
    shuffle_buffer_bytes = whole("shuffle_buffer_bytes", shuffle_buffer_bytes)
    mixes_samples = mode is True and seed is not None
    interleave = interleave_of(interleave, mixes_samples=mixes_samples)
    sources = {
        name: None if isinstance(source, AnyPipe) else urls_of(source, of="join") for name, source in sets.items()
    }
    by_set, options = options_of(storage_options, sources)
    listings: dict[str, IterDataPipe[str]] = {}
    for name, source in sources.items():
        given: Any = sets[name]
        listings[name] = (
            given
            if source is None
            else ListRemote(IterableWrapper(source), pattern=pattern, storage_options=by_set[name]).take_tars()
        )
    urls: IterDataPipe[str] = JoinShards(
        listings,
        selected,
        how=chosen_how,
        align=aligned,
        options=options,
        retry=RetryPolicy(),
        on_bad_member=on_bad_member,
    )
    if mode and seed is not None:
        urls = ShuffleShards(urls, seed)
    streams = AsyncPrefetch(
        ShardsOfJoin(ShardingFilterRank(urls, world=world)),
        max_in_flight=max_in_flight,
        interleave=interleave * len(sources),
        cache_dir=cache_dir,
        cache_bytes=cache_bytes,
        storage_options=options,
    )
    samples = JoinedTarReader(
        streams, selected, interleave=interleave, on_bad_shard=on_bad_shard, on_bad_member=on_bad_member
    )
    if seed is None or not mixes_samples:
        return samples
    return ShuffleSamples(samples, buffer_size=shuffle_buffer_size, max_buffer_bytes=shuffle_buffer_bytes, seed=seed)
