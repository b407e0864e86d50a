"""Report the time spent in each stage of this process: subtract two snapshots of the counters."""

from __future__ import annotations

import atexit
import json
import os
import threading
from dataclasses import asdict, dataclass
from types import TracebackType

from ..arguments import check
from ..arguments.amounts import seconds
from ..arguments.calls import explained
from ..threads.forks import ForkSafeThread
from .counters import StageStats, elapsed_s, stages


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
    """

    elapsed_s: float
    list: StageStats
    fetch: StageStats
    read: StageStats
    decode: StageStats

    def __sub__(self, other: Stats) -> Stats:
        return Stats(
            self.elapsed_s - other.elapsed_s,
            *(getattr(self, one.name) - getattr(other, one.name) for one in stages),
        )

    @property
    def rest_s(self) -> float:
        """Seconds spent outside of the stages: in the training step, in collating, in other pipes."""
        waited_s: float = sum(getattr(self, one.name).wait_s for one in stages)
        return max(0.0, self.elapsed_s - waited_s)

    @property
    def bottleneck(self) -> str:
        """The stage with the longest wait; ``"rest"`` if more time was spent after the stages."""
        waits = {one.name: getattr(self, one.name).wait_s for one in stages}
        return max({**waits, "rest": self.rest_s}.items(), key=lambda item: item[1])[0]

    def as_json(self) -> str:
        """Return one line of JSON, with the id of the process."""
        return json.dumps({"pid": os.getpid(), **asdict(self), "rest_s": self.rest_s})

    def __str__(self) -> str:
        lines = ["stage          items        MB   wait s  of all   busy s  requests  retries"]
        for one in stages:
            counters: StageStats = getattr(self, one.name)
            lines.append(
                f"{one.name:<8}{counters.items:>12,}{counters.num_bytes / 1e6:>10,.1f}{counters.wait_s:>9.2f}"
                f"{self._percentage(counters.wait_s):>8}{counters.busy_s:>9.2f}{counters.requests:>10,}{counters.retries:>9,}"
            )
        lines.append(f"{'rest':<8}{'':>22}{self.rest_s:>9.2f}{self._percentage(self.rest_s):>8}")
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
        >>> difference.bottleneck
        'rest'
    """
    return Stats(elapsed_s(), *(one.snapshot() for one in stages))


class Recording:
    """Appends the counters of this process to a file at regular intervals, as lines of JSON, in a thread.

    Args:
        path: of a local file.
        every_s: seconds between lines.
    """

    def __init__(self, path: str | os.PathLike[str], every_s: float) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  # closed by the thread
        self._ended = threading.Event()  # noqa: TID251  # set by `close`, which is not a finalizer
        self._every_s, self._pid = every_s, os.getpid()
        self._thread = ForkSafeThread(target=self._work, name="torchdata_remote", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _work(self) -> None:
        with self._file:
            ended = False
            while not ended:
                ended = self._ended.wait(self._every_s)
                print(stats().as_json(), file=self._file, flush=True)

    def close(self) -> None:
        """Write the last line. Does nothing the second time, or in a forked process."""
        atexit.unregister(self.close)
        if os.getpid() == self._pid:
            self._ended.set()
            self._thread.join()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@explained
def record_stats(path: str | os.PathLike[str], *, every_s: float = 1.0) -> Recording:
    """Append the counters of this process to a file at regular intervals, one line of JSON each.

    In ``DataLoader`` workers: call it in a function that is passed as ``worker_init_fn``, at the top level of a module,
    because ``forkserver`` and ``spawn`` pickle it.

    Args:
        path: of a local file.
        every_s: seconds between lines.

    Returns:
        Recording: a context manager with ``close()``, which writes the last line; so does the end of the process.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if ``every_s`` is not positive.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("r") as file, record_stats(file.name, every_s=60):
        ...     pass
    """
    path = check.local_path("path", path, example="stats.jsonl")
    seconds("every_s", every_s)
    return Recording(path, every_s)
