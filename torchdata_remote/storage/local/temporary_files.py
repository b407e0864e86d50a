"""Unfinished files of a local folder: create one, remove those that killed processes left, and half removed folders."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable

from ...core.new_file import make_new_file
from .names import PARTIAL_SUFFIX

_MAX_REMOVED = 100  # attempts, while other processes remove the folder before its first file is created

# Begins the names of what this process has not finished, so that a search for leftovers spares it by its name alone:
# the clock of a file server may differ, and that of this machine may be set back.
PROCESS = f".{secrets.token_hex(4)}-"


def temporary_in(folder: str) -> tuple[int, str]:
    """Create a temporary file in a folder, which is created if it is missing; return its descriptor and path."""
    for _ in range(_MAX_REMOVED):
        with contextlib.suppress(FileNotFoundError):  # the folder was removed since
            make_folders(folder)
            return make_new_file(folder, PROCESS, PARTIAL_SUFFIX)
    raise FileNotFoundError(folder)


def link_in(folder: str, source: str) -> tuple[int, str]:
    """Link a file to a temporary name in a folder, which is created if it is missing; return a descriptor and path."""
    temporary = f"{folder}/{PROCESS}{secrets.token_hex(16)}{PARTIAL_SUFFIX}"
    for _ in range(_MAX_REMOVED):
        os.lstat(source)
        with contextlib.suppress(FileNotFoundError):  # the folder was removed since
            make_folders(folder)
            os.link(source, temporary)
            return os.open(temporary, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)), temporary
    raise FileNotFoundError(folder)


def make_folders(folder: str) -> None:
    """Create a folder and those above it.

    Raises:
        FileNotFoundError: if another process removed one meanwhile.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError as error:
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise
        raise FileNotFoundError(folder) from error  # it was removed between two looks of makedirs


def remove_leftovers_in(
    path: str, before_s: float, *, spare_own: bool = False, stopped: Callable[[], bool] = lambda: False
) -> None:
    """Remove leftovers in a folder and below it. What was removed stays removed if the search is stopped.

    Args:
        path: of the folder.
        before_s: a file that was changed later is kept; seconds since 1970.
        spare_own: whether to keep those of this process, whatever their age.
        stopped: asked for each folder and each leftover; the search ends when it is true.
    """
    for above, folders, names in os.walk(path):
        if stopped():
            return
        for name in filter(_is_leftover(spare_own), names):
            with contextlib.suppress(FileNotFoundError):
                if os.lstat(os.path.join(above, name)).st_mtime < before_s:
                    os.unlink(os.path.join(above, name))
        for name in [name for name in folders if name.endswith(PARTIAL_SUFFIX)]:
            folders.remove(name)
            if _is_leftover(spare_own)(name):
                _remove_tree(os.path.join(above, name), stopped)


def _is_leftover(spare_own: bool) -> Callable[[str], bool]:
    return lambda name: name.endswith(PARTIAL_SUFFIX) and not (spare_own and name.startswith(PROCESS))


def _remove_tree(path: str, stopped: Callable[[], bool]) -> None:
    """Remove a folder file by file, as far as that is possible: ``shutil.rmtree`` cannot be stopped."""
    if os.path.islink(path):
        with contextlib.suppress(OSError):
            os.unlink(path)
        return
    for above, folders, names in os.walk(path, topdown=False):
        for name in [*names, *folders]:
            if stopped():
                return
            with contextlib.suppress(OSError):  # a folder; a link to one is removed like a file
                os.unlink(os.path.join(above, name))
        with contextlib.suppress(OSError):
            os.rmdir(above)
