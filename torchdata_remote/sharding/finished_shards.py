"""Recognise the shards of an earlier run by one listing: by size and etag, without reading them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..core.options import RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..core.urls import RemoteUrl
from ..errors import StorageError
from ..formats.key_index import keys_url
from ..formats.manifest import ShardInfo
from ..formats.sample_index import index_url
from ..storage import Entry, open_store
from ..writing import ShardFolder


class Written(NamedTuple):
    """What a task has written.

    Args:
        shards: in their order.
        etags: base name -> etag of each shard and of the objects beside it. Empty unless the store reports all of them.
    """

    shards: list[ShardInfo]
    etags: Mapping[str, str]


def entry_of(url: str, options: StorageOptions) -> Entry | None:
    """Return size and etag of an object; ``None`` if it does not exist."""
    store, path = open_store(url, options)
    return call_with_retries(lambda: store.find(path), RetryPolicy(), url=url)


def sources_url(prefix: str, task: int) -> str:
    """Return the URL of the provenance of a task's samples."""
    return f"{prefix}{task:06d}"


def objects_of(shards: Iterable[ShardInfo], sources: str | None) -> list[str]:
    """Return the URLs of all objects of a task: its shards, their indexes and keys, and its provenance."""
    urls = [] if sources is None else [sources]
    for shard in shards:
        urls.append(shard.url)
        urls += [] if shard.index_crc32 is None else [index_url(shard.url)]
        urls += [] if shard.keys_crc32 is None else [keys_url(shard.url)]
    return urls


def etags_of(urls: Iterable[str], options: StorageOptions) -> dict[str, str]:
    """Look up the etags of objects: base name -> etag; empty if one has none, or cannot be looked up."""
    etags = {}
    with contextlib.suppress(StorageError, OSError):  # then a resumed job reads them instead
        for url in urls:
            found = entry_of(url, options)
            if found is None or found.etag is None:
                return {}
            etags[url.rpartition("/")[2]] = _version(url, found.etag, options)
        return etags
    return {}


def _version(url: str, etag: str, options: StorageOptions) -> str:
    """Return the etag of an object; that of a local file with the time that no program sets back."""
    store, path = open_store(url, options)
    return f"{etag}-{os.stat(path).st_ctime_ns:x}" if store.maps_files else etag


def unchanged_tasks(
    finished: Mapping[int, list[ShardInfo]],
    etags: Mapping[str, str],
    folder: ShardFolder,
    sources_prefix: str | None,
) -> set[int]:
    """Return the tasks of which all objects are as they were recorded, by size and etag; local files also by ctime.

    Args:
        finished: the shards of each task, as the journal has them.
        etags: of their objects; a task with one that is not recorded is not returned.
        folder: of the shards, which is listed once.
        sources_prefix: URL prefix of the provenance objects; ``None`` if there are none.
    """
    if not finished or not etags:
        return set()
    listed: dict[str, RemoteUrl] = {}
    prefixes = [folder.template.before] if sources_prefix is None else [folder.template.before, sources_prefix]
    for prefix in prefixes:
        listed |= {url.rpartition("/")[2]: url for url in folder.listed(prefix.rpartition("/")[2])}

    def is_unchanged(url: str) -> bool:
        name = url.rpartition("/")[2]
        etag = listed[name].etag if name in listed and name in etags else None
        if etag is None:
            return False
        with contextlib.suppress(OSError):  # removed since it was listed
            return _version(url, etag, folder.options) == etags[name]
        return False

    unchanged = set()
    for task, shards in finished.items():
        sources = None if sources_prefix is None else sources_url(sources_prefix, task)
        have_sizes = all(shard.num_bytes == _size_of(listed.get(shard.url.rpartition("/")[2])) for shard in shards)
        if have_sizes and all(map(is_unchanged, objects_of(shards, sources))):
            unchanged.add(task)
    return unchanged


def _size_of(url: RemoteUrl | None) -> int | None:
    return None if url is None else url.size
