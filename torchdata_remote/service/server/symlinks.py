"""Local folders: refuse symbolic links, remove trees of empty folders."""

from __future__ import annotations

import contextlib
import os

from ...storage import symlink_error


def remove_if_empty(path: str) -> bool:
    """Remove a folder that contains only empty folders; return whether the path is not a folder now."""
    with contextlib.suppress(OSError):
        for above, _, _ in os.walk(path, topdown=False):
            os.rmdir(above)
    return not os.path.isdir(path)


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
