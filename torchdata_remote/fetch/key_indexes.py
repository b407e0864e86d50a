"""Read the files of keys beside shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import RemoteUrl, redact
from ..errors import ManifestError, ObjectNotFoundError
from ..formats.key_index import KeyIndex, keys_url, parse_keys
from ..storage import read_whole


def read_key_index(url: RemoteUrl, options: StorageOptions, retry: RetryPolicy) -> KeyIndex:
    shown = redact(keys_url(url))
    try:
        data = read_whole(keys_url(url), options, retry)
    except ObjectNotFoundError as error:
        raise ManifestError(f"{shown} is missing.", url=shown) from error
    try:
        return parse_keys(data, num_samples=url.num_samples, shard_bytes=url.size)
    except ValueError as error:
        raise ManifestError(f"{shown} {error}", url=shown) from error


def key_indexes(urls: Sequence[RemoteUrl], options: StorageOptions, retry: RetryPolicy) -> Iterator[KeyIndex]:
    with ThreadPoolExecutor(16) as pool:
        yield from pool.map(lambda url: read_key_index(url, options, retry), urls)
