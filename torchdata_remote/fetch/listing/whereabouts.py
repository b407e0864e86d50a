"""What is there instead of a missing object or folder: for errors, so every failure in here is left out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import islice
from typing import Any

from ...core.arguments.suggestions import did_you_mean
from ...core.object_version import same_etag
from ...core.urls import LOCAL, join_url, redact, split_url
from ...errors import RemoteDataError
from ...storage import broken_link, is_internal_name
from .patterns import glob_regex, glob_start, unescape

_MAX_NAMES = 1000
_MAX_SHOWN = 3
_MAX_PARENTS = 4


def _or_nothing(describe: Callable[..., Any]) -> Callable[..., Any]:
    """Return an empty text where a description fails."""

    @wraps(describe)
    def described(*arguments: Any, **options: Any) -> Any:
        try:
            return describe(*arguments, **options)
        except (RemoteDataError, OSError, AttributeError, TypeError, NotImplementedError):
            return ""

    return described


@_or_nothing
def about_missing(store: Any, url: str) -> str:
    """Say what is there instead of an object: a folder of its name, or objects with similar names."""
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
    if scheme not in LOCAL:
        return _nearest(store, scheme, bucket, path.rstrip("/"))
    if os.path.lexists(path):
        return "" if os.path.exists(path) else f" It is {broken_link(path)}."
    is_in_folder = os.path.lexists(os.path.dirname(path))
    return ("" if is_in_folder else _missing_folder(path)) + _nearest(store, scheme, bucket, path.rstrip("/"))


def is_as_listed(store: Any, path: str, size: int | None, etag: str | None) -> bool:
    """Whether a store still lists an object with the size and etag that were listed before."""
    listed = _or_nothing(store.find)(path)
    if not listed or None in (etag, listed.etag):
        return False
    return same_etag(etag, listed.etag) and size in (None, listed.size)


@_or_nothing
def about_empty(store: Any, url: str, *, recursive: bool = False) -> str:
    """Say what a folder has; of one that is missing, the nearest one above it that is there, and similar names in it.

    Args:
        store: of the folder.
        url: of the folder.
        recursive: whether the folders in it were entered.
    """
    scheme, bucket, path = split_url(url)
    path, is_local = path.rstrip("/"), scheme in LOCAL
    prefix = f"{path}/" if path or is_local else ""
    if not is_local or os.path.isdir(prefix):
        folders, objects = _names_in(store, scheme, prefix)
        if folders and not objects:
            empty, advice = ("empty ", "") if recursive else ("", " List one of them, or pass recursive=True.")
            return f" {_shown(scheme, bucket, prefix)} has {empty}folders only: {_examples(folders)}.{advice}"
        if is_local and not objects:
            return f" {_shown(scheme, bucket, prefix)} is empty."
    if is_local and os.path.lexists(path) and not os.path.exists(path):
        return f" It is {broken_link(path)}."
    found = (_missing_folder(path) if is_local else "") + _nearest(store, scheme, bucket, path)
    if not found and scheme == "memory":
        return " memory:// is the memory of this process, and nothing was written to it there."
    return found


@_or_nothing
def about_glob(store: Any, url: str) -> str:
    """Say that a glob, which names objects, matches folders; empty if it matches none.

    Args:
        store: of the URL.
        url: with a glob in its last part only.
    """
    scheme, _, path = split_url(url)
    folder, _, name = path.rpartition("/")
    if not name or glob_start(folder) is not None:
        return ""
    regex, prefix = glob_regex(name), f"{unescape(folder)}/" if folder or scheme in LOCAL else ""
    folders = [one for one in _names_in(store, scheme, prefix)[0] if regex.fullmatch(one.rstrip("/"))]
    if not folders:
        return ""
    what = f"folder{'s' if len(folders) > 1 else ''} {_examples(folders)}"
    return f" It matches the {what}: end it with a slash for what is in there, {redact(url + '/')!r}."


def _examples(names: Sequence[str]) -> str:
    """Return some names for a message.

    >>> _examples(["a", "b", "c", "d"])
    "'a', 'b', 'c', ..."
    """
    return ", ".join(map(repr, names[:_MAX_SHOWN])) + (", ..." if len(names) > _MAX_SHOWN else "")


def _shown(scheme: str, bucket: str, prefix: str) -> str:
    return redact(prefix if scheme in LOCAL else join_url(scheme, bucket, prefix))


def _missing_folder(path: str) -> str:
    """Say which folder of a local path is missing; empty if none is."""
    above = os.path.dirname(path)
    if os.path.lexists(path):
        return ""
    if os.path.lexists(above):
        return " There is no such folder."
    while not os.path.lexists(os.path.dirname(above)):
        above = os.path.dirname(above)
    return f" The folder {above} does not exist. Is the disk mounted, and the path one of this machine?"


def _names_in(store: Any, scheme: str, prefix: str) -> tuple[list[str], list[str]]:
    """Return the names of the folders (with a slash) and of the objects in a folder, each sorted."""
    if scheme in LOCAL:  # not by the store's list_after, which refuses links
        with os.scandir(prefix) as entries:
            own = [one.name for one in islice(entries, _MAX_NAMES) if not is_internal_name(one.name)]
        folders = sorted(f"{name}/" for name in own if os.path.isdir(prefix + name))
        return folders, sorted(name for name in own if f"{name}/" not in folders)
    page = store.list_after(prefix, recursive=False, after="", limit=_MAX_NAMES)
    folders = sorted(one[len(prefix) :] for one in page.folders if one != prefix)
    return folders, sorted(entry.path[len(prefix) :] for entry in page.entries if entry.path != prefix)


def _nearest(store: Any, scheme: str, bucket: str, path: str) -> str:
    """Name the nearest folder above a path that has something, and what it has."""
    for _ in range(_MAX_PARENTS):
        above, _, name = path.rpartition("/")
        prefix = f"{above}/" if above or scheme in LOCAL else ""
        if scheme not in LOCAL or os.path.isdir(prefix):
            folders, objects = _names_in(store, scheme, prefix)
            names = sorted([*folders, *objects])
            if names or scheme in LOCAL:
                has = f"has {_examples(names)}" if names else "is empty"
                near = did_you_mean(name, [one.rstrip("/") for one in names]) or "."
                return f" {_shown(scheme, bucket, prefix)} {has}{near}"
        if not above:
            break
        path = above
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
