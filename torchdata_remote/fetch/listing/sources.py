"""List the objects that a source URL names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import chain

from ...core.notices.progress_bar import counts_listing
from ...core.object_version import split_version
from ...core.options import RetryPolicy, StorageOptions
from ...core.shard_view import split_view_url
from ...core.urls import HTTP, LOCAL, RemoteUrl, join_url, object_path, remote_urls, split_url
from ...formats.manifest import load_manifest
from ...formats.snapshot import SNAPSHOT_SUFFIX, load_snapshot
from ...storage import EntryTable, broken_link_error, list_tables, read_whole
from .choices import Tars, require_found, without_macos
from .globs import glob_regex, glob_start, unescape
from .lookups import Lookup, find_named, is_listed_object, lists_shards
from .patterns import expand_braces, has_braces, literal_url
from .whereabouts import Others

_ENDS_WITH_EXTENSION = re.compile(r"\.[^*?\[\]/]+$")


@counts_listing
def list_source(
    url: str,
    *,
    pattern: str | Tars | None,
    recursive: bool,
    options: StorageOptions,
    retry: RetryPolicy,
    is_wanted: Callable[[str], bool] = lambda below: True,
    on_skip: Callable[[str], object] = lambda kind: None,
    on_page: Callable[[list[str]], object] = lambda paths: None,
    lookup: Lookup | None = None,
) -> Iterator[RemoteUrl]:
    """Yield the objects that a source URL names, sorted by path, but for files of macOS in folders.

    Args:
        url: a prefix, a glob, a brace range, a manifest (``index.json``), or one object. Characters escaped by
            ``escape_url`` are literal, and so is all of a ``RemoteUrl``.
        pattern: a glob that objects must match: by base name, or by the path below the source if it has a slash.
            ``Tars`` applies to folders, not to objects that the source names itself.
        recursive: whether folders below a prefix are entered.
        options: for the store.
        retry: applied to each page of the listing.
        is_wanted: whether the caller takes an object of this path below the source. Only a local link that leads
            nowhere is left out by it.
        on_skip: called with ``"macos"`` for each file of macOS.
        on_page: called with the paths in the bucket of objects before these are yielded.
        lookup: looks up a source that is the name of one object or folder; ``None`` sends a request for it.

    Raises:
        EmptyListingError: if there are none.
        ObjectNotFoundError: for a local link that leads nowhere, unless the pattern leaves it out.
    """
    matches = in_folder = _matcher(pattern)
    if isinstance(pattern, Tars):
        matches = None
    num_found = 0
    others = Others()  # that do not match
    is_literal = isinstance(url, RemoteUrl)
    are_choices = not is_literal and has_braces(url)
    for single in expand_braces(url) if are_choices else [url]:
        literal = literal_url(single)
        scheme, bucket, path = split_url(literal)
        is_glob = not is_literal and scheme not in HTTP and glob_start(split_url(single)[2]) is not None
        is_choice = are_choices and not is_glob and not path.endswith("/")
        if is_choice or is_listed_object(url):
            if matches is None or matches(object_path(literal)):
                num_found += 1
                on_page([object_path(literal)])
                yield url if isinstance(url, RemoteUrl) else RemoteUrl(literal)
            elif not is_choice:
                others.extend([object_path(literal)])
            continue
        if lists_shards(split_version(path)[0].rpartition("/")[2]):
            for shard in _shards(literal, options, retry):
                name = object_path(split_view_url(shard)[0]).rpartition("/")[2]
                if matches is None or matches(name):
                    num_found += 1
                    yield shard
                else:
                    others.extend([name])
            continue
        chosen = matches if is_glob and _ENDS_WITH_EXTENSION.search(split_url(single)[2]) else in_folder
        for table, fixed in _tables(single, literal, is_glob, recursive, options, retry, lookup):
            is_named = table.paths == [path]
            if not is_named:
                table = without_macos(table, fixed, others, on_skip)
            is_matching = matches if is_named else chosen
            if is_matching is not None or (scheme in LOCAL and None in table.sizes):
                belows = [one[fixed:] for one in ([object_path(literal)] if is_named else table.paths)]
                are_chosen = [
                    (is_matching is None or is_matching(below))
                    and (size is not None or _has_target(scheme, one, below, is_wanted))
                    for one, below, size in zip(table.paths, belows, table.sizes, strict=True)
                ]
                others.extend([below for below, is_chosen in zip(belows, are_chosen, strict=True) if not is_chosen])
                table = table.selected(are_chosen)
            num_found += len(table)
            on_page(table.paths)
            yield from remote_urls(join_url(scheme, bucket, ""), table.paths, table.sizes, table.etags)
    require_found(num_found, url, pattern, others, options, retry, recursive=recursive)


def _has_target(scheme: str, path: str, below: str, is_wanted: Callable[[str], bool]) -> bool:
    """Return ``False`` for a local link that leads nowhere; raise if the caller would take it."""
    if scheme not in LOCAL or os.path.exists(path):
        return True
    if is_wanted(below):
        raise broken_link_error(path)
    return False


def _shards(url: str, options: StorageOptions, retry: RetryPolicy) -> list[RemoteUrl]:
    """Read the shards of a manifest or a snapshot, without obstore, so that a process that only lists can be forked."""
    data = read_whole(url, options, retry, by_obstore=False)
    if split_version(url)[0].endswith(SNAPSHOT_SUFFIX):
        return load_snapshot(data, url)
    return [
        RemoteUrl(
            shard.url,
            shard.num_bytes,
            checksums=shard.checksums,
            num_samples=shard.num_samples,
            md5=shard.md5,
            index_crc32=shard.index_crc32,
            keys_crc32=shard.keys_crc32,
        )
        for shard in load_manifest(data, url)
    ]


def _tables(
    source: str,
    url: str,
    is_glob: bool,
    recursive: bool,
    options: StorageOptions,
    retry: RetryPolicy,
    lookup: Lookup | None,
) -> Iterator[tuple[EntryTable, int]]:
    """Yield the pages of one source without braces, each with the length of the folder above it.

    An object that the source names is a page of its own. ``url`` is the unescaped source.
    """
    path = split_url(source if is_glob else url)[2]
    if is_glob:
        regex = glob_regex(path + "**" if path.endswith("/") else path)
        start = glob_start(path)
        fixed = unescape(path[:start])
        deep = "/" in path[start:] or "**" in path
        matched = False
        for table in list_tables(source, fixed, deep, options, retry):
            if matching := table.selected(list(map(regex.fullmatch, table.paths))):
                matched = True
                yield matching, fixed.rfind("/") + 1
        if not matched and not path.endswith("/"):
            yield from _named_literally(source, options, retry)
        return
    found = False
    if path and not path.endswith("/"):
        exact, may_be_folder = find_named(url, options, retry) if lookup is None else lookup()
        folder = path + "/"
        below = list_tables(url, folder, recursive, options, retry) if may_be_folder else iter(())
        first = next(below, None)
        if exact is not None and not (exact.size == 0 and first is not None):  # an empty object is a folder marker
            found = True
            yield EntryTable.of([exact]), object_path(url).rfind("/") + 1  # a query may have slashes
        below = below if first is None else chain([first], below)
    else:
        folder = path
        below = list_tables(url, folder, recursive, options, retry)
    for table in below:
        found = True
        yield table, len(folder)
    if not found and source != url and not source.endswith("/"):
        yield from _named_literally(source, options, retry)


def _named_literally(source: str, options: StorageOptions, retry: RetryPolicy) -> Iterator[tuple[EntryTable, int]]:
    """Yield the object whose name is the source itself, if the pattern matched nothing: a name may have brackets."""
    entry = find_named(source, options, retry).entry
    if entry is not None:
        yield EntryTable.of([entry]), entry.path.rfind("/") + 1


def _matcher(pattern: str | Tars | None) -> Callable[[str], bool] | None:
    """Return a predicate for paths below the source; ``None`` for all."""
    if not isinstance(pattern, str):
        return pattern
    regex, whole = glob_regex(pattern), "/" in pattern
    return lambda below: regex.fullmatch(below if whole else below.rpartition("/")[2]) is not None
