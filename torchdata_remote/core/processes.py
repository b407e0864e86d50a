"""Processes: who runs and on how many processors, what they are sent, and that they end with their parent."""

from __future__ import annotations

import ast
import contextlib
import io
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing import connection
from operator import attrgetter
from pathlib import Path
from types import FunctionType
from typing import Any

import cloudpickle

from ..errors import WorkerStartError
from .threads import ForkSafeThread
from .world import get_worker_info

# For a process that is still unpickling its task to become a worker
_STARTUP_S = 60.0
_POLL_S = 0.1

# Id of the process that has the watching thread: a forked child needs one of its own
_watching: int | None = None


def require_main_guard() -> None:
    """Refuse to start processes at a line that each of them would execute again, because it imports the script.

    Raises:
        WorkerStartError: says where to put the line.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # Its parent raises an error; the tracebacks of all workers would hide it
        sys.stderr.write("A worker process imports the script of its parent, which starts worker processes there.\n")
        sys.stderr.flush()
        os._exit(1)
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        is_script = frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
        if is_script and not _is_guarded(frame.f_code.co_filename, frame.f_lineno):
            raise WorkerStartError(
                f"{frame.f_code.co_filename}, line {frame.f_lineno}: worker processes would be started outside of "
                '`if __name__ == "__main__":`. Each of them imports the script, and would execute it again. Put this '
                'line into a function, and call it at the end of the script: `if __name__ == "__main__": main()`. '
                "num_workers=0 and thread_loader need no processes."
            )


def _is_guarded(script: str, line: int) -> bool:
    """Whether a line is below a condition of ``__name__``, or the script uses it otherwise.

    Also if workers do not import the script: ``__main__.py`` of a package, a cell of a notebook.
    """
    if os.path.basename(script) == "__main__.py":
        return True
    try:
        nodes = list(ast.walk(ast.parse(Path(script).read_bytes())))
    except (OSError, ValueError, SyntaxError):
        return True
    tests = [(one, ast.unparse(one.test)) for one in nodes if isinstance(one, ast.If)]
    guards = [(one, test) for one, test in tests if "__name__" in test]
    num_uses = sum(isinstance(one, ast.Name) and one.id == "__name__" for one in nodes)
    is_used_otherwise = num_uses > len(guards) or any("!=" in test for _, test in guards)
    return is_used_otherwise or any(one.lineno <= line <= (one.end_lineno or 0) for one, _ in guards)


def forks_by_default() -> bool:
    """Whether workers are forked where no start method was chosen; asking does not choose one."""
    default = multiprocessing.get_all_start_methods()[0]
    return (multiprocessing.get_start_method(allow_none=True) or default) == "fork"


def num_processors() -> int:
    """Count the processors of this process: those that it may run on, or as many as its container may use.

    ``os.cpu_count`` counts those of the machine, which may be 64 where a container has 4.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # missing on macOS
    num_usable = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no Linux, no cgroup, or no limit, which is called "max"
        allowed, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(num_usable, round(int(allowed) / int(period))))
    return num_usable


def num_processors_of_rank() -> int:
    """Divide the processors among the ranks of this machine, of which ``torchrun`` tells the number."""
    local_ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, num_processors() // max(1, int(local_ranks) if local_ranks.isdecimal() else 1))


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


def end_worker_with_trainer(*, starting: bool = False) -> None:
    """End this process when the training process has ended, if this is a DataLoader worker; otherwise do nothing.

    A torch worker that waits for a task checks every 5 s whether its parent process has changed. That is not enough:
    under forkserver the parent is the fork server, which lives as long as its workers, and a worker that waits for room
    in a full queue never checks. Only the first call in a process costs more than a comparison.

    Args:
        starting: whether this process may be unpickling the task of a worker.
    """
    global _watching
    is_worker = get_worker_info() is not None
    if starting:
        is_worker = getattr(multiprocessing.current_process(), "_inheriting", False)
    if is_worker and _watching != os.getpid():
        _watching = os.getpid()
        ForkSafeThread(target=_end_with_trainer, name="torchdata_remote-parent-watch", daemon=True).start()


def _end_with_trainer() -> None:
    # The parent is known once the task has been unpickled
    _wait_until(lambda: multiprocessing.parent_process() is not None)
    if wait_for_parent() and _wait_until(lambda: get_worker_info() is not None):
        # Exit handlers would wait for queues that have no reader
        os._exit(1)


def _wait_until(is_true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _STARTUP_S
    while not is_true() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return is_true()


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """cloudpickle's pickler, except for what is in a script that new processes import: that goes by reference.

    So a worker has the script's own classes, and its functions have the module's variables. A class of a notebook's
    cell is found in ``__main__`` of the worker too, so that its instances come back. ``pickle.loads`` restores what it
    has written to ``file``.
    """

    def __init__(self) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file)

    def reducer_override(self, value: Any) -> Any:
        is_class = isinstance(value, type)
        if not (is_class or isinstance(value, FunctionType)):
            return NotImplemented
        is_of_main = _is_in_main(value)
        if is_of_main and _is_main_imported():
            return NotImplemented
        reduced = super().reducer_override(value)
        if reduced is not NotImplemented and is_class and is_of_main and "." not in value.__qualname__:
            make, arguments, *rest = reduced
            return _made_in_main, (make, *arguments), *rest
        return reduced


def _is_main_imported() -> bool:
    """Return whether a new process imports this one's script: not that of a notebook or ``python -m package``."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    is_package = spec is not None and spec.name.rpartition(".")[2] == "__main__"
    return bool(getattr(main, "__file__", None)) and not is_package and not getattr(sys, "frozen", False)


def _is_in_main(value: Any) -> bool:
    try:
        return value.__module__ == "__main__" and attrgetter(value.__qualname__)(sys.modules["__main__"]) is value
    except AttributeError:  # of a function, deleted, or a lambda
        return False


def _made_in_main(make: Callable[..., type], *arguments: Any) -> type:
    made = make(*arguments)
    setattr(sys.modules["__main__"], made.__name__, made)
    return made
