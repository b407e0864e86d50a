"""Keys are found by their hashes as in a dict of lists."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.fetch.selections.sorted_hashes import SortedHashes

HASHES = st.lists(st.integers(-4, 4) | st.sampled_from([-(1 << 63), (1 << 63) - 1]), max_size=12)


@given(hashes=HASHES, asked=HASHES)
def test_finds_what_a_dict_finds(hashes: list[int], asked: list[int]) -> None:
    """All numbers of a hash in ascending order, and no others; also in an empty table."""
    expected = defaultdict(list)
    for number, one in enumerate(hashes):
        expected[one].append(number)
    table = SortedHashes(np.array(hashes, np.int64))
    places = table.places(np.array(asked, np.int64))
    assert [[] if at < 0 else list(table.numbers_at(at)) for at in places.tolist()] == [expected[one] for one in asked]
    assert table.first_numbers(places).tolist() == [min(expected[one], default=-1) for one in asked]
    assert sorted(table.shared()) == sorted(numbers for numbers in expected.values() if len(numbers) > 1)
