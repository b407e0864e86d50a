"""Signals that reach all processes of a job: DataLoader workers leave them to the training process, which can save.

A terminal sends Ctrl-C, and Slurm or ``kill -TERM -PGID`` SIGTERM or SIGUSR1, to each process of a group. Among them is
multiprocessing's fork server; when that ends, torch takes its workers for lost. So the workers have one of their own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import forkserver, queues, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

from .parent_watch import end_worker_with_trainer

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]

# Once, instead of in each worker; also if a script imports them in a function
_PRELOADED = ["torch", "torchdata_remote.loaders", "torchdata_remote.datasets"]
_server = forkserver.ForkServer()
_of_thread = threading.local()


def start_worker(worker_init_fn: Callable[[int], None] | None, worker: int) -> None:
    """``worker_init_fn`` of a worker that goes on when these signals come, and ends with the training process.

    Args:
        worker_init_fn: of the user; called last.
        worker: number of the worker.
    """
    for number in _SIGNALS:
        # Programs that a worker starts inherit SIG_IGN, and their owner may end them by SIGTERM
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else _go_on)
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)  # blocked since before the fork
    end_worker_with_trainer()
    queues.Queue._on_queue_feeder_error = staticmethod(_end_worker)  # type: ignore[attr-defined]
    if worker_init_fn is not None:
        worker_init_fn(worker)


def _end_worker(error: Exception, item: object) -> None:
    """End a worker whose batch does not pickle: the loader would wait for it without end."""
    traceback.print_exception(error)
    os._exit(1)


def _go_on(number: int, frame: object) -> None:
    """Do nothing."""


@contextlib.contextmanager
def own_fork_server(context: Any) -> Iterator[None]:
    """Let the signals not end workers that are started in this block, nor the fork server from which they come.

    Args:
        context: of multiprocessing; ``None`` for the default one.
    """
    method = (context or multiprocessing).get_start_method()
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    if method == "fork":
        _of_thread.is_starting = True
        try:
            yield
        finally:
            _of_thread.is_starting = False
        return
    shared: Any = forkserver
    connect = shared.connect_to_new_process
    _start_servers(method)
    shared.connect_to_new_process = _server.connect_to_new_process
    try:
        yield
    finally:
        shared.connect_to_new_process = connect


def start_fork_server(context: Any) -> None:
    """Start the fork server of a loader that is being built: it imports what workers need while this process goes on.

    Args:
        context: of multiprocessing; ``None`` for the default one.
    """
    method = (context or multiprocessing).get_start_method()
    # A process that multiprocessing has started runs the main module, and a loader in it, to get its functions
    is_started = getattr(multiprocessing.current_process(), "_inheriting", False)
    if method == "forkserver" and hasattr(signal, "pthread_sigmask") and not is_started:
        _start_servers(method)


def _start_servers(method: str) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        resource_tracker.ensure_running()  # which SIGUSR1 would end
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # its start has unblocked some
        if method == "forkserver":
            shared: Any = forkserver
            _server.set_forkserver_preload([*shared._forkserver._preload_modules, *_PRELOADED])
            _server.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _block() -> None:
    """Let a worker be forked with the signals blocked, because torch's handlers come before ours."""
    if getattr(_of_thread, "is_starting", False):
        _of_thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _restore() -> None:
    if getattr(_of_thread, "is_starting", False):
        signal.pthread_sigmask(signal.SIG_SETMASK, _of_thread.mask)


def _forget_server() -> None:
    """Let a child that was forked start a server of its own: it cannot ask that of its parent whether it runs."""
    global _server
    _server = forkserver.ForkServer()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_block, after_in_parent=_restore, after_in_child=_forget_server)


def end_by_kill(batches: Any) -> None:
    """Let torch end the workers of an iterator by SIGKILL, 5 s after it has asked all of them to end.

    torch waits 5 s for each one, and then sends SIGTERM, as multiprocessing does when the interpreter ends.

    Args:
        batches: of a loader of torch or torchdata.
    """
    workers: Sequence[Any] = getattr(batches, "_workers", ())
    late: list[bool] = []
    for worker in workers:
        reference = weakref.ref(worker)
        worker.join = partial(_join, reference, late)
        worker._popen.terminate = partial(_kill, reference, id(batches))


def _join(worker: Callable[[], Any], late: list[bool], timeout: float | None = None) -> None:
    BaseProcess.join(worker(), 0 if late and timeout else timeout)
    if worker().is_alive():
        late.append(True)


def _kill(worker: Callable[[], Any], batches: int) -> None:
    from torch._C import _remove_worker_pids  # imported, since there are workers

    with contextlib.suppress(ValueError):  # torch has removed them
        _remove_worker_pids(batches)  # or torch would report that a worker was killed
    worker().kill()
