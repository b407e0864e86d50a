"""Threads for blocking requests."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from torchdata_remote.core.threads.pool import Pool, PoolClosedError

DEADLINE_S = 20.0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def test_runs_everything_in_order_of_submission() -> None:
    """With one thread, tasks run in the order of their submission, each with its arguments."""
    pool, done = Pool(1), threading.Event()
    seen: list[int] = []
    for number in range(100):
        pool.submit(seen.append, number)
    pool.submit(done.set)
    assert done.wait(DEADLINE_S)
    assert seen == list(range(100))
    pool.close()


@pytest.mark.parametrize("max_threads", [1, 3, 8])
def test_runs_as_many_at_once_as_allowed(max_threads: int) -> None:
    """Exactly ``max_threads`` tasks run at once when there are more of them, never more."""
    pool, lock, go = Pool(max_threads), threading.Lock(), threading.Event()
    running, most, finished = 0, 0, 0

    def task() -> None:
        nonlocal running, most, finished
        with lock:
            running += 1
            most = max(most, running)
        go.wait(DEADLINE_S)
        with lock:
            running -= 1
            finished += 1

    for _ in range(3 * max_threads):
        pool.submit(task)
    wait_for(lambda: running == max_threads)
    go.set()
    wait_for(lambda: finished == 3 * max_threads)
    assert most == max_threads
    pool.close()


def test_starts_no_more_threads_than_needed() -> None:
    """Tasks in sequence share one thread."""
    pool = Pool(16)
    for _ in range(20):
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(DEADLINE_S)
        wait_for(lambda: not pool._idle.empty())  # the thread has noted that it is free
    assert len(pool._threads) == 1
    pool.close()


def test_a_busy_thread_does_not_hold_up_a_task() -> None:
    """However tasks and threads were paired before, a new task starts at once while threads are left."""
    pool = Pool(4)
    for _ in range(50):
        quick = [threading.Event() for _ in range(3)]
        for event in quick:
            pool.submit(event.set)
        assert all(event.wait(DEADLINE_S) for event in quick)
    release, started = threading.Event(), threading.Semaphore(0)

    def block() -> None:
        started.release()
        release.wait(DEADLINE_S)

    for _ in range(4):
        pool.submit(block)
    assert all(started.acquire(timeout=DEADLINE_S) for _ in range(4))
    release.set()
    pool.close()


@pytest.mark.parametrize("max_threads", [1, 3])
def test_several_threads_submit_at_once(max_threads: int) -> None:
    """All tasks are done, each once, by no more threads than allowed."""
    pool, begin, all_done = Pool(max_threads), threading.Barrier(8), threading.Semaphore(0)
    done: list[int] = []
    by: set[int] = set()

    def task(number: int) -> None:
        done.append(number)
        by.add(threading.get_ident())
        all_done.release()

    def submit(first: int) -> None:
        begin.wait(DEADLINE_S)
        for number in range(first, first + 200):
            pool.submit(task, number)

    threads = [threading.Thread(target=submit, args=(200 * place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert all(all_done.acquire(timeout=DEADLINE_S) for _ in range(1600))
    assert sorted(done) == list(range(1600))
    assert len(by) <= max_threads
    assert len(pool._threads) <= max_threads
    pool.close()


def test_a_task_may_be_submitted_while_another_thread_starts_one() -> None:
    """A call while a thread is being started, such as by a finalizer in the same thread, does not wait for it."""
    pool, done = Pool(2), threading.Event()
    with pool._starting:
        pool.submit(done.set)
    pool.submit(lambda: None)
    assert done.wait(DEADLINE_S)
    pool.close()


def test_threads_are_not_counted_twice_as_idle() -> None:
    """Tasks that were submitted while another thread started one do not reduce the number of threads."""
    pool, done, go = Pool(2), threading.Event(), threading.Event()
    started = threading.Semaphore(0)

    def block() -> None:
        started.release()
        go.wait(DEADLINE_S)

    pool.submit(done.set)
    assert done.wait(DEADLINE_S)
    wait_for(lambda: not pool._idle.empty())
    done.clear()
    with pool._starting:
        pool.submit(done.set)
    assert done.wait(DEADLINE_S)
    wait_for(lambda: pool._tasks.empty() and pool._idle.qsize() >= 1)
    try:
        pool.submit(block)
        pool.submit(block)
        assert started.acquire(timeout=DEADLINE_S)
        assert started.acquire(timeout=0.5)
    finally:
        go.set()
        pool.close()


def test_close_ends_the_threads_and_drops_what_has_not_begun() -> None:
    """After ``close`` the task at hand ends, those in the queue never begin, and the threads go."""
    pool, begun, release, seen = Pool(1), threading.Event(), threading.Event(), []

    def task() -> None:
        begun.set()
        release.wait(DEADLINE_S)
        seen.append("first")

    dropped: list[PoolClosedError] = []
    pool.submit(task)
    pool.submit(seen.append, "second", on_dropped=dropped.append)
    assert begun.wait(DEADLINE_S)
    pool.close()
    release.set()
    pool.join(time.monotonic() + DEADLINE_S)
    assert not any(thread.is_alive() for thread in pool._threads)
    assert seen == ["first"]
    assert len(dropped) == 1, "whoever waits for it is told"


def test_closing_costs_the_same_whatever_the_limit() -> None:
    """A huge limit is a usual way to write "no limit": nothing is made for threads that were never started."""
    pool, ran = Pool(2**80), threading.Event()
    pool.submit(ran.set)
    assert ran.wait(DEADLINE_S)
    pool.close()
    assert pool._tasks.qsize() + pool._wake.qsize() <= 2
    pool.join(time.monotonic() + DEADLINE_S)
    assert not any(thread.is_alive() for thread in pool._threads)


def test_closing_ends_every_thread_and_every_sleep() -> None:
    """Also those that were asleep, or still at work, when the queue was emptied."""
    pool, begun = Pool(3), threading.Barrier(4)

    def task() -> None:
        begun.wait(DEADLINE_S)
        with pytest.raises(PoolClosedError):
            pool.sleep(3600)

    for _ in range(3):
        pool.submit(task)
    begun.wait(DEADLINE_S)
    pool.close()
    pool.drop_queued()
    pool.join(time.monotonic() + DEADLINE_S)
    assert not any(thread.is_alive() for thread in pool._threads)


def test_functions_that_no_thread_takes_are_dropped() -> None:
    """If all threads are busy when the interpreter ends, ``on_dropped`` is called for queued functions."""
    pool, begun, release, dropped = Pool(1), threading.Event(), threading.Event(), list[PoolClosedError]()

    def block() -> None:
        begun.set()
        release.wait(DEADLINE_S)

    pool.submit(block)
    assert begun.wait(DEADLINE_S)
    for _ in range(3):
        pool.submit(lambda: None, on_dropped=dropped.append)
    pool.close()
    pool.drop_queued()
    assert len(dropped) == 3
    release.set()


def test_sleep_ends_when_the_pool_closes() -> None:
    """Waiting between two attempts does not outlive the pool."""
    pool, ended = Pool(1), threading.Event()

    def task() -> None:
        with pytest.raises(PoolClosedError):
            pool.sleep(3600)
        ended.set()

    pool.submit(task)
    pool.sleep(0)
    pool.close()
    assert ended.wait(DEADLINE_S)


def test_a_forgotten_pool_can_be_collected_from_its_threads() -> None:
    """Idle threads hold nothing of what they ran."""

    class Big:
        pass

    pool, done = Pool(2), threading.Event()
    big = Big()
    held = [big]
    pool.submit(lambda it: done.set(), big)
    assert done.wait(DEADLINE_S)
    wait_for(lambda: not pool._idle.empty())
    wait_for(lambda: sys.getrefcount(big) <= 3)  # big, held, and the argument of getrefcount
    assert held
    pool.close()


def run_script(script: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def test_a_program_ends_although_a_request_stalls() -> None:
    """A thread that never returns keeps the interpreter for two seconds at the most."""
    script = (
        "import threading, time\n"
        "from torchdata_remote.core.threads.pool import Pool\n"
        "pool = Pool(1)\n"
        "pool.submit(threading.Event().wait)\n"
        "print('end', flush=True)\n"
    )
    start = time.monotonic()
    done = run_script(script)
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr
    assert time.monotonic() - start < 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_its_parents_threads() -> None:
    """At its exit a forked child leaves the parent's pool alone."""
    script = (
        "import os, sys, threading, time\n"
        "from torchdata_remote.core.threads.pool import Pool\n"
        "pool, release = Pool(1), threading.Event()\n"
        "pool.submit(release.wait)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    sys.exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
        "release.set()\n"
        "done = threading.Event()\n"
        "pool.submit(done.set)\n"
        "assert done.wait(10)\n"
    )
    done = run_script(script)
    assert done.returncode == 0, done.stderr


def test_a_task_that_raises_is_reported_and_its_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the log handler of a program."""
    reported, done = list[BaseException | None](), threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda arguments: reported.append(arguments.exc_value))
    pool = Pool(1)
    pool.submit(lambda: [][0])
    pool.submit(done.set)
    assert done.wait(20)
    assert [type(error) for error in reported] == [IndexError]
    pool.close()


def test_a_task_that_is_dropped_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error refers to frames, and they to what the task was given."""

    class Given:
        pass

    def task(given: Given, error: PoolClosedError | None = None) -> None:
        try:
            if error is not None:
                raise error
        except PoolClosedError:
            error = None

    given, pool, entered, go_on = Given(), Pool(1), threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert go_on.wait(20)

    pool.submit(wait)
    assert entered.wait(20)
    pool.submit(task, given, on_dropped=None)
    pool.close()
    gc.disable()
    try:
        alive = weakref.ref(given)
        del given
        go_on.set()
        wait_for(lambda: alive() is None)
    finally:
        gc.enable()
