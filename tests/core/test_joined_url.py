"""URLs of joined shards."""

from __future__ import annotations

import pickle

import pytest

from torchdata_remote import RemoteUrl
from torchdata_remote.core.checksums import Checksums
from torchdata_remote.core.joined_url import joined_url, split_joined_url
from torchdata_remote.core.urls import redact
from torchdata_remote.errors import UrlError

SHARDS = [
    RemoteUrl("s3://photos/0+joined@x.tar", 5_000, '"e1"', Checksums(1 << 20, (1, 2)), 9, "0f", 77),
    RemoteUrl("https://me:pw@host/0.tar?token=secret", 300, None, None, 9),
]


def test_all_that_is_known_of_the_shards_comes_back() -> None:
    url = pickle.loads(pickle.dumps(joined_url(SHARDS)))
    found = split_joined_url(url)
    assert [(one, *one.__getnewargs__()) for one in found] == [(one, *one.__getnewargs__()) for one in SHARDS]
    assert (url.size, url.num_samples) == (5_300, 9)


def test_a_range_of_samples_is_one_of_each_shard() -> None:
    assert split_joined_url(joined_url(SHARDS).part(2, 5)) == tuple(shard.part(2, 5) for shard in SHARDS)
    assert split_joined_url(joined_url(SHARDS).part(0, 9)) == tuple(SHARDS)


def test_other_urls_are_left_as_they_are() -> None:
    for url in ["s3://photos/0.tar", "samples+3-9+s3://photos/0.tar+samples+3-9", "view+x+s3://b/0.tar+view"]:
        assert split_joined_url(url) == (url,)


def test_another_version_of_a_shard_is_another_url() -> None:
    assert joined_url(SHARDS) != joined_url([SHARDS[0], RemoteUrl(SHARDS[1], 301)])
    assert joined_url(SHARDS).etag != joined_url([SHARDS[0], RemoteUrl(SHARDS[1], 301)]).etag


def test_a_changed_url_is_refused_and_shows_no_secret() -> None:
    url = joined_url(SHARDS)
    assert redact(joined_url([RemoteUrl("memory://a@b/0.tar"), SHARDS[1]])) == "joined+...+memory://a@b/0.tar+joined"
    for changed in [
        url.replace("photos", "x") + "?",
        url.removesuffix("+joined"),
        url.replace("joined+", "joined+AAAA", 1),
    ]:
        with pytest.raises(UrlError, match="stands for joined shards, and was changed") as caught:
            split_joined_url(changed)
        assert "secret" not in str(caught.value)
