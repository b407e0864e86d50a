"""Remove packs of an index that was lost from a cache folder."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from .pack import remove_file

_FOLDER, _PACK = re.compile("packs-[0-9a-f]+"), re.compile(r"[0-9]+\.pack")


def remove_leftovers(packs: str) -> Iterator[None]:
    """Remove one file in each step. Files in use, and those of others, stay.

    Args:
        packs: the folder of packs that are in use.
    """
    with os.scandir(os.path.dirname(packs)) as entries:
        folders = [one.path for one in entries if _FOLDER.fullmatch(one.name) and one.is_dir(follow_symlinks=False)]
    for folder in folders:
        if folder != packs:
            yield from _remove_packs(folder)


def _remove_packs(folder: str) -> Iterator[None]:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            if _PACK.fullmatch(file.name):
                remove_file(file.path)
                yield
    with contextlib.suppress(OSError):  # not empty
        os.rmdir(folder)
