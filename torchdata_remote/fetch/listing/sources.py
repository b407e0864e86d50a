"""List the objects that source URLs name: folders by pages, single objects by a request each, several at a time."""

from __future__ import annotations

import logging
import os
import queue
import re
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from enum import Enum
from functools import partial
from itertools import chain, compress
from typing import NamedTuple

from ...core.notices.progress_bar import counts_listing
from ...core.object_version import split_version
from ...core.options import RetryPolicy, StorageOptions
from ...core.retry import call_with_retries
from ...core.shard_view import named_shard
from ...core.stats.counters import LIST
from ...core.threads.pool import Pool, PoolClosedError, next_item
from ...core.urls import HTTP, LOCAL, RemoteUrl, VirtualUrl, join_url, object_path, redact, remote_urls, split_url
from ...errors import EmptyListingError, ShardReadError
from ...formats.manifest import MANIFEST_NAME, load_manifest
from ...formats.nested import is_archive_name, without_ending
from ...formats.sample import paths_of_macos
from ...formats.snapshot import is_snapshot_name, load_snapshot
from ...storage import (
    Connection,
    Entry,
    EntryTable,
    KeyStore,
    broken_link_error,
    list_tables,
    open_store,
    read_whole,
)
from .patterns import (
    choice_start,
    escape_url,
    expand_braces,
    glob_regex,
    glob_start,
    has_braces,
    has_glob,
    literal_url,
    unescape,
)
from .whereabouts import Others, about_empty, about_glob

_AHEAD, _AHEAD_BY_HEAD = 16, 64  # lookups that run or wait for the consumer; at an http server, which lists nothing
_QUICK_S = 0.005  # a source that takes longer for a URL is not read ahead
_KEYS_BESIDE = 8  # that a lookup lists: an object usually has few others beside it, such as its index
_ENDS_WITH_EXTENSION = re.compile(r"\.[^*?\[\]/]+$")
_LEFT_OUT = re.compile(r"\.(zip|tar\.(z|lz|lz4|lzma|lzo|br)|taz|tlz)$", re.IGNORECASE)
_log = logging.getLogger("torchdata_remote")


class Found(NamedTuple):
    """The object at a path, and whether there may be objects below the folder of that name."""

    entry: Entry | None
    may_be_folder: bool


Lookup = Callable[[], Found]  # waits for the result, or raises


class Tars:
    """Chooses tars in any case and compression: a pattern of ``list_source`` for one listing.

    Args:
        url: that is listed.
    """

    def __init__(self, url: str) -> None:
        self._shown = redact(url)
        self._found: dict[str, str] = {}  # name without ending -> name
        self._left_out: dict[str, str] = {}  # ending -> the first name

    def __call__(self, below: str) -> bool:
        """Return whether an object of this path below the source is a tar.

        Raises:
            ShardReadError: if another one differs by its ending only.
        """
        if not is_archive_name(below):
            if ending := _LEFT_OUT.search(below):
                self._left_out.setdefault(ending[0].lower(), below)
            return False
        other = self._found.setdefault(without_ending(below), below)
        if other != below:
            raise ShardReadError(
                f"{self._shown} has {other!r:.200} and {below!r:.200}, which differ by their ending only, so both may "
                "have the same samples. Remove one of them, or choose by pattern=, such as '*.tar' or '*.tar.gz'.",
                url=self._shown,
            )
        return True

    def warn_of_left_out(self) -> None:
        """Name an archive of each kind that is not read."""
        if self._left_out:
            what = f"{self._shown} leaves out {', '.join(map(repr, self._left_out.values()))} and others of their kind"
            warnings.warn(
                f"{what}. Read zips by list_remote(pattern='*.zip').shard_zip_reader(), and compress tars by gzip or "
                "zstd.",
                RuntimeWarning,
                stacklevel=2,
            )


class _Kind(Enum):
    """What a source URL names, as far as the URL shows it."""

    LISTED = "an object that was listed before, with its size"
    CHOICES = "several, by braces"
    GLOB = "objects, by a pattern"
    SHARDS = "a manifest or a snapshot"
    FOLDER = "a folder"
    NAMED = "an object or a folder"


