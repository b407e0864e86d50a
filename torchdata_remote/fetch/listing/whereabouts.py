"""What is there instead of a missing object or folder: for errors, so every failure in here is left out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ...core.arguments.suggestions import did_you_mean
from ...core.urls import LOCAL, join_url, redact, split_url
from ...errors import RemoteDataError

_MAX_NAMES = 1000
_MAX_SHOWN = 3
_MAX_PARENTS = 4
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


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
        missing = " There is no such folder." if scheme in LOCAL and not os.path.lexists(path) else ""
        return missing + _nearest(store, scheme, bucket, path.rstrip("/"))
    except (RemoteDataError, OSError, AttributeError, TypeError, NotImplementedError):
        return ""


def _about_folder(store: Any, scheme: str, bucket: str, path: str, *, recursive: bool) -> str:
    """Say that a folder has nothing, or folders only; empty if it is missing."""
    prefix = f"{path}/" if path or scheme in LOCAL else ""
    is_local = scheme in LOCAL
    if is_local and not os.path.isdir(prefix):
        return ""
    page = store.list_after(prefix, recursive=False, after="", limit=_MAX_NAMES)
    where = redact(prefix if is_local else join_url(scheme, bucket, prefix))
    names = sorted(one[len(prefix) :] for one in page.folders)
    if names and not page.entries:
        empty, advice = ("empty ", "") if recursive else ("", " List one of them, or pass recursive=True.")
        return f" {where} has {empty}folders only: {_examples(names)}.{advice}"
    return f" {where} is empty." if is_local and not names and not page.entries else ""


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
    return _nearest(store, scheme, bucket, path.rstrip("/"))


def _nearest(store: Any, scheme: str, bucket: str, path: str) -> str:
    """Name the nearest folder above a path that has something, and what it has."""
    missing = path
    for _ in range(_MAX_PARENTS):
        above, _, name = missing.rpartition("/")
        prefix = f"{above}/" if above or scheme in LOCAL else ""
        if scheme not in LOCAL or os.path.isdir(prefix):
            page = store.list_after(prefix, recursive=False, after="", limit=_MAX_NAMES)
            found = [*page.folders, *(entry.path for entry in page.entries)]
            names = sorted(one[len(prefix) :] for one in found if one != prefix)
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

    def add(self, name: str) -> None:
        """Count one."""
        self._num += 1
        if len(self.names) <= _MAX_SHOWN:
            self.names.append(name)

    def text(self, pattern: str | None) -> str:
        """Say which they are; empty if there are none.

        Args:
            pattern: that excludes them.
        """
        if not self.names:
            return ""
        are = "is one other" if self._num == 1 else f"are {self._num:,} others"
        text = f" There {are}, such as {_examples(self.names[:_MAX_SHOWN])}"
        compressed = next((end for end in _COMPRESSED if self.names[0].endswith(end)), None)
        if compressed is not None:
            return f"{text}: pass pattern='*{compressed}' for compressed shards."
        if pattern == "*.tar":
            return (
                f"{text}: loose files are read by stream_files, or by file_reader after list_remote without a pattern."
            )
        return f"{text}."
