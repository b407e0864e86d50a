"""Paths that clients change while an archive is unpacked: after a kill, it is not unpacked over what is newer."""

from __future__ import annotations

import contextlib
import hashlib
import os

from .archives import COMMITTED
from .dataset_root import DatasetRoot
from .lifetimes import LiveFolder

_TOUCHED = "touched"  # a file beside an archive, with a path in each line
_MAX_TOUCHED = 200_000


class TouchedPaths:
    """Paths of a dataset that clients have written or removed since an archive was committed.

    In a local root they are noted beside the archive, for the next service. In a bucket dates tell what is newer.

    Args:
        root: the datasets.
        folder: of the dataset.
        aside: folder of the archive.
    """

    def __init__(self, root: DatasetRoot, folder: LiveFolder, aside: str) -> None:
        self._is_local, self._life, self._aside = root.is_local, folder.life, aside
        self._keys = set(self._read())
        self.is_known = True  # whether none is missing here; if one is, the archive must not be unpacked any more
        self._life.watchers.append(self.add)

    def __contains__(self, path: str) -> bool:
        return _key(path) in self._keys

    def add(self, path: str) -> None:
        """Note a path that a client has changed. Called while the file's lock is held."""
        self._keys.add(_key(path))
        if len(self._keys) > _MAX_TOUCHED:
            self._give_up()
        elif self._is_local:
            try:
                with open(self._aside + _TOUCHED, "ab") as file:
                    file.write(path.encode() + b"\n")
            except OSError:  # the disk is full
                self._give_up()

    def end(self) -> None:
        """Note no more paths."""
        self._life.watchers.remove(self.add)

    def _give_up(self) -> None:
        self.is_known = False
        if self._is_local:
            with contextlib.suppress(OSError):  # so that the next service does not unpack it over newer files
                os.unlink(self._aside + COMMITTED)

    def _read(self) -> list[bytes]:
        if not self._is_local:
            return []
        try:
            with open(self._aside + _TOUCHED, "rb") as file:
                return [_key(line.decode("utf-8", "replace")) for line in file.read().split(b"\n")]
        except FileNotFoundError:
            return []


def _key(path: str) -> bytes:
    return hashlib.sha256(path.encode("utf-8", "replace")).digest()[:16]
