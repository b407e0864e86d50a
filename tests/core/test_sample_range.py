"""URLs of parts of shards."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.sample_range import part_url, part_within, split_part_url
from torchdata_remote.core.urls import RemoteUrl


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


@given(first=st.integers(0, 99), last=st.integers(0, 99), start=st.integers(0, 99), stop=st.integers(0, 99))
def test_a_part_of_a_part_is_a_part_of_the_shard(first: int, last: int, start: int, stop: int) -> None:
    """Its samples are counted from the first one of the part, also after a third split."""
    url = "s3://b/0.parquet"
    inner = part_within(part_within(part_within(url, first, last), start, stop), 1, 2)
    assert split_part_url(inner) == (url, (first + start + 1, first + start + 2))


def test_all_samples_of_a_part_are_the_part() -> None:
    """A part that was listed knows its number of samples, and is itself where all of them are asked for."""
    part = RemoteUrl("s3://b/0.parquet", 10, "etag", num_samples=30).part(10, 20)
    part.num_samples = 10
    assert part.part(0, 10) is part
    assert part.part(0, 5) == part_url("s3://b/0.parquet", 10, 15)
    assert part.part(0, 5).etag == "etag"
