"""A forked process can use TLS, whatever the threads of its parent were doing."""

from __future__ import annotations

import os
import queue
import select
import signal
import ssl
import threading
from collections.abc import Callable

import pytest

from tests.support.waiting import wait_for
from torchdata_remote.core.threads import forks
from torchdata_remote.core.threads.forks import ForkSafeThread, hold_forks
from torchdata_remote.core.threads.pool import Pool

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
DEADLINE_S = 20.0
FORKS = 100  # without the wait, 12 of 1,000 children hang


def use_tls() -> None:
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def child_ends(work: Callable[[], object]) -> bool:
    """Fork a child that does the work in a thread."""
    done, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        thread = threading.Thread(target=lambda: (work(), os.write(write_end, b"x")), daemon=True)
        thread.start()
        thread.join()
        os._exit(0)
    ended = bool(select.select([done], [], [], DEADLINE_S)[0])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(done)
    os.close(write_end)
    return ended


def end_pool() -> None:
    """End 16 threads that have used TLS."""
    pool, done = Pool(16), queue.SimpleQueue[None]()

    def work() -> None:
        use_tls()
        done.put(None)

    for _ in range(16):
        pool.submit(work)
    for _ in range(16):
        done.get()
    pool.close()


def test_a_fork_while_threads_end_leaves_tls_usable() -> None:
    for number in range(FORKS):
        end_pool()
        assert child_ends(use_tls), f"child {number} hangs"


def test_a_fork_waits_for_the_block_of_another_thread() -> None:
    entered, leave, order = threading.Event(), threading.Event(), []

    def hold() -> None:
        with hold_forks():
            entered.set()
            leave.wait(DEADLINE_S)
            order.append("block ended")

    def fork() -> None:
        forking.set()
        assert child_ends(lambda: None)
        order.append("forked")

    forking = threading.Event()
    threads = [ForkSafeThread(target=hold), threading.Thread(target=fork)]
    threads[0].start()
    assert entered.wait(DEADLINE_S)
    threads[1].start()
    assert forking.wait(DEADLINE_S)
    leave.set()
    for thread in threads:
        thread.join()
    assert order == ["block ended", "forked"]


def test_a_fork_within_a_block_of_the_same_thread_works() -> None:
    with hold_forks():
        assert child_ends(lambda: hold_forks().__enter__())
    assert child_ends(use_tls)


def test_threads_that_have_ended_are_forgotten() -> None:
    """A process that starts many and never forks does not collect their ids."""
    for _ in range(3):
        thread = ForkSafeThread(target=lambda: None)
        thread.start()
        thread.join()
        native_id = thread.native_id
        wait_for(lambda native_id=native_id: not os.path.exists(f"/proc/self/task/{native_id}"))  # type: ignore[misc]
    assert len(forks._ending) <= 1
