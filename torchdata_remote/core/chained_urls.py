"""Refuse URLs of fsspec that name no object of a store, and name the call of this package that does what they mean."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container

_FIRST_LINK = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?:://.*?)?::", re.DOTALL)
_TARGETS = ("fo", "fs", "target_protocol", "remote_protocol", "client")
_GITHUB = re.compile("github://", re.IGNORECASE)
_CACHES = frozenset({"simplecache", "filecache", "blockcache", "cached"})
_ARCHIVES = {"zip": "shard_zip_reader", "tar": "shard_tar_reader"}
# File systems of fsspec whose own part of a URL may contain anything
_CHAINING = frozenset({*_CACHES, *_ARCHIVES, "libarchive", "reference", "dask", "dir"})
_BY_FSSPEC = (
    "Open it by fsspec and pass the streams: "
    "tdr.IterableWrapper([(url, fsspec.open(url, 'rb').open())], deepcopy=False).file_reader()"
)
# Not the address of IPv6, [::1]
_IN_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\[]*::", re.DOTALL)


def without_chain(url: str, redact: Callable[[str], str]) -> str:
    """Say what to call instead of opening a chained URL, or one of GitHub; ``""`` if it is neither.

    Args:
        url: as given.
        redact: removes credentials from a URL.

    Example:
        >>> print(without_chain("zip://*.jpg::s3://b/x.zip", str))
        'zip://*.jpg::s3://b/x.zip': zip:: of fsspec is not read. Pass 's3://b/x.zip' and chain a reader: \
tdr.IterableWrapper(['s3://b/x.zip']).list_remote().async_prefetch().shard_zip_reader()
        >>> without_chain("s3://b/a::b", str)
        ''
    """
    if _GITHUB.match(url):
        return (
            f"{redact(url)}: github:// is not read. "
            "Pass https://raw.githubusercontent.com/ORG/REPOSITORY/REVISION/PATH, or the folder of a clone."
        )
    links = _links(url)
    if not links:
        return ""
    *names, target = [link.partition("://")[0] for link in links[:-1]] + [links[-1]]
    start = f"{redact(url)!r}: {'::, '.join(names)}:: of fsspec is not read."
    shown = redact(target)
    archives = [name for name in names if name in _ARCHIVES]
    if not target or len(archives) > 1 or not _CACHES.issuperset({*names} - {*archives}):
        return f"{start} {_BY_FSSPEC}"
    cache = "cache_dir='/local/disk'" if len(names) > len(archives) else ""
    if archives:
        chain = f"tdr.IterableWrapper([{shown!r}]).list_remote().async_prefetch({cache}).{_ARCHIVES[archives[0]]}()"
        return f"{start} Pass {shown!r} and chain a reader: {chain}"
    return (
        f"{start} Pass {shown!r}. To keep what is read on local disk, pass cache_dir: "
        f"tdr.stream_shards({shown!r}, {cache})"
    )


def without_target(scheme: str, options: Container[str]) -> str:
    """Say what to call instead of a chaining file system that is given nothing to read from; ``""`` for others.

    Args:
        scheme: of the URL.
        options: names of its options, which may name what to read from.

    Example:
        >>> print(without_target("zip", {}))
        it names no archive. Pass the URL of the archive itself, and chain a reader: \
tdr.IterableWrapper(['s3://bucket/0.zip']).list_remote().async_prefetch().shard_zip_reader()
    """
    if scheme not in _CHAINING or any(name in options for name in _TARGETS):
        return ""
    if scheme in _ARCHIVES:
        chain = f"tdr.IterableWrapper(['s3://bucket/0.{scheme}']).list_remote().async_prefetch().{_ARCHIVES[scheme]}()"
        return f"it names no archive. Pass the URL of the archive itself, and chain a reader: {chain}"
    if scheme in _CACHES:
        return "it names no store. Pass the URL of the object in its store, and cache_dir='/local/disk'."
    return f"it names nothing to read from. {_BY_FSSPEC}"


def _links(url: str) -> list[str]:
    """Split a chained URL into the parts between ``::``; an empty list if it is none."""
    first = _FIRST_LINK.match(url)
    if first is None:
        return []
    scheme = first[1].lower()
    if "://" in first[0]:
        is_chained = scheme in _CHAINING or _IN_HOST.match(url) is not None
    else:
        is_chained = (scheme in _CHAINING or "://" in url) and not os.path.lexists(url)
    if not is_chained:
        return []
    links: list[str] = []
    rest = url
    while (found := _FIRST_LINK.match(rest)) is not None and (not links or found[1].lower() in _CHAINING):
        links.append(found[1].lower())
        rest = rest[found.end() :]
    return [*links, rest]
