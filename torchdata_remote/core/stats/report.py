"""Where the time goes: what each stage of this process has done so far.

Whoever wants to know takes two snapshots and subtracts.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from dataclasses import asdict, dataclass
from types import TracebackType

from .counters import StageStats, elapsed_s, stages


@dataclass(frozen=True)
class Stats:
    """What the stages have done, in the order in which data pass them.

    The seconds of ``wait_s`` are of whoever takes the items, so that they add up: what is left of ``elapsed_s`` went
    into what comes after the stages, such as the training step.

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
        """Seconds that were spent outside of the stages: in the training step, in collating, in other pipes."""
        waited_s: float = sum(getattr(self, one.name).wait_s for one in stages)
        return max(0.0, self.elapsed_s - waited_s)

    @property
    def bottleneck(self) -> str:
        """The stage that was waited for longest; ``"rest"`` if that is what comes after the stages."""
        waits = {one.name: getattr(self, one.name).wait_s for one in stages}
        return max({**waits, "rest": self.rest_s}.items(), key=lambda item: item[1])[0]

    def as_json(self) -> str:
        """One line of JSON, with the number of the process."""
        return json.dumps({"pid": os.getpid(), **asdict(self), "rest_s": self.rest_s})

    def __str__(self) -> str:
        lines = ["stage          items        MB   wait s  of all   busy s  requests  retries"]
        for one in stages:
            did: StageStats = getattr(self, one.name)
            lines.append(
                f"{one.name:<8}{did.items:>12,}{did.num_bytes / 1e6:>10,.1f}{did.wait_s:>9.2f}"
                f"{self._part(did.wait_s):>8}{did.busy_s:>9.2f}{did.requests:>10,}{did.retries:>9,}"
            )
        lines.append(f"{'rest':<8}{'':>22}{self.rest_s:>9.2f}{self._part(self.rest_s):>8}")
        return "\n".join(lines)

    def _part(self, seconds: float) -> str:
        return f"{seconds / self.elapsed_s:.0%}" if self.elapsed_s > 0 else ""


def stats() -> Stats:
    """What the stages of this process have done so far. Processes count each for itself, also ``DataLoader`` workers.

    Example:
        >>> before = stats()
        >>> did = stats() - before
        >>> did.fetch.num_bytes, did.fetch.requests
        (0, 0)
        >>> did.bottleneck
        'rest'
    """
    return Stats(elapsed_s(), *(one.snapshot() for one in stages))


class Recording:
    """Lines of JSON about the stages of this process, which a thread appends to a file now and then.

    Args:
        path: of a local file.
        every_s: seconds between lines.
    """

    def __init__(self, path: str | os.PathLike[str], every_s: float) -> None:
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  # closed by the thread
        self._ended = threading.Event()  # noqa: TID251  # set by `close`, which is no finalizer
        self._every_s, self._pid = every_s, os.getpid()
        self._thread = threading.Thread(target=self._work, name="torchdata_remote", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _work(self) -> None:
        with self._file:
            ended = False
            while not ended:
                ended = self._ended.wait(self._every_s)
                print(stats().as_json(), file=self._file, flush=True)

    def close(self) -> None:
        """Write the last line. A second time, and in a forked process, nothing happens."""
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


def record_stats(path: str | os.PathLike[str], *, every_s: float = 1.0) -> Recording:
    """Append a line of JSON to a file now and then: what the stages of this process have done so far.

    In ``DataLoader`` workers: ``worker_init_fn=lambda worker: tdr.record_stats(f"stats-{worker}.jsonl")``.

    Args:
        path: of a local file.
        every_s: seconds between lines.

    Returns:
        What ends it: by ``close()``, by a ``with`` block, or else with the process; then the last line is written.

    Raises:
        OSError: if the file cannot be opened.
        ValueError: if ``every_s`` is not positive.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("r") as file, record_stats(file.name, every_s=60):
        ...     pass
    """
    if every_s <= 0:
        raise ValueError(f"every_s must be positive, got {every_s}")
    return Recording(path, every_s)
