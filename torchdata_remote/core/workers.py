"""DataLoader workers: what they are sent, signals that they leave to the training process, and how they end.

A terminal sends Ctrl-C, and Slurm or ``kill -TERM -PGID`` SIGTERM or SIGUSR1, to each process of a group. Among them is
multiprocessing's fork server; when that ends, torch takes its workers for lost. So the workers have one of their own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import pickletools
import re
import signal
import traceback
import weakref
from collections import ChainMap
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from multiprocessing import forkserver, queues, resource_tracker
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

from ..errors import RemoteDataError, StateError, WorkerStartError
from .iter_datapipe import IterDataPipe
from .processes import ByValuePickler, end_worker_with_trainer, require_main_guard
from .progress import first_awaited
from .tracebacks import brief

T = TypeVar("T")

_IN_MEMORY = re.compile(r"memory://+[^/]+", re.IGNORECASE)
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]
# Once, instead of in each worker; also if a script imports them in a function
_PRELOADED = ["torch", "torchdata_remote.loaders", "torchdata_remote.datasets"]
_server = forkserver.ForkServer()


class SentToWorkers:
    """Base of objects that are sent to workers, functions and classes that those cannot import by value.

    What cannot be sent is an error in the process that starts them. A worker ends with its trainer, even if it gets no
    task.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        if get_spawning_popen() is not None and IterDataPipe.getstate_hook is None:  # sent to a new process
            return pickle.loads, (_packed(self),)
        reduced = super().__reduce_ex__(protocol)
        if IterDataPipe.getstate_hook is None:
            return reduced
        # torch looks for the sources of a pipe by pickling all of its collections, also without workers
        state = reduced[2] if len(reduced) > 2 and isinstance(reduced[2], dict) else {}
        return (*reduced[:2], {name: part for name, part in state.items() if _holds_pipes(part)}, *reduced[3:])

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        end_worker_with_trainer(starting=True)


