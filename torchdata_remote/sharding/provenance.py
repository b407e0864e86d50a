"""Where each sample of a data set comes from: one JSON object beside its shards, written as a stream."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import redact
from ..errors import ManifestError
from ..storage.registry import open_store, read_whole


def merge_sources(urls: Iterable[str], to: str, options: StorageOptions) -> None:
    """One JSON object out of several, each of which is held in memory by itself.

    Args:
        urls: of JSON objects; one that is not there is an error.
        to: URL of the one that is written or replaced.
        options: for the store.

    Raises:
        ManifestError: if one of them is no JSON object.
    """
    store, path = open_store(to, options)
    pending = store.create(path, overwrite=True)
    try:
        pending.write(b"{")
        first = True
        for url in urls:
            body = _body(url, options)
            if body:
                pending.write((b"\n" if first else b",\n") + body)
                first = False
        pending.write(b"\n}\n")
        pending.commit()
    except BaseException:
        pending.abort()
        raise


def _body(url: str, options: StorageOptions) -> bytes:
    """What is between the braces."""
    data = read_whole(url, options, RetryPolicy()).strip()
    if data[:1] != b"{" or data[-1:] != b"}":
        raise ManifestError(f"{redact(url)} is no JSON object.", url=redact(url))
    return data[1:-1].strip()
