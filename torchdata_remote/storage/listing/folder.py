"""List the objects of a folder of a store."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.options import RetryPolicy, StorageOptions
from ...core.urls import RemoteUrl, join_url, remote_urls, split_url
from .pages import list_tables


def list_folder(url: str, *, recursive: bool, options: StorageOptions, retry: RetryPolicy) -> Iterator[RemoteUrl]:
    """List all objects whose URL begins with ``url``, sorted; there may be none."""
    scheme, bucket, path = split_url(url)
    for page in list_tables(url, path, recursive, options, retry):
        yield from remote_urls(join_url(scheme, bucket, ""), page.paths, page.sizes, page.etags)
