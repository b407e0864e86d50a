"""New files with a name of their own, whose permissions the kernel derives from the umask."""

from __future__ import annotations

import contextlib
import os
import secrets

_MAX_TRIES = 100  # of names that are taken


def make_new_file(folder: str, prefix: str, suffix: str) -> tuple[int, str]:
    """Make a file that was not there, as ``open`` would: others can read it as far as the umask lets them.

    Unlike ``tempfile.mkstemp``, which makes files for their owner only. The umask cannot be read without setting it,
    for all threads of the process, so a file's permissions are not to be changed afterwards.

    Returns:
        Descriptor, for reading and writing, and path.

    Raises:
        OSError: if it cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    for _ in range(_MAX_TRIES):
        path = os.path.join(folder, prefix + secrets.token_hex(8) + suffix)
        with contextlib.suppress(FileExistsError):
            return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o666), path
    raise FileExistsError(f"{folder}: {_MAX_TRIES} names that begin with {prefix!r} are taken.")
