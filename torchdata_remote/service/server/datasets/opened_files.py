"""Open a file of a dataset: its bytes are those of the version that was opened."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from ....errors import AccessDeniedError
from ....storage import Entry, version_of
from ..problems import Problem
from .cached_files import open_cached
from .dataset_root import DatasetRoot
from .names import require_dataset_name

_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class OpenedFile(NamedTuple):
    """An open file: what is known of it, and its descriptor, unless the store is not a local folder."""

    entry: Entry
    descriptor: int | None

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor is not None:
            os.close(self.descriptor)


def open_file_if_cached(root: DatasetRoot, name: str, path: str) -> OpenedFile | None:
    """Open a file of a local root if that needs no disk; else return ``None``. The path has been checked.

    Raises:
        Problem: 400, for a name that is not valid.
    """
    folder = root.local_folder
    if folder is None:
        return None
    descriptor = open_cached(folder, require_dataset_name(name), path)
    return None if descriptor is None else _opened(descriptor, f"{folder}{name}/{path}")


def open_file(root: DatasetRoot, name: str, path: str) -> OpenedFile:
    """Open a file. Blocks.

    Raises:
        Problem: 404, if there is no such dataset or file.
        ObjectNotFoundError: likewise.
        AccessDeniedError: for a link, or a file that may not be read.
    """
    entry = root.stat(root.folder(name), path)
    local = root.local_path(entry)
    if local is None:
        return OpenedFile(entry, None)
    try:
        descriptor = os.open(local, _FLAGS)
    except FileNotFoundError:  # removed since
        descriptor = -1
    except PermissionError as error:
        raise AccessDeniedError(f"{local}: the service's user may not read this file.", url=local) from error
    opened = None if descriptor < 0 else _opened(descriptor, local)
    if opened is None:
        raise Problem(404, f"There is no file {path!r:.200} in the dataset.")
    return opened


def _opened(descriptor: int, path: str) -> OpenedFile | None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        return None
    return OpenedFile(Entry(path, status.st_size, version_of(status), status.st_mtime), descriptor)
