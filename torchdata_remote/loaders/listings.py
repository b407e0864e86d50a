"""The listings of a chain: made once for all processes of a rank, or for all ranks, and sent to workers."""

from __future__ import annotations

import logging
import os
import pickle
import struct
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import context, reduction
from typing import Any, NamedTuple

from ..core.rank_exchange import exchanged, from_rank_0, in_group
from ..core.urls import RemoteUrl
from ..core.world import World
from .state.fingerprints import Fingerprint

_LEVEL = 1  # URLs of one folder shrink to a quarter already


class Listed(NamedTuple):
    """The listings of a chain in one epoch.

    Args:
        urls: of each listing, before they are shuffled by epoch.
        fingerprints: of each listing, as a state stores them.
    """

    urls: list[list[Any]]
    fingerprints: list[Fingerprint]


def packed(listed: Listed | Exception) -> bytes:
    """Pack a listing, or the error that was raised instead: 26 bytes for each shard of a manifest.

    Raises:
        pickle.PicklingError, TypeError, AttributeError: if an item cannot be pickled.
    """
    content: Any = listed
    if isinstance(listed, Listed):
        content = [_columns(urls) for urls in listed.urls], listed.fingerprints
    return zlib.compress(pickle.dumps(content, pickle.HIGHEST_PROTOCOL), _LEVEL)


def unpacked(data: bytes) -> Listed | Exception:
    """Unpack the result of :func:`packed`. As for any pickle, the bytes must be from a trusted process."""
    content = pickle.loads(zlib.decompress(data))  # noqa: S301  # of this job
    if isinstance(content, Exception):
        return content
    columns, fingerprints = content
    return Listed([_urls(*column) for column in columns], fingerprints)


def _columns(urls: Sequence[Any]) -> tuple[bool, list[Any]]:
    """One column for each field: takes a fifth of the time and bytes of one object for each URL."""
    if urls and all(type(url) is RemoteUrl for url in urls):
        return True, list(zip(*(url.__getnewargs__() for url in urls), strict=True))
    return False, list(urls)


def _urls(are_remote: bool, columns: list[Any]) -> list[Any]:
    return list(map(RemoteUrl, *columns)) if are_remote else columns


_HEAD = struct.Struct("<qq")  # number, length
_log = logging.getLogger("torchdata_remote")


