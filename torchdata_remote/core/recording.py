"""Report the time spent in each stage of this process, or record it as lines of JSON: ``torchdata-remote top``."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.util import Finalize
from typing import Any

from . import arguments as check
from .arguments import explained, seconds
from .stats import FOLDER_EVERY_S, STATS_VARIABLE, StageStats, elapsed_s, idle_s, stages
from .threads import ForkSafeThread
from .world import detect_rank, get_worker_info

_CLOSE_S = 5.0  # a network disk that hangs does not keep the process from ending
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

_log = logging.getLogger("torchdata_remote")


@dataclass(frozen=True)
class Stats:
    """Counters of the stages, in the order in which data pass them.

    ``wait_s`` is measured in the consumer, so the seconds of the stages add up: the rest of ``elapsed_s`` was spent
    after them, such as in the training step.

    Args:
        elapsed_s: seconds since the process began, or since the snapshot that was subtracted.
        list: listing of URLs.
        fetch: bytes of objects.
        read: samples out of shards.
        decode: values out of bytes.
        num_workers: worker processes of this one, whose counters are their own and not in these.
    """

    elapsed_s: float
    list: StageStats
    fetch: StageStats
    read: StageStats
    decode: StageStats
    num_workers: int = field(default=0, kw_only=True)

    def __sub__(self, other: Stats) -> Stats:
        return Stats(
            self.elapsed_s - other.elapsed_s,
            *(getattr(self, one.name) - getattr(other, one.name) for one in stages),
            num_workers=self.num_workers,
        )

    @property
    def rest_s(self) -> float:
        """Seconds spent outside of the stages: in the training step, in collating, in other pipes."""
        waited_s: float = sum(getattr(self, one.name).wait_s for one in stages)
        return max(0.0, self.elapsed_s - waited_s)

    @property
    def bottleneck(self) -> str:
        """The stage with the longest wait; ``"rest"`` if more time was spent after all; ``"workers"`` if these read."""
        if self.num_workers and not self.samples:
            return "workers"
        waits = {one.name: getattr(self, one.name).wait_s for one in stages}
        return max({**waits, "rest": self.rest_s}.items(), key=lambda item: item[1])[0]

    @property
    def samples(self) -> int:
        """Samples that were read: from shards; otherwise decoded values; otherwise fetched objects."""
        return self.read.items or self.decode.items or self.fetch.items

    def as_dict(self) -> dict[str, Any]:
        """Return the counters as plain JSON, with the id of the process."""
        counters = asdict(self)
        del counters["num_workers"]
        return {"pid": os.getpid(), **counters, "rest_s": self.rest_s}

    def as_json(self) -> str:
        """Return one line of JSON, with the id of the process."""
        return json.dumps(self.as_dict())

    def as_scalars(self, prefix: str = "data/") -> dict[str, float]:
        """Return rates and shares of the time, for TensorBoard, wandb and the like.

        Args:
            prefix: of the names; a slash at its end makes them one group.

        Returns:
            dict: ``samples_per_s``, ``megabytes_per_s``, ``requests_per_s``, ``retries_per_s``, and the fraction of the
            time, 0 to 1, that the consumer waited: ``waiting`` for any stage, ``waiting_fetch`` and so on for each.

        Example:
            >>> before = stats()
            >>> (stats() - before).as_scalars()["data/samples_per_s"]
            0.0
        """
        each = [getattr(self, one.name) for one in stages]
        seconds = self.elapsed_s if self.elapsed_s > 0 else float("inf")
        scalars = {
            "samples_per_s": self.samples / seconds,
            "megabytes_per_s": self.fetch.num_bytes / seconds / 1e6,
            "requests_per_s": sum(one.requests for one in each) / seconds,
            "retries_per_s": sum(one.retries for one in each) / seconds,
            "waiting": min(1.0, sum(one.wait_s for one in each) / seconds),
            **{f"waiting_{stage.name}": one.wait_s / seconds for stage, one in zip(stages, each, strict=True)},
        }
        return {prefix + name: value for name, value in scalars.items()}

    def __str__(self) -> str:
        lines = ["stage          items        MB   wait s  of all   busy s  requests  retries"]
        for one in stages:
            counters: StageStats = getattr(self, one.name)
            lines.append(
                f"{one.name:<8}{counters.items:>12,}{counters.num_bytes / 1e6:>10,.1f}{counters.wait_s:>9.2f}"
                f"{self._percentage(counters.wait_s):>8}{counters.busy_s:>9.2f}{counters.requests:>10,}{counters.retries:>9,}"
            )
        lines.append(f"{'rest':<8}{'':>22}{self.rest_s:>9.2f}{self._percentage(self.rest_s):>8}")
        if self.num_workers:
            lines.append(
                f"These are of this process, not of its workers ({self.num_workers}). With "
                "TORCHDATA_REMOTE_STATS=FOLDER in the environment all record theirs: torchdata-remote top FOLDER"
            )
        return "\n".join(lines)

    def _percentage(self, seconds: float) -> str:
        return f"{seconds / self.elapsed_s:.0%}" if self.elapsed_s > 0 else ""


@explained
def stats() -> Stats:
    """Return the counters of this process so far. Each process has its own, ``DataLoader`` workers included.

    Example:
        >>> before = stats()
        >>> difference = stats() - before
        >>> difference.fetch.num_bytes, difference.fetch.requests
        (0, 0)
        >>> difference.samples
        0
    """
    return replace(counted_here(), num_workers=sum(child.daemon for child in multiprocessing.active_children()))


def counted_here() -> Stats:
    """Return the counters without a look at the worker processes."""
    return Stats(elapsed_s(), *(one.snapshot() for one in stages))


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
        told = {**_origin(), "idle_s": idle_s(), "every_s": self._every_s, "ended": ended, **counted_here().as_dict()}
        line = b"\n" * self._is_torn + json.dumps(told).encode() + b"\n"
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

    def __exit__(self, *exception: object) -> None:
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
        OSError: if the file cannot be opened.
        ValueError: if ``every_s`` is not positive, or ``path`` is a URL.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("r") as file, record_stats(file.name, every_s=60):
        ...     pass
    """
    path = check.local_path("path", path, example="stats.jsonl")
    every_s = seconds("every_s", every_s)
    return Recording(path, every_s)
