"""Folders of this machine: what may not be followed in them, and what is in nobody's way."""

from __future__ import annotations

import contextlib
import os

from ...storage.registry import symlink_error


def remove_if_empty(path: str) -> bool:
    """Remove a folder of this machine that has nothing but folders in it; whether it had nothing else."""
    with contextlib.suppress(OSError):
        for above, _, _ in os.walk(path, topdown=False):
            os.rmdir(above)
    return not os.path.isdir(path)


def refuse_links(folder: str, full: str) -> None:
    """See that no step from a folder to a path is a link; the folder itself may be one, which its owner made.

    Raises:
        AccessDeniedError: if one is.
    """
    end = len(folder)
    while end < len(full):
        slash = full.find("/", end + 1)
        end = len(full) if slash < 0 else slash
        if os.path.islink(full[:end]):
            raise symlink_error(full[:end])
