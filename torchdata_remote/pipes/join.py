"""``join``: shard sets with the same keys as one chain of samples with the members of all sets."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from enum import Enum
from itertools import chain, islice, zip_longest
from typing import Any, Literal

from ..core import arguments as check
from ..core.arguments import did_you_mean, explained
from ..core.iter_datapipe import IterDataPipe as AnyPipe
from ..core.options import MIB, RetryPolicy, StorageOptions
from ..core.shard_view import is_view, joined_url, split_joined_url
from ..core.urls import RemoteUrl, redact, split_url
from ..core.world import World
from ..errors import EmptyListingError, JoinError
from ..fetch.listing.patterns import expand_braces
from ..fetch.listing.shard_set import base_name
from ..fetch.listing.source_argument import urls_of
from ..fetch.listing.sources import Tars
from ..fetch.selections.joins import How, planned_views
from ..fetch.selections.key_indexes import key_indexes
from ..formats.error_policy import OnBadMember, OnBadShard, ShardErrorHandler, raise_error
from ..formats.grouping import SampleRun
from ..formats.merged_runs import MergedSet, merged_runs
from ..formats.position import Position, ReadPosition
from ..formats.sample import Sample
from .datapipe import SourcePipe
from .env import Env
from .listing import PlannedShards
from .members import listed
from .passes import Pass
from .readers import OpenShard
from .recipes import Order, Url, listing_of
from .slots import require_end
from .streams import AsyncPrefetch, number_of
from .tar_reader import ShardTarReader, TarPass
from .typed import IterDataPipe

Members = Mapping[str, frozenset[str] | None]

_log = logging.getLogger("torchdata_remote")


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
    if not isinstance(sets, Mapping) or len(sets) < 2 or not all(isinstance(name, str) for name in sets):
        raise check.marked(
            TypeError(
                'sets must be a dict {name: url} of two or more, such as {"image": "s3://b/images/", "caption": '
                f'"s3://b/captions/"}}, got {check.shown(sets)}. Write tdr.stream_shards(url) for one set.'
            )
        )
    chosen_how = None if how is None else check.choice("how", how, How)
    aligned = check.choice("align", align, _Align)
    if aligned is _Align.ORDER and chosen_how is not None:
        raise check.marked(
            ValueError(f"how={chosen_how.value!r} needs align='keys': sets that are read in order miss no sample.")
        )
    selected = _members_of(members, sets)
    order = Order(shuffle, seed, shuffle_buffer_size, shuffle_buffer_bytes, interleave)
    given: Any = sets
    sources = {name: None if isinstance(one, AnyPipe) else urls_of(one, of="join") for name, one in given.items()}
    by_set, options = _options_of(storage_options, sources)
    listings: dict[str, IterDataPipe[str]] = {
        name: given[name] if urls is None else listing_of(urls, pattern, by_set[name]).take_kind(Tars)
        for name, urls in sources.items()
    }
    shards = _JoinShards(listings, selected, chosen_how, aligned, options, on_bad_member)
    streams = AsyncPrefetch(
        _ShardsOfJoin(order.share(shards, world)),
        max_in_flight=max_in_flight,
        interleave=order.interleave * len(sources),
        cache_dir=cache_dir,
        cache_bytes=cache_bytes,
        storage_options=options,
    )
    return order.mixed(
        _JoinedTarReader(
            streams,
            selected,
            interleave=order.interleave,
            on_bad_shard=on_bad_shard,
            on_bad_member=on_bad_member,
        )
    )


def _members_of(members: Any, sets: Mapping[str, Any]) -> Members:
    """Check which members are selected, and return the extensions of each set in lower case; ``None`` for all.

    Raises:
        TypeError, ValueError: for another form, an unknown set, or an empty selection.
    """
    selected: dict[str, frozenset[str] | None] = dict.fromkeys(sets)
    if members is not None and not isinstance(members, Mapping):
        expected = 'members must be a dict {name: extensions}, such as {"caption": ("txt",)}'
        raise check.marked(TypeError(f"{expected}, got {check.shown(members)}."))
    for name, given in (members or {}).items():
        if name not in sets:
            known = ", ".join(map(repr, sets)) + (did_you_mean(name, sets) or ".")
            raise check.marked(ValueError(f"members names the set {name!r}, and there are {known}"))
        found = [given] if isinstance(given, str) else listed("members", given, example="('txt',)")
        if not found:
            raise check.marked(
                ValueError(f"members selects nothing of {name!r}. Leave the set out, or name extensions.")
            )
        selected[name] = frozenset(check.text("members", one, example="txt").lower().removeprefix(".") for one in found)
    return selected


def _options_of(
    given: Any, sources: Mapping[str, list[str] | None]
) -> tuple[dict[str, StorageOptions], StorageOptions]:
    """Return the storage options of each set, and those that read all of them.

    Args:
        given: options for all sets, or name of a set -> its options.
        sources: URLs of each set; ``None`` for a pipe of URLs.

    Raises:
        ValueError: for different options of the same bucket, or of a set whose URLs are not known yet.
    """
    each = bool(given) and isinstance(given, Mapping) and sources.keys() >= given.keys()
    each = each and all(isinstance(value, Mapping) for value in given.values())
    by_set = {name: StorageOptions(given.get(name) if each else given) for name in sources}
    if not each:
        return by_set, StorageOptions(given)
    by_bucket: dict[tuple[str, str], StorageOptions] = {}
    for name, urls in sources.items():
        if urls is None:
            raise check.marked(
                ValueError(f"storage_options for each set need its URLs, and {name!r} is a pipe: pass options for all.")
            )
        for bucket in {split_url(single)[:2] for url in urls for single in expand_braces(url)}:
            if by_bucket.setdefault(bucket, by_set[name]).identity() != by_set[name].identity():
                shown = "://".join(bucket)
                raise check.marked(ValueError(f"storage_options differ for two sets in the same bucket, {shown}."))
    return by_set, StorageOptions.by_bucket(by_bucket)


class _Align(str, Enum):
    """How the samples of the sets are brought together."""

    AUTO = "auto"
    """``ORDER`` if manifests list shards of the same names with the same numbers of samples, otherwise ``KEYS``."""
    ORDER = "order"
    """Shards of the same names have the same samples in the same order."""
    KEYS = "keys"
    """Samples are found by the files of keys beside the shards."""


class _JoinShards(PlannedShards):
    """List the shards of all sets, and bring them together: one URL for each shard of the first set.

    Args:
        sources: name of each set -> its listing.
        members: name of each set -> the extensions to select; ``None`` for all.
        how: what happens to samples that a set misses; ``None`` makes them an error.
        align: how samples are brought together.
        options: for the stores, which reads the files of keys.
        on_bad_member: policy for members that cannot be part of a sample.
    """

    def __init__(
        self,
        sources: Mapping[str, IterDataPipe[str]],
        members: Members,
        how: How | None,
        align: _Align,
        options: StorageOptions,
        on_bad_member: OnBadMember,
    ) -> None:
        super().__init__()
        for source in sources.values():
            require_end(source)
        self.sources, self._members, self.how, self.align = sources, members, how, align
        self._options, self._on_bad_member = options, on_bad_member

    def sets(self) -> Mapping[str, IterDataPipe[str]]:
        return self.sources

    def plan(self, sets: Mapping[str, list[RemoteUrl]]) -> list[RemoteUrl]:
        for name, urls in sets.items():
            if not urls:
                raise EmptyListingError(f"The set {name!r} has no shards.")
        counts = [[(base_name(url), url.num_samples) for url in urls] for urls in sets.values()]
        # Only manifests have numbers of samples
        is_alike = counts[1:] == counts[:-1] and all(number is not None for _, number in counts[0])
        wants_all = self.how is None and not any(self._members.values())
        if self.align is _Align.ORDER or (self.align is _Align.AUTO and wants_all and is_alike):
            _require_same_shards(sets)
            _log.info("join: shards are read side by side, in their order")
            return [joined_url(shards) for shards in zip(*sets.values(), strict=True)]
        options, policy = self._options, self._on_bad_member
        with ExitStack() as opened:
            indexes = {
                name: opened.enter_context(closing(key_indexes(urls, options, RetryPolicy(), on_bad_member=policy)))
                for name, urls in sets.items()
            }
            return planned_views(indexes, self._members, self.how)


class _ShardsOfJoin(SourcePipe[str]):
    """Yield the URLs of the shards of each joined shard, in the order of the sets; a view as it is.

    Args:
        source_datapipe: URLs of joined shards.
    """

    gives_urls = True

    def open(self, env: Env) -> Pass[str]:
        return _ShardsPass(env.open(self.source_datapipe))


class _ShardsPass(Pass[str]):
    def items(self) -> Iterator[str]:
        return chain.from_iterable(map(split_joined_url, self.sources[0]))


def _require_same_shards(sets: Mapping[str, list[RemoteUrl]]) -> None:
    first, *others = sets.values()
    for one, other in (pair for urls in others for pair in zip_longest(first, urls)):
        names = [url and (base_name(url), url.num_samples) for url in (one, other)]
        if names[0] != names[1]:
            counts = [f"{redact(url)} ({url.num_samples} samples)" if url else "no shard" for url in (one, other)]
            raise JoinError(
                f"The sets have {' and '.join(counts)}, so they cannot be read side by side. Pass align='keys'; or "
                "list all of them by their manifests, or none."
            )


class _JoinedTarReader(ShardTarReader):
    """Read the samples of joined shards. Streams come in groups, one of each set; a view is one stream.

    Args:
        source_datapipe: ``(url, file_like)`` pairs.
        members: name of each set -> the extensions to select; ``None`` for all.
        **options: of ``shard_tar_reader``; the number of joined shards that are read in turn.
    """

    def __init__(self, source_datapipe: IterDataPipe[Any], members: Members, **options: Any) -> None:
        super().__init__(source_datapipe, **options)
        self.members = members

    def input_of(self, env: Env) -> Pass[tuple[str, Any]]:
        return _GroupedPass(super().input_of(env), len(self.members))

    def open(self, env: Env) -> Pass[Sample]:
        return _JoinedPass(self, env)


class _GroupedPass(Pass[tuple[str, Any]]):
    """The streams of each joined shard together. Its number is that of the last one.

    Args:
        streams: one after the other.
        num_sets: streams of a joined shard that is no view.
    """

    def __init__(self, streams: Pass[tuple[str, Any]], num_sets: int) -> None:
        super().__init__(streams)
        self._num_sets = num_sets

    def seek(self, position: Any) -> None:
        again = [
            [last + 1 - len(firsts) + at, first]
            for last, firsts in position["again"]
            for at, first in enumerate(firsts)
        ]
        self.sources[0].seek({**position, "again": again})

    def items(self) -> Iterator[tuple[str, Any]]:
        streams = iter(self.sources[0])
        for first in streams:
            group, num_streams = [first], 1 if is_view(first[0]) else self._num_sets
            try:
                group += islice(streams, num_streams - 1)
                assert len(group) == num_streams  # joined URLs hold one for each set
            except BaseException:
                for _, stream in group:
                    stream.close()
                raise
            yield first[0], _JoinedShard(group)


class _JoinedPass(TarPass):
    def first_byte(self, place: Any) -> Any:
        if None in place:
            raise JoinError("The shards of this state have different numbers of samples: pass align='keys'.")
        return [byte for byte, *_ in place]

    def opened(self, url: str, stream: Any, place: Any) -> Any:
        starts = (
            [Position(one.first_byte) for one in stream.streams] if place is None else map(Position.from_json, place)
        )
        stream.positions = list(map(ReadPosition, starts))
        samples = self.samples_of(stream.shown[0], stream, stream, getattr(url, "num_samples", None))
        return OpenShard(stream.number, stream, samples, stream)

    def runs_in(self, url: str, stream: Any, guard: ShardErrorHandler, position: Any) -> Iterator[SampleRun]:
        if len(stream.streams) == 1:
            return super().runs_in(url, stream.streams[0], guard, stream.positions[0])
        parts = zip(self.pipe.members.items(), stream.shown, stream.streams, stream.positions, strict=True)
        return merged_runs(
            [
                MergedSet(name, one, TarPass.runs_in(self, one, opened, guard, at), members)
                for (name, members), one, opened, at in parts
            ]
        )


class _JoinedShard:
    """The streams of a joined shard, and the positions in them.

    Args:
        pairs: URL and stream of each set.
    """

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        self.shown = [redact(url) for url, _ in pairs]  # shards, as samples and errors name them
        self.streams = [stream for _, stream in pairs]
        self.positions: list[ReadPosition] = []
        self.number = number_of(self.streams[-1])

    def close(self) -> None:
        """Close all of them."""
        for stream in self.streams:
            stream.close()

    def current(self) -> _JoinedShard | None:
        """Return where the next sample begins; ``None`` if the last one was handed out."""
        return None if all(one.ended for one in self.positions) else self

    def to_json(self) -> list[Any]:
        """Encode for a saved state."""
        found = [one.current() for one in self.positions]
        return [None if at is None else at.to_json() for at in found]
