"""What fsspec's filesystems tell of an object: each has its own names for it."""

from __future__ import annotations

import datetime as dt
from typing import Any

from ..core.urls import AZURE, GS, S3
from .protocol import Entry, normalized_etag

_MODIFIED = ("modified", "LastModified", "last_modified", "mtime", "updated", "created")


def entry_of(info: dict[str, Any], scheme: str, root: str) -> Entry:
    """Return the entry of an object.

    Args:
        info: of the filesystem.
        scheme: of the URL.
        root: of the store in the filesystem's names, with a slash at its end.
    """
    name, size = str(info["name"]), info.get("size")
    modified = next((info[name] for name in _MODIFIED if isinstance(info.get(name), dt.datetime | float)), None)
    if isinstance(modified, dt.datetime):
        modified = modified.timestamp()
    if scheme in S3 and modified is not None:
        modified = float(int(modified))  # without fractions, as in HEAD
    return Entry(name.removeprefix(root), None if size is None else int(size), _etag(info, scheme), modified)


def _etag(info: dict[str, Any], scheme: str) -> str | None:
    """Return the etag, as this package's own store of the scheme names it, so that either may list what is read."""
    etag = info.get("ETag", info.get("etag"))
    if scheme in GS:
        return None  # that of Google's JSON API is another one than that of its XML API
    if scheme in S3 or scheme in AZURE:
        return normalized_etag(etag)
    return etag if etag and isinstance(etag, str) else None
