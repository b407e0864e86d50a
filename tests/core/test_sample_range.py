"""URLs of parts of shards."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.sample_range import part_url, split_part_url


@given(url=st.text(), first=st.integers(0, 99), last=st.integers(0, 99), twice=st.booleans())
def test_a_sample_range_url_splits_into_shard_and_range(url: str, first: int, last: int, twice: bool) -> None:
    """Whatever characters the shard's URL has, also if it is of a part itself."""
    whole = part_url(url, 1, 2) if twice else url
    assert split_part_url(part_url(whole, first, last)) == (whole, (first, last))


@given(before=st.text(max_size=20), after=st.text(max_size=20))
def test_a_truncated_sample_range_url_is_never_another_range(before: str, after: str) -> None:
    """Any other text around the shard's path is a whole object's URL, the same part, or refused."""
    changed = part_url("s3://b/0.tar", 3, 9).replace("samples+3-9+s3", before).replace("+samples+3-9", after)
    with contextlib.suppress(ValueError):
        assert split_part_url(changed) in [(changed, None), ("s3://b/0.tar", (3, 9))]
