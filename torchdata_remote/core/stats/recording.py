"""Record the counters of a process as lines of JSON, which ``torchdata-remote top`` reads."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import socket
import threading
import time
from multiprocessing.util import Finalize
from types import TracebackType
from typing import Any

from ..arguments import check
from ..arguments.amounts import seconds
from ..arguments.calls import explained
from ..processes.torch_state import get_worker_info
from ..threads.forks import ForkSafeThread
from ..world import detect_rank
from .counters import idle_s
from .report import counted_here
from .variable import FOLDER_EVERY_S, STATS_VARIABLE

_CLOSE_S = 5.0  # a network disk that hangs does not keep the process from ending
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

_log = logging.getLogger("torchdata_remote")


class Recording:
    """Appends the counters of this process to a file at regular intervals, as lines of JSON, in a thread.

    Each line is one ``write``, so several processes of a machine can append to one file. The file is opened for each
    line: other machines then see it on a network disk, and a file that was moved away is created again.

    Args:
        path: of a local file.
        every_s: seconds between lines.
    """

    def __init__(self, path: str | os.PathLike[str], every_s: float) -> None:
        self._path = os.path.abspath(path)
        os.close(os.open(self._path, _APPEND, 0o666))
        self._ended = threading.Event()  # noqa: TID251  # set by `close`, which is not a finalizer
        self._every_s, self._pid = every_s, os.getpid()
        self._is_torn = self._has_failed = False
        self._thread = ForkSafeThread(target=self._work, name="torchdata_remote", daemon=True)
        self._thread.start()
        # Not atexit, whose functions are not called in DataLoader workers that were forked
        self._at_exit = Finalize(None, self.close, exitpriority=1)

    def _work(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(self._every_s)
            try:
                self._append(ended)
            except OSError as error:  # such as a full disk
                if not self._has_failed:
                    _log.warning("%s: statistics are not recorded: %s", self._path, error)
                self._has_failed = True

    def _append(self, ended: bool) -> None:
        line = (
            json.dumps(
                {**_origin(), "idle_s": idle_s(), "every_s": self._every_s, "ended": ended, **counted_here().as_dict()}
            ).encode()
            + b"\n"
        )
        if self._is_torn:
            line = b"\n" + line
        file = os.open(self._path, _APPEND, 0o666)
        try:
            self._is_torn = os.write(file, line) < len(line)
        finally:
            os.close(file)

    def close(self) -> None:
        """Write the last line. Does nothing the second time, or in a forked process."""
        self._at_exit.cancel()
        if os.getpid() == self._pid:
            self._ended.set()
            self._thread.join(_CLOSE_S)

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _origin() -> dict[str, Any]:
    """Return when and where a line is written. ``worker`` is ``None`` in the process of the rank itself."""
    rank, world_size = None, None
    with contextlib.suppress(ValueError, RuntimeError):  # raised again where the data are split
        rank, world_size = detect_rank()
    info, parent = get_worker_info(), multiprocessing.parent_process()
    return {
        "time": round(time.time(), 3),
        "host": socket.gethostname(),
        "parent_pid": None if parent is None else parent.pid,
        "rank": rank,
        "world_size": world_size,
        "worker": None if info is None else info.id,
        "num_workers": 0 if info is None else info.num_workers,
    }


def record_in_folder(folder: str) -> Recording | None:
    """Record this process until it ends, in a file of its own. A folder that cannot be used is logged as a warning.

    Args:
        folder: local; created if it is missing.

    Returns:
        Recording: or ``None`` if there is none.
    """
    try:
        if "://" in folder:
            raise ValueError("expected a local folder")
        os.makedirs(folder, exist_ok=True)
        return Recording(os.path.join(folder, f"{socket.gethostname()}-{os.getpid()}.jsonl"), FOLDER_EVERY_S)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: the interpreter ends, and starts no threads
        _log.warning("%s=%s: statistics are not recorded: %s", STATS_VARIABLE, folder, error)
        return None


@explained
def record_stats(path: str | os.PathLike[str], *, every_s: float = 1.0) -> Recording:
    """Append the counters of this process to a file at regular intervals, one line of JSON each.

    To record all ranks and workers, set the environment variable ``TORCHDATA_REMOTE_STATS`` to a folder instead:
    ``torchdata-remote top FOLDER`` shows them.

    Several processes of one machine may append to one file. On a network disk each machine needs a file of its own.

    Args:
        path: of a local file.
        every_s: seconds between lines.

    Returns:
        Recording: a context manager with ``close()``, which writes the last line; so does the end of the process.

    Raises:
        OSError: if the file cannot be opened; says what to pass.
        ValueError: if ``every_s`` is not positive, or ``path`` is a URL.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("r") as file, record_stats(file.name, every_s=60):
        ...     pass
    """
    path = check.local_path("path", path, example="stats.jsonl")
    every_s = seconds("every_s", every_s)
    try:
        return Recording(path, every_s)
    except OSError as error:
        raise _explained(error, os.path.abspath(path)) from None


def _explained(error: OSError, path: str) -> OSError:
    """Return an error of the same class that says what to pass instead."""
    folder = os.path.dirname(path)
    if isinstance(error, IsADirectoryError):
        advice = (
            f"{path} is a folder, expected a file in it. Pass {os.path.join(path, 'stats.jsonl')}, or set "
            f"{STATS_VARIABLE}={path} in the environment, which records each process in a file of its own."
        )
    elif isinstance(error, FileNotFoundError):
        advice = f"{path}: the folder {folder} does not exist. Create it first: os.makedirs(folder, exist_ok=True)."
    elif isinstance(error, NotADirectoryError):
        advice = f"{path}: {folder} is no folder. Pass the path of a file in a local folder."
    else:
        advice = f"{path}: {error.strerror or error}. Pass the path of a file that this process may write."
    explained_error = type(error)(f"record_stats: {advice}")
    explained_error.errno = error.errno
    return explained_error
