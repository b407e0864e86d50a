"""What is there instead of a missing object or folder: for errors, so every failure in here is left out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

from ...core.arguments.suggestions import did_you_mean
from ...core.object_version import same_etag
from ...core.urls import LOCAL, join_url, redact, split_url
from ...errors import RemoteDataError
from ...storage import broken_link, is_internal_name
from .globs import glob_regex, glob_start, unescape

_MAX_NAMES = 1000
_MAX_SHOWN = 3
_MAX_PARENTS = 4


def _examples(names: Sequence[str]) -> str:
    """Return some names for a message.

    >>> _examples(["a", "b", "c", "d"])
    "'a', 'b', 'c', ..."
    """
    return ", ".join(map(repr, names[:_MAX_SHOWN])) + (", ..." if len(names) > _MAX_SHOWN else "")


def about_missing(store: Any, url: str) -> str:
    """Say what is there instead of an object: a folder of its name, or objects with similar names."""
    try:
        return _about_missing(store, url)
    except (RemoteDataError, OSError, AttributeError, TypeError, NotImplementedError):
        return ""


def is_as_listed(store: Any, path: str, size: int | None, etag: str | None) -> bool:
    """Whether a store still lists an object with the size and etag that were listed before."""
    try:
        entry = store.find(path)
    except (RemoteDataError, OSError, AttributeError, TypeError, NotImplementedError):
        return False
    is_same = entry is not None and None not in (etag, entry.etag) and same_etag(etag, entry.etag)
    return is_same and size in (None, entry.size)


def about_empty(store: Any, url: str, *, recursive: bool = False) -> str:
    """Say what a folder has; of one that is missing, the nearest one above it that is there, and similar names in it.

    Args:
        store: of the folder.
        url: of the folder.
        recursive: whether the folders in it were entered.
    """
    try:
        scheme, bucket, path = split_url(url)
        if own := _about_folder(store, scheme, bucket, path.rstrip("/"), recursive=recursive):
            return own
        if scheme in LOCAL and os.path.lexists(path.rstrip("/")) and not os.path.exists(path.rstrip("/")):
            return f" It is {broken_link(path.rstrip('/'))}."
        missing = _missing_folder(path.rstrip("/")) if scheme in LOCAL else ""
        found = missing + _nearest(store, scheme, bucket, path.rstrip("/"))
        if not found and scheme == "memory":
            return " memory:// is the memory of this process, and nothing was written to it there."
        return found
    except (RemoteDataError, OSError, AttributeError, TypeError, NotImplementedError):
        return ""


def _missing_folder(path: str) -> str:
    """Say which folder of a local path is missing; empty if none is."""
    if os.path.lexists(path):
        return ""
    above = os.path.dirname(path)
    if os.path.lexists(above):
        return " There is no such folder."
    while not os.path.lexists(os.path.dirname(above)):
        above = os.path.dirname(above)
    return f" The folder {above} does not exist. Is the disk mounted, and the path one of this machine?"


def about_glob(store: Any, url: str) -> str:
    """Say that a glob, which names objects, matches folders; empty if it matches none.

    Args:
        store: of the URL.
        url: with a glob in its last part only.
    """
    try:
        scheme, _, path = split_url(url)
        folder, _, name = path.rpartition("/")
        prefix = f"{unescape(folder)}/" if folder or scheme in LOCAL else ""
        if not name or glob_start(folder) is not None:
            return ""
        regex = glob_regex(name)
        folders = [one for one in _names_in(store, scheme, prefix)[0] if regex.fullmatch(one.rstrip("/"))]
    except (RemoteDataError, OSError, AttributeError, TypeError, NotImplementedError):
        return ""
    if not folders:
        return ""
    what = "folder" if len(folders) == 1 else "folders"
    return (
        f" It matches the {what} {_examples(folders)}: end it with a slash for what is in there, {redact(url + '/')!r}."
    )


def _names_in(store: Any, scheme: str, prefix: str) -> tuple[list[str], list[str]]:
    """Return the names of the folders (with a slash) and of the objects in a folder, each sorted."""
    if scheme in LOCAL:  # not by the store's list_after, which refuses links
        with os.scandir(prefix) as entries:
            names = sorted(
                f"{one.name}/" if _is_folder(one) else one.name
                for one in islice(entries, _MAX_NAMES)
                if not is_internal_name(one.name)
            )
        return [one for one in names if one.endswith("/")], [one for one in names if not one.endswith("/")]
    page = store.list_after(prefix, recursive=False, after="", limit=_MAX_NAMES)
    folders = sorted(one[len(prefix) :] for one in page.folders if one != prefix)
    return folders, sorted(entry.path[len(prefix) :] for entry in page.entries if entry.path != prefix)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _about_folder(store: Any, scheme: str, bucket: str, path: str, *, recursive: bool) -> str:
    """Say that a folder has nothing, or folders only; empty if it is missing."""
    prefix = f"{path}/" if path or scheme in LOCAL else ""
    is_local = scheme in LOCAL
    if is_local and not os.path.isdir(prefix):
        return ""
    folders, objects = _names_in(store, scheme, prefix)
    where = redact(prefix if is_local else join_url(scheme, bucket, prefix))
    if folders and not objects:
        empty, advice = ("empty ", "") if recursive else ("", " List one of them, or pass recursive=True.")
        return f" {where} has {empty}folders only: {_examples(folders)}.{advice}"
    return f" {where} is empty." if is_local and not folders and not objects else ""


def _about_missing(store: Any, url: str) -> str:
    scheme, bucket, path = split_url(url)
    inside = store.list_after(path.rstrip("/") + "/" if path else "", recursive=True, after="", limit=_MAX_NAMES)
    if inside.entries:
        num = f"{len(inside.entries):,}{' or more' if inside.next_token is not None else ''}"
        return (
            f" It is a folder with {num} object{'' if num == '1' else 's'}, and a reader takes objects: list it, as by "
            f"IterableWrapper([{redact(url)!r}]).list_remote()."
        )
    if path != path.strip():
        return f" The URL begins or ends with white space ({path[-20:]!r}): strip it."
    if scheme in LOCAL and os.path.lexists(path):
        return "" if os.path.exists(path) else f" It is {broken_link(path)}."
    missing = _missing_folder(path) if scheme in LOCAL and not os.path.lexists(os.path.dirname(path)) else ""
    return missing + _nearest(store, scheme, bucket, path.rstrip("/"))


def _nearest(store: Any, scheme: str, bucket: str, path: str) -> str:
    """Name the nearest folder above a path that has something, and what it has."""
    missing = path
    for _ in range(_MAX_PARENTS):
        above, _, name = missing.rpartition("/")
        prefix = f"{above}/" if above or scheme in LOCAL else ""
        if scheme not in LOCAL or os.path.isdir(prefix):
            names = sorted(chain(*_names_in(store, scheme, prefix)))
            if names or scheme in LOCAL:
                has = f"has {_examples(names)}" if names else "is empty"
                where = redact(prefix if scheme in LOCAL else join_url(scheme, bucket, prefix))
                near = did_you_mean(name, [one.rstrip("/") for one in names])
                return f" {where} {has}{near or '.'}"
        if not above:
            return ""
        missing = above
    return ""


class Others:
    """The objects of a listing that were not chosen: their number, and the names of some."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._num = 0

    def extend(self, names: Sequence[str]) -> None:
        """Count some."""
        self._num += len(names)
        self.names += names[: _MAX_SHOWN + 1 - len(self.names)]

    def text(self, pattern: str | None) -> str:
        """Say which they are; empty if there are none.

        Args:
            pattern: that excludes them.
        """
        if not self.names:
            return ""
        are = "is one other" if self._num == 1 else f"are {self._num:,} others"
        text = f" There {are}, such as {_examples(self.names[:_MAX_SHOWN])}"
        if pattern == "*.tar":
            return (
                f"{text}: tars are read by stream_shards or ShardedDataset (plain, gz, bz2, xz, zst), zips by "
                "list_remote(pattern='*.zip').shard_zip_reader(), loose files by stream_files or RemoteFiles."
            )
        return f"{text}."
