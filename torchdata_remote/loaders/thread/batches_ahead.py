"""An iterator whose batches a background thread makes ahead."""

from __future__ import annotations

import contextvars
import os
import queue
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from ...core.threads.at_exit import close_at_exit
from ...core.threads.forks import ForkSafeThread
from ...core.threads.pool import CLOSED, PoolClosedError, next_item
from ..state.state_format import State
from .batch_maker import BatchMaker, StoppedError
from .device_copies import BatchCopies, Event


class _Made(NamedTuple):
    batch: Any
    event: Event | None
    state: State


class _Ended(NamedTuple):
    state: State


class _Failed(NamedTuple):
    error: BaseException


class BatchThread:
    """A thread that makes the batches of a pass, at most ``num_ahead`` more than were taken.

    It refers to no iterator, so that a forgotten one can be collected.

    Args:
        maker: of the batches.
        copies: of the maker.
        snapshot: returns the state after the items that the maker has taken.
        num_ahead: bound.
    """

    def __init__(self, maker: BatchMaker, copies: BatchCopies, snapshot: Callable[[], State], num_ahead: int) -> None:
        self._maker, self._copies, self._snapshot = maker, copies, snapshot
        self._num_ahead = num_ahead
        # Behind the first ones. True: make one more; False: stop
        self._permits: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[_Made | _Ended | _Failed] = queue.SimpleQueue()
        self._pid: int | None = None
        self._thread: ForkSafeThread | None = None

    def start(self) -> None:
        """Start the thread; it sees the context variables of the caller."""
        run = contextvars.copy_context().run
        self._pid = os.getpid()
        self._thread = ForkSafeThread(target=run, args=(self._run,), name="torchdata_remote-batches", daemon=True)
        close_at_exit(self)
        self._thread.start()

    @property
    def has_started(self) -> bool:
        """Whether batches are made."""
        return self._thread is not None

    @property
    def is_stopping(self) -> bool:
        """Whether it was stopped."""
        return self._maker.is_stopped

    def take(self) -> _Made | _Ended | _Failed:
        """Wait for the next result, and let one more be made.

        Raises:
            RuntimeError: in a forked child, which does not have the thread.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                "This pass of the thread_loader was begun in another process, from which this one was forked, and its "
                "thread is there. Begin a pass here: iter(loader)."
            )
        result = next_item(self._results)
        self._permits.put(True)
        return result

    def close(self) -> None:
        """Stop after the item that is being read. Does not wait. Safe in a finalizer."""
        self._maker.is_stopped = True
        self._permits.put(False)

    def join(self, deadline: float | None = None) -> None:
        """Wait for the end of the thread, until ``time.monotonic()`` is ``deadline``."""
        if os.getpid() == self._pid and self._thread is not None:
            with suppress(RuntimeError):  # an interrupt came before it was started
                self._thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def drop_queued(self) -> None:
        """Nothing waits for what was not made."""

    def _run(self) -> None:
        try:
            self._copies.enter_thread()
            num_made = 0
            while (num_made < self._num_ahead or self._permits.get()) and not self._maker.is_stopped:
                self._results.put(_Made(*self._maker.fetch(), self._snapshot()))
                num_made += 1
            self._stopped()
        except StopIteration:
            self._results.put(_Ended(self._snapshot()))
        except StoppedError:
            self._stopped()
        except BaseException as error:  # noqa: BLE001  # the consumer raises it, whatever it is
            self._results.put(_Failed(error))

    def _stopped(self) -> None:
        self._maker.close()
        # Seen by a function at exit that still reads
        self._results.put(_Failed(PoolClosedError(CLOSED)))


class BatchesAhead(Iterator[Any]):
    """The batches of a pass. The first ``next`` starts the thread that makes them; it stops if this is dropped.

    Args:
        thread: that makes them, not yet started.
        copies: of the thread's maker.
        snapshot: returns the state before the first batch.
    """

    def __init__(self, thread: BatchThread, copies: BatchCopies, snapshot: Callable[[], State]) -> None:
        self._thread, self._copies = thread, copies
        self._finished = False  # torchdata's name, for a pass whose end was seen
        self.position = snapshot()
        """The state after the last batch that was handed out."""
        weakref.finalize(self, thread.close).atexit = False

    def __next__(self) -> Any:
        if not self._thread.has_started:
            self._thread.start()
        result = self._thread.take()
        if isinstance(result, _Made):
            batch = self._copies.handed_out(result.batch, result.event)
            self.position = result.state
            return batch
        if isinstance(result, _Ended):
            self.position, self._finished = result.state, True
            raise StopIteration
        try:
            raise result.error
        finally:
            del result  # or error and frame would keep each other
