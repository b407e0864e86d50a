"""What earlier pulls wrote into a folder: by it ``pull`` again hashes nothing, and knows what is its own."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import NamedTuple

from ...errors import ObjectExistsError, ObjectNotFoundError, StorageError
from ...storage.registry import PARTIAL_SUFFIX
from .destination import DestinationFolder, Found
from .names import STATE_NAME

_KIND = "torchdata_remote-pull-v1"
_log = logging.getLogger("torchdata_remote")


class Pulled(NamedTuple):
    """A file that was pulled, or, without ``mtime_ns``, was to be when a pull was interrupted."""

    size: int
    mtime_ns: int | None
    sha256: str
    etag: str

    def is_as_pulled(self, found: Found) -> bool:
        """Whether the file there is still the one that was written."""
        return self.mtime_ns is not None and (self.size, self.mtime_ns) == found

    def may_go(self, found: Found) -> bool:
        """Whether a pull wrote it, and nobody else since, as far as one can see."""
        return self.mtime_ns is None or (self.size, self.mtime_ns) == found


def load_state(target: DestinationFolder, dataset: str) -> dict[str, Pulled]:
    """What was pulled, by path; nothing if there is no state, or one that cannot be read.

    Args:
        target: the folder.
        dataset: name of what is pulled now, with the folder in it.

    Raises:
        ObjectExistsError: if the folder holds another data set.
    """
    try:
        with target.reading(STATE_NAME) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
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
        _log.warning("%s cannot be read (%r): every file is hashed", target.place(STATE_NAME), error)
        return {}
    if held != dataset:
        raise ObjectExistsError(
            f"{target.folder} holds the data set {held!r}, and {dataset!r} is to be pulled there. Pull into another "
            f"folder; or remove {STATE_NAME}, which makes its files nobody's.",
            url=target.folder,
        )
    return files


def save_state(target: DestinationFolder, dataset: str, files: Mapping[str, Pulled]) -> None:
    """Write down what was pulled."""
    document = {"__kind__": _KIND, "dataset": dataset, "files": files}
    temporary = STATE_NAME + PARTIAL_SUFFIX
    data = memoryview(json.dumps(document).encode())
    try:
        with target.new_file(temporary) as descriptor:
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        target.rename(temporary, STATE_NAME)
    except StorageError:
        target.remove(temporary)
        raise