class Handover:
    """One unnamed file for all passes of a loader, shared with workers of every start method.

    The system deletes the file when the processes end, also by a signal. A worker for which there are no bytes has to
    make them itself: on Windows, where unnamed files cannot be shared, and if the disk is full.
    """

    def __init__(self) -> None:
        self._fd: int | None = None

    def _keep(self, fd: int) -> None:
        self._fd = fd
        weakref.finalize(self, os.close, fd).atexit = False  # the system closes it at exit

    def store(self, number: int, data: bytes) -> None:
        """Store bytes under a number, for workers; replaces earlier ones."""
        try:
            if self._fd is None and hasattr(os, "pread"):
                with tempfile.TemporaryFile(prefix="torchdata_remote-") as file:
                    self._keep(os.dup(file.fileno()))
            if self._fd is not None:
                self._write(data, _HEAD.size)
                self._write(_HEAD.pack(number, len(data)), 0)
        except OSError as error:
            _log.warning("The listing could not be passed to the workers, which list again: %s", error)
            self.clear()

    def load(self, number: int) -> bytes | None:
        """The bytes under a number; ``None`` if there are none."""
        if self._fd is None:
            return None
        stored, length = _HEAD.unpack(self._read(_HEAD.size, 0).ljust(_HEAD.size, b"\xff"))
        data = self._read(length, _HEAD.size) if stored == number else b""
        return data if stored == number and len(data) == length else None

    def clear(self) -> None:
        """Delete the bytes, when all workers have a copy."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)

    def _write(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            num_bytes = os.pwrite(self._fd, view, at)  # type: ignore[arg-type]
            view, at = view[num_bytes:], at + num_bytes

    def _read(self, length: int, at: int) -> bytes:
        parts = []
        while length > 0 and (part := os.pread(self._fd, length, at)):  # type: ignore[arg-type]
            parts.append(part)
            length, at = length - len(part), at + len(part)
        return b"".join(parts)

    def __getstate__(self) -> dict[str, Any]:
        """The file, for a worker that is being started; otherwise nothing."""
        is_spawning = self._fd is not None and context.get_spawning_popen() is not None
        return {"file": reduction.DupFd(self._fd) if is_spawning else None}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        if state["file"] is not None:
            self._keep(state["file"].detach())


class Listings:
    """The listings of a chain that were made before a pass starts.

    A rank's process lists when a pass starts, and passes the listing to its workers. An error is passed as well, so
    that it is raised as if the workers had listed: there, before the first batch.
    """

    def __init__(self) -> None:
        self.once = False  # whether all passes read the listing of the first one
        self.in_rank_0 = False  # whether rank 0 lists for all ranks of the process group
        self._of_all_passes: bytes | None = None
        self._of_this_pass: bytes | None = None  # in this process
        self._latest: bytes | None = None
        self._handover = Handover()

    def of(self, epoch: int) -> Listed | Exception | None:
        """The listing of a pass that starts now; ``None`` if this process has to list."""
        data = self._of_all_passes or self._of_this_pass or self._handover.load(epoch)
        return None if data is None else unpacked(data)

    @property
    def latest(self) -> Listed | Exception | None:
        """What this process has listed last for other processes, if it has."""
        return None if self._latest is None else unpacked(self._latest)

    def keep(self, listed: Listed) -> None:
        """Let all passes read this listing."""
        self._of_all_passes = self._latest = packed(listed)

    def keep_those_of(self, other: Listings) -> None:
        """Let all passes read the listing that those of another one read, if there is one."""
        self._of_all_passes = self._latest = other._of_all_passes

    @contextmanager
    def made(self, make: Callable[[], Listed], world: World, epoch: int, num_workers: int) -> Iterator[None]:
        """Provide the listing of an epoch to the passes that start within the block.

        Args:
            make: lists.
            world: of this rank; with ``in_rank_0`` this is a collective call.
            epoch: of the passes.
            num_workers: processes that start a pass; with 0, this process does.
        """
        data = self._of_all_passes
        if self.in_rank_0 and in_group(world):
            kept = exchanged(world, "start a pass with the listing of rank 0", data is not None)
            data = data if all(kept.values()) else None
        if data is None:
            data = self._listed(make, world, num_workers)
        self._latest = data
        if data is not None and num_workers > 0:
            self._handover.store(epoch, data)
        elif data is not None:
            self._of_this_pass = data
        try:
            yield
        finally:
            self._of_this_pass = None
            self._handover.clear()

    def _listed(self, make: Callable[[], Listed], world: World, num_workers: int) -> bytes | None:
        is_for_all_ranks = self.in_rank_0 and in_group(world)
        if not (num_workers > 0 or self.once or is_for_all_ranks):
            return None
        try:
            listed = from_rank_0(world, "list for all ranks", lambda: packed(make())) if is_for_all_ranks else make()
        except Exception as error:  # noqa: BLE001  # raised when the pass starts
            return _packed_error(error)
        try:
            data = packed(listed) if isinstance(listed, Listed) else listed
        except Exception as error:  # noqa: BLE001  # items that cannot be pickled; forked workers have them
            return _packed_error(error) if self.once else None
        if self.once:
            self._of_all_passes = data
        return data

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_of_this_pass": None, "_latest": None}


def _packed_error(error: Exception) -> bytes | None:
    """Pack an error for workers; ``None`` if it cannot be pickled, so that they list and raise their own."""
    try:
        data = packed(error)
        unpacked(data)
    except Exception:  # noqa: BLE001  # a user's own class may raise anything
        return None
    return data
