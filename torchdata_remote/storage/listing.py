"""From a source URL to the objects it stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain

from ..errors import EmptyListingError
from ..globs import glob_regex, glob_start
from ..manifest import MANIFEST_NAME, ShardInfo, load_manifest
from ..options import RetryPolicy, StorageOptions
from ..retry import call_with_retries
from ..urls import (
    HTTP,
    RemoteUrl,
    expand_braces,
    has_braces,
    join_url,
    object_path,
    redact,
    split_url,
)
from . import Connection, open_store, read_whole
from ._paging import list_prefix
from ._protocol import Entry

_ENDS_WITH_EXTENSION = re.compile(r"\.[^*?\[\]/]+$")


def list_source(
    url: str,
    *,
    pattern: str | None,
    recursive: bool,
    options: StorageOptions,
    retry: RetryPolicy,
    match_named: bool = True,
) -> Iterator[RemoteUrl]:
    """The objects that a source URL stands for, sorted by path.

    Args:
        url: a prefix, a glob, a brace range, a manifest (``index.json``), or one object.
        pattern: a glob that objects must match: by base name, or by the path below the source if it has a slash.
        recursive: whether folders below a prefix are entered.
        options: for the store.
        retry: applied to each page of the listing.
        match_named: whether the pattern also chooses among what the source names itself, and not in folders only.

    Raises:
        EmptyListingError: if there are none.
    """
    matches = in_folder = _matcher(pattern)
    if not match_named:
        matches = _matcher(None)
    found, left_out = 0, ""
    for single in expand_braces(url):
        scheme, bucket, path = split_url(single)
        is_glob = scheme not in HTTP and glob_start(path) is not None
        if has_braces(url) and not is_glob and not path.endswith("/"):
            if matches(object_path(single)):
                found += 1
                yield RemoteUrl(single)
            continue
        if path.rpartition("/")[2] == MANIFEST_NAME:
            for shard in _shards(single, options, retry):
                left_out = object_path(shard.url).rpartition("/")[2]
                if matches(left_out):
                    found += 1
                    yield RemoteUrl(
                        shard.url,
                        shard.num_bytes,
                        checksums=shard.checksums,
                        num_samples=shard.num_samples,
                        md5=shard.md5,
                        index_crc32=shard.index_crc32,
                    )
            continue
        chosen = matches if is_glob and _ENDS_WITH_EXTENSION.search(path) else in_folder
        for entry, below in _entries(single, is_glob, recursive, options, retry):
            if (matches if entry.path == path else chosen)(below):
                found += 1
                yield RemoteUrl(join_url(scheme, bucket, entry.path), entry.size, entry.etag)
    if not found:
        shown = redact(url)
        raise EmptyListingError(
            f"{shown}: no objects found"
            + (f" that match pattern={pattern!r}" if pattern is not None else "")
            + (
                f". The manifest names shards such as {left_out!r}: leave out the pattern, a manifest needs none."
                if left_out
                else ("" if recursive else ", with recursive=False") + ". Check the bucket, the prefix and the pattern."
            ),
            url=shown,
        )


def list_folder(url: str, *, recursive: bool, options: StorageOptions, retry: RetryPolicy) -> Iterator[RemoteUrl]:
    """All objects whose URL begins with ``url``, sorted; none is fine."""
    scheme, bucket, path = split_url(url)
    for entry in list_prefix(url, path, recursive, options, retry):
        yield RemoteUrl(join_url(scheme, bucket, entry.path), entry.size, entry.etag)


def _shards(url: str, options: StorageOptions, retry: RetryPolicy) -> list[ShardInfo]:
    """What a manifest names."""
    return load_manifest(read_whole(url, options, retry), url)


def _entries(
    url: str, is_glob: bool, recursive: bool, options: StorageOptions, retry: RetryPolicy
) -> Iterator[tuple[Entry, str]]:
    """Entries of one URL without braces, each with its path below the source."""
    store, path = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
    if is_glob:
        regex = glob_regex(path + "**" if path.endswith("/") else path)
        fixed = path[: glob_start(path)]
        deep = "/" in path[len(fixed) :] or "**" in path
        matched = False
        for entry in list_prefix(url, fixed, deep, options, retry):
            if regex.fullmatch(entry.path):
                matched = True
                yield entry, entry.path[fixed.rfind("/") + 1 :]
        if not matched and not path.endswith("/"):
            literal = call_with_retries(lambda: store.find(path), retry)  # a name may hold brackets
            if literal is not None:
                yield literal, path[fixed.rfind("/") + 1 :]
        return
    if path and not path.endswith("/"):
        exact = call_with_retries(lambda: store.find(path), retry)
        folder = path + "/"
        below = iter(()) if split_url(url)[0] in HTTP else list_prefix(url, folder, recursive, options, retry)
        first = next(below, None)
        if exact is not None and not (exact.size == 0 and first is not None):  # an empty one is the folder's marker
            yield exact, object_path(url).rpartition("/")[2]
        below = below if first is None else chain([first], below)
    else:
        folder = path
        below = list_prefix(url, folder, recursive, options, retry)
    for entry in below:
        yield entry, entry.path[len(folder) :]


def _matcher(pattern: str | None) -> Callable[[str], bool]:
    """Whether a path below the source matches the pattern."""
    if pattern is None:
        return lambda below: True
    regex, whole = glob_regex(pattern), "/" in pattern
    return lambda below: regex.fullmatch(below if whole else below.rpartition("/")[2]) is not None
