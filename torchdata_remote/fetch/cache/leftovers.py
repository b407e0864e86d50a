"""Remove what a cache folder holds from before: objects of earlier releases, packs of an index that was lost."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator

from .pack import remove_file

_OBJECT = re.compile("[0-9a-f]{64}")
_FOLDER = re.compile("[0-9a-f]{2}")
_IN_USE_S = 3600
_PARTIAL_PREFIX = "torchdata_remote-"


def remove_leftovers(folder: str, packs: str) -> Iterator[None]:
    """Remove one file in each step. Files in use, and those of others, stay.

    Earlier releases stored an object as ``ab/abcd...``, 64 digits in a folder of the first two, beside ``partial`` and
    ``usage``. Their objects stay while one seems to run: if ``partial`` or a file in it changed in the last hour.

    Args:
        folder: of the cache.
        packs: the folder of packs that are in use.
    """
    partial, usage = os.path.join(folder, "partial"), os.path.join(folder, "usage")
    is_running = _changed_lately(partial)
    for path in [] if is_running else _folders(folder, _FOLDER):
        digits = os.path.basename(path)
        yield from _remove_files(path, re.compile(f"{digits}[0-9a-f]{{62}}"))
    if not is_running and os.path.isdir(partial) and not os.path.islink(partial):
        yield from _remove_files(partial, re.compile(f"{_PARTIAL_PREFIX}.*"))
        remove_file(usage)
    for path in _folders(os.path.dirname(packs), re.compile("packs-[0-9a-f]+")):
        if path != packs:
            yield from _remove_files(path, re.compile(r"[0-9]+\.pack"))


def _changed_lately(folder: str) -> bool:
    """Whether a folder or a file in it changed in the last hour."""
    with contextlib.suppress(OSError), os.scandir(folder) as files:
        changes = [os.lstat(folder).st_mtime, *(file.stat(follow_symlinks=False).st_mtime for file in files)]
        return max(changes) > time.time() - _IN_USE_S
    return False


def _folders(parent: str, name: re.Pattern[str]) -> list[str]:
    with os.scandir(parent) as entries:
        return [one.path for one in entries if name.fullmatch(one.name) and one.is_dir(follow_symlinks=False)]


def _remove_files(folder: str, name: re.Pattern[str]) -> Iterator[None]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            if name.fullmatch(file.name):
                remove_file(file.path)
                yield
    with contextlib.suppress(OSError):  # not empty
        os.rmdir(folder)
