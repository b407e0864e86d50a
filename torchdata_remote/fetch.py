"""The fetch engine: many requests in flight, bytes in memory bounded, objects handed on in order.

Whoever consumes plans: each time bytes are consumed, and when an answer tells a size that was not known, as many parts
as the byte bound allows are queued for the threads. So the bound is always full of bytes that are fetched, being
fetched, or next in the queue, and the source of URLs is only ever pulled from the consumer's thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator

from .errors import ObjectChangedError, TransientStorageError
from .options import FetchOptions, StorageOptions
from .pool import Pool
from .retry import call_with_retries
from .storage import Blob, RangeNotSatisfiableError, open_store
from .urls import RemoteUrl, redact

_OBJECTS_WAITING = 4


class Part:
    """A range of an object: queued, being fetched, or fetched."""

    __slots__ = ("data", "done", "end", "error", "reserved_bytes", "start")

    def __init__(self, start: int, end: int | None, reserved_bytes: int) -> None:
        self.start, self.end, self.reserved_bytes = start, end, reserved_bytes
        self.done = threading.Event()
        self.data: memoryview | None = None
        self.error: BaseException | None = None


class FetchedObject:
    """What is known and planned of one object."""

    def __init__(self, url: str, options: StorageOptions) -> None:
        self.url = str(url)
        self.store, self.path = open_store(url, options)
        trusted = isinstance(url, RemoteUrl) and not self.store.may_ignore_ranges
        self.size = url.size if isinstance(url, RemoteUrl) and trusted else None
        self.etag = url.etag if isinstance(url, RemoteUrl) else None
        self.planned_bytes = 0
        self.parts: deque[Part] = deque()
        self.started = False
        self.closed = False
        self.error: BaseException | None = None  # that the consumer has seen; nothing comes after it

    def completely_planned(self) -> bool:
        return self.closed or (self.started and self.size is not None and self.planned_bytes >= self.size)

    def can_plan(self) -> bool:
        """False also where the size is unknown until the first answer."""
        return not self.completely_planned() and not (self.started and self.size is None)


class Fetcher:
    """Fetches objects for one iteration of one pipe, in one process.

    Args:
        options: limits.
        storage_options: for the stores.
    """

    def __init__(self, options: FetchOptions, storage_options: StorageOptions) -> None:
        self.options = options
        self._storage_options = storage_options
        self._pool = Pool(options.max_in_flight)
        self._lock = threading.Lock()
        self._reserved_bytes = 0
        self._unplanned: dict[FetchedObject, None] = {}  # in order
        self._waiting_for_room = 0  # of those, how many the byte bound keeps from being planned; counted to 4
        self._users = 1  # whoever made it, and every open object
        self._leaving: deque[tuple[FetchedObject, Part | None] | None] = deque()
        self._pid = os.getpid()

    def open(self, url: str) -> FetchedObject:
        """Take an object on; parts of it are planned as far as the byte bound allows.

        Each call needs a ``close_object``.
        """
        target = FetchedObject(url, self._storage_options)
        with self._locked():
            self._users += 1
            self._unplanned[target] = None
            self._plan_ahead()
        return target

    def has_room(self) -> bool:
        """Whether more objects should be opened, to have something to plan when bytes are consumed."""
        return self._waiting_for_room < _OBJECTS_WAITING

    def next_part(self, target: FetchedObject, consumed: Part | None) -> Part | None:
        """Give back the consumed part, then wait for the next one; ``None`` at the object's end."""
        if os.getpid() != self._pid:
            raise RuntimeError(f"{redact(target.url)}: this stream was opened in another process; open it here.")
        if target.error is not None:
            raise target.error
        with self._locked():
            if consumed is not None:
                self._reserved_bytes -= consumed.reserved_bytes
            if not target.parts and target.can_plan():
                self._plan(target)  # whatever the bound says: the consumer must get on
            self._plan_ahead()
            part = target.parts.popleft() if target.parts else None
        if part is None:
            return None
        part.done.wait()
        if part.error is not None:
            target.error = part.error
            with self._locked():
                self._reserved_bytes -= part.reserved_bytes
            raise part.error
        return part

    def close_object(self, target: FetchedObject, consumed: Part | None) -> None:
        """Drop what was planned; requests that have not begun are not made. Safe in a finalizer."""
        target.closed = True
        self._leaving.append((target, consumed))
        self._settle()

    def release(self) -> None:
        """Whoever made this opens nothing more; the threads end with the last object. Safe in a finalizer."""
        self._leaving.append(None)
        self._settle()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        finally:
            self._settle()

    def _settle(self) -> None:
        """Let go of who is leaving, unless somebody holds the lock, who then does it on the way out.

        Finalizers run at any allocation, also in a thread that holds the lock. So they must not wait for it.
        """
        while self._leaving and os.getpid() == self._pid and self._lock.acquire(blocking=False):
            try:
                while self._leaving:
                    leaving = self._leaving.popleft()
                    self._users -= 1
                    if leaving is not None:
                        self._give_back(*leaving)
                if self._users == 0:
                    self._pool.close()
                else:
                    self._plan_ahead()
            finally:
                self._lock.release()

    def _give_back(self, target: FetchedObject, consumed: Part | None) -> None:  # with the lock held
        for part in target.parts if consumed is None else (*target.parts, consumed):
            self._reserved_bytes -= part.reserved_bytes
            part.reserved_bytes = 0
        target.parts.clear()
        self._unplanned.pop(target, None)

    def _plan_ahead(self) -> None:  # with the lock held
        finished = []
        self._waiting_for_room = 0
        for target in self._unplanned:
            while self._waiting_for_room == 0 and target.can_plan():
                wanted = self._next_part_bytes(target)
                if self._reserved_bytes > 0 and self._reserved_bytes + wanted > self.options.max_buffer_bytes:
                    break
                self._plan(target)
            if target.completely_planned():
                finished.append(target)
            self._waiting_for_room += target.can_plan()
            if self._waiting_for_room == _OBJECTS_WAITING:
                break  # many may be open; those behind wait anyway
        for target in finished:
            del self._unplanned[target]

    def _next_part_bytes(self, target: FetchedObject) -> int:
        if target.size is None:
            return self.options.part_bytes
        return min(self.options.part_bytes, target.size - target.planned_bytes)

    def _plan(self, target: FetchedObject) -> None:  # with the lock held
        num_bytes = self._next_part_bytes(target)
        start = target.planned_bytes
        part = Part(start, start + num_bytes if num_bytes else None, num_bytes)
        target.started = True
        target.planned_bytes += num_bytes
        target.parts.append(part)
        self._reserved_bytes += num_bytes
        self._pool.submit(self._fetch, target, part)

    def _fetch(self, target: FetchedObject, part: Part) -> None:
        """In a thread of the pool: fetch one part, keep its bytes or its error."""
        try:
            if not target.closed:
                blob = call_with_retries(lambda: _read(target, part), self.options.retry, sleep=self._pool.sleep)
                with self._locked():
                    self._accept(target, part, blob)
        except BaseException as error:  # noqa: BLE001  # it belongs to the consumer, whatever it is
            part.error = error
        finally:
            part.done.set()

    def _accept(self, target: FetchedObject, part: Part, blob: Blob) -> None:  # with the lock held
        if target.size is None:
            target.size = blob.total_bytes
            target.etag = target.etag or blob.etag
            target.planned_bytes = len(blob.data)
        elif target.size != blob.total_bytes:
            raise ObjectChangedError(
                f"{redact(target.url)} has {blob.total_bytes:,} bytes, where {target.size:,} were listed. It was "
                "replaced; list it again.",
                url=redact(target.url),
            )
        part.data = blob.data
        if part.reserved_bytes:  # 0 if the stream was closed meanwhile
            self._reserved_bytes += len(blob.data) - part.reserved_bytes
            part.reserved_bytes = len(blob.data)
        self._plan_ahead()  # the size may be known now, or the part be smaller than was reserved


def _read(target: FetchedObject, part: Part) -> Blob:
    try:
        blob = target.store.read(target.path, part.start, part.end, target.etag)
    except RangeNotSatisfiableError as error:
        if part.start == 0 and target.size is None:
            return target.store.read(target.path, 0, None, target.etag)  # an empty object has no ranges
        raise ObjectChangedError(
            f"{redact(target.url)} is shorter than the {target.size:,} bytes that were listed. It was replaced; "
            "list it again.",
            url=redact(target.url),
        ) from error
    expected = blob.total_bytes if part.end is None else min(part.end, blob.total_bytes)
    whole = target.size is None and part.start == 0 and len(blob.data) == blob.total_bytes
    if not whole and len(blob.data) != expected - part.start:
        raise TransientStorageError(
            f"{redact(target.url)}: bytes {part.start:,} to {expected:,} came as {len(blob.data):,} bytes.",
            url=redact(target.url),
        )
    return blob
