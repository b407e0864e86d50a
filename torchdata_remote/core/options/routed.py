"""Storage options that depend on the bucket."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ..urls import split_url
from .stores import StorageOptions

Bucket = tuple[str, str]


class RoutedOptions(StorageOptions):
    """Options of several stores for one reader. ``of`` selects those of a URL, which a store is opened with.

    Args:
        by_bucket: scheme and bucket -> options.

    Example:
        >>> options = RoutedOptions({("s3", "photos"): StorageOptions({"anon": True})})
        >>> options.of("s3://photos/0.tar"), options.of("s3://others/0.tar")
        (StorageOptions(anon), StorageOptions())
    """

    def __init__(self, by_bucket: Mapping[Bucket, StorageOptions]) -> None:
        super().__init__()
        self._by_bucket = dict(by_bucket)

    def of(self, url: str) -> StorageOptions:
        found = self._by_bucket.get(split_url(url)[:2])
        return StorageOptions() if found is None else found

    def identity(self) -> str:
        return json.dumps([[*bucket, options.identity()] for bucket, options in self._by_bucket.items()])

    def server(self) -> str:
        servers = [[*bucket, options.server()] for bucket, options in self._by_bucket.items()]
        return json.dumps(servers) if any(server for *_, server in servers) else ""