def _kind_of(url: str) -> _Kind:
    if isinstance(url, VirtualUrl):
        return _Kind.LISTED
    if not isinstance(url, RemoteUrl) and has_braces(url):
        return _Kind.CHOICES
    if has_glob(url):
        return _Kind.GLOB
    name = split_version(split_url(literal_url(url))[2])[0].rpartition("/")[2]
    if name == MANIFEST_NAME or is_snapshot_name(name):
        return _Kind.SHARDS
    if not name:
        return _Kind.FOLDER
    # An empty object may be a marker of a folder
    return _Kind.LISTED if isinstance(url, RemoteUrl) and url.size else _Kind.NAMED


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
    by_obstore: bool = True,
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
        by_obstore: whether obstore may be used, after which children that are forked cannot use it.

    Raises:
        EmptyListingError: if there are none.
        ObjectNotFoundError: for a local link that leads nowhere, unless the pattern leaves it out.
    """
    in_folder = _matcher(pattern)
    matches = None if isinstance(pattern, Tars) else in_folder
    others, num_found, kind = Others(), 0, _kind_of(url)
    are_choices = kind is _Kind.CHOICES
    for single in expand_braces(url) if are_choices else [url]:
        kind = _kind_of(single) if are_choices else kind
        literal = literal_url(named_shard(single))
        scheme, bucket, path = split_url(literal)
        if kind in (_Kind.LISTED, _Kind.SHARDS) or (are_choices and kind is _Kind.NAMED):
            named = [url if isinstance(url, RemoteUrl) else RemoteUrl(literal)]
            for one in _shards(literal, options, retry) if kind is _Kind.SHARDS and not are_choices else named:
                place = object_path(named_shard(one))
                if matches is None or matches(place):
                    num_found += 1
                    on_page([place])
                    yield one
                else:
                    others.extend([place.rpartition("/")[2] if kind is _Kind.SHARDS else place])
            continue
        ends_alike = kind is _Kind.GLOB and _ENDS_WITH_EXTENSION.search(split_url(single)[2])
        for table, fixed in _tables(single, literal, kind, recursive, options, retry, lookup, by_obstore=by_obstore):
            is_named = table.paths == [path]
            if not is_named:
                table = _without_macos(table, fixed, others, on_skip)
            chosen_by = matches if is_named or ends_alike else in_folder
            if chosen_by is not None or (scheme in LOCAL and None in table.sizes):
                belows = [object_path(literal)] if is_named else [one[fixed:] for one in table.paths]
                are_chosen = [
                    (chosen_by is None or chosen_by(below))
                    and (size is not None or _has_target(scheme, one, below, is_wanted))
                    for one, below, size in zip(table.paths, belows, table.sizes, strict=True)
                ]
                others.extend(list(compress(belows, (not is_chosen for is_chosen in are_chosen))))
                table = table.selected(are_chosen)
            num_found += len(table)
            on_page(table.paths)
            yield from remote_urls(join_url(scheme, bucket, ""), table.paths, table.sizes, table.etags)
    if not num_found:
        raise _empty(url, pattern, others, options, retry, recursive=recursive)
    if isinstance(pattern, Tars):
        pattern.warn_of_left_out()


def _matcher(pattern: str | Tars | None) -> Callable[[str], bool] | None:
    """Return a predicate for paths below the source; ``None`` for all."""
    if not isinstance(pattern, str):
        return pattern
    regex, whole = glob_regex(pattern), "/" in pattern
    return lambda below: regex.fullmatch(below if whole else below.rpartition("/")[2]) is not None


def _without_macos(table: EntryTable, fixed: int, others: Others, on_skip: Callable[[str], object]) -> EntryTable:
    """Return a page of a listing without the files that macOS adds to folders."""
    found = paths_of_macos(table.paths, fixed)
    if not found:
        return table
    others.extend([path[fixed:] for path in sorted(found)])
    for _ in found:
        on_skip("macos")
    _log.info("%d files of macOS, such as %s, are left out of the listing", len(found), others.names[-1])
    return table.selected([path not in found for path in table.paths])


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
    if is_snapshot_name(split_version(url)[0]):
        return load_snapshot(data, url)
    return [
        RemoteUrl(
            one.url, one.num_bytes, None, one.checksums, one.num_samples, one.md5, one.index_crc32, one.keys_crc32
        )
        for one in load_manifest(data, url)
    ]


def _tables(
    source: str,
    url: str,
    kind: _Kind,
    recursive: bool,
    options: StorageOptions,
    retry: RetryPolicy,
    lookup: Lookup | None,
    *,
    by_obstore: bool,
) -> Iterator[tuple[EntryTable, int]]:
    """Yield the pages of one source without braces, each with the length of the folder above it.

    An object that the source names is a page of its own. ``url`` is the unescaped source.
    """
    listed = partial(list_tables, by_obstore=by_obstore)
    path, found = split_url(source if kind is _Kind.GLOB else url)[2], False
    below: Iterator[EntryTable]
    if kind is _Kind.GLOB:
        regex = glob_regex(path + "**" if path.endswith("/") else path)
        start = glob_start(path)
        folder = unescape(path[:start])
        deep = "/" in path[start:] or "**" in path
        matching = (
            one.selected(list(map(regex.fullmatch, one.paths))) for one in listed(source, folder, deep, options, retry)
        )
        below, folder = filter(len, matching), folder[: folder.rfind("/") + 1]
    elif kind is _Kind.NAMED:
        folder = path + "/"
        exact, may_be_folder = find_named(url, options, retry, by_obstore=by_obstore) if lookup is None else lookup()
        below = listed(url, folder, recursive, options, retry) if may_be_folder else iter(())
        first = next(below, None)
        if exact is not None and not (exact.size == 0 and first is not None):  # an empty object is a folder marker
            found = True
            yield EntryTable.of([exact]), object_path(url).rfind("/") + 1  # a query may have slashes
        below = below if first is None else chain([first], below)
    else:
        folder, below = path, listed(url, path, recursive, options, retry)
    for table in below:
        found = True
        yield table, len(folder)
    if not found and not source.endswith("/") and (kind is _Kind.GLOB or source != url):
        entry = find_named(source, options, retry).entry  # a name may have brackets
        if entry is not None:
            yield EntryTable.of([entry]), entry.path.rfind("/") + 1


def _empty(
    url: str,
    pattern: str | Tars | None,
    others: Others,
    options: StorageOptions,
    retry: RetryPolicy,
    *,
    recursive: bool,
) -> EmptyListingError:
    """Error of a listing without an object: it says what is there instead, by a few requests that are not repeated."""
    shown, start, is_tars = redact(url), choice_start(url), isinstance(pattern, Tars)
    what = "" if pattern is None else " that are tars" if is_tars else f" that match {pattern=}"
    instead = others.text("*.tar" if isinstance(pattern, Tars) else pattern)
    if not instead:
        literal, connection = literal_url(url), Connection(read_timeout_s=retry.progress_timeout_s)
        if start is not None:
            literal = unescape(url[: url.rfind("/", 0, start) + 1]) or "./"
            if has_glob(url) and not has_braces(url):
                instead = about_glob(open_store(url, options, connection)[0], url)
        store, _ = open_store(literal, options, connection)
        instead = (
            instead
            or about_empty(store, literal, recursive=recursive)
            or " Nothing of this name is there: check the URL and the pattern."
        )
    if start is not None and escape_url(url) != url:  # it may be a literal name with characters of a pattern
        escaped = redact(escape_url(literal_url(url)))
        instead += f" If *, ?, [ or {{ are part of a name, escape it by tdr.escape_url(...), such as {escaped!r}."
    where = "." if recursive else ", with recursive=False."
    return EmptyListingError(f"{shown}: no objects found{what}{where}{instead}", url=shown)


def find_named(
    url: str,
    options: StorageOptions,
    retry: RetryPolicy,
    sleep: Callable[[float], object] = time.sleep,
    *,
    by_obstore: bool = True,
) -> Found:
    """Look up a URL that names one object or one folder, by one request.

    Args:
        url: without a slash at its end; no pattern.
        options: for the store.
        retry: policy for transient faults.
        sleep: waits for a number of seconds; raises to stop waiting.
        by_obstore: whether obstore may be used, after which children that are forked cannot use it.
    """
    store, path = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
    store = store if by_obstore else getattr(store, "without_obstore", store)

    def find() -> Found:
        if isinstance(store, KeyStore):
            return _among_keys(store, path)
        entry = store.find(path)
        return Found(entry, may_be_folder=entry is None and split_url(url)[0] not in HTTP)  # a file is no folder there

    started_s = time.perf_counter()
    found = call_with_retries(find, retry, url=url, sleep=sleep)
    LIST.worked(started_s, 0, items=found.entry is not None, requests=1)
    return found


def _among_keys(store: KeyStore, path: str) -> Found:
    """List the first keys that begin with the path: the object itself, those beside it, and those below it."""
    entry, page = store.find_first(path, _KEYS_BESIDE)
    keys = [one.path for one in page.entries]
    after = path + chr(ord("/") + 1)  # sorts after all keys below the folder
    is_complete = page.next_token is None or (keys == sorted(keys) and keys[-1:] >= [after])
    return Found(entry, may_be_folder=not is_complete or any(key.startswith(path + "/") for key in keys))


def with_lookups(
    urls: Iterable[str], options: StorageOptions, retry: RetryPolicy
) -> Generator[tuple[str, Lookup | None], None, None]:
    """Yield each source URL with its lookup, which was begun before, if it names one object.

    The first one is not read ahead, and then up to 16, for http 64, unless the source of the URLs takes long for one.

    Args:
        urls: read only in the thread that iterates.
        options: for the stores.
        retry: policy for transient faults.

    Yields:
        The URL, and its lookup; ``None`` if the caller has to look it up, or list it.

    Raises:
        Exception: an error of ``urls``, after the URLs before it.
    """
    source, waiting, most = iter(urls), deque[tuple[str, Lookup | None]](), 1
    ended: Exception | None = None
    with closing(Pool(_AHEAD_BY_HEAD)) as pool:
        while True:
            while ended is None and len(waiting) < most:
                began_s = time.perf_counter()
                try:
                    url = next(source)
                except Exception as error:  # noqa: BLE001  # earlier URLs are listed first
                    ended = error
                    break
                if time.perf_counter() - began_s > _QUICK_S:
                    most = 1
                is_ahead = most > 1 and _has_lookup(url)
                waiting.append((url, _begun(pool, url, options, retry) if is_ahead else None))
            if waiting:
                most = min(2 * most, _AHEAD_BY_HEAD if url.lower().startswith("http") else _AHEAD)
                yield waiting.popleft()
            elif isinstance(ended, StopIteration):
                return
            elif ended is not None:
                raise ended


def _has_lookup(url: str) -> bool:
    try:
        return _kind_of(url) is _Kind.NAMED and split_url(url)[0] not in LOCAL
    except ValueError:
        return False  # raised where the URL is listed


def _begun(pool: Pool, url: str, options: StorageOptions, retry: RetryPolicy) -> Lookup | None:
    """Look up a URL in a thread of the pool, where the result waits for the caller; ``None`` without threads."""
    results: queue.SimpleQueue[Found | BaseException] = queue.SimpleQueue()

    def find() -> None:
        try:
            results.put(find_named(literal_url(url), options, retry, pool.sleep))
        except BaseException as error:  # noqa: BLE001  # raised where the URL is listed
            results.put(error)

    def lookup() -> Found:
        with LIST.waiting():
            result = next_item(results)
        if isinstance(result, BaseException):
            raise result
        return result

    try:
        pool.submit(find, on_dropped=results.put)
    except PoolClosedError:
        return None
    return lookup
