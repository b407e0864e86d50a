"""The listing of a join: the shards of all sets as URLs of joined shards, or of views."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from enum import Enum
from itertools import chain
from typing import Any

from ...core.options import RetryPolicy, StorageOptions
from ...core.shard_view import joined_url, split_joined_url
from ...core.urls import RemoteUrl, VirtualUrl, redact, split_sample_range
from ...errors import EmptyListingError, JoinError
from ...fetch.listing.shard_set import base_name
from ...fetch.listing.source_argument import url_of
from ...fetch.selections.joins import How, planned_views
from ...fetch.selections.key_indexes import key_indexes
from ...formats.error_policy import OnBadMember
from ...formats.key_index import KeyIndex
from ..base.datapipe import DataPipe
from ..base.slots import require_end
from ..base.typed import IterDataPipe
from .joined_reader import Members

_log = logging.getLogger("torchdata_remote")
_MOST_NAMED = 3


class Align(str, Enum):
    """How the samples of the sets are brought together."""

    AUTO = "auto"
    """``ORDER`` if manifests list shards of the same names with the same numbers of samples, otherwise ``KEYS``."""
    ORDER = "order"
    """Shards of the same names have the same samples in the same order."""
    KEYS = "keys"
    """Samples are found by the files of keys beside the shards."""


class JoinShards(DataPipe[RemoteUrl]):
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
        align: Align,
        options: StorageOptions,
        retry: RetryPolicy,
        on_bad_member: OnBadMember,
    ) -> None:
        for source in sources.values():
            require_end(source)
        self.sources, self._members = dict(sources), dict(members)
        self.how, self.align, self._options, self._retry = how, align, options, retry
        self._latest, self._on_bad_member = _LatestPlan(), on_bad_member

    def __iter__(self) -> Iterator[RemoteUrl]:
        sets = {name: [_remote(url) for url in source] for name, source in self.sources.items()}
        listed = [[(url, *url.__getnewargs__()) for url in urls] for urls in sets.values()]
        if self._latest.listed != listed:
            self._latest.urls, self._latest.listed = self._plan(sets), listed
        yield from self._latest.urls

    def _plan(self, sets: Mapping[str, list[RemoteUrl]]) -> list[RemoteUrl]:
        for name, urls in sets.items():
            if not urls:
                raise EmptyListingError(f"The set {name!r} has no shards.")
        if self.align is Align.ORDER or (self.align is Align.AUTO and self._are_alike(sets)):
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


class _LatestPlan:
    """The plan of the latest listing: later passes that list the same objects use it. Not sent to other processes."""

    def __init__(self) -> None:
        self.listed: Any = None
        self.urls: list[RemoteUrl] = []

    def __reduce__(self) -> tuple[type[_LatestPlan], tuple[()]]:
        return _LatestPlan, ()


class ShardsOfJoin(DataPipe[str]):
    """Yield the URLs of the shards of each joined shard, in the order of the sets; a view as it is.

    Args:
        source_datapipe: URLs of joined shards.
    """

    gives_urls = True

    def __init__(self, source_datapipe: IterDataPipe[str]) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(map(split_joined_url, self.source_datapipe))


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
