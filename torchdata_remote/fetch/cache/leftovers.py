"""Remove what a cache folder holds from before: objects of earlier releases, packs of an index that was lost."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from .pack import remove_file

_OBJECT = re.compile("[0-9a-f]{64}")
_FOLDER = re.compile("[0-9a-f]{2}")
_PARTIAL_PREFIX = "torchdata_remote-"


def remove_leftovers(folder: str, packs: str) -> Iterator[None]:
    """Remove one file in each step. Files in use, and those of others, stay.

    Earlier releases stored an object as ``ab/abcd...``, 64 digits in a folder of the first two, beside ``partial`` and
    ``usage``.

    Args:
        folder: of the cache.
        packs: the folder of packs that are in use.
    """
    for path in _folders(folder, _FOLDER):
        digits = os.path.basename(path)
        yield from _remove_files(path, re.compile(f"{digits}[0-9a-f]{{62}}"))
    partial, usage = os.path.join(folder, "partial"), os.path.join(folder, "usage")
    if os.path.isdir(partial) and not os.path.islink(partial):
        yield from _remove_files(partial, re.compile(f"{_PARTIAL_PREFIX}.*"))
        remove_file(usage)
    for path in _folders(os.path.dirname(packs), re.compile("packs-[0-9a-f]+")):
        if path != packs:
            yield from _remove_files(path, re.compile(r"[0-9]+\.pack"))


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
