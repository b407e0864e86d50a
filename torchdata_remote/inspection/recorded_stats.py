"""Follow a running training by the files of ``record_stats``."""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ..core import arguments as check
from ..core.arguments import explained
from .stats_lines import NewLines, StatsFiles, StatsLine
from .training_stats import ProcessStats, State, TrainingStats

_RECENT_S = 10.0
_STALLED_S, _STALLED_LINES = 10.0, 3  # no line for so long, or for so many intervals
_SHOWN_S = 60.0  # a process that has ended, before others ended or after
_MAX_NAMED = 4


_Key = tuple[str, str | None, int]  # file, host, pid


@dataclass
class _Process:
    """The latest lines of a process, and when they were seen by the clock of this one."""

    lines: deque[StatsLine] = field(default_factory=deque)
    seen_s: float = 0.0
    age_s: float = 0.0  # of the latest line when it was seen

    def add(self, line: StatsLine) -> None:
        lines = self.lines
        if lines and line.is_of_another(lines[-1]):
            lines.clear()
        lines.append(line)
        while len(lines) > 2 and lines[1].stats.elapsed_s <= line.stats.elapsed_s - _RECENT_S:
            lines.popleft()


@explained
class RecordedStats:
    """The statistics of all processes that record theirs: with ``TORCHDATA_REMOTE_STATS``, or :func:`record_stats`.

    Args:
        *paths: files, globs, and folders of ``*.jsonl``. They may appear later.
        clock: of this process, in seconds.
        wall_clock: Unix time.

    Example:
        >>> import tempfile
        >>> from torchdata_remote import record_stats
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with record_stats(f"{folder}/0.jsonl", every_s=60):
        ...         pass
        ...     RecordedStats(folder).now().processes[0].state
        'ended'
    """

    def __init__(
        self,
        *paths: str | os.PathLike[str],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        if not paths:
            raise check.marked(TypeError("path is missing: pass the folder of the files, such as 'stats/'."))
        local = [check.local_path("path", path, example="stats/*.jsonl") for path in paths]
        self._files = StatsFiles(local, wall_clock=wall_clock)
        self._clock, self._wall_clock = clock, wall_clock
        self._processes: dict[_Key, _Process] = {}
        self._lock = threading.RLock()

    def now(self) -> TrainingStats:
        """Read what was appended since the last call, and return rates and waits of the last 10 s."""
        with self._lock:
            for new in self._files.new_lines():
                self._add(new)
            notes = [f"{path}: {reason}" for path, reason in self._files.unreadable.items()]
            if self._files.num_broken:
                notes.append(f"{self._files.num_broken:,} lines are no statistics, or were written in part only")
            found = TrainingStats(tuple(sorted(self._shown(), key=_order)))
            return replace(found, notes=(*notes, *self._notes_of_ranks(found)))

    def _notes_of_ranks(self, found: TrainingStats) -> Iterator[str]:
        """Say which ranks there are several of."""
        parents = {key[1:]: one.lines[-1].parent_pid for key, one in self._processes.items()}
        processes: dict[int, set[str]] = {}
        for one in found.counted:
            pid = one.pid if one.worker is None else parents[one.host, one.pid]
            if one.rank is not None:
                processes.setdefault(one.rank, set()).add(str(pid) if one.host is None else f"{one.host}:{pid}")
        for rank, names in processes.items():
            if len(names) > 1:
                shown = ", ".join([*sorted(names)[:_MAX_NAMED], *["..."] * (len(names) > _MAX_NAMED)])
                yield (
                    f"rank {rank} is recorded by {len(names)} processes ({shown}): if they are two trainings, their "
                    "numbers are added up. Record each training in a folder of its own"
                )
                return  # the same holds for the other ranks

    def _shown(self) -> list[ProcessStats]:
        if not self._processes:
            return []
        # A process that is recorded in two files counts once
        youngest = sorted(self._processes, key=lambda key: self._age_s(self._processes[key]), reverse=True)
        lines = {key[1:]: self._processes[key].lines[-1] for key in youngest}
        found = {key: self._stats(self._processes[key], lines) for key in {key[1:]: key for key in youngest}.values()}
        latest = self._unreplaced(_of_latest_run(found))
        for key in found.keys() - latest.keys():
            if found[key].state != "stalled":
                del self._processes[key]
        # Ranks that have workers only list
        parents = {(key[1], self._processes[key].lines[-1].parent_pid) for key in latest}
        return [one for key, one in latest.items() if one.total.samples or key[1:] not in parents]

    def _unreplaced(self, found: dict[_Key, ProcessStats]) -> dict[_Key, ProcessStats]:
        """Leave out workers of earlier epochs: those that ended before another one took their number."""
        lines = {key: self._processes[key].lines[-1] for key in found}
        begun_s: dict[tuple[object, ...], float] = {}  # Unix time, of the youngest
        for line in lines.values():
            place = line.host, line.parent_pid, line.worker
            begun_s[place] = max(begun_s.get(place, 0.0), (line.time_s or 0.0) - line.stats.elapsed_s)
        return {
            key: found[key]
            for key, line in lines.items()
            if line.worker is None
            or found[key].state not in ("ended", "gone")
            or (line.time_s or 0.0) > begun_s[line.host, line.parent_pid, line.worker]
        }

    def _age_s(self, process: _Process) -> float:
        """Seconds since the latest line."""
        return process.age_s + self._clock() - process.seen_s

    def _add(self, new: NewLines) -> None:
        now_s, now_wall_s = self._clock(), self._wall_clock()
        # Not the largest: the clock may have been set back meanwhile
        last_s = next((line.time_s for line in reversed(new.lines) if line.time_s is not None), 0.0)
        for line in new.lines:
            process = self._processes.setdefault((new.path, line.host, line.pid), _Process())
            process.add(line)
            process.seen_s, process.age_s = now_s, 0.0
            if new.is_first:
                # By the clock of the line's machine; or, if that differs from ours, by the file's time stamp
                ages = [new.age_s + (0.0 if line.time_s is None else last_s - line.time_s)]
                if line.time_s is not None:
                    ages.append(now_wall_s - line.time_s)
                process.age_s = max(0.0, min(ages))

    def _stats(self, process: _Process, lines: dict[tuple[str | None, int], StatsLine]) -> ProcessStats:
        first, last = process.lines[0], process.lines[-1]
        age_s = self._age_s(process)
        parent = None if last.parent_pid is None else lines.get((last.host, last.parent_pid))
        # A process that ends stops its workers, which may not write a last line
        state = "ended" if parent is not None and parent.ended else _state(last, age_s)
        recent = replace(last.stats, elapsed_s=max(0.0, last.stats.elapsed_s - last.idle_s))
        if state in ("running", "stalled") and last.stats.elapsed_s > first.stats.elapsed_s:
            recent = last.stats - first.stats
        # A worker without RANK in its environment does not know its rank
        ranked = last if parent is None or parent.rank is None else parent
        return ProcessStats(
            host=last.host,
            pid=last.pid,
            rank=ranked.rank,
            world_size=ranked.world_size,
            worker=last.worker,
            num_workers=last.num_workers,
            state=state,
            age_s=age_s,
            recent=recent,
            total=last.stats,
        )


def _state(last: StatsLine, age_s: float) -> State:
    if last.ended:
        return "ended"
    if age_s < max(_STALLED_S, _STALLED_LINES * last.every_s):
        return "running"
    return "gone" if _is_gone(last) else "stalled"


def _is_gone(line: StatsLine) -> bool:
    if line.host != socket.gethostname() or os.name == "nt":  # where signal 0 would end the process
        return False
    try:
        os.kill(line.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # of another user; no number of a process
        return False
    return False


def _of_latest_run(found: dict[_Key, ProcessStats]) -> dict[_Key, ProcessStats]:
    """Leave out processes of earlier runs, and those that ended some time ago, such as workers of earlier epochs."""
    running = [one for one in found.values() if one.state == "running"]
    if running:
        begun_s = max(one.age_s + one.total.elapsed_s for one in running)
        limit_s = {"running": math.inf, "stalled": begun_s, "gone": begun_s, "ended": _SHOWN_S}
    else:
        limit_s = dict.fromkeys(("stalled", "gone", "ended"), min(one.age_s for one in found.values()) + _SHOWN_S)
    return {key: one for key, one in found.items() if one.age_s <= limit_s[one.state]}


def _order(one: ProcessStats) -> tuple[object, ...]:
    none = float("inf")
    return (
        none if one.rank is None else one.rank,
        -1 if one.worker is None else one.worker,
        one.host or "",
        one.pid,
    )
