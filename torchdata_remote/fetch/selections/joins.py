"""Plan a join of shard sets by key: each shard of the first set as a view with the members of all sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from itertools import compress

import numpy as np

from ...core.shard_view import ShardView, view_url
from ...core.urls import RemoteUrl
from ...errors import JoinError
from ...formats.key_index import KeyIndex
from ..listing.url_table import StringColumn
from .keys import Ints, KeyNumbers

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

    numbers: KeyNumbers

    def __init__(
        self,
        name: str,
        indexes: Iterable[tuple[RemoteUrl, KeyIndex]],
        members: Collection[str] | None,
        lead: _Set | None = None,
    ) -> None:
        self.urls: list[RemoteUrl] = []
        self.keys, self.extensions, self.num_without = StringColumn(), set[str](), 0
        found, ranges = [np.zeros(0, np.int64)], [np.zeros((0, 4), np.int64)]
        for url, index in indexes:
            chosen = [at for at, extension in enumerate(index.extensions) if members is None or extension in members]
            self.extensions.update(index.extensions[at] for at in chosen)
            starts, stops, counts = index.ranges(np.isin(index.members, chosen))
            has_any = counts > 0
            if lead is None:
                places = len(self.keys) + np.cumsum(has_any) - 1
                self.keys.extend(list(compress(index.keys, has_any.tolist())))
            else:
                places = lead.numbers.find(index.keys)
            found.append(places[has_any])
            places = np.repeat(places, counts)
            columns = np.column_stack([places, np.full_like(places, len(self.urls)), starts, stops])
            ranges.append(columns[places >= 0])
            self.num_without += int((~has_any).sum())
            self.urls.append(url)
        if members is not None and (absent := sorted(set(members) - self.extensions)):
            raise JoinError(f"No sample of the set {name!r} has a member {', '.join(map(repr, absent))}.")
        self.places, self.ranges = np.concatenate(found), np.concatenate(ranges)
        self.numbers = KeyNumbers(self.keys)
        repeated = self.numbers.repeated()
        if lead is not None:
            repeated = np.flatnonzero(np.bincount(self.places[self.places >= 0]) > 1)
        if twice := (lead or self).keys.at(repeated[:1].tolist()):
            raise JoinError(
                f"{name}: the key {twice[0]!r:.200} is in it twice, so it does not say which sample it means. Write "
                "the set again with different keys."
            )


def planned_views(
    sets: Mapping[str, Iterable[tuple[RemoteUrl, KeyIndex]]],
    members: Mapping[str, Collection[str] | None],
    how: How | None,
) -> tuple[list[RemoteUrl], str]:
    """Return a view for each shard of the first set, and what was found, as a log shows it.

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
    if how is None and lead.num_without:
        raise JoinError(
            f"{lead_name}: {lead.num_without:,} of {len(lead.keys) + lead.num_without:,} samples have none of the "
            "members in members=. Pass how='inner' to leave them out."
        )
    kept, lacks, found = np.ones(len(lead.keys), np.bool_), [], []
    for name, _ in others:
        places = tables[name].places
        absent = np.setdiff1d(np.arange(len(kept)), places)
        found.append(
            f"{name}: {len(absent):,} keys missing, {int((places < 0).sum()):,} keys that the first set does not have"
        )
        if len(absent):
            named = ", ".join(repr(key)[:200] for key in lead.keys.at(absent[:_MOST_NAMED].tolist()))
            named += " and others" if len(absent) > _MOST_NAMED else ""
            lacks.append(f"{name!r} misses {len(absent):,} of the {len(kept):,} keys of {lead_name!r}: {named}")
        if how is How.INNER:
            kept[absent] = False
    what = "; ".join([f"{int(kept.sum()):,} samples", *found])
    if not kept.any():
        raise JoinError(f"The sets {', '.join(map(repr, sets))} have no key in common: {what}. {'; '.join(lacks)}.")
    if how is None and lacks:
        raise JoinError(
            f"{'; '.join(lacks)}. Pass how='inner' to leave these samples out, or how='left' to read them without "
            "these members."
        )
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
    return [_view(one, urls) for one in np.split(ranges, cuts)], what


def _view(ranges: Ints, urls: list[RemoteUrl]) -> RemoteUrl:
    """Put together the samples of one shard of the first set, which is the first one of the view."""
    places, shards, starts, stops = ranges.T
    used, objects = np.unique(shards, return_inverse=True)
    counts = np.unique(places, return_counts=True)[1]
    return view_url(ShardView(tuple(urls[shard] for shard in used.tolist()), counts, objects, starts, stops))


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
