"""An object on its way out: compressed, summed and stored in threads of its own, beside whoever makes its bytes."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

from ..core.checksums import BlockSummer, Checksums
from ..core.threads.pool import next_item
from ..formats.compression.compress import Compressor
from ..storage.registry import ObjectWriter
from .background_md5 import BackgroundMd5

MAX_WAITING_BYTES = 4 << 20  # between whoever writes and the store

_AT_EXIT_S = 2.0

_log = logging.getLogger("torchdata_remote")
_live: weakref.WeakSet[BackgroundUpload] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _live.clear())  # the threads stayed with the parent


class Written(NamedTuple):
    """An object that is there: its size in bytes, hexadecimal MD5, and the sums of its blocks."""

    num_bytes: int
    md5: str
    checksums: Checksums


class _End(NamedTuple):
    """No more bytes; what is to be done when the object is there."""

    then: Callable[[Written], object]


class _Channel:
    """What is between the two threads; ``SimpleQueue`` because the object may be dropped by a finalizer.

    The outcome stays where it is: an exception, such as that of Ctrl-C, may hit whoever has just been told of it.
    """

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[list[bytes | memoryview] | _End | None] = queue.SimpleQueue()  # None: give it up
        self.stored: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # bytes of each chunk; None: it failed
        self.outcome: Written | BaseException | None = None
        self.settled = threading.Event()  # noqa: TID251  # set by the second thread, which never waits for it

    def settle(self, outcome: Written | BaseException) -> None:
        self.outcome = outcome
        self.settled.set()


class BackgroundUpload:
    """An object whose bytes are stored by another thread, while its MD5 is made by a third.

    At most 8 MiB and four chunks of those that were written are held. One that is neither ended nor aborted is given up
    when it is collected or the interpreter ends: its threads end, and nothing of it stays behind.

    Args:
        pending: takes the bytes; nobody else may use it from now on.
        compressor: what they go through first.
    """

    def __init__(self, pending: ObjectWriter, compressor: Compressor | None = None) -> None:
        self._channel, self._pid = _Channel(), os.getpid()
        self._waiting_bytes = 0
        self._thread = threading.Thread(
            target=_work, args=(self._channel, pending, compressor), name="torchdata_remote", daemon=True
        )
        try:
            self._thread.start()
        except BaseException:
            pending.abort()
            raise
        weakref.finalize(self, self._channel.tasks.put, None)
        _live.add(self)

    def write(self, pieces: list[bytes | memoryview]) -> None:
        """Append a chunk, which is joined by the other thread; waits while more than 4 MiB are on their way.

        Raises:
            BaseException: whatever went wrong with the bytes before.
        """
        self._check_process()
        while self._waiting_bytes > MAX_WAITING_BYTES or not self._channel.stored.empty():
            stored_bytes = next_item(self._channel.stored)
            if stored_bytes is None:
                self._channel.stored.put(None)
                self.result()
            else:
                self._waiting_bytes -= stored_bytes
        self._waiting_bytes += sum(map(len, pieces))
        self._channel.tasks.put(pieces)

    def end(self, then: Callable[[Written], object] = lambda written: None) -> None:
        """There are no more bytes. The object will appear or fail by itself from here; nothing is waited for.

        Args:
            then: called by the other thread when the object is there; what it raises is what ``result`` raises.
        """
        self._check_process()
        self._channel.tasks.put(_End(then))

    @property
    def settled(self) -> bool:
        """Whether ``result`` has not to wait: the object is there, or will never be."""
        return self._channel.settled.is_set()

    def result(self) -> Written:
        """Wait until an object that was ended is there.

        Raises:
            BaseException: whatever kept it from being there.
        """
        self._check_process()
        self._channel.settled.wait()
        self._thread.join()
        outcome = self._channel.outcome
        if isinstance(outcome, Written):
            return outcome
        assert outcome is not None
        try:
            raise outcome
        finally:
            del outcome  # or error and frame would keep each other

    def abort(self, timeout_s: float | None = None) -> None:
        """Leave nothing behind, and no thread. One that was ended is waited for instead, and stays.

        Args:
            timeout_s: seconds to wait at most; after them, and in its own thread, which may be running a finalizer, the
                object is given up by itself.
        """
        if os.getpid() == self._pid:
            self._channel.tasks.put(None)
            if threading.current_thread() is not self._thread:
                self._thread.join(timeout_s)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("This object was begun in another process, from which this one was forked.")


class _Store:
    """What the second thread does with chunks."""

    def __init__(self, pending: ObjectWriter, compressor: Compressor | None) -> None:
        self._pending, self._compressor = pending, compressor
        self.md5, self._blocks, self._num_bytes = BackgroundMd5(), BlockSummer(), 0

    def take(self, pieces: list[bytes | memoryview]) -> int:
        """Store a chunk; how many bytes it had before it was compressed."""
        chunk = b"".join(pieces)
        pieces.clear()
        self._put(chunk if self._compressor is None else self._compressor.compress(chunk))
        return len(chunk)

    def _put(self, chunk: bytes) -> None:
        if chunk:
            self._num_bytes += len(chunk)
            self.md5.update(chunk)
            self._blocks.update(chunk)
            self._pending.write(chunk)

    def finish(self) -> Written:
        """After the last chunk: the object appears."""
        if self._compressor is not None:
            self._put(self._compressor.flush())
        written = Written(self._num_bytes, self.md5.end(), self._blocks.checksums())
        self._pending.commit()
        return written


def _work(channel: _Channel, pending: ObjectWriter, compressor: Compressor | None) -> None:
    # Holds no reference to the object, so that a forgotten one can be collected.
    store, written = _Store(pending, compressor), None
    try:
        while isinstance(task := channel.tasks.get(), list):
            channel.stored.put(store.take(task))
        if task is None:
            raise InterruptedError("given up before its end")
        written = store.finish()
        task.then(written)
        channel.settle(written)
    except BaseException as error:  # noqa: BLE001  # it belongs to the one who writes, whatever it is
        store.md5.end()
        if written is None:
            _abort(pending)
        channel.settle(error)
        channel.stored.put(None)


def _abort(pending: ObjectWriter) -> None:
    try:
        pending.abort()
    except Exception as error:  # noqa: BLE001  # what led here is what has to be told
        _log.warning("what was written of an object could not be removed: %s", error)


@atexit.register
def _give_up_all() -> None:
    """Daemon threads are stopped where they are when the interpreter ends; so what they hold is removed before."""
    deadline = time.monotonic() + _AT_EXIT_S
    for outgoing in list(_live):
        outgoing.abort(max(0.0, deadline - time.monotonic()))
