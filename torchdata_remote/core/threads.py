"""Threads that survive forks, finalizers and the interpreter's end: pools for blocking requests, and locks.

``concurrent.futures`` is not used because it joins its threads at exit without a timeout: a stalled read would keep a
finished program from ending.

A forked child has a copy of each lock, but not the thread that would release it. OpenSSL, which is Python's TLS, takes
locks of the process when a thread makes its first TLS context, and again, after Python has let go of it, when that
thread ends. A DataLoader worker forked in that moment waits forever (12 of 1,000 forks, if threads end just before).
So a fork waits for our threads that are ending.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Hashable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from ..errors import StorageError
from .notices import look

T = TypeVar("T")

num_forks = 0
"""Forks between the first process that imported this and the present one: compared faster than process ids."""
_POLL_S = 0.5  # a signal that arrives just before a wait is seen at the end of it
_AT_EXIT_S = 2.0
_MAX_FORK_WAIT_S = 5.0
_FORK_POLL_S = 0.0005

_end = threading.RLock()  # held while a fork is under way: no thread ends
_ending: deque[int] = deque()  # native ids of threads that may still be in OpenSSL


class ForkSafeThread(threading.Thread):  # noqa: TID251  # the only use
    """A thread whose end a fork waits for."""

    def run(self) -> None:
        try:
            super().run()
        finally:
            with _end:
                _forget_ended()
                _ending.append(threading.get_native_id())


def _forget_ended() -> None:
    # Linux; elsewhere fork is not the default
    while _ending and not os.path.exists(f"/proc/self/task/{_ending[0]}"):
        _ending.popleft()


def _before_fork() -> None:
    deadline = time.monotonic() + _MAX_FORK_WAIT_S
    _end.acquire()
    _forget_ended()
    while _ending and time.monotonic() < deadline:
        time.sleep(_FORK_POLL_S)
        _forget_ended()


def _after_fork_in_child() -> None:
    global _end, num_forks, _pools
    _end, _pools = threading.RLock(), SharedPools()
    num_forks += 1
    _ending.clear()
    _live.clear()  # the threads stayed with the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=lambda: _end.release(), after_in_child=_after_fork_in_child
    )


class _Closable(Protocol):
    """What has threads that are ended before the interpreter ends."""

    def close(self) -> None: ...

    def join(self, deadline: float) -> None: ...


_live: weakref.WeakSet[_Closable] = weakref.WeakSet()


def close_at_exit(owner: _Closable) -> None:
    """Close an owner of threads before the interpreter ends, and wait for its threads: for all owners 2 s at most.

    Stopping a thread inside a native call would abort the process.
    """
    _live.add(owner)


@atexit.register
def _close_all() -> None:
    owners = list(_live)
    for owner in owners:
        owner.close()
    deadline = time.monotonic() + _AT_EXIT_S
    for owner in owners:
        owner.join(deadline)


class FinalizerLock(Generic[T]):
    """A lock whose holder, when it releases it, settles the items that finalizers left meanwhile.

    Finalizers run at any allocation, even in a thread that holds the lock, so they must not wait for it.

    Args:
        settle: called with each item, with the lock held; it must not raise.
    """

    def __init__(self, settle: Callable[[T], object]) -> None:
        self._settle = settle
        # Not reentrant: not even a finalizer of the same thread may see the guarded state half changed
        self._lock = threading.Lock()  # noqa: TID251  # finalizers try it and never wait for it
        self._items: deque[T] = deque()
        self._num_forks = num_forks

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
        if self._items:
            self._settle_all()

    def settle(self, item: T) -> None:
        """Settle an item now, or leave it to the holder of the lock. Does nothing in a forked child."""
        self._items.append(item)
        self._settle_all()

    def end(self) -> None:
        """Drop what is settled from now on. Call this when the owner of the lock has ended.

        The lock keeps ``settle``, mostly a method of its owner: without this, the two would keep each other until a
        collection. Safe in a finalizer, and in ``settle``.
        """
        self._settle = _ignore

    def _settle_all(self) -> None:
        while self._items and num_forks == self._num_forks and self._lock.acquire(blocking=False):
            try:
                while self._items:
                    self._settle(self._items.popleft())
            finally:
                self._lock.release()


def _ignore(item: object) -> None:
    """Do nothing."""


def next_item(items: queue.SimpleQueue[T]) -> T:
    """Return the next item of a queue; raise if the parent process has ended, which would leave this one waiting.

    While it waits, requests that take long are reported.

    Raises:
        SystemExit: if this process was started by another one, which has ended. torch would catch an ``Exception``, and
            under forkserver its workers do not notice the end of the training process themselves.
    """
    while True:
        try:
            return items.get(timeout=_POLL_S)
        except queue.Empty:  # noqa: PERF203  # twice a second
            look()
            parent = multiprocessing.parent_process()
            if parent is not None and not parent.is_alive():
                raise SystemExit("the process that started this worker has ended") from None


class PoolClosedError(StorageError):
    """The pool is closed: by its owner, or because the interpreter ends."""


CLOSED = (
    "Nothing is fetched once the interpreter shuts down. Read before that, or register the atexit handler that reads "
    "after torchdata_remote was imported."
)

_Task = tuple[Callable[..., None], tuple[Any, ...], Callable[[PoolClosedError], object] | None]


class Pool:
    """Runs functions in up to ``max_threads`` daemon threads, which are started where none is idle."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[ForkSafeThread] = []
        self._starting = FinalizerLock(self._start_thread)
        # One for each thread that waits, until all threads were started
        self._idle: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._closed = [False]
        # A queue and not an Event, because close() may run in a finalizer, at any allocation of any thread
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        close_at_exit(self)

    @property
    def closed(self) -> bool:
        """Whether the pool refuses further functions."""
        return self._closed[0]

    def submit(
        self,
        function: Callable[..., None],
        *arguments: Any,
        on_dropped: Callable[[PoolClosedError], object] | None = _ignore,
    ) -> None:
        """Run ``function`` in a thread. It must not raise. Safe in a finalizer.

        Args:
            function: called with ``arguments``.
            arguments: for it.
            on_dropped: called instead, in any thread, if the pool is closed before the function starts; must not raise.
                Otherwise a consumer would wait for the function forever. ``None`` calls the function, with the error as
                its last argument.

        Raises:
            PoolClosedError: if the pool is closed, as all are when the interpreter ends, or no thread can be started.
        """
        self.check()
        self._tasks.put((function, arguments, on_dropped))
        if len(self._threads) < self._max_threads:
            try:
                self._idle.get_nowait()
            except queue.Empty:
                self._starting.settle(None)

    def _start_thread(self, _: None) -> None:
        # Called by one thread at a time
        if len(self._threads) < self._max_threads:
            shared = self._tasks, self._idle, self._closed, self._threads, self._max_threads
            thread = ForkSafeThread(target=_work, args=shared, name="torchdata_remote", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # No more threads can be started; those that run are enough
                if not self._threads:
                    limits = "See `ulimit -u`, and the container's limit of processes."
                    why = CLOSED if "shutdown" in str(error) else limits
                    raise PoolClosedError(f"No thread can be started: {error}. {why}") from error
            else:
                self._threads.append(thread)

    def check(self) -> None:
        """Raise if the pool is closed.

        Raises:
            PoolClosedError: if it is.
        """
        if self._closed[0]:
            raise PoolClosedError(CLOSED)

    def sleep(self, seconds: float, *, is_closed: Callable[[], bool] = lambda: False) -> None:
        """Sleep, unless the pool or the caller's work is closed meanwhile (polled every 0.5 s).

        Args:
            seconds: to sleep.
            is_closed: returns whether the caller's work is closed.

        Raises:
            PoolClosedError: if the pool or the work is closed.
        """
        while seconds > 0 and not is_closed():
            try:
                self._wake.get(timeout=min(seconds, _POLL_S))
            except queue.Empty:  # noqa: PERF203  # twice a second
                seconds -= _POLL_S
            else:
                self._wake.put(None)  # for the next one that sleeps
                raise PoolClosedError(CLOSED)
        if is_closed():
            raise PoolClosedError(CLOSED)

    def close(self) -> None:
        """End the threads after their current functions. Does not wait."""
        self._closed[0] = True
        # One for all threads: each puts it back, so that closing costs the same whatever the limit
        self._wake.put(None)
        self._tasks.put(None)

    def join(self, deadline: float) -> None:
        """Wait for the threads, until ``time.monotonic()`` is ``deadline``."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _work(
    tasks: queue.SimpleQueue[_Task | None],
    idle: queue.SimpleQueue[None],
    closed: list[bool],
    threads: list[ForkSafeThread],
    max_threads: int,
) -> None:
    # Holds no reference to the pool, so that a forgotten one can be collected
    while (task := tasks.get()) is not None:
        function, arguments, on_dropped = task
        if not closed[0]:
            try:
                function(*arguments)
            except Exception:  # noqa: BLE001  # such as of the program's own log handler; the thread goes on for the others
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        # No variable here refers to the error: its traceback may refer to this frame
        elif on_dropped is None:
            function(*arguments, PoolClosedError(CLOSED))
        else:
            on_dropped(PoolClosedError(CLOSED))
        del task, function, arguments, on_dropped
        if len(threads) < max_threads:
            idle.put(None)
    tasks.put(None)  # for the next thread


class SharedPools:
    """Pools that all consumers of a process share: one for each number of threads.

    The first consumer starts one, and its threads end with the last one.
    """

    def __init__(self) -> None:
        self._pools: dict[int, Pool] = {}
        self._num_users: dict[Pool, int] = {}
        self._lock: FinalizerLock[Pool] = FinalizerLock(self._settle)

    def join(self, num_threads: int) -> Pool:
        """Return the pool of so many threads, with one more user. Each calls :meth:`leave` once."""
        with self._lock:
            pool = self._pools.get(num_threads)
            if pool is None or pool.closed:
                pool = self._pools[num_threads] = Pool(num_threads)
            self._num_users[pool] = self._num_users.get(pool, 0) + 1
            return pool

    def leave(self, pool: Pool) -> None:
        """Record that a user needs the pool no longer. Safe in a finalizer; does nothing in a forked child."""
        self._lock.settle(pool)

    def _settle(self, pool: Pool) -> None:  # with the lock held
        self._num_users[pool] -= 1
        if not self._num_users[pool]:
            del self._num_users[pool]
            pool.close()


_pools = SharedPools()


def shared_pools() -> SharedPools:
    """The pools of this process. A forked child has none of its parent's."""
    return _pools


# Called with a function that sleeps for a number of seconds
Task = Callable[[Callable[[float], None]], T]


def ordered_map(tasks: Iterable[Task[T]], *, max_threads: int) -> Generator[T, None, None]:
    """Yield the results of functions that wait for a store, in their order.

    Args:
        tasks: each is called in a thread, with a function to sleep by, which raises once the results are closed.
        max_threads: tasks that run at once. As many further results may be buffered.

    Raises:
        Exception: the error of a task, in the order of the tasks. Tasks that were not started are dropped.

    Example:
        >>> list(ordered_map([lambda wait, n=n: n * n for n in range(4)], max_threads=2))
        [0, 1, 4, 9]
    """
    source = iter(tasks)
    running: deque[queue.SimpleQueue[tuple[T] | BaseException]] = deque()
    with contextlib.closing(Pool(max_threads)) as pool:
        while True:
            while len(running) < 2 * max_threads and (task := next(source, None)) is not None:
                running.append(queue.SimpleQueue())
                pool.submit(_run, task, pool.sleep, running[-1], on_dropped=running[-1].put)
            if not running:
                return
            result = next_item(running.popleft())
            if isinstance(result, BaseException):
                raise result
            yield result[0]


def _run(task: Task[T], sleep: Callable[[float], None], answer: queue.SimpleQueue[tuple[T] | BaseException]) -> None:
    try:
        answer.put((task(sleep),))
    except BaseException as error:  # noqa: BLE001  # the consumer raises it, whatever it is
        answer.put(error)


class NamedLocks:
    """Locks with names, for threads and for the event loop alike, in the order of arrival.

    A thread cannot hold the same lock twice. One that is not in use takes no memory. In a service a request waits in
    the event loop, without a thread: as many requests may wait for one name as there are connections, and other
    requests still find a thread.
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
