"""The objects beside a shard."""

from __future__ import annotations

import pytest

from torchdata_remote.formats.companions import companion_urls, without_companion_ending


def test_a_shard_and_its_companions_have_one_name() -> None:
    """Whichever is named, the shard is found."""
    urls = companion_urls("s3://b/t-0.tar")
    assert urls == ["s3://b/t-0.tar.idx", "s3://b/t-0.tar.keys"]
    assert set(map(without_companion_ending, [*urls, "s3://b/t-0.tar"])) == {"s3://b/t-0.tar"}


@pytest.mark.parametrize("name", ["0.tar", "keys", "0.keys.tar", "0.tar.idx.bak", ""])
def test_another_name_is_left_as_it_is(name: str) -> None:
    """Only the last ending counts, with its dot."""
    assert without_companion_ending(name) == name
