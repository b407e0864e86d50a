"""Locks with names, for threads and for the event loop alike. One that is not in use takes no memory."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterator
from concurrent.futures import Future


class NamedLocks:
    """Mutual exclusion per name, in the order of arrival. A thread cannot hold the same lock twice.

    In a service a request waits in the event loop, without a thread: as many requests may wait for one name as there
    are connections, and other requests still find a thread.
    """

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._waiting: dict[Hashable, deque[Future[None]]] = {}  # behind the holder of each lock that is held

    @contextlib.contextmanager
    def held(self, name: Hashable) -> Iterator[None]:
        """Hold the lock of a name; a thread waits for it."""
        self._enter(name).result()
        try:
            yield
        finally:
            self._leave(name)

    @contextlib.asynccontextmanager
    async def held_in_loop(self, name: Hashable) -> AsyncIterator[None]:
        """Hold the lock of a name; a task waits for it, and may be cancelled meanwhile."""
        import asyncio  # here: few programs that use locks have an event loop

        turn = self._enter(name)
        try:
            await asyncio.wrap_future(turn)
        except BaseException:
            if not turn.cancelled() and not turn.cancel():  # it was this task's turn already
                self._leave(name)
            raise
        try:
            yield
        finally:
            self._leave(name)

    def __len__(self) -> int:
        """Return the number of locks that are held."""
        return len(self._waiting)

    def _enter(self, name: Hashable) -> Future[None]:
        """Queue for a lock; the future is done when it is held."""
        turn: Future[None] = Future()
        with self._guard:
            queue = self._waiting.get(name)
            if queue is not None:
                queue.append(turn)
                return turn
            self._waiting[name] = deque()
        turn.set_result(None)
        return turn

    def _leave(self, name: Hashable) -> None:
        while True:
            with self._guard:
                queue = self._waiting[name]
                if not queue:
                    del self._waiting[name]
                    return
                turn = queue.popleft()
            if turn.set_running_or_notify_cancel():
                turn.set_result(None)
                return
