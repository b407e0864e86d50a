"""End a DataLoader worker when the process that trains is gone, also by SIGKILL.

A torch worker that waits for a task checks every 5 s whether its parent process has changed. Under forkserver its
parent is the fork server, which lives as long as its workers; and a worker that waits for room in a full queue never
checks.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from multiprocessing import connection
from typing import Any

from torch.utils.data import get_worker_info

_STARTUP_S = 60.0  # for a process that was unpickling its task to become a worker
_POLL_S = 0.1

_watching: int | None = None  # process id


def wait_for_parent() -> bool:
    """Wait until the process that started this one is gone; ``False`` at once if that was not multiprocessing.

    Under fork, each sibling holds an end of the pipe that multiprocessing has for this, so the process itself is
    watched where the system can do that (Linux); a zombie is gone.
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
    """End this process when its trainer is gone, if it is a DataLoader worker; elsewhere nothing is done.

    Only the first call in a process costs more than a comparison.
    """
    if get_worker_info() is not None:
        _watch()


def _watch() -> None:
    global _watching
    if _watching != os.getpid():
        _watching = os.getpid()
        threading.Thread(target=_end_with_trainer, name="torchdata_remote-parent-watch", daemon=True).start()


def _end_with_trainer() -> None:
    deadline = time.monotonic() + _STARTUP_S
    while multiprocessing.parent_process() is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)  # it is known once the task has been unpickled
    if not wait_for_parent():
        return
    deadline = time.monotonic() + _STARTUP_S
    while get_worker_info() is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if get_worker_info() is not None:
        os._exit(1)  # exit handlers would wait for queues that have no reader


class WatchedWhenUnpickled:
    """Base of what DataLoader sends to its workers: also one that is never given a task ends with its trainer."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if getattr(multiprocessing.current_process(), "_inheriting", False):  # a new process unpickles its task
            _watch()
