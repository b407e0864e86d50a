"""Files that this process has open."""

from __future__ import annotations

import contextlib
import os


def num_open(path: str | os.PathLike[str]) -> int:
    """Count the descriptors of a file, or of the files below a folder; of deleted ones, too.

    Threads of other tests may open and close others meanwhile.
    """
    count = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(f"/proc/self/fd/{descriptor}").startswith(os.fspath(path))
    return count
