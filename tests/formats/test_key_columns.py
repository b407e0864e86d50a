"""Keys and members that are collected in columns."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.formats.key_columns import KeyColumns
from torchdata_remote.formats.key_index import dump_keys, key_index

EXTENSIONS = st.lists(st.sampled_from(["jpg", "cls", "seg.png", "txt"]), min_size=1, max_size=4, unique=True)


@given(batches=st.lists(st.lists(EXTENSIONS.map(tuple), max_size=5), max_size=5))
def test_columns_are_those_of_the_samples(batches: list[list[tuple[str, ...]]]) -> None:
    """Any members in any order, in any batches: as they are made sample by sample."""
    columns, samples = KeyColumns(lambda names: tuple(name[1:] for name in names)), []
    at = 0
    for batch in batches:
        columns.add(
            [str(len(samples) + number) for number in range(len(batch))],
            [tuple(f".{name}" for name in names) for names in batch],
        )
        for names in batch:
            members = []
            for name in names:
                members.append((name, at + 512, at % 700))
                at += 512 + at % 700 + -(at % 700) % 512
            samples.append((str(len(samples)), members))
    expected = key_index(samples)
    assert columns.counts().tolist() == [len(members) for _, members in samples]
    found = columns.index(expected.starts, expected.sizes)
    assert found.members.dtype == np.int64
    assert dump_keys(found) == dump_keys(expected)
    assert found.keys == [key for key, _ in samples]
