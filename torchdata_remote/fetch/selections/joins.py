"""Plan a join of shard sets by key: each shard of the first set as a view with the members of all sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from itertools import compress

import numpy as np
import numpy.typing as npt

from ...core.shard_view import ShardView, key_sums, view_url
from ...core.urls import RemoteUrl
from ...errors import JoinError
from ...formats.key_index import KeyIndex

Ints = npt.NDArray[np.int64]

_MOST_NAMED = 3


class How(str, Enum):
    """What happens to samples of the first set whose key another set does not have."""

    INNER = "inner"
    """They are left out."""
    LEFT = "left"
    """They have only the members of the other sets."""


class _Set:
    """The byte ranges of the samples of a set, by the place of their keys in the first set.

    Args:
        name: of the set.
        indexes: of its shards.
        members: extensions to select; ``None`` for all. Samples that have none of them are not part of the set.
        lead: the first set; ``None`` for itself, whose keys are kept.

    Raises:
        JoinError: for a key that is twice in the set, or an extension that none of its samples has.
    """

    def __init__(
        self,
        name: str,
        indexes: Iterable[tuple[RemoteUrl, KeyIndex]],
        members: Collection[str] | None,
        lead: _Set | None = None,
    ) -> None:
        self.urls: list[RemoteUrl] = []
        self.places: dict[str, int] = {}  # of the keys, of the first set only
        self.extensions, self.num_without = set[str](), 0
        found, ranges = [np.zeros(0, np.int64)], [np.zeros((0, 4), np.int64)]
        for url, index in indexes:
            chosen = [at for at, extension in enumerate(index.extensions) if members is None or extension in members]
            self.extensions.update(index.extensions[at] for at in chosen)
            starts, stops, counts = index.ranges(np.isin(index.members, chosen))
            keys = list(compress(index.keys, counts > 0))
            if lead is None:
                for key in keys:
                    self.places.setdefault(key, len(self.places))
            places = np.array([(lead or self).places.get(key, -1) for key in keys], np.int64)
            found.append(places)
            places = np.repeat(places, counts[counts > 0])
            columns = np.column_stack([places, np.full_like(places, len(self.urls)), starts, stops])
            ranges.append(columns[places >= 0])
            self.num_without += len(counts) - len(keys)
            self.urls.append(url)
        if members is not None and (absent := sorted(set(members) - self.extensions)):
            raise JoinError(f"No sample of the set {name!r} has a member {', '.join(map(repr, absent))}.")
        self.ranges, places = np.concatenate(ranges), np.concatenate(found)
        for place in np.flatnonzero(np.bincount(places[places >= 0]) > 1).tolist():
            raise JoinError(
                f"{name}: the key {list((lead or self).places)[place]!r:.200} is in it twice, so it does not say which "
                "sample it means. Write the set again with different keys."
            )


def planned_views(
    sets: Mapping[str, Iterable[tuple[RemoteUrl, KeyIndex]]],
    members: Mapping[str, Collection[str] | None],
    how: How | None,
) -> list[RemoteUrl]:
    """Return a view for each shard of the first set.

    Args:
        sets: name -> indexes of the shards; the first one leads.
        members: name -> extensions to select; ``None`` for all.
        how: what happens to samples that a set misses; ``None`` makes them an error.

    Raises:
        JoinError: for a key that is twice in a set, an extension of two sets, or a sample that a set misses.
    """
    (lead_name, indexes), *others = sets.items()
    lead = _Set(lead_name, indexes, members[lead_name])
    tables = {lead_name: lead} | {name: _Set(name, indexes, members[name], lead) for name, indexes in others}
    _require_distinct_extensions(tables)
    keys = list(lead.places)
    kept, lacks = np.ones(len(keys), np.bool_), []
    if lead.num_without:
        num_samples = len(keys) + lead.num_without
        lacks.append(f"{lead_name}: {lead.num_without:,} of {num_samples:,} samples have none of the members")
    for name, _ in others:
        absent = np.setdiff1d(np.arange(len(kept)), tables[name].ranges[:, 0])
        if len(absent):
            named = ", ".join(f"{keys[at]!r:.200}" for at in absent[:_MOST_NAMED])
            lacks.append(f"{name!r} misses {len(absent):,} of the {len(kept):,} keys of {lead_name!r}: {named}")
        if how is How.INNER:
            kept[absent] = False
    if how is None and lacks:
        raise JoinError(
            f"{'; '.join(lacks)}. Pass how='inner' to leave these samples out, or how='left' to read them without "
            "these members."
        )
    if not kept.any():
        raise JoinError(f"The sets {', '.join(map(repr, sets))} have no key in common: {'; '.join(lacks)}.")
    urls, moved = list[RemoteUrl](), []
    for table in tables.values():
        moved.append(table.ranges + np.array([0, len(urls), 0, 0]))
        urls += table.urls
    ranges = np.concatenate(moved)
    ranges = ranges[kept[ranges[:, 0]]]
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]  # members stay in the order of the sets
    shards = np.zeros(len(kept), np.int64)
    shards[lead.ranges[:, 0]] = lead.ranges[:, 1]
    cuts = np.flatnonzero(np.diff(shards[ranges[:, 0]])) + 1
    return [_view(one, urls, keys) for one in np.split(ranges, cuts)]


def _view(ranges: Ints, urls: list[RemoteUrl], keys: Sequence[str]) -> RemoteUrl:
    """Put together the samples of one shard of the first set, which is the first one of the view."""
    places, shards, starts, stops = ranges.T
    used, objects = np.unique(shards, return_inverse=True)
    samples, counts = np.unique(places, return_counts=True)
    shown = tuple(urls[shard] for shard in used.tolist())
    sums = key_sums(map(keys.__getitem__, samples)) if None in [url.keys_crc32 for url in shown] else None
    return view_url(ShardView(shown, counts, objects, starts, stops, sums))


def _require_distinct_extensions(sets: Mapping[str, _Set]) -> None:
    owners: dict[str, str] = {}
    for name, table in sets.items():
        for extension in sorted(table.extensions):
            if (other := owners.setdefault(extension, name)) != name:
                raise JoinError(
                    f"The sets {other!r} and {name!r} both have members {extension!r}, and a sample has one of each. "
                    f"Select the members of each set: members={{{other!r}: ('jpg',), {name!r}: ('txt',)}}, with the "
                    "extensions that you want."
                )
