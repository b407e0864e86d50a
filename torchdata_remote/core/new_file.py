"""Create files with unique names and the permissions of the umask, and replace files by complete ones."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator

from ..errors import RemoteDataError

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


@contextlib.contextmanager
def replaced(path: str) -> Iterator[str]:
    """Yield the path of a new file, which takes the place of ``path`` when the block ends, and is removed if it fails.

    What is no regular file, such as ``/dev/stdout``, is written itself.

    Raises:
        OSError: if the new file cannot be created or renamed.
    """
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        yield target
        return
    handle, partial = make_new_file(os.path.dirname(target), ".tmp-", os.path.splitext(target)[1])
    os.close(handle)
    try:
        yield partial
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def require_replaceable(path: str) -> None:
    """Raise unless :func:`replaced` can write a file; to be called before long work.

    Raises:
        RemoteDataError: if its folder does not exist, or no file can be created there.
    """
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise RemoteDataError(f"{path}: the folder {folder} does not exist. Create it, or write elsewhere.")
    if not os.access(folder, os.W_OK) or os.path.isdir(target):
        raise RemoteDataError(f"{path}: no file can be written there. Write elsewhere.")
