"""Merge provenance objects into one JSON object, written as a stream."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import redact
from ..errors import ManifestError
from ..storage import open_store, read_whole


def merge_sources(urls: Iterable[str], to: str, options: StorageOptions) -> None:
    """Merge JSON objects into one; only one of them is in memory at a time.

    Args:
        urls: of JSON objects, which must exist.
        to: URL of the result, which is replaced if it exists.
        options: for the store.

    Raises:
        ManifestError: if one of them is not a JSON object.
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
    """Read an object and return the bytes between its braces."""
    data = read_whole(url, options, RetryPolicy()).strip()
    if data[:1] != b"{" or data[-1:] != b"}":
        raise ManifestError(f"{redact(url)} is not a JSON object.", url=redact(url))
    return data[1:-1].strip()
