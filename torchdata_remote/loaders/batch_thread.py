"""A thread that makes the batches of a pass ahead, as torch's loader does without workers; and their iterator."""

from __future__ import annotations

import contextvars
import os
import queue
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from itertools import count, islice
from typing import Any, NamedTuple

from ..core.threads import CLOSED, ForkSafeThread, PoolClosedError, close_at_exit, next_item
from .device_copies import BatchCopies, Event
from .state.state_format import State

Snapshot = Callable[[], State]
"""A position that was captured at little cost; the call makes the state of it."""


class _StoppedError(Exception):
    """The consumer takes no more batches."""


class _Result(NamedTuple):
    """A batch with the position after it; or an error, which is ``StopIteration`` at the end of the pass."""

    position: Snapshot | None
    batch: Any = None
    event: Event | None = None
    error: BaseException | None = None


class BatchThread:
    """Makes the batches of a pass, at most ``loader.prefetch_batches`` more than were taken.

    It refers to no iterator, so that a forgotten one can be collected.

    Args:
        items: of the pass.
        loader: with the options of torch's loaders.
        copies: pins batches and copies them to a device.
        capture: captures the position after the items that were taken.
    """

    def __init__(self, items: Iterator[Any], loader: Any, copies: BatchCopies, capture: Callable[[], Snapshot]) -> None:
        self._items, self._copies, self._capture = self._until_stopped(items), copies, capture
        self._num_ahead: int = loader.prefetch_batches
        self._batch_size: int = loader.batch_size or 0
        self._drop_last: bool = loader.drop_last
        # By these names pipes recognize a loader of torch
        self.auto_collation, self.collate_fn = loader.batch_size is not None, loader.collate_fn
        self._permits: queue.SimpleQueue[None] = queue.SimpleQueue()  # to make a batch, behind the first ones
        self._results: queue.SimpleQueue[_Result] = queue.SimpleQueue()
        self._pid: int | None = None
        self._thread: ForkSafeThread | None = None
        self.is_stopping = False

    def take(self) -> _Result:
        """Wait for the next result, and let one more be made; the first call starts the thread.

        Raises:
            RuntimeError: in a forked child, which does not have the thread.
        """
        if self._thread is None:
            self._start()
        if os.getpid() != self._pid:
            raise RuntimeError(
                "This pass of the thread_loader was begun in another process, from which this one was forked, and its "
                "thread is there. Begin a pass here: iter(loader)."
            )
        result = next_item(self._results)
        self._permits.put(None)
        return result

    def _start(self) -> None:
        run = contextvars.copy_context().run  # the thread sees the context variables of the caller
        self._pid = os.getpid()
        self._thread = ForkSafeThread(target=run, args=(self._run,), name="torchdata_remote-batches", daemon=True)
        close_at_exit(self)
        self._thread.start()

    def close(self) -> None:
        """Stop after the item that is being read. Does not wait. Safe in a finalizer."""
        self.is_stopping = True
        self._permits.put(None)

    def join(self, deadline: float | None = None) -> None:
        """Wait for the end of the thread, until ``time.monotonic()`` is ``deadline``."""
        if os.getpid() == self._pid and self._thread is not None:
            with suppress(RuntimeError):  # an interrupt came before it was started
                self._thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        try:
            self._copies.enter_thread()
            for number in count():
                if number >= self._num_ahead:
                    self._permits.get()
                if self.is_stopping:
                    raise _StoppedError
                batch, event = self.fetch()
                self._results.put(_Result(self._capture(), batch, event))
                del batch
        except StopIteration:
            self._results.put(_Result(self._capture(), error=StopIteration()))
        except _StoppedError:
            self._items.close()
            # Seen by a function at exit that still reads
            self._results.put(_Result(None, error=PoolClosedError(CLOSED)))
        except BaseException as error:  # noqa: BLE001  # the consumer raises it, whatever it is
            self._results.put(_Result(None, error=error))

    def fetch(self) -> tuple[Any, Event | None]:
        """Make the next batch.

        Returns:
            The batch, and what the consumer has to wait for, if it is being copied to a device.

        Raises:
            StopIteration: if there is none.
        """
        if not self.auto_collation:
            return self._copies.made(self.collate_fn(next(self._items)))
        samples = list(islice(self._items, self._batch_size))
        if not samples or (self._drop_last and len(samples) < self._batch_size):
            raise StopIteration
        return self._copies.made(self.collate_fn(samples))

    def _until_stopped(self, items: Iterator[Any]) -> Generator[Any, None, None]:
        try:
            for item in items:
                if self.is_stopping:
                    raise _StoppedError
                yield item
        finally:
            if hasattr(items, "close"):
                items.close()


class BatchesAhead(Iterator[Any]):
    """The batches of a pass. The first ``next`` starts the thread that makes them; it stops if this is dropped.

    Args:
        thread: that makes them, not yet started.
        copies: of the thread.
        position: before the first batch.
    """

    def __init__(self, thread: BatchThread, copies: BatchCopies, position: Snapshot) -> None:
        self._thread, self._copies = thread, copies
        self._finished = False  # torchdata's name, for a pass whose end was seen
        self.position: Snapshot | None = position
        """Makes the state after the last batch that was handed out."""
        weakref.finalize(self, thread.close).atexit = False

    def __next__(self) -> Any:
        result = self._thread.take()
        if result.error is None:
            batch = self._copies.handed_out(result.batch, result.event)
            self.position = result.position
            return batch
        if isinstance(result.error, StopIteration):
            self.position, self._finished = result.position, True
        try:
            raise result.error
        finally:
            del result  # or error and frame would keep each other
