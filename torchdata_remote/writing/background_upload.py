"""Background upload: compress, hash and store chunks in worker threads."""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ..core.background import Worker
from ..core.checksums import BlockSummer, Checksums
from ..formats.compression.compress import Compressor
from ..storage import ObjectWriter
from .background_md5 import BackgroundMd5

Data = bytes | memoryview
_Chunk = tuple[list[Any], Callable[[list[Any]], bytes]]
T = TypeVar("T")

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


class BackgroundUpload:
    """Background upload: compress, hash and store chunks in a worker thread, and compute their MD5 in another.

    At most 8 MiB and four chunks of those that were written are held. One that is neither ended nor aborted is given up
    when it is collected or the interpreter ends: its threads end, and nothing of it stays behind.

    Args:
        pending: takes the bytes, and is used by this only from now on.
        compressor: applied to the bytes first.
    """

    def __init__(self, pending: ObjectWriter, compressor: Compressor | None = None) -> None:
        try:
            self._worker: Worker[_Chunk, Written] = Worker(
                partial(_store_all, pending, compressor), max_backlog=MAX_WAITING_BYTES
            )
        except BaseException:
            pending.abort()
            raise
        _live.add(self)

    def write(self, pieces: list[Data]) -> None:
        """Append a chunk, which is joined by the worker thread; wait while more than 4 MiB are not stored.

        Raises:
            BaseException: the error of storing a chunk before.
        """
        self.write_joined(pieces, b"".join, sum(map(len, pieces)))

    def write_joined(self, items: list[T], join: Callable[[list[T]], bytes], num_bytes: int) -> None:
        """Append a chunk as :meth:`write` does, which the worker thread makes.

        Args:
            items: from which it is made; the list belongs to this object from now on.
            join: makes it.
            num_bytes: of the chunk.
        """
        self._worker.put((items, join), num_bytes)

    def end(self, then: Callable[[Written], object] = lambda written: None) -> None:
        """Say that there are no more bytes. Returns at once; the object is completed in the background.

        Args:
            then: called by the worker thread when the object is stored; what it raises, ``result`` raises.
        """
        self._worker.end(then)

    @property
    def settled(self) -> bool:
        """Whether ``result`` would not wait: the object is stored, or has failed."""
        return self._worker.settled

    def result(self) -> Written:
        """Wait until an object that was ended is stored.

        Raises:
            BaseException: what went wrong.
        """
        return self._worker.result()

    def abort(self, timeout_s: float | None = None) -> None:
        """Remove what was stored, and end the thread. An object that was ended is waited for instead, and stays.

        Args:
            timeout_s: seconds to wait at most. After them, and when called in the worker thread itself, which may run a
                finalizer, the object is given up in the background.
        """
        self._worker.give_up()
        self._worker.join(timeout_s)


class _Store:
    """What the second thread does with chunks."""

    def __init__(self, pending: ObjectWriter, compressor: Compressor | None) -> None:
        self._pending, self._compressor = pending, compressor
        self.md5, self._blocks, self._num_bytes = BackgroundMd5(), BlockSummer(), 0

    def take(self, items: list[Any], join: Callable[[list[Any]], bytes]) -> None:
        """Make, compress and store a chunk."""
        chunk = join(items)
        items.clear()
        self._put(chunk if self._compressor is None else self._compressor.compress(chunk))

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


def _store_all(pending: ObjectWriter, compressor: Compressor | None, chunks: Iterator[_Chunk]) -> Written:
    """Store chunks until they end, and complete the object; or remove it, and raise what went wrong."""
    store = _Store(pending, compressor)
    try:
        for items, join in chunks:
            store.take(items, join)
        return store.finish()
    except BaseException:
        store.md5.end()
        _abort(pending)
        raise


def _abort(pending: ObjectWriter) -> None:
    try:
        pending.abort()
    except Exception as error:  # noqa: BLE001  # what led here is what has to be told
        _log.warning("what was written of an object could not be removed: %s", error)


@atexit.register
def _give_up_all() -> None:
    """Daemon threads are stopped where they are when the interpreter ends; so what they hold is removed before."""
    uploads = list(_live)
    for upload in uploads:
        upload.abort(0.0)
    deadline = time.monotonic() + _AT_EXIT_S
    for upload in uploads:
        upload.abort(max(0.0, deadline - time.monotonic()))
