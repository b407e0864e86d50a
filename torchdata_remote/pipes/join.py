"""``join``: shard sets with the same keys as one chain of samples with the members of all sets."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from enum import Enum
from itertools import chain, islice
from typing import Any, Literal

from ..core.arguments import check
from ..core.arguments.amounts import whole
from ..core.arguments.calls import explained
from ..core.arguments.suggestions import did_you_mean
from ..core.iter_datapipe import IterDataPipe as AnyPipe
from ..core.options import MIB, RetryPolicy, StorageOptions
from ..core.shard_view import is_view, joined_url, split_joined_url
from ..core.urls import RemoteUrl, VirtualUrl, redact, split_sample_range, split_url
from ..core.world import World
from ..errors import EmptyListingError, JoinError
from ..fetch.listing.patterns import expand_braces
from ..fetch.listing.shard_set import base_name
from ..fetch.listing.source_argument import url_of, urls_of
from ..fetch.selections.joins import How, planned_views
from ..fetch.selections.key_indexes import key_indexes
from ..formats.error_policy import OnBadMember, OnBadShard, ShardErrorHandler, raise_error
from ..formats.grouping import SampleRun
from ..formats.key_index import KeyIndex
from ..formats.merged_runs import MergedSet, merged_runs
from ..formats.position import Position, ReadPosition
from ..formats.sample import Sample
from ..storage import check_options
from .datapipe import DataPipe
from .env import Env
from .listing import ListedPass, ListRemote, ShuffleShards, latest_plan
from .passes import Pass
from .readers import OpenShard
from .recipes import Url, interleave_of, seed_or_none, shuffle_of
from .shuffle import ShuffleSamples
from .slots import require_end
from .split import ShardingFilterRank
from .streams import AsyncPrefetch, number_of
from .tar_reader import ShardTarReader, TarPass
from .typed import IterableWrapper, IterDataPipe

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
    _sets_of(sets)
    chosen_how = None if how is None else check.choice("how", how, How)
    aligned = check.choice("align", align, _Align)
    if aligned is _Align.ORDER and chosen_how is not None:
        raise check.marked(
            ValueError(f"how={chosen_how.value!r} needs align='keys': sets that are read in order miss no sample.")
        )
    selected = _members_of(members, sets)
    seed, mode = seed_or_none(seed), shuffle_of(shuffle)
    shuffle_buffer_size = whole("shuffle_buffer_size", shuffle_buffer_size)
    shuffle_buffer_bytes = whole("shuffle_buffer_bytes", shuffle_buffer_bytes)
    mixes_samples = mode is True and seed is not None
    interleave = interleave_of(interleave, mixes_samples=mixes_samples)
    sources = {
        name: None if isinstance(source, AnyPipe) else urls_of(source, of="join") for name, source in sets.items()
    }
    by_set, options = _options_of(storage_options, sources)
    listings: dict[str, IterDataPipe[str]] = {}
    for name, source in sources.items():
        given: Any = sets[name]
        listings[name] = (
            given
            if source is None
            else ListRemote(IterableWrapper(source), pattern=pattern, storage_options=by_set[name]).take_tars()
        )
    urls: IterDataPipe[str] = _JoinShards(
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
        _ShardsOfJoin(ShardingFilterRank(urls, world=world)),
        max_in_flight=max_in_flight,
        interleave=interleave * len(sources),
        cache_dir=cache_dir,
        cache_bytes=cache_bytes,
        storage_options=options,
    )
    samples = _JoinedTarReader(
        streams, selected, interleave=interleave, on_bad_shard=on_bad_shard, on_bad_member=on_bad_member
    )
    if seed is None or not mixes_samples:
        return samples
    return ShuffleSamples(samples, buffer_size=shuffle_buffer_size, max_buffer_bytes=shuffle_buffer_bytes, seed=seed)


def _sets_of(sets: Any) -> None:
    """Check the names of the sets.

    Raises:
        TypeError, ValueError: says which form is expected.
    """
    expected = 'sets must be a dict {name: url}, such as {"image": "s3://b/images/", "caption": "s3://b/captions/"}'
    if not isinstance(sets, Mapping):
        raise check.marked(TypeError(f"{expected}, got {check.a_kind(sets)}."))
    for name in sets:
        if not isinstance(name, str):
            raise check.marked(TypeError(f"{expected}, got the name {check.shown(name)}."))
    if len(sets) < 2:
        advice = "Write tdr.stream_shards(url) for one set." if sets else "Pass at least two sets."
        raise check.marked(ValueError(f"{expected}, got {len(sets)} sets. {advice}"))


def _members_of(members: Any, sets: Mapping[str, Any]) -> Members:
    """Check which members are selected, and return the extensions of each set in lower case; ``None`` for all.

    Raises:
        TypeError, ValueError: for another form, an unknown set, or an empty selection.
    """
    expected = 'members must be a dict {name: extensions}, such as {"caption": ("txt",)}'
    if members is not None and not isinstance(members, Mapping):
        raise check.marked(TypeError(f"{expected}, got {check.shown(members)}."))
    selected: dict[str, frozenset[str] | None] = dict.fromkeys(sets)
    for name, extensions in (members or {}).items():
        _require_set("members", name, sets)
        found = [extensions] if isinstance(extensions, str) else extensions
        found = list(found) if isinstance(found, Iterable) else [None]
        if not all(isinstance(one, str) for one in found):
            raise check.marked(TypeError(f"{expected}, got {check.shown(extensions)} for {name!r}."))
        if not found:
            raise check.marked(
                ValueError(f"members selects nothing of {name!r}. Leave the set out, or name extensions.")
            )
        selected[name] = frozenset(one.lower().removeprefix(".") for one in found)
    return selected


def _require_set(argument: str, name: Any, sets: Mapping[str, Any]) -> None:
    """Require the name of a set."""
    if name not in sets:
        known = ", ".join(map(repr, sets))
        raise check.marked(
            ValueError(f"{argument} names the set {name!r}, and there are {known}" + (did_you_mean(name, sets) or "."))
        )


def _options_of(
    given: Any, sources: Mapping[str, list[str] | None]
) -> tuple[dict[str, StorageOptions], StorageOptions]:
    """Return the storage options of each set, and those that read all of them.

    Args:
        given: options for all sets, or name of a set -> its options.
        sources: URLs of each set; ``None`` for a pipe of URLs.

    Raises:
        ValueError: for different options of the same bucket, or of a set whose URLs are not known yet.
        UrlError: for options that the store of a URL does not have.
    """
    each = (
        isinstance(given, Mapping)
        and given
        and all(name in sources and isinstance(value, Mapping) for name, value in given.items())
    )
    by_set = {name: StorageOptions(given.get(name) if each else given) for name in sources}
    for name, urls in sources.items():
        for url in urls or ():
            check_options(url, by_set[name])
    if not each:
        return by_set, StorageOptions(given)
    by_bucket: dict[tuple[str, str], StorageOptions] = {}
    for name, urls in sources.items():
        if urls is None:
            raise check.marked(
                ValueError(f"storage_options for each set need its URLs, and {name!r} is a pipe: pass options for all.")
            )
        for url in (single for source in urls for single in expand_braces(source)):
            bucket = split_url(url)[:2]
            if by_bucket.setdefault(bucket, by_set[name]).identity() != by_set[name].identity():
                raise check.marked(
                    ValueError(f"storage_options differ for two sets in the same bucket, {'://'.join(bucket)}.")
                )
    return by_set, StorageOptions.by_bucket(by_bucket)


class _Align(str, Enum):
    """How the samples of the sets are brought together."""

    AUTO = "auto"
    """``ORDER`` if manifests list shards of the same names with the same numbers of samples, otherwise ``KEYS``."""
    ORDER = "order"
    """Shards of the same names have the same samples in the same order."""
    KEYS = "keys"
    """Samples are found by the files of keys beside the shards."""


class _JoinShards(DataPipe[RemoteUrl]):
    """List the shards of all sets, and bring them together: one URL for each shard of the first set.

    Args:
        sources: name of each set -> its listing.
        members: name of each set -> the extensions to select; ``None`` for all.
        how: what happens to samples that a set misses; ``None`` makes them an error.
        align: how samples are brought together.
        options: for the stores, which reads the files of keys.
        retry: policy for transient faults.
        on_bad_member: policy for members that cannot be part of a sample.
    """

    gives_urls = True

    def __init__(
        self,
        sources: Mapping[str, IterDataPipe[str]],
        members: Members,
        *,
        how: How | None,
        align: _Align,
        options: StorageOptions,
        retry: RetryPolicy,
        on_bad_member: OnBadMember,
    ) -> None:
        super().__init__()
        for source in sources.values():
            require_end(source)
        self.sources, self._members = dict(sources), dict(members)
        self.how, self.align, self._options, self._retry = how, align, options, retry
        self._on_bad_member = on_bad_member

    def open(self, env: Env) -> Pass[RemoteUrl]:
        sources = {name: env.open(source) for name, source in self.sources.items()}

        def planned() -> Iterator[RemoteUrl]:
            sets = {name: [_remote(url) for url in source] for name, source in sources.items()}
            listed = [[(url, *url.__getnewargs__()) for url in urls] for urls in sets.values()]
            yield from latest_plan(self, listed, lambda: self._plan(sets))

        return ListedPass(planned, *sources.values())

    def _plan(self, sets: Mapping[str, list[RemoteUrl]]) -> list[RemoteUrl]:
        for name, urls in sets.items():
            if not urls:
                raise EmptyListingError(f"The set {name!r} has no shards.")
        if self.align is _Align.ORDER or (self.align is _Align.AUTO and self._are_alike(sets)):
            _require_same_shards(sets)
            _log.info("join: shards are read side by side, in their order")
            return [joined_url(shards) for shards in zip(*sets.values(), strict=True)]
        with ExitStack() as opened:
            indexes = {name: opened.enter_context(closing(self._indexes(urls))) for name, urls in sets.items()}
            return planned_views(indexes, self._members, self.how)

    def _are_alike(self, sets: Mapping[str, list[RemoteUrl]]) -> bool:
        """Whether the sets can be read side by side, by what their manifests have."""
        if self.how is not None or any(members is not None for members in self._members.values()):
            return False
        first, *others = [[(base_name(url), url.num_samples) for url in urls] for urls in sets.values()]
        return all(num_samples is not None for _, num_samples in first) and all(other == first for other in others)

    def _indexes(self, urls: list[RemoteUrl]) -> Generator[tuple[RemoteUrl, KeyIndex], None, None]:
        return key_indexes(urls, self._options, self._retry, on_bad_member=self._on_bad_member)


class _ShardsOfJoin(DataPipe[str]):
    """Yield the URLs of the shards of each joined shard, in the order of the sets; a view as it is.

    Args:
        source_datapipe: URLs of joined shards.
    """

    gives_urls = True

    def __init__(self, source_datapipe: IterDataPipe[str]) -> None:
        super().__init__()
        self.source_datapipe = source_datapipe

    def open(self, env: Env) -> Pass[str]:
        return _ShardsPass(env.open(self.source_datapipe))


class _ShardsPass(Pass[str]):
    def items(self) -> Iterator[str]:
        return chain.from_iterable(map(split_joined_url, self.sources[0]))


def _remote(item: Any) -> RemoteUrl:
    url = url_of(item, of="join")
    split_sample_range(url)
    if isinstance(url, VirtualUrl):
        shown = redact(url)
        raise JoinError(
            f"{shown} stands for a part of a shard: join() takes whole shards, without select(), and no "
            "snapshot of selected samples.",
            url=shown,
        )
    return url if isinstance(url, RemoteUrl) else RemoteUrl(url)


def _require_same_shards(sets: Mapping[str, list[RemoteUrl]]) -> None:
    (first_name, first), *others = sets.items()
    for name, urls in others:
        if len(urls) != len(first):
            raise JoinError(
                f"The set {first_name!r} has {len(first):,} shards and {name!r} has {len(urls):,}, so they cannot be "
                "read side by side. Pass align='keys'."
            )
        for one, other in zip(first, urls, strict=True):
            counts = one.num_samples, other.num_samples
            if base_name(one) != base_name(other):
                why = "have different names"
            elif None not in counts and counts[0] != counts[1]:
                why = f"have {counts[0]:,} and {counts[1]:,} samples"
            elif counts.count(None) == 1:
                why = "are listed with and without their number of samples: list both by their manifests, or neither"
            else:
                continue
            raise JoinError(
                f"{redact(one)} and {redact(other)} {why}, so they cannot be read side by side. Pass align='keys'.",
                url=redact(one),
            )


class _JoinedTarReader(ShardTarReader):
    """Read the samples of joined shards. Streams come in groups, one of each set; a view is one stream.

    Args:
        source_datapipe: ``(url, file_like)`` pairs.
        members: name of each set -> the extensions to select; ``None`` for all.
        on_bad_shard: as of ``shard_tar_reader``.
        on_bad_member: as of ``shard_tar_reader``.
        interleave: as of ``shard_tar_reader``; number of joined shards.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        members: Members,
        *,
        on_bad_shard: OnBadShard,
        on_bad_member: OnBadMember,
        interleave: int,
    ) -> None:
        super().__init__(source_datapipe, on_bad_shard=on_bad_shard, on_bad_member=on_bad_member, interleave=interleave)
        self.members = dict(members)

    def input_of(self, env: Env) -> Pass[tuple[str, Any]]:
        return _GroupedPass(super().input_of(env), len(self.members))

    def open(self, env: Env) -> Pass[Sample]:
        return _JoinedPass(self, env)


