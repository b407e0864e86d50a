"""The table of cached objects: the last entry of each key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.fetch.cache import object_table
from torchdata_remote.fetch.cache.object_table import DROPPED, Entry, ObjectTable, identify, pack_entries

KEYS = st.integers(0, 2**64 - 1) | st.integers(0, 5)
ENTRIES = st.builds(
    Entry,
    KEYS,
    KEYS,
    KEYS,
    st.integers(0, 2**63),
    st.integers(0, 2**32 - 1),
    st.integers(DROPPED, 4) | st.just(2**32 - 1),
)


@given(
    batches=st.lists(st.tuples(st.lists(ENTRIES, max_size=12), st.booleans()), max_size=6),
    gone=st.sets(st.integers(1, 4)),
)
def test_the_last_entry_of_a_key_is_found_unless_its_pack_is_gone(
    batches: list[tuple[list[Entry], bool]], gone: set[int]
) -> None:
    """Added one by one or as stored bytes, before and after they are merged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_table, "_MIN_SORTED", 3)
        table, last = ObjectTable(), dict[int, Entry]()
        for entries, stored in batches:
            if stored:
                table.add_stored(pack_entries(entries))
            else:
                for entry in entries:
                    table.add(entry)
            last |= {entry.key: entry for entry in entries}
        for pack in gone:
            table.forget_pack(pack)
        for key, entry in last.items():
            assert table.get(key) == (None if entry.pack in {DROPPED, *gone} else entry)
        assert all(table.get(key) is None for key in {0, 7, 2**64 - 1} - set(last))


def test_url_size_and_etag_are_told_apart() -> None:
    """The key is the URL's only."""
    names = [("a", 1, "b"), ("a", 1, "c"), ("a", 2, "b"), ("b", 1, "b"), ("a\n1", 1, "b")]
    assert len({identify(*name) for name in names}) == len(names)
    assert len({identify(*name)[0] for name in names}) == 3
