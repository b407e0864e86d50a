"""Plan a join of shard sets by key: each shard of the first set as a view with the members of all sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import numpy as np

from ...core.shard_view import ShardView, view_url
from ...core.urls import RemoteUrl, redact
from ...errors import JoinError
from .keys import Ints, KeyTable

_MOST_NAMED = 3


class How(str, Enum):
    """What happens to samples of the first set whose key another set does not have."""

    INNER = "inner"
    """They are left out."""
    LEFT = "left"
    """They have only the members of the other sets."""


def planned_views(tables: Mapping[str, KeyTable], how: How | None) -> tuple[list[RemoteUrl], str]:
    """Return a view for each shard of the first set, and what was found, as a log shows it.

    Args:
        tables: of the sets; the first one leads.
        how: what happens to samples that a set misses; ``None`` makes them an error.

    Raises:
        JoinError: for a key that is twice in a set, an extension of two sets, or a sample that a set misses.
    """
    _require_unique(tables)
    _require_distinct_extensions(tables)
    (lead_name, lead), *others = tables.items()
    if how is None and lead.num_without:
        raise JoinError(
            f"{lead_name}: {lead.num_without:,} of {len(lead) + lead.num_without:,} samples have none of the members "
            "in members=. Pass how='inner' to leave them out."
        )
    numbers = [np.arange(len(lead)), *(table.find(lead) for _, table in others)]
    missing = {name: np.flatnonzero(found < 0) for (name, _), found in zip(others, numbers[1:], strict=True)}
    if how is None:
        _require_complete(lead_name, lead, missing)
    kept = np.ones(len(lead), np.bool_)
    if how is How.INNER:
        kept[np.concatenate([np.zeros(0, np.int64), *missing.values()])] = False
    what = "; ".join(
        [
            f"{int(kept.sum()):,} samples",
            *(
                f"{name}: {len(absent):,} keys missing, {len(tables[name]) - len(lead) + len(absent):,} keys that the "
                "first set does not have"
                for name, absent in missing.items()
            ),
        ]
    )
    if not kept.any():
        raise JoinError(
            f"The sets {', '.join(map(repr, tables))} have no key in common: {what}. "
            + "; ".join(f"{name!r} has {_named(table, range(len(table)))}" for name, table in tables.items())
        )
    views = []
    for shard, url in enumerate(lead.urls):
        first, last = lead.firsts[shard : shard + 2].tolist()
        samples = np.flatnonzero(kept[first:last]) + first
        if len(samples):
            views.append(view_url(_view(list(tables.values()), [number[samples] for number in numbers], url)))
    return views, what


def _view(tables: Sequence[KeyTable], chosen: Sequence[Ints], lead_url: RemoteUrl) -> ShardView:
    """Put together the samples of one shard.

    Args:
        tables: of the sets.
        chosen: for each set, the number of each sample in it, or -1.
        lead_url: of the shard in the first set.
    """
    urls, columns = [lead_url], []
    for number, (table, samples) in enumerate(zip(tables, chosen, strict=True)):
        places = np.flatnonzero(samples >= 0)
        counts, starts, stops = table.ranges(samples[places])
        objects = np.zeros(len(places), np.int64)
        if number:
            used, at = np.unique(table.shards_of(samples[places]), return_inverse=True)
            objects = at + len(urls)
            urls += [table.urls[shard] for shard in used.tolist()]
        columns.append((np.repeat(places, counts), np.repeat(objects, counts), starts, stops))
    places, objects, starts, stops = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(places, kind="stable")
    counts = np.bincount(places, minlength=len(chosen[0])).astype(np.int64)
    return ShardView(tuple(urls), counts, objects[order], starts[order], stops[order])


def _require_unique(tables: Mapping[str, KeyTable]) -> None:
    for name, table in tables.items():
        if (pair := table.repeated()) is not None:
            one, other = (redact(table.urls[shard]) for shard in table.shards_of(np.array(pair)).tolist())
            where = f"in {one} and in {other}" if one != other else f"twice in {one}"
            raise JoinError(
                f"{name}: the key {table.keys[pair[0]]!r:.200} is {where}, so it does not say which sample it means. "
                "Write the set again with different keys.",
                url=one,
            )


def _require_distinct_extensions(tables: Mapping[str, KeyTable]) -> None:
    owners: dict[str, str] = {}
    for name, table in tables.items():
        for extension in sorted(table.extensions):
            if (other := owners.setdefault(extension, name)) != name:
                raise JoinError(
                    f"The sets {other!r} and {name!r} both have members {extension!r}, and a sample has one of each. "
                    f"Select the members of each set: members={{{other!r}: ('jpg',), {name!r}: ('txt',)}}, with the "
                    "extensions that you want."
                )


def _require_complete(lead_name: str, lead: KeyTable, missing: Mapping[str, Ints]) -> None:
    incomplete = {name: absent for name, absent in missing.items() if len(absent)}
    if incomplete:
        lacks = "; ".join(
            f"{name!r} misses {len(absent):,} of the {len(lead):,} keys of {lead_name!r}: {_named(lead, absent)}"
            for name, absent in incomplete.items()
        )
        raise JoinError(
            f"{lacks}. Pass how='inner' to leave these samples out, or how='left' to read them without these members."
        )


def _named(table: KeyTable, samples: Sequence[int] | Ints | range) -> str:
    named = ", ".join(repr(table.keys[int(sample)])[:200] for sample in samples[:_MOST_NAMED])
    return named if len(samples) <= _MOST_NAMED else f"{named} and others"
