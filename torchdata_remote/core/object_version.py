"""Versions of objects: their etags, and ``s3://bucket/key?versionId=...``, which names one version of an object.

A key may contain the same text. So only the end of a URL is a version, and one more ``?versionId=`` with nothing after
it says that what is before it is the whole key. Listings write such keys in this way.
"""

from __future__ import annotations

import re

_MARK = "?versionId="
_VERSION = re.compile(r"\?versionId=([A-Za-z0-9._~+=-]{0,1024})\Z")


def bare_etag(etag: str) -> str:
    """Return an etag without quotes and the mark of a weak one, in which listings and responses may differ.

    >>> [bare_etag(etag) for etag in ("1f", '"1f"', 'W/"1f"')]
    ['1f', '1f', '1f']
    """
    return etag.strip().removeprefix("W/").strip('"')


def same_etag(one: str | None, other: str | None) -> bool:
    """Whether two etags name one version of an object, as far as both are known."""
    return one is None or other is None or one == other or bare_etag(one) == bare_etag(other)


def version_start(path: str) -> int:
    """Return where the version of a path or URL begins; its length if it has none.

    >>> [version_start(path) for path in ("a.tar", "a.tar?versionId=x1", "a?versionId=x/b")]
    [5, 5, 15]
    """
    found = _VERSION.search(path) if _MARK in path else None
    return len(path) if found is None else found.start()


def split_version(path: str) -> tuple[str, str | None]:
    """Split the path of a URL of S3 into the key and the version, which is ``None`` for the current one.

    >>> split_version("train/0.tar?versionId=3sL4kqtJ")
    ('train/0.tar', '3sL4kqtJ')
    >>> split_version("notes?versionId=3?versionId=")
    ('notes?versionId=3', None)
    """
    start = version_start(path)
    return path[:start], path[start + len(_MARK) :] or None


def key_as_path(key: str) -> str:
    """Return the path by which a URL names the current version of a key.

    >>> [key_as_path(key) for key in ("train/0.tar", "notes?versionId=3")]
    ['train/0.tar', 'notes?versionId=3?versionId=']
    """
    return key if version_start(key) == len(key) else key + _MARK


def keys_as_paths(keys: list[str]) -> list[str]:
    """Apply :func:`key_as_path` to the keys of a listing."""
    return list(map(key_as_path, keys)) if any(_MARK in key for key in keys) else keys
