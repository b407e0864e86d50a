"""Keys are found exactly, whatever their hashes are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.fetch.selections import keys as key_module
from torchdata_remote.fetch.selections.keys import KeyNumbers, key_column

KEYS = st.lists(st.text(st.characters(codec="utf-8"), max_size=4))


@given(num_hashes=st.sampled_from([1, 3, 1 << 60]), keys=KEYS, searched=KEYS)
def test_the_first_of_equal_keys_is_found_and_the_others_are_repeated(
    num_hashes: int, keys: list[str], searched: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_module, "hash", lambda key: hash(key) % num_hashes, raising=False)
        numbers = KeyNumbers(key_column(keys))
        assert numbers.find(searched).tolist() == [keys.index(key) if key in keys else -1 for key in searched]
        assert sorted(numbers.repeated().tolist()) == [at for at, key in enumerate(keys) if key in keys[:at]]


def test_keys_of_undecodable_names_are_kept() -> None:
    key = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert KeyNumbers(key_column([key])).find([key, "a"]).tolist() == [0, -1]
