"""The objects beside a shard, which are named after it: its index and its keys."""

from __future__ import annotations

from .key_index import keys_url
from .sample_index import index_url

COMPANION_ENDINGS = (index_url(""), keys_url(""))


def companion_urls(url: str) -> list[str]:
    """Return the URLs of the objects beside a shard, whether they exist or not.

    >>> companion_urls("s3://photos/0.tar")
    ['s3://photos/0.tar.idx', 's3://photos/0.tar.keys']
    """
    return [index_url(url), keys_url(url)]


def without_companion_ending(name: str) -> str:
    """Return the name of the shard that an object is beside; any other name as it is.

    >>> without_companion_ending("0.tar.keys"), without_companion_ending("0.tar")
    ('0.tar', '0.tar')
    """
    for ending in COMPANION_ENDINGS:
        if name.endswith(ending):
            return name[: -len(ending)]
    return name