class SentFunction(SentToWorkers):
    """A function that a loader sends to its workers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)


class _Pickler(ByValuePickler):
    def __init__(self) -> None:
        super().__init__()
        self.dispatch_table = ChainMap(ForkingPickler(self.file).dispatch_table, super().dispatch_table)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, SentToWorkers):
            return super(SentToWorkers, value).__reduce_ex__(self.proto)
        return super().reducer_override(value)


def _packed(value: object) -> bytes:
    """Pickle an object for a worker.

    Raises:
        WorkerStartError: if it does not pickle, or reads what is in the memory of this process.
    """
    pickler = _Pickler()
    try:
        pickler.dump(value)
    except RemoteDataError:
        raise
    except Exception as error:  # whatever its class does
        raise WorkerStartError(
            f"A {type(value).__name__} cannot be sent to a worker process: {error}. Open files and locks where they "
            "are used. num_workers=0 needs no processes."
        ) from error
    data = pickler.file.getvalue()
    for _, argument, _ in pickletools.genops(data) if re.search(b"memory://", data, re.IGNORECASE) else ():
        text = str(argument, "latin-1") if isinstance(argument, bytes | bytearray) else argument
        if isinstance(text, str) and (found := _IN_MEMORY.match(text)) is not None:
            raise WorkerStartError(
                f"{found[0]} is in the memory of this process, which worker processes do not share. Read it by threads "
                "(thread_loader) or with num_workers=0, or write the data to files."
            )
    return data


def _holds_pipes(value: object) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, IterDataPipe) or any(isinstance(part, IterDataPipe) for part in parts)


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


def start_fork_server(context: Any) -> None:
    """Start the fork server of a loader that is being built: it imports what workers need while this process goes on.

    Args:
        context: of multiprocessing; ``None`` for the default one.
    """
    # A process that multiprocessing has started runs the main module, and a loader in it, to get its functions
    is_started = getattr(multiprocessing.current_process(), "_inheriting", False)
    if _method(context) == "forkserver" and hasattr(signal, "pthread_sigmask") and not is_started:
        _start_servers("forkserver")


@contextlib.contextmanager
def starting_workers(context: Any) -> Iterator[None]:
    """Start workers in this block: signals of the job end neither them nor the fork server from which they come.

    Args:
        context: of multiprocessing; ``None`` for the default one.

    Raises:
        WorkerStartError: if a worker ended while it started, as without a main guard.
    """
    method = _method(context)
    if method != "fork":
        require_main_guard()
    try:
        with contextlib.nullcontext() if not hasattr(signal, "pthread_sigmask") else _shielded(method):
            yield
    except RuntimeError as error:
        if method == "fork" or "exited unexpectedly" not in str(error):
            raise
        raise WorkerStartError(
            "A worker process ended while it started, for the reason printed above. Each worker imports the script: "
            'put what starts workers into a function, and call it below `if __name__ == "__main__":`.'
        ) from error


def _method(context: Any) -> str:
    return str((context or multiprocessing).get_start_method())


@contextlib.contextmanager
def _shielded(method: str) -> Iterator[None]:
    if method == "fork":  # torch's handlers come before ours
        with _signals_blocked():
            yield
        return
    shared: Any = forkserver
    connect = shared.connect_to_new_process
    _start_servers(method)
    shared.connect_to_new_process = _server.connect_to_new_process
    try:
        yield
    finally:
        shared.connect_to_new_process = connect


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_servers(method: str) -> None:
    with _signals_blocked():
        resource_tracker.ensure_running()  # which SIGUSR1 would end
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # its start has unblocked some
        if method == "forkserver":
            shared: Any = forkserver
            _server.set_forkserver_preload([*shared._forkserver._preload_modules, *_PRELOADED])
            _server.ensure_running()


def _forget_server() -> None:
    """Let a child that was forked start a server of its own: it cannot ask that of its parent whether it runs."""
    global _server
    _server = forkserver.ForkServer()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_server)


def end_by_kill(batches: Any) -> None:
    """Let torch end the workers of an iterator by SIGKILL, 5 s after it has asked one to end.

    torch sends SIGTERM then, as multiprocessing does when the interpreter ends.

    Args:
        batches: of a loader of torch or torchdata.
    """
    for worker in getattr(batches, "_workers", ()):
        worker._popen.terminate = partial(_kill, weakref.ref(worker), id(batches))


def _kill(worker: Callable[[], Any], batches: int) -> None:
    from torch._C import _remove_worker_pids  # imported, since there are workers

    with contextlib.suppress(ValueError):  # torch has removed them
        _remove_worker_pids(batches)  # or torch would report that a worker was killed
    worker().kill()


def end_workers_of(batches: Any) -> None:
    """End the workers of an iterator of torch or torchdata, if it has any, after an error that is known."""
    if (shut_down := getattr(batches, "_shutdown_workers", None)) is not None:
        end_by_kill(batches)
        with contextlib.suppress(RuntimeError):  # of torch, about a worker that has ended
            shut_down()


def ended_on_error(items: Iterable[T], batches: Any, before: Callable[[], object] = lambda: None) -> Iterator[T]:
    """Yield items of a pass; after an error or an interrupt, end its workers at once.

    The error's traceback refers to the iterator, so that it is collected later and together with its queues. torch can
    then no longer notify the workers, and waits 5 s for each.

    Args:
        items: of the iterator, or the iterator itself.
        batches: the iterator; one without workers has nothing to end.
        before: called before the workers are ended.
    """
    try:
        yield from first_awaited(iter(items))
    except GeneratorExit:  # between two batches
        raise
    except BaseException:  # an interrupt may have come between the receipt of a batch and its count
        before()
        end_workers_of(batches)
        raise


class _Unbroken(chain[Any]):
    close: Callable[[], None]


def unbroken(items: Iterator[T]) -> Iterator[T]:
    """Yield items; after an error or an interrupt, a further request is an error.

    A generator that an exception has left ends as if it were complete, and a loop that goes on would lose the rest.
    No instruction of Python is executed between an item of a generator and the consumer, so that no signal comes there.

    Args:
        items: of a pass.

    Raises:
        StateError: if items are requested after an exception.
    """
    is_complete = False

    def followed() -> Generator[T, None, None]:
        nonlocal is_complete
        try:
            yield from items
        except Exception as error:  # noqa: BLE001  # raised again
            raise brief(error)  # noqa: B904  # the same error
        is_complete = True

    def require_complete() -> None:
        if not is_complete:
            raise StateError(
                "This pass was ended by an error or an interrupt, and cannot go on without a loss. Load a state, such "
                "as load_state_dict(loader.state_dict()), and begin another pass."
            )

    pass_ = followed()
    found = _Unbroken(pass_, iter(require_complete, None))
    found.close = pass_.close
    return found
