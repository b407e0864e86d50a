"""State file of a folder: which files earlier pulls wrote, so that they are not hashed again and may be removed."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import NamedTuple

from ...errors import ObjectExistsError, ObjectNotFoundError, StorageError
from ...storage import PARTIAL_SUFFIX
from .destination import DestinationFolder, FileStatus
from .names import STATE_NAME

_KIND = "torchdata_remote-pull-v1"
_log = logging.getLogger("torchdata_remote")


class Pulled(NamedTuple):
    """A file that was pulled; without ``mtime_ns`` one whose pull was interrupted."""

    size: int
    mtime_ns: int | None
    sha256: str
    etag: str

    def is_unchanged(self, found: FileStatus) -> bool:
        """Whether the file is still the one that was written."""
        return self.mtime_ns is not None and (self.size, self.mtime_ns) == found

    def is_removable(self, found: FileStatus) -> bool:
        """Whether a pull wrote the file, and no other program since, by its size and date."""
        return self.mtime_ns is None or (self.size, self.mtime_ns) == found


def load_state(destination: DestinationFolder, dataset: str) -> dict[str, Pulled]:
    """Read the state: pulled files by path. Empty if there is no state, or an invalid one.

    Args:
        destination: the folder.
        dataset: name of the dataset that is pulled now, with the folder in it.

    Raises:
        ObjectExistsError: if the folder holds another dataset.
    """
    try:
        with destination.open_for_reading(STATE_NAME) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            data = file.read()
    except ObjectNotFoundError:
        return {}
    try:
        document = json.loads(data)
        if document["__kind__"] != _KIND:
            raise ValueError(f"__kind__ is {document['__kind__']!r}")
        held = str(document["dataset"])
        files = {
            str(path): Pulled(int(size), None if mtime_ns is None else int(mtime_ns), str(sha256), str(etag))
            for path, (size, mtime_ns, sha256, etag) in document["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("%s cannot be read (%r): every file is hashed", destination.absolute_path(STATE_NAME), error)
        return {}
    if held != dataset:
        raise ObjectExistsError(
            f"{destination.folder} holds the dataset {held!r}, and {dataset!r} is to be pulled there. Pull into "
            f"another folder; or remove {STATE_NAME}, and its files count as not pulled.",
            url=destination.folder,
        )
    return files


def save_state(destination: DestinationFolder, dataset: str, files: Mapping[str, Pulled]) -> None:
    """Write the state."""
    document = {"__kind__": _KIND, "dataset": dataset, "files": files}
    temporary = STATE_NAME + PARTIAL_SUFFIX
    data = memoryview(json.dumps(document).encode())
    try:
        with destination.create(temporary) as descriptor:
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        destination.rename(temporary, STATE_NAME)
    except StorageError:
        destination.remove(temporary)
        raise
