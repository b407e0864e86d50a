"""What the processes that share a cache know together: how much it takes of the disk, and what was read lately."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .folder import open_own_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

has_locks = fcntl is not None
EXCLUSIVE, SHARED = (0, 0) if fcntl is None else (fcntl.LOCK_EX, fcntl.LOCK_SH)
STATE_BYTES = 16 << 10  # of the file, at most
_HEADER, _READ = struct.Struct("<8sIqqdQQ"), struct.Struct("<dI")
_MAGIC, _FIELDS = b"tdrcache", 12  # and where the fields begin
_RING = 1_024  # reads
_MAX_OBJECTS = 256  # of the sample
_MIN_READS = 16  # fewer may be twice the same objects by chance, where one epoch ends and the next one begins
_SLACK = 1.25
_WAIT_S, _RETRY_S, _POLL_S = 1.0, 5.0, 0.001
_CLOSE_S = 0.1  # for the lock, in a finalizer
_CHUNKS, _MAX_CHUNK_BYTES = 64, 64 << 20  # of the bound, which a process reserves at once
_PAUSE = 20  # times the CPU of a look for room that found none, until the next one
KEYS = 1 << 32


def lock(descriptor: int, kind: int, wait_s: float = _WAIT_S) -> None:
    """Lock a file, of which each process has its own descriptor.

    Raises:
        BlockingIOError: if another process holds it all the time.
    """
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        time.sleep(_POLL_S)
    return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)


@dataclass
class Totals:
    """The header of the file. A damaged one is as that of a new cache, which is counted by the next one that is alone.

    Args:
        used_bytes: by all objects, and reserved for others.
        reserved_bytes: by the processes that use the folder, or more; not zero if one was killed.
        counted_s: when the objects were counted, since 1970.
        num_reads: that the sample has had.
        sampled: objects whose key is below it are in the sample.
    """

    used_bytes: int = 0
    reserved_bytes: int = 0
    counted_s: float = 0.0
    num_reads: int = 0
    sampled: int = KEYS

    @classmethod
    def read(cls, data: bytes) -> Totals:
        if len(data) == _HEADER.size:
            magic, crc32, *fields = _HEADER.unpack(data)
            if magic == _MAGIC and crc32 == zlib.crc32(data[_FIELDS:]):
                return cls(*fields)
        return cls()

    def packed(self) -> bytes:
        fields = _HEADER.pack(_MAGIC, 0, *vars(self).values())[_FIELDS:]
        return _HEADER.pack(_MAGIC, zlib.crc32(fields), *vars(self).values())


class SharedState:
    """A small file that is locked for each look at it, for some ten microseconds. Thread-safe.

    Args:
        path: of the file.
        user: who alone may have written it.

    Raises:
        OSError: if there is none, and it cannot be written.
    """

    def __init__(self, path: str, user: int) -> None:
        self._problem: OSError | None = None
        try:
            descriptor = open_own_file(path, user)
        except OSError as error:
            self._problem, descriptor = error, os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._file = open(descriptor, "rb", buffering=0)  # noqa: SIM115  # closed with this object
        self._lock = threading.RLock()
        self._retry_s, self._sampled = 0.0, KEYS

    def is_at(self, path: str) -> bool:
        """Whether the path is still that of this file."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._file.fileno()))
        except OSError:
            return False

    @contextlib.contextmanager
    def locked(self, wait_s: float = _WAIT_S) -> Iterator[Totals]:
        """Lock the file for all threads and processes, and write what the block changes.

        Raises:
            OSError: if another process holds it, as one that is stopped, or the disk takes no more.
        """
        with self._lock:
            if self._problem is not None:
                raise self._problem
            if time.monotonic() < self._retry_s:
                raise BlockingIOError(errno.EAGAIN, "another process, which may be stopped, holds its lock")
            try:
                lock(self._file.fileno(), EXCLUSIVE, wait_s)
            except BlockingIOError:
                self._retry_s = time.monotonic() + _RETRY_S if wait_s else 0.0
                raise
            try:
                before = os.pread(self._file.fileno(), _HEADER.size, 0)
                totals = Totals.read(before)
                yield totals
                if (after := totals.packed()) != before:
                    os.pwrite(self._file.fileno(), after, 0)
                self._sampled = totals.sampled
            finally:
                fcntl.flock(self._file.fileno(), fcntl.LOCK_UN)

    def record(self, key: int) -> None:
        """Record that an object is read, if it is in the sample, and no other process has the lock right now.

        Args:
            key: of the object, in ``range(KEYS)``.
        """
        if key >= self._sampled:
            return
        with contextlib.suppress(OSError), self.locked(0) as totals:
            at = _HEADER.size + totals.num_reads % _RING * _READ.size
            os.pwrite(self._file.fileno(), _READ.pack(time.time(), key), at)
            totals.num_reads += 1
            if totals.num_reads % _MAX_OBJECTS == 0:
                self._thin(totals)

    def _reads(self, totals: Totals) -> list[tuple[float, int]]:
        """The recorded reads, the last one first."""
        data = os.pread(self._file.fileno(), _RING * _READ.size, _HEADER.size)
        reads = list(_READ.iter_unpack(data[: len(data) // _READ.size * _READ.size]))
        num = totals.num_reads
        return [reads[at % _RING] for at in range(num - 1, max(num - _RING, 0) - 1, -1) if at % _RING < len(reads)]

    def _thin(self, totals: Totals) -> None:
        """Halve the sample until it has few objects."""
        reads = self._reads(totals)
        while len({key for _, key in reads}) > _MAX_OBJECTS:
            totals.sampled //= 2
            reads = [read for read in reads if read[1] < totals.sampled]
        if len(reads) < min(totals.num_reads, _RING):
            os.pwrite(self._file.fileno(), b"".join(_READ.pack(*read) for read in reversed(reads)), _HEADER.size)
            totals.num_reads = len(reads)

    def unread_before(self, totals: Totals) -> float | None:
        """Return the time since which all objects were read that are still read; ``None`` if it is not known.

        An epoch reads each object once. So a time in which the objects of the sample were read twice on average is
        that of two epochs, of all datasets that are read in turn, and what was not read in it was left out of an epoch.
        """
        seen, now = set[int](), time.time()
        for number, (when, key) in enumerate(self._reads(totals), 1):
            seen.add(key)
            if number >= max(_MIN_READS, 2 * len(seen)):
                return now - _SLACK * (now - when)
        return None


class Room:
    """What this process may still store: reserved for many objects at once, since each look at the state is a lock.

    Thread-safe.

    Args:
        state: of the folder.
        max_bytes: bound on what the objects of all processes take.
    """

    def __init__(self, state: SharedState, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._state, self._lock = state, threading.RLock()
        self._chunk_bytes = min(max_bytes // _CHUNKS, _MAX_CHUNK_BYTES)
        self._free_bytes = self._reserved_bytes = 0  # now, and when the state was locked last
        self._given_back: deque[int] = deque()
        self._refused_bytes, self._ask_again_s = 0, 0.0

    def take(self, num_bytes: int, make_room: Callable[[Totals, int], None]) -> bool:
        """Take room for an object; returns whether there is any.

        Args:
            num_bytes: that its file takes.
            make_room: removes objects until so many bytes are free in the folder, if it can.

        Raises:
            OSError: if more has to be reserved, and another process holds the lock, or the disk takes no more.
        """
        with self._lock:
            self._collect()
            if self._free_bytes < num_bytes and not self._reserve(num_bytes, make_room):
                return False
            self._free_bytes -= num_bytes
            return True

    def _collect(self) -> None:
        while self._given_back:
            self._free_bytes += self._given_back.popleft()

    def _reserve(self, num_bytes: int, make_room: Callable[[Totals, int], None]) -> bool:
        if num_bytes >= self._refused_bytes and time.monotonic() < self._ask_again_s:
            return False
        began_s = time.thread_time()
        missing_bytes = num_bytes - self._free_bytes
        wanted_bytes = max(missing_bytes, self._chunk_bytes)
        with self._state.locked() as totals:
            if totals.used_bytes + wanted_bytes > self.max_bytes:
                make_room(totals, wanted_bytes)
            wanted_bytes = min(wanted_bytes, self.max_bytes - totals.used_bytes)
            is_enough = wanted_bytes >= missing_bytes
            if is_enough:
                totals.used_bytes += wanted_bytes
                self._free_bytes += wanted_bytes
            totals.reserved_bytes += self._free_bytes - self._reserved_bytes
            self._reserved_bytes = self._free_bytes
        if not is_enough:
            self._refused_bytes = num_bytes
            self._ask_again_s = time.monotonic() + _PAUSE * (time.thread_time() - began_s)
        return is_enough

    def give_back(self, num_bytes: int) -> None:
        """Take back the room of an object that was removed, or not stored. Safe in a finalizer."""
        self._given_back.append(num_bytes)

    def close(self) -> None:
        """Let other processes have what was not used."""
        with contextlib.suppress(OSError), self._state.locked(_CLOSE_S) as totals:
            self._collect()
            totals.used_bytes -= self._free_bytes
            totals.reserved_bytes -= self._reserved_bytes
            self._free_bytes = self._reserved_bytes = 0
