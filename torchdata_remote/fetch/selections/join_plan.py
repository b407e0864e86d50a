"""Plan a join of shard sets by key: each shard of the first set as a view with the members of all sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from ...core.shard_view import ShardView, view_url
from ...core.urls import RemoteUrl, redact
from ...errors import JoinError
from .key_table import Ints, KeyTable

_MOST_NAMED = 3


class How(str, Enum):
    """What happens to samples of the first set whose key another set does not have."""

    INNER = "inner"
    """They are left out."""
    LEFT = "left"
    """They have only the members of the other sets."""


class JoinCounts(NamedTuple):
    """What a join by key has found.

    Args:
        num_samples: of the joined set.
        missing: name of a set -> samples of the first set whose key it does not have.
        extra: name of a set -> its samples whose key the first set does not have; they are not read.
    """

    num_samples: int
    missing: Mapping[str, int]
    extra: Mapping[str, int]

    def __str__(self) -> str:
        parts = [f"{self.num_samples:,} samples"]
        for name, number in self.missing.items():
            parts.append(f"{name}: {number:,} keys missing, {self.extra[name]:,} keys that the first set does not have")
        return "; ".join(parts)


def planned_views(tables: Mapping[str, KeyTable], how: How | None) -> tuple[list[RemoteUrl], JoinCounts]:
    """Return a view for each shard of the first set, and what was found.

    Args:
        tables: of the sets, finished; the first one leads.
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
    found = [np.concatenate([np.zeros(0, np.int64), *_found(table, lead)]) for _, table in others]
    missing = {name: np.flatnonzero(numbers < 0) for (name, _), numbers in zip(others, found, strict=True)}
    if how is None:
        _require_complete(lead_name, lead, missing)
    kept = np.ones(len(lead), np.bool_)
    if how is How.INNER:
        for absent in missing.values():
            kept[absent] = False
    extra = {name: len(tables[name]) - len(lead) + len(absent) for name, absent in missing.items()}
    counts = JoinCounts(int(kept.sum()), {name: len(absent) for name, absent in missing.items()}, extra)
    if not counts.num_samples:
        raise JoinError(
            f"The sets {', '.join(map(repr, tables))} have no key in common: {counts}. "
            + "; ".join(f"{name!r} has {_named(table, range(len(table)))}" for name, table in tables.items())
        )
    numbers = [np.arange(len(lead)), *found]
    views = []
    for shard in range(len(lead.urls)):
        first, last = lead.samples_of(shard)
        samples = np.flatnonzero(kept[first:last]) + first
        if len(samples):
            chosen = [number[samples] for number in numbers]
            views.append(view_url(_view(list(tables.values()), chosen, lead.urls[shard])))
    return views, counts


def _found(table: KeyTable, lead: KeyTable) -> Iterator[Ints]:
    for shard in range(len(lead.urls)):
        yield table.find(lead, *lead.samples_of(shard))


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
            shards = [redact(table.urls[int(shard)]) for shard in table.shards_of(np.array(pair))]
            where = f"in {shards[0]} and in {shards[1]}" if shards[0] != shards[1] else f"twice in {shards[0]}"
            raise JoinError(
                f"{name}: the key {table.key(pair[0])!r:.200} is {where}, so it does not say which sample it means. "
                "Write the set again with different keys.",
                url=shards[0],
            )


def _require_distinct_extensions(tables: Mapping[str, KeyTable]) -> None:
    owners: dict[str, str] = {}
    for name, table in tables.items():
        for extension in sorted(table.extensions):
            if (other := owners.setdefault(extension, name)) != name:
                raise extension_twice(extension, other, name)


def extension_twice(extension: str, one: str, other: str) -> JoinError:
    """Error of an extension that two sets have."""
    return JoinError(
        f"The sets {one!r} and {other!r} both have members {extension!r}, and a sample has one of each. Select the "
        f"members of each set: members={{{one!r}: ('jpg',), {other!r}: ('txt',)}}, with the extensions that you want."
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
    named = ", ".join(repr(table.key(int(sample)))[:200] for sample in samples[:_MOST_NAMED])
    return named if len(samples) <= _MOST_NAMED else f"{named} and others"
