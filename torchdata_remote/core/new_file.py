"""Create files with unique names and the permissions of the umask."""

from __future__ import annotations

import contextlib
import os
import secrets

_MAX_TRIES = 100


def make_new_file(folder: str, prefix: str, suffix: str) -> tuple[int, str]:
    """Create a file under a new name, with the permissions that ``open`` would give it.

    ``tempfile.mkstemp`` creates files that only their owner can read, and correcting that afterwards needs the umask,
    which cannot be read without setting it for all threads of the process.

    Returns:
        tuple: descriptor, for reading and writing, and path.

    Raises:
        OSError: if it cannot be created.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    for _ in range(_MAX_TRIES):
        path = os.path.join(folder, prefix + secrets.token_hex(8) + suffix)
        with contextlib.suppress(FileExistsError):
            return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o666), path
    raise FileExistsError(f"{folder}: {_MAX_TRIES} random names with the prefix {prefix!r} exist already.")
