"""List the objects that source URLs name. What a URL names is decided by its text, not by requests."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

from ...core.options import RetryPolicy, StorageOptions
from ...core.progress import counts_listing
from ...core.retry import call_with_retries
from ...core.shard_view import named_shard
from ...core.urls import HTTP, LOCAL, RemoteUrl, join_url, object_path, redact, remote_urls, split_url, split_version
from ...errors import EmptyListingError, ShardReadError
from ...formats.manifest import CLAIM_NAME, MANIFEST_NAME, load_manifest
from ...formats.nested import is_archive_name, without_ending
from ...formats.sample import paths_of_macos
from ...formats.snapshot import is_snapshot_name, load_snapshot
from ...storage import Connection, EntryTable, list_tables, open_store, read_whole
from .child_process import list_elsewhere
from .patterns import expand_braces, folders_of, glob_regex, glob_start, literal_url
from .whereabouts import about_missing

# Of a file, and no version, such as that of the folder "imagenet-v1.0"
_EXTENSION = re.compile(r"\.(?!v?\d)[^*?\[\]/]+$")
_LEFT_OUT = re.compile(r"\.(zip|tar\.(z|lz|lz4|lzma|lzo|br)|taz|tlz)$", re.IGNORECASE)


class OfKind:
    """Chooses the objects of folders by their names: a pattern of ``list_source`` for one listing.

    Args:
        url: that is listed.
        names: what the chosen names have, in any case.
        what: they are, for errors.
    """

    advice = ""

    def __init__(self, url: str, names: str, what: str) -> None:
        self.shown, self.what, self._names = redact(url), what, re.compile(names, re.IGNORECASE)

    def __call__(self, below: str) -> bool:
        """Return whether an object of this path below the source is chosen."""
        return self._names.search(below) is not None

    def end(self) -> None:
        """Called at the end of the listing."""


class Tars(OfKind):
    """Chooses tars in any case and compression.

    Args:
        url: that is listed.
        manifest: name of an object that is chosen, too.
    """

    advice = " Tars are plain or gz, bz2, xz, zst. Zips are read by shard_zip_reader, loose files by stream_files."

    def __init__(self, url: str, manifest: str | None = None) -> None:
        super().__init__(url, "", "tars")
        self._manifest = manifest
        self._found: dict[str, str] = {}  # name without ending -> name
        self._left_out: dict[str, str] = {}  # ending -> the first name
        self._claim: str | None = None
        self._has_manifest = False

    def __call__(self, below: str) -> bool:
        """Return whether an object of this path below the source is chosen.

        Raises:
            ShardReadError: if another tar differs by its ending only.
        """
        if not is_archive_name(below):
            if ending := _LEFT_OUT.search(below):
                self._left_out.setdefault(ending[0].lower(), below)
            if below.rpartition("/")[2] == CLAIM_NAME:
                self._claim = below
            is_manifest = below == self._manifest
            self._has_manifest |= is_manifest
            return is_manifest
        other = self._found.setdefault(without_ending(below), below)
        if other != below:
            raise ShardReadError(
                f"{self.shown} has {other!r:.200} and {below!r:.200}, which differ by their ending only, so both may "
                "have the same samples. Remove one of them, or choose by pattern=, such as '*.tar' or '*.tar.gz'.",
                url=self.shown,
            )
        return True

    def end(self) -> None:
        """Name an archive of each kind that is not read, and a writer that has not ended."""
        if self._claim and not self._has_manifest:
            warnings.warn(
                f"{self.shown} has {self._claim!r:.200}: a writer is at work there, or was stopped, so shards may be "
                "missing, or left from what it replaces. Wait for its end, or start it again.",
                RuntimeWarning,
                stacklevel=2,
            )
        if self._left_out:
            what = f"{self.shown} leaves out {', '.join(map(repr, self._left_out.values()))} and others of their kind"
            warnings.warn(
                f"{what}. Read zips by list_remote(pattern='*.zip').shard_zip_reader(), and compress tars by gzip or "
                "zstd.",
                RuntimeWarning,
                stacklevel=2,
            )


def find_object(
    url: str,
    options: StorageOptions,
    retry: RetryPolicy,
    sleep: Callable[[float], object] = time.sleep,
    *,
    by_obstore: bool = True,
) -> RemoteUrl | None:
    """Return the URL of an object with its size and etag, by one request; ``None`` if there is no such object."""
    store, path = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
    store = store if by_obstore else getattr(store, "without_obstore", store)
    found = call_with_retries(lambda: store.find(path), retry, url=url, sleep=sleep)
    return None if found is None else RemoteUrl(join_url(*split_url(url)), found.size, found.etag)


@counts_listing
def list_source(
    url: str,
    *,
    pattern: str | OfKind | None,
    recursive: bool,
    options: StorageOptions,
    retry: RetryPolicy,
    on_skip: Callable[[str], object] = lambda kind: None,
    on_page: Callable[[list[str]], object] = lambda paths: None,
    by_obstore: bool = True,
) -> Iterator[RemoteUrl]:
    """Yield the objects that a source URL names, sorted by path, but for files of macOS in folders.

    Args:
        url: a prefix, a glob, a brace range, a manifest (``index.json``), or one object, by its text.
            Characters escaped by ``escape_url`` are literal, and so is all of a ``RemoteUrl``. One object is returned
            without a request, and so without size and etag.
        pattern: a glob that objects must match: by base name, or by the path below the source if it has a slash.
            ``OfKind`` applies to folders, not to objects that the source names itself.
        recursive: whether folders below a prefix are entered.
        options: for the store.
        retry: applied to each page of the listing.
        on_skip: called with ``"macos"`` for each file of macOS.
        on_page: called with the paths in the bucket of objects before these are yielded.
        by_obstore: whether obstore may be used, after which children that are forked cannot use it.

    Raises:
        EmptyListingError: if there are none.
    """
    in_folder = pattern if isinstance(pattern, OfKind) or pattern is None else _matcher(pattern)
    by_name = None if isinstance(pattern, OfKind) else in_folder
    num_found = 0
    for source in expand_braces(url):
        to_list, num_before = _to_list(source, recursive, is_choice=source != url), num_found
        named: Sequence[RemoteUrl | None] = []
        if to_list is None:
            named = _named(source, options, retry)
        else:
            prefix, is_deep, globbed = to_list
            chooses = by_name if globbed and _EXTENSION.search(source) else in_folder
            literal = source if globbed else literal_url(source)
            start = join_url(*split_url(literal)[:2], "")
            for page in (list_tables if by_obstore else list_elsewhere)(source, prefix, is_deep, options, retry):
                table = page if globbed is None else page.selected(list(map(globbed, page.paths)))
                table = _chosen(table, prefix.rfind("/") + 1, chooses, on_skip)
                num_found += len(table)
                on_page(table.paths)
                yield from remote_urls(start, table.paths, table.sizes, table.etags)
            if num_found == num_before and not source.endswith("/"):  # its name has no extension, or brackets
                named = [find_object(literal, options, retry, by_obstore=by_obstore)]
        for one in filter(None, named):
            path = object_path(named_shard(one))
            if by_name is None or by_name(path):
                num_found += 1
                on_page([path])
                yield one
    if not num_found:
        raise _empty(url, pattern, options, recursive=recursive)
    if isinstance(pattern, OfKind):
        pattern.end()


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Return a predicate for paths below the source."""
    regex, whole = glob_regex(pattern), "/" in pattern
    return lambda below: regex.fullmatch(below if whole else below.rpartition("/")[2]) is not None