class _GroupedPass(Pass[tuple[str, Any]]):
    """The streams of each joined shard together.

    Args:
        streams: one after the other.
        num_sets: streams of a joined shard that is no view.
    """

    def __init__(self, streams: Pass[tuple[str, Any]], num_sets: int) -> None:
        super().__init__(streams)
        self._num_sets, self.num_streams = num_sets, 1  # of each shard of this pass

    def seek(self, position: Any) -> None:
        again = [
            [number * self.num_streams + at, first]
            for number, firsts in position["again"]
            for at, first in enumerate(firsts)
        ]
        self.sources[0].seek({"next": position["next"] * self.num_streams, "again": again})

    def items(self) -> Iterator[tuple[str, Any]]:
        streams = iter(self.sources[0])
        for first in streams:
            self.num_streams = 1 if is_view(first[0]) else self._num_sets
            group = [first]
            try:
                group += islice(streams, self.num_streams - 1)
                assert len(group) == self.num_streams  # joined URLs hold one for each set
            except BaseException:
                for _, stream in group:
                    stream.close()
                raise
            yield first[0], _JoinedStream(group)


class _JoinedPass(TarPass):
    """The position also has how many streams a shard has."""

    @property
    def position(self) -> Any:
        return (*super().position, self.sources[0].num_streams)  # type: ignore[attr-defined]

    def seek(self, position: Any) -> None:
        *place, self.sources[0].num_streams = position  # type: ignore[attr-defined]
        super().seek(place)

    def first_byte(self, place: Any) -> Any:
        if None in place:
            raise JoinError("The shards of this state have different numbers of samples: pass align='keys'.")
        return [Position.from_json(fields).byte for fields in place]

    def opened(self, url: str, stream: Any, place: Any) -> Any:
        starts = (
            [Position(one.first_byte) for one in stream.streams] if place is None else map(Position.from_json, place)
        )
        tracked = _JoinedPosition([ReadPosition(start) for start in starts])
        samples = self.samples_of(stream.shown[0], stream, tracked, getattr(url, "num_samples", None))
        return OpenShard(stream, tracked, samples)

    def runs_in(self, url: str, stream: Any, guard: ShardErrorHandler, position: Any) -> Iterator[SampleRun]:
        if len(stream.streams) == 1:
            return super().runs_in(url, stream.streams[0], guard, position.of[0])
        parts = zip(self.pipe.members.items(), stream.shown, stream.streams, position.of, strict=True)
        return merged_runs(
            [
                MergedSet(name, one, TarPass.runs_in(self, one, opened, guard, at), members)
                for (name, members), one, opened, at in parts
            ]
        )


class _JoinedStream:
    """The streams of a joined shard.

    Args:
        pairs: URL and stream of each set.
    """

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        self.shown = [redact(url) for url, _ in pairs]  # shards, as samples and errors name them
        self.streams = [stream for _, stream in pairs]
        number = number_of(self.streams[0])
        self.number = None if number is None else number // len(pairs)

    def close(self) -> None:
        """Close all of them."""
        for stream in self.streams:
            stream.close()


class _JoinedPosition:
    """The positions in the streams of a joined shard.

    Args:
        of: that of each stream.
    """

    def __init__(self, of: Sequence[ReadPosition]) -> None:
        self.of = of

    def current(self) -> _JoinedPosition | None:
        """Return where the next sample begins; ``None`` if the last one was handed out."""
        return None if all(one.ended for one in self.of) else self

    def to_json(self) -> list[Any]:
        """Encode for a saved state."""
        found = [one.current() for one in self.of]
        return [None if at is None else at.to_json() for at in found]
