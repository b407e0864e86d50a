"""Read the lines of ``record_stats``, as they are appended to files."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, BinaryIO

from ..core.recording import Stats
from ..core.stats import StageStats, stages

SUFFIX = ".jsonl"
_MAX_TAIL_BYTES, _MIN_TAIL_BYTES, _ALL_TAILS_BYTES = 4 << 20, 64 << 10, 16 << 20
_COUNTERS = tuple(field.name for field in fields(StageStats))
_WHOLE_COUNTERS = ("items", "num_bytes", "requests", "retries")  # never fall


@dataclass(frozen=True)
class StatsLine:
    """Counters of a process at one moment.

    Args:
        stats: since the process began.
        pid: of the process.
        parent_pid: of the process that started it, for a ``DataLoader`` worker.
        host: name of its machine.
        rank: of the training process.
        world_size: number of ranks.
        worker: ``None`` in the process of the rank itself.
        num_workers: in the loader that started the worker.
        time_s: Unix time, by the clock of its machine.
        idle_s: seconds before the process did its first piece of work.
        every_s: seconds between lines.
        ended: whether it is the last line.
    """

    stats: Stats
    pid: int
    parent_pid: int | None = None
    host: str | None = None
    rank: int | None = None
    world_size: int | None = None
    worker: int | None = None
    num_workers: int | None = None
    time_s: float | None = None
    idle_s: float = 0.0
    every_s: float = 1.0
    ended: bool = False

    @classmethod
    def parse(cls, line: bytes | str) -> StatsLine:
        """Parse a line. Fields that earlier versions did not write may be missing.

        Raises:
            ValueError: if it is not such a line.
        """
        try:
            found = json.loads(line)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(found, dict):
            raise ValueError(f"expected an object, got a {type(found).__name__}")
        counted = [StageStats(*(_number(_stage(found, one.name).get(name, 0)) for name in _COUNTERS)) for one in stages]
        host = found.get("host")
        time_s = found.get("time")
        return cls(
            Stats(_number(found.get("elapsed_s")), *counted),
            int(_number(found.get("pid"))),
            # A lone surrogate could not be encoded where the name is shown
            host=host.encode("utf-8", "backslashreplace").decode() if isinstance(host, str) else None,
            time_s=None if time_s is None else _number(time_s),
            idle_s=_number(found.get("idle_s", 0.0)),
            every_s=_number(found.get("every_s", 1.0)),
            ended=found.get("ended") is True,
            **{name: _whole(found.get(name)) for name in ("parent_pid", "rank", "world_size", "worker", "num_workers")},
        )

    def is_of_another(self, before: StatsLine) -> bool:
        """Return whether a process wrote this line that has the number of the one that wrote an earlier line.

        Args:
            before: the latest line with the same host and number.
        """
        if self.stats.elapsed_s < before.stats.elapsed_s:
            return True
        if self.time_s is not None and before.time_s is not None and self.time_s - self.stats.elapsed_s > before.time_s:
            return True  # it began after that line
        did = self.stats - before.stats
        return any(getattr(getattr(did, one.name), name) < 0 for one in stages for name in _WHOLE_COUNTERS)


@dataclass(frozen=True)
class NewLines:
    """What was appended to a file since it was read before.

    Args:
        path: of the file.
        lines: that were understood.
        is_first: whether the file was not read before.
        age_s: seconds since the file was written, by its time stamp.
    """

    path: str
    lines: list[StatsLine]
    is_first: bool
    age_s: float


class StatsFiles:
    """Files of ``record_stats``, read from where they were read before; of new ones the end only.

    Args:
        paths: files, globs, and folders of ``*.jsonl``; looked up in each reading.
        wall_clock: Unix time.

    A file that was truncated or replaced is read from its start. Lines that are no statistics are counted in
    ``num_broken``, files that cannot be read are in ``unreadable`` with the reason.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]], *, wall_clock: Callable[[], float] = time.time) -> None:
        self._paths, self._wall_clock = [os.fspath(path) for path in paths], wall_clock
        self._positions: dict[str, tuple[tuple[int, int], int]] = {}  # device and inode, and bytes that were read
        self.num_broken = 0
        self.unreadable: dict[str, str] = {}

    def new_lines(self) -> Iterator[NewLines]:
        """Read what was appended."""
        paths = list(dict.fromkeys(found for path in self._paths for found in _expanded(path)))
        tail_bytes = max(_MIN_TAIL_BYTES, min(_MAX_TAIL_BYTES, _ALL_TAILS_BYTES // max(1, len(paths))))
        self.unreadable = {}
        for path in self._positions.keys() - set(paths):
            del self._positions[path]
        for path in paths:
            try:
                yield self._read(path, tail_bytes)
            except FileNotFoundError:  # noqa: PERF203  # removed meanwhile
                self._positions.pop(path, None)
            except OSError as error:
                self.unreadable[path] = error.strerror or str(error)

    def _read(self, path: str, tail_bytes: int) -> NewLines:
        with open(path, "rb", opener=_open) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError("no regular file")
            identity, size = (status.st_dev, status.st_ino), status.st_size
            known, start = self._positions.get(path, (None, 0))
            is_first = known != identity or size < start or not _ends_line(file, start)
            if is_first:
                start = 0
            skipped = size - start > tail_bytes
            if skipped:
                start = size - tail_bytes
            file.seek(start)
            content = file.read(size - start)
        end = content.rfind(b"\n") + 1
        self._positions[path] = identity, start + end
        whole = content[:end].split(b"\n")
        lines = []
        for line in whole[1:] if skipped else whole:  # the first one is cut
            if line.strip():
                try:
                    lines.append(StatsLine.parse(line))
                except ValueError:
                    self.num_broken += 1
        return NewLines(path, lines, is_first, max(0.0, self._wall_clock() - status.st_mtime))


def _ends_line(file: BinaryIO, position: int) -> bool:
    """Return whether a line ends before a position, as it did when it was read. A new file may have the old number."""
    file.seek(max(0, position - 1))
    return position == 0 or file.read(1) == b"\n"


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a named pipe is not waited for


def _expanded(path: str) -> list[str]:
    if os.path.isdir(path):
        with contextlib.suppress(OSError):
            return sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(SUFFIX))
        return []
    return [path] if os.path.exists(path) else sorted(glob.glob(path))


def _stage(found: dict[str, Any], name: str) -> dict[str, Any]:
    stage = found.get(name)
    if not isinstance(stage, dict):
        raise ValueError(f"expected the counters of {name!r}")
    return stage


def _number(value: object) -> Any:
    if not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"expected a number, got {value!r:.50}")
    return value


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
