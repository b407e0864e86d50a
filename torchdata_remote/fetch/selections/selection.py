"""Plan a selection: each shard becomes a view of the samples, and of the members, that are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...core.arguments import check
from ...core.arguments.scalars import bool_of
from ...core.shard_view import ShardView, key_sum, view_url
from ...core.urls import RemoteUrl, VirtualUrl, redact, split_sample_range
from ...errors import EmptyListingError, MissingKeyError, MissingMemberError, UrlError
from ...formats.key_index import KeyIndex
from ..listing.url_table import StringColumn
from .keys import KeyNumbers

Bools = npt.NDArray[np.bool_]

_MAX_SHOWN = 5


class IndexedSample(NamedTuple):
    """A sample as the index of its shard has it, for a function that selects samples.

    Args:
        key: as readers give it by ``"__key__"``.
        url: of its shard.
        members: extension -> bytes of the member, in the order of the shard.

    Example:
        >>> sample = IndexedSample("train/000017", "s3://b/0.tar", {"jpg": 94_211, "cls": 1})
        >>> sample.key, sample.members["jpg"] < 1 << 20, "txt" in sample.members
        ('train/000017', True, False)
    """

    key: str
    url: str
    members: Mapping[str, int]


def planned_views(
    indexes: Iterable[tuple[RemoteUrl, KeyIndex]],
    keys: StringColumn | None,
    where: Callable[[IndexedSample], Any] | None,
    members: tuple[tuple[str, ...], ...] | None,
    on_missing_key: Callable[[MissingKeyError], object],
) -> list[RemoteUrl]:
    """Return what is selected of each shard, in order; shards without a selected sample are left out.

    A shard whose samples and members are all selected stays as it is, with its checksums, if its manifest has what
    readers need to split it by samples.

    Args:
        indexes: of the shards.
        keys: of the selected samples; ``None`` for all.
        where: returns whether a sample is selected; ``None`` for all.
        members: alternatives for each member that is read; ``None`` for all members.
        on_missing_key: policy for keys that no shard has.

    Raises:
        MissingKeyError: for keys that no shard has, unless the policy returns.
        MissingMemberError: if a selected sample has none of the alternatives of a member.
        EmptyListingError: if nothing is selected.
        TypeError: if ``where`` returns no bool.
    """
    views: list[RemoteUrl] = []
    num_shards = num_samples = 0
    wanted = KeyNumbers(keys or StringColumn())
    are_missing = np.ones(len(keys or ()), np.bool_)
    are_missing[wanted.repeated()] = False  # the first one counts
    num_wanted = int(are_missing.sum())
    for url, index in indexes:
        num_shards += 1
        num_samples += len(index.keys)
        chosen = np.ones(len(index.keys), np.bool_)
        if keys is not None:
            numbers = wanted.find(index.keys)
            chosen = numbers >= 0
            are_missing[numbers[chosen]] = False
        if where is not None:
            _filter(chosen, url, index, where)
        if chosen.any():
            views.append(_view(url, index, chosen, members))
    missing = np.flatnonzero(are_missing).tolist()
    if keys is not None and missing:
        names = ", ".join(f"{key!r:.100}" for key in keys.at(missing[:_MAX_SHOWN]))
        more = ", ..." if len(missing) > _MAX_SHOWN else ""
        on_missing_key(
            MissingKeyError(
                f"select: {len(missing):,} of {num_wanted:,} keys are in none of {num_shards:,} shards: {names}{more}. "
                "A key is the path of a member without its extension, such as 'train/000017'. Pass "
                "on_missing_key=skip_with_warning to select those that are there."
            )
        )
    if not views:
        raise EmptyListingError(
            f"select: none of {num_samples:,} samples in {num_shards:,} shards is selected. Check keys= and where=."
        )
    return views


def require_whole_shards(urls: Iterable[str]) -> Iterator[RemoteUrl]:
    """Yield URLs, and refuse those that are no whole shards.

    Raises:
        UrlError: for a range of samples, or selected samples.
    """
    for url in urls:
        whole, samples = split_sample_range(url)
        if samples is not None or isinstance(whole, VirtualUrl):
            raise UrlError(
                f"select: {redact(url)} is a part of a shard: pass keys=, where= and members= to one select(), and put "
                "it before join() and sharding_filter_rank().",
                url=redact(url),
            )
        yield url if isinstance(url, RemoteUrl) else RemoteUrl(url)


def _filter(chosen: Bools, url: str, index: KeyIndex, where: Callable[[IndexedSample], Any]) -> None:
    """Deselect the samples that a function does not want."""
    firsts, names = index.firsts().tolist(), [index.extensions[member] for member in index.members]
    sizes, shard = index.sizes.tolist(), str(url)
    for number in np.flatnonzero(chosen).tolist():
        members = slice(firsts[number], firsts[number + 1])
        sizes_by_name = dict(zip(names[members], sizes[members], strict=True))
        answer = where(IndexedSample(index.keys[number], shard, sizes_by_name))
        is_chosen = bool_of(answer)
        if is_chosen is None:
            raise check.marked(
                TypeError(f"where must return True or False for a sample, got {check.shown(answer)}. Did it return?")
            )
        chosen[number] = is_chosen


def _view(url: RemoteUrl, index: KeyIndex, chosen: Bools, members: tuple[tuple[str, ...], ...] | None) -> RemoteUrl:
    are_read = np.repeat(chosen, index.counts)
    if members is not None:
        are_read &= _wanted_members(url, index, chosen, members)
    if are_read.all() and url.num_samples is not None and url.index_crc32 is not None:
        return url
    starts, stops, counts = index.ranges(are_read)
    key_sums = None
    if url.keys_crc32 is None:  # the keys may be those of another version
        key_sums = np.array([key_sum(key) for key in compress(index.keys, chosen)], np.int64)
    return view_url(ShardView((url,), counts[chosen], np.zeros(len(starts), np.int64), starts, stops, key_sums))


def _wanted_members(url: str, index: KeyIndex, chosen: Bools, wanted: tuple[tuple[str, ...], ...]) -> Bools:
    """Return which members are read: of each list of alternatives the first one that the sample has."""
    firsts, are_read = index.firsts(), np.zeros(len(index.members), np.bool_)
    for alternatives in wanted:
        none = len(alternatives)
        ranks = [alternatives.index(name) if name in alternatives else none for name in index.extensions]
        of_member = np.array(ranks, np.int64)[index.members]
        best = np.minimum.reduceat(of_member, firsts[:-1])
        if (lacking := np.flatnonzero((best == none) & chosen)).size:
            number = int(lacking[0])
            has = sorted(index.extensions[member] for member in index.members[firsts[number] : firsts[number + 1]])
            raise MissingMemberError(
                f"select: sample {index.keys[number]!r:.200} of {redact(url)} has no "
                f"{' or '.join(map(repr, alternatives))}. It has {has}. Deselect it by where=lambda sample: "
                f"{alternatives[0]!r} in sample.members, or separate alternatives by ';': members=('jpg;png', 'cls').",
                url=redact(url),
            )
        are_read |= (of_member == np.repeat(best, index.counts)) & (of_member < none)
    return are_read
