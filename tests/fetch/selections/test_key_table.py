"""The table of keys of a shard set, and the search in it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchdata_remote import RemoteUrl
from torchdata_remote.fetch.selections import sorted_hashes
from torchdata_remote.fetch.selections.key_table import KeyTable
from torchdata_remote.formats.key_index import KeyIndex, key_index

keys_of_shards = st.lists(st.lists(st.text("aé\udc80/", min_size=1, max_size=4), max_size=6), max_size=4)


def index_of(keys: list[str]) -> KeyIndex:
    starts = range(512, 512 + 1024 * len(keys), 1024)
    return key_index((key, [("jpg", start, 300)]) for key, start in zip(keys, starts, strict=True))


def table_of(shards: list[list[str]]) -> KeyTable:
    table = KeyTable()
    for number, keys in enumerate(shards):
        table.add(RemoteUrl(f"s3://b/{number}.tar"), index_of(keys))
    return table.finish()


@pytest.mark.parametrize("num_hashes", [1, 3, 1 << 60])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=keys_of_shards, second=keys_of_shards)
def test_keys_are_found_by_their_text_also_where_hashes_are_equal(
    num_hashes: int, first: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sorted_hashes, "hash", lambda key: hash(key) % num_hashes, raising=False)
        lead, other = table_of(first), table_of(second)
    flat = [key for keys in second for key in keys]
    for shard, keys in enumerate(first):
        samples = lead.samples_of(shard)
        found = other.find(lead, *samples).tolist()
        assert [flat[number] if number >= 0 else None for number in found] == [
            key if key in flat else None for key in keys
        ]
        assert [lead.key(sample) for sample in range(*samples)] == keys
    pair = other.repeated()
    assert (pair is not None) == (len(set(flat)) < len(flat))
    if pair is not None:
        assert pair[0] != pair[1]
        assert flat[pair[0]] == flat[pair[1]]
    shards = [number for number, keys in enumerate(second) for _ in keys]
    assert other.shards_of(np.arange(len(flat))).tolist() == shards


@given(
    samples=st.lists(st.lists(st.sampled_from(["jpg", "txt", "cls"]), min_size=1, max_size=3, unique=True), max_size=6),
    wanted=st.none() | st.sets(st.sampled_from(["jpg", "txt", "cls"]), min_size=1),
)
def test_ranges_are_those_of_the_selected_members(samples: list[list[str]], wanted: set[str] | None) -> None:
    """Adjacent members are one range."""
    rows, at, expected = [], 0, []
    for number, extensions in enumerate(samples):
        members, blocks = [], []
        for extension in extensions:
            members.append((extension, at + 512, 700))
            blocks += [(at, at + 1536)] if wanted is None or extension in wanted else []
            at += 512 + 1024
        rows.append((f"k{number}", members))
        if blocks:
            expected.append((f"k{number}", blocks))
    table = KeyTable(wanted)
    table.add(RemoteUrl("s3://b/0.tar"), key_index(rows))
    table.finish()
    assert table.num_without == len(samples) - len(expected)
    assert table.extensions == {name for one in samples for name in one if wanted is None or name in wanted}
    for sample in reversed(range(len(expected))):
        key, blocks = expected[sample]
        counts, starts, stops = table.ranges(np.array([sample]))
        found = list(zip(starts.tolist(), stops.tolist(), strict=True))
        assert counts.tolist() == [len(found)]
        assert [(at, at + 1536) for start, stop in found for at in range(start, stop, 1536)] == blocks
        assert all(before[1] < after[0] for before, after in pairwise(found))
        assert table.key(sample) == key