def _to_list(
    source: str, recursive: bool, *, is_choice: bool
) -> tuple[str, bool, Callable[[str], object] | None] | None:
    """Return what a source needs listed, by its text; ``None`` for an object, whose name may be that of a manifest.

    A folder ends with a slash, or its name has no extension (``train``, ``imagenet-v1.0``), or it is a local one. An
    object has one (``0.tar``), is on a web server, is a choice of a brace range, or is a ``RemoteUrl``.

    Args:
        source: the source URL, without braces.
        recursive: whether folders below a folder are entered.
        is_choice: whether it is one of those that a URL with braces stands for.

    Returns:
        tuple: a prefix, whether folders are entered, and of a glob a predicate for paths.
    """
    scheme, _, path = split_url(source)
    if isinstance(source, RemoteUrl):
        return (path, recursive, None) if source.endswith("/") else None
    start = None if scheme in HTTP else glob_start(path, "*?[")
    if start is not None:
        regex = glob_regex(path + "**" if path.endswith("/") else path)
        return literal_url(path[:start]), "/" in path[start:] or "**" in path, regex.fullmatch
    path = literal_url(path)
    name = split_version(path)[0].rpartition("/")[2]
    has_object = is_choice or scheme in HTTP or _EXTENSION.search(name)
    if name and has_object and not (scheme in LOCAL and os.path.isdir(path)):
        return None
    return path if not path or path.endswith("/") else f"{path}/", recursive, None


def _named(source: str, options: StorageOptions, retry: RetryPolicy) -> list[RemoteUrl]:
    """Return an object, or the shards of a manifest or a snapshot.

    These are read without obstore, so that a process that only lists can be forked.
    """
    url = source if isinstance(source, RemoteUrl) else RemoteUrl(join_url(*split_url(literal_url(source))))
    name = object_path(url).rpartition("/")[2]
    if url is source or not (name == MANIFEST_NAME or is_snapshot_name(name)):
        return [url]
    data = read_whole(url, options, retry, by_obstore=False)
    if name != MANIFEST_NAME:
        return load_snapshot(data, url)
    return [
        RemoteUrl(one.url, one.num_bytes, None, one.checksums, one.num_samples, one.md5, *one.sums_beside)
        for one in load_manifest(data, url)
    ]


def _chosen(
    table: EntryTable, above: int, chooses: Callable[[str], bool] | None, on_skip: Callable[[str], object]
) -> EntryTable:
    """Return the chosen objects of a page, without the files that macOS adds to folders."""
    of_macos = paths_of_macos(table.paths, above)
    for _ in of_macos:
        on_skip("macos")
    if chooses is None and not of_macos:
        return table
    return table.selected([path not in of_macos and (not chooses or chooses(path[above:])) for path in table.paths])


def _empty(url: str, pattern: str | OfKind | None, options: StorageOptions, *, recursive: bool) -> EmptyListingError:
    """Error of a listing without an object: it says what is there instead, by a few requests that are not repeated."""
    shown, kind = redact(url), pattern if isinstance(pattern, OfKind) else None
    what = "" if pattern is None else f" that match {pattern=}" if kind is None else f" that are {kind.what}"
    where = "." if recursive else ", with recursive=False."
    is_plain = glob_start(url) is None
    nearest = literal_url(url) if is_plain else folders_of(url)[1]
    text = f"{shown}: no objects found{what}{where}{about_missing(open_store(nearest, options)[0], nearest)}"
    text += "" if kind is None else kind.advice
    if not is_plain:
        text += " A * ? [ or { that is part of a name is escaped by tdr.escape_url()."
    return EmptyListingError(text, url=shown)
