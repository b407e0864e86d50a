"""A set of keys finds exactly its keys, whatever their hashes, and knows which were not found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.fetch.selections import keys as key_module
from torchdata_remote.fetch.selections.keys import KeySearch, key_column

KEYS = st.text(st.characters(codec="utf-8"), max_size=4)


@given(
    num_hashes=st.sampled_from([1, 3, 1 << 60]),
    wanted=st.lists(KEYS),
    shards=st.lists(st.lists(KEYS, unique=True), max_size=4),
)
def test_finds_what_a_set_finds(num_hashes: int, wanted: list[str], shards: list[list[str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_module, "hash", lambda key: hash(key) % num_hashes, raising=False)
        search = KeySearch(key_column(wanted))
        for keys in shards:
            assert search.find(keys).tolist() == [key in set(wanted) for key in keys]
        missing = set(wanted).difference(*shards)
        assert (search.num_wanted, search.num_missing) == (len(set(wanted)), len(missing))
        assert sorted(search.missing()) == sorted(missing)


def test_keys_of_undecodable_names_are_kept() -> None:
    key = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert KeySearch(key_column([key])).find([key, "a"]).tolist() == [True, False]
