"""A set of keys finds exactly its keys, whatever their hashes, and knows which were not found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.fetch.selections import sorted_hashes
from torchdata_remote.fetch.selections.key_set import KeySearch, key_column

KEYS = st.text(st.characters(codec="utf-8"), max_size=4)


@pytest.mark.parametrize("num_hashes", [1, 3, 1 << 60])
@given(wanted=st.lists(KEYS), shards=st.lists(st.lists(KEYS, unique=True), max_size=4))
def test_finds_what_a_set_finds(num_hashes: int, wanted: list[str], shards: list[list[str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_hashes, "hash", lambda key: hash(key) % num_hashes, raising=False)
        search = KeySearch(key_column(wanted))
        for keys in shards:
            assert search.find(keys).tolist() == [key in set(wanted) for key in keys]
        missing = set(wanted).difference(*shards)
        assert (search.num_wanted, search.num_missing) == (len(set(wanted)), len(missing))
        assert sorted(search.missing()) == sorted(missing)


@pytest.mark.parametrize("key", [17, None, b"a", 1.5])
def test_keys_are_texts(key: object) -> None:
    with pytest.raises(TypeError, match=r"keys: a key must be str such as 'train/000017', got"):
        key_column(["a", key])


def test_keys_of_undecodable_names_are_kept() -> None:
    key = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert KeySearch(key_column([key])).find([key, "a"]).tolist() == [True, False]


def test_a_text_that_no_member_can_have_as_its_name_is_refused() -> None:
    assert list(key_column(["\udc80"])) == ["\udc80"]  # of a name with the byte 0x80
    with pytest.raises(ValueError, match=r"keys: no member can have the name '\\ud800'"):
        key_column(["\ud800"])
