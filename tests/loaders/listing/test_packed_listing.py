"""Packed listings, which are made in one process and read in others."""

from __future__ import annotations

import pickle
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata_remote import RemoteUrl
from torchdata_remote.core.checksums import Checksums
from torchdata_remote.errors import EmptyListingError
from torchdata_remote.loaders.listing.packed_listing import Listed, packed, unpacked

NUMBERS = st.none() | st.integers(0, 1 << 40)
TEXTS = st.none() | st.text(max_size=5)
CHECKSUMS = st.none() | st.builds(Checksums, st.just(1 << 20), st.just((1, 2)))
REMOTE = st.builds(RemoteUrl, st.text(max_size=8), NUMBERS, TEXTS, CHECKSUMS, NUMBERS, TEXTS, NUMBERS)
ITEMS = st.lists(REMOTE, max_size=4) | st.lists(REMOTE | st.text(max_size=3) | st.integers(), max_size=4)


def known(items: list[Any]) -> list[Any]:
    """The items with all their fields."""
    return [(type(item), item, item.__getnewargs__() if isinstance(item, RemoteUrl) else None) for item in items]


@settings(max_examples=40)
@given(urls=st.lists(ITEMS, max_size=3))
def test_a_packed_listing_keeps_all_fields(urls: list[list[Any]]) -> None:
    """Of URLs, and of items of other types, in their order."""
    found = unpacked(packed(Listed(urls, [{"num_urls": len(listed)} for listed in urls])))
    assert isinstance(found, Listed)
    assert list(map(known, found.urls)) == list(map(known, urls))
    assert found.fingerprints == [{"num_urls": len(listed)} for listed in urls]


def test_a_packed_error_keeps_its_type() -> None:
    """And its message and URL."""
    found = unpacked(packed(EmptyListingError("memory://x/: nothing", url="memory://x/")))
    assert isinstance(found, EmptyListingError)
    assert (str(found), found.url) == ("memory://x/: nothing", "memory://x/")


def test_a_packed_listing_is_small() -> None:
    """An eighth of a pickle of the URLs: names, and numbers in a column, are similar."""
    urls = [RemoteUrl(f"s3://b/train/{n:06d}.tar", 10**8 + n % 100, num_samples=1_000 + n % 7) for n in range(10_000)]
    size = len(packed(Listed([urls], [])))
    assert size < len(pickle.dumps(urls)) / 8
