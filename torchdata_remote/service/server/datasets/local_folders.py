"""Local folders of datasets: links are refused, a folder exists only while it has files, a path is free or not."""

from __future__ import annotations

import contextlib
import os

from ....storage import symlink_error
from ..problems import Problem


def refuse_links(folder: str, full: str) -> None:
    """Require that no component of a path below a folder is a link. The folder itself may be one: its owner made it.

    Raises:
        AccessDeniedError: if one is.
    """
    end = len(folder)
    while end < len(full):
        slash = full.find("/", end + 1)
        end = len(full) if slash < 0 else slash
        if os.path.islink(full[:end]):
            raise symlink_error(full[:end])


def require_free(folder: str, path: str) -> None:
    """Require that a file can be created at a path below a folder; folders without files are removed from it.

    Raises:
        Problem: 409, if a folder has this path, or a file the path of one of its folders.
    """
    full = folder + path
    if os.path.isdir(full) and not _remove_if_empty(full):
        raise Problem(409, f"{path!r} is a folder. Choose another name, or delete the files in it.")
    above = full
    while len(above := os.path.dirname(above)) > len(folder):
        if os.path.isfile(above):
            raise Problem(409, f"{above[len(folder) :]!r} is a file, so {path!r} cannot be below it.")


def _remove_if_empty(path: str) -> bool:
    """Remove a folder that contains only empty folders; return whether the path is not a folder now."""
    with contextlib.suppress(OSError):
        for above, _, _ in os.walk(path, topdown=False):
            os.rmdir(above)
    return not os.path.isdir(path)


def remove_empty_above(folder: str, full: str) -> None:
    """Remove the folders of a removed file, below ``folder``, that are empty now."""
    above = full
    with contextlib.suppress(OSError):  # not empty, or already removed
        while len(above := os.path.dirname(above)) > len(folder):
            os.rmdir(above)
