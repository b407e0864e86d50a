"""End DataLoader workers when the training process has ended, also by SIGKILL.

A torch worker that waits for a task checks every 5 s whether its parent process has changed. That is not enough: under
forkserver the parent is the fork server, which lives as long as its workers, and a worker that waits for room in a full
queue never checks.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from multiprocessing import connection
from typing import Any

from .threads.forks import ForkSafeThread
from .torch_state import get_worker_info

# For a process that is still unpickling its task to become a worker
_STARTUP_S = 60.0
_POLL_S = 0.1

# Id of the process that has the watching thread: a forked child needs one of its own
_watching: int | None = None


def wait_for_parent() -> bool:
    """Wait until the process that started this one has ended; return ``False`` at once if there is none.

    Under fork, siblings hold an end of the pipe that multiprocessing uses for this. So the process itself is watched,
    too, where the system can do that (Linux). A zombie has ended.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return False
    watched: list[Any] = [parent.sentinel]
    with contextlib.ExitStack() as opened:
        if hasattr(os, "pidfd_open") and parent.pid is not None:
            with contextlib.suppress(OSError):  # an old kernel, or a sandbox
                watched.append(os.pidfd_open(parent.pid))
                opened.callback(os.close, watched[-1])
        connection.wait(watched)
    return True


def end_worker_with_trainer() -> None:
    """End this process when the training process has ended, if this is a DataLoader worker; otherwise do nothing.

    Only the first call in a process costs more than a comparison.
    """
    if get_worker_info() is not None:
        _watch()


def _watch() -> None:
    global _watching
    if _watching != os.getpid():
        _watching = os.getpid()
        ForkSafeThread(target=_end_with_trainer, name="torchdata_remote-parent-watch", daemon=True).start()


def _end_with_trainer() -> None:
    deadline = time.monotonic() + _STARTUP_S
    while multiprocessing.parent_process() is None and time.monotonic() < deadline:
        # It is known once the task has been unpickled
        time.sleep(_POLL_S)
    if not wait_for_parent():
        return
    deadline = time.monotonic() + _STARTUP_S
    while get_worker_info() is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if get_worker_info() is not None:
        # Exit handlers would wait for queues that have no reader
        os._exit(1)


class WatchedWhenUnpickled:
    """Base of objects that DataLoader sends to its workers: a worker ends with its trainer even if it gets no task."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        # Set while a new process unpickles its task
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            _watch()
