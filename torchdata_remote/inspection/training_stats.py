"""What the processes of a training do at the moment, from the lines that they record: rates, waits, and a verdict."""

from __future__ import annotations

import glob
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import isfinite
from statistics import fmean
from typing import Any, Literal

from ..core import arguments as check
from ..core.arguments import explained
from ..core.recording import Stats
from ..core.stats import StageStats, stages

_RECENT_S = 10.0
_STALLED_S, _STALLED_LINES = 10.0, 3  # no line for so long, or for so many intervals
_SHOWN_S = 60.0  # a process that has ended, before others ended or after
_MAX_TAIL_BYTES, _MIN_TAIL_BYTES, _ALL_TAILS_BYTES = 4 << 20, 64 << 10, 16 << 20
_NOTHING = Stats(0.0, *(StageStats() for _ in stages))
_ADVICE = {
    "list": "the listing {:.0%} of the time: list the manifest, or pass list_once=True",
    "fetch": "the store {:.0%} of the time: raise max_in_flight, or use larger objects or a cache",
    "read": "reading of shards {:.0%} of the time: add workers, and do not compress shards",
    "decode": "decoding {:.0%} of the time: add workers, or decode smaller images",
}
# A worker that waits less is blocked for the rest of the time: its batches are not taken. A rank that reads in its own
# process loses what it waits.
_LEAST_WAIT_OF_WORKERS, _LEAST_WAIT_OF_RANK = 0.5, 0.2


@dataclass(frozen=True)
class ProcessStats:
    """A process that reads.

    Args:
        host: name of its machine.
        pid: of the process.
        rank: of the training process; ``None`` if it is not known.
        world_size: number of ranks.
        worker: ``DataLoader`` worker; ``None`` in the process of the rank itself.
        num_workers: in the loader.
        state: ``"running"``; ``"stalled"`` without a line for some time; ``"ended"`` after the last line.
        age_s: seconds since the latest line, by the time stamp of its file.
        recent: of the last 10 s; since its first piece of work if the process has ended.
        total: since the process began.
    """

    host: str
    pid: int
    rank: int | None
    world_size: int | None
    worker: int | None
    num_workers: int | None
    state: Literal["running", "stalled", "ended"]
    age_s: float
    recent: Stats
    total: Stats

    @property
    def name(self) -> str:
        """Rank and worker, as far as they are known."""
        known = {"rank": self.rank, "worker": self.worker}
        return " ".join(f"{what} {one}" for what, one in known.items() if one is not None) or f"process {self.pid}"

    @property
    def retries(self) -> int:
        """Requests that were repeated since the process began."""
        return sum(getattr(self.total, one.name).retries for one in stages)


@dataclass(frozen=True)
class TrainingStats:
    """Statistics of all processes of a training.

    Args:
        processes: by rank and worker.
        notes: what could not be read.
    """

    processes: tuple[ProcessStats, ...]
    notes: tuple[str, ...] = ()

    def as_scalars(self, prefix: str = "data/") -> dict[str, float]:
        """Return the sum of rates and the mean of waits over all processes, under the names of ``Stats.as_scalars``.

        Those that run are counted; if none does, those that have ended.

        Args:
            prefix: of the names; a slash at its end makes them one group.
        """
        return _scalars(self._counted, prefix)

    @property
    def _counted(self) -> list[ProcessStats]:
        running = [one for one in self.processes if one.state == "running"]
        return running or [one for one in self.processes if one.state == "ended"]

    @property
    def verdict(self) -> str:
        """What the slowest rank waits for, and what to change."""
        stalled = [one for one in self.processes if one.state == "stalled"]
        if stalled:
            oldest = max(stalled, key=lambda one: one.age_s)
            return f"{oldest.name}: no line for {oldest.age_s:.0f} s. It hangs or was killed, or its machine is gone."
        ranks: dict[object, list[ProcessStats]] = {}
        for one in self._counted:
            ranks.setdefault((one.host, one.pid) if one.rank is None else one.rank, []).append(one)
        if not any(one.recent.samples or one.recent.as_scalars("")["waiting"] for one in self._counted):
            return "Nothing is read yet."
        slowest = max(ranks.values(), key=lambda own: _scalars(own)["waiting"])
        waits, one = _scalars(slowest), slowest[0]
        if waits["waiting"] < (_LEAST_WAIT_OF_RANK if one.worker is None else _LEAST_WAIT_OF_WORKERS):
            step = "The training step is the bottleneck (or collating, or pipes of your own)"
            return f"{step}: readers wait for it {1 - waits['waiting']:.0%} of the time."
        stage = max(_ADVICE, key=lambda stage: waits[f"waiting_{stage}"])
        advice = _ADVICE[stage].format(min(1.0, waits[f"waiting_{stage}"]))
        return f"{one.name if one.rank is None else f'rank {one.rank}'} on {one.host} waits for {advice}."

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers as plain JSON."""
        processes = []
        for one in self.processes:
            own = {name: value for name, value in vars(one).items() if name not in ("recent", "total")}
            counted = {"elapsed_s": one.total.elapsed_s, "samples": one.total.samples, "retries": one.retries}
            processes.append({**own, **counted, **one.recent.as_scalars("")})
        total = self.as_scalars("")
        return {"processes": processes, "all": total, "verdict": self.verdict, "notes": list(self.notes)}


def _scalars(processes: Sequence[ProcessStats], prefix: str = "") -> dict[str, float]:
    each = [one.recent.as_scalars(prefix) for one in processes] or [_NOTHING.as_scalars(prefix)]
    return {name: (sum if name.endswith("_per_s") else fmean)(one[name] for one in each) for name in each[0]}


_Line = dict[str, Any]
_NUMBERS = [
    "time",
    "pid",
    "parent_pid",
    "rank",
    "world_size",
    "worker",
    "num_workers",
    "elapsed_s",
    "idle_s",
    "every_s",
]
_Key = tuple[str, int]  # host and process


def _parse(text: bytes) -> _Line | None:
    """Parse a line; ``None`` if it is not such a line."""
    try:
        line: _Line = json.loads(text)
        numbers = [line[name] or 0 for name in _NUMBERS]
        if not all(map(isfinite, chain(numbers, *(line[one.name].values() for one in stages)))):
            return None
        counted = [StageStats(**line[one.name]) for one in stages]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    # A lone surrogate could not be encoded where the name is shown
    host = str(line.get("host")).encode("utf-8", "backslashreplace").decode()
    return {**line, "host": host, "stats": Stats(line["elapsed_s"], *counted)}


@explained
class RecordedStats:
    """The statistics of all processes that record theirs: with ``TORCHDATA_REMOTE_STATS``, or :func:`record_stats`.

    Args:
        *paths: files, globs, and folders of ``*.jsonl``. They may appear later.

    Example:
        >>> import tempfile
        >>> from torchdata_remote import record_stats
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with record_stats(f"{folder}/0.jsonl", every_s=60):
        ...         pass
        ...     RecordedStats(folder).now().processes[0].state
        'ended'
    """

    def __init__(self, *paths: str | os.PathLike[str]) -> None:
        if not paths:
            raise check.marked(TypeError("path is missing: pass the folder of the files, such as 'stats/'."))
        self._paths = [check.local_path("path", path, example="stats/*.jsonl") for path in paths]

    def now(self) -> TrainingStats:
        """Read the ends of the files, and return rates and waits of the last 10 s."""
        paths = list(dict.fromkeys(found for path in self._paths for found in _expanded(path)))
        tail_bytes = max(_MIN_TAIL_BYTES, min(_MAX_TAIL_BYTES, _ALL_TAILS_BYTES // max(1, len(paths))))
        lines: dict[_Key, list[_Line]] = {}
        ages_s: dict[_Key, float] = {}
        notes, num_broken = [], 0
        for path in paths:
            try:
                tail, age_s = _tail(path, tail_bytes)
            except OSError as error:
                notes.append(f"{path}: {error.strerror or error}")
                continue
            parsed = list(map(_parse, tail))
            num_broken += parsed.count(None)
            new = [line for line in parsed if line is not None]
            for line in new:
                key = line["host"], line["pid"]
                own = lines.setdefault(key, [])
                if own and line["elapsed_s"] < own[-1]["elapsed_s"]:  # of another process with this number
                    own.clear()
                own.append(line)
                # The file has the time of its last line
                ages_s[key] = age_s + max(0.0, (new[-1]["time"] or 0.0) - (line["time"] or 0.0))
        if num_broken:
            notes.append(f"{num_broken:,} lines are no statistics, or were written in part only")
        found = _of_latest_run({key: _process(own, ages_s[key], lines) for key, own in lines.items()})
        # Ranks that have workers only list
        parents = {(key[0], lines[key][-1]["parent_pid"]) for key in found}
        shown = [one for key, one in found.items() if one.total.samples or key not in parents]
        none = float("inf")
        order = {one: (none if one.rank is None else one.rank, one.worker or 0, one.host, one.pid) for one in shown}
        return TrainingStats(tuple(sorted(shown, key=order.__getitem__)), tuple(notes))


def _expanded(path: str) -> list[str]:
    if os.path.isdir(path):
        path = os.path.join(glob.escape(path), "*.jsonl")
    return [path] if os.path.exists(path) else sorted(glob.glob(path))


def _tail(path: str, num_bytes: int) -> tuple[Iterator[bytes], float]:
    """Return the last whole lines of a file, and the seconds since it was written."""
    if not os.path.isfile(path):  # a named pipe is not waited for
        raise OSError("no regular file")
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        start = max(0, status.st_size - num_bytes)
        file.seek(start)
        whole = file.read(num_bytes).rpartition(b"\n")[0].split(b"\n")
    # The first line may be cut
    return filter(bytes.strip, whole[1:] if start else whole), max(0.0, time.time() - status.st_mtime)


def _process(lines: Sequence[_Line], age_s: float, all_lines: dict[_Key, list[_Line]]) -> ProcessStats:
    first, last = lines[0], lines[-1]
    parent = all_lines.get((last["host"], last["parent_pid"]), [{}])[-1]
    state: Literal["running", "stalled", "ended"] = "running"
    recent = replace(last["stats"], elapsed_s=max(0.0, last["elapsed_s"] - last["idle_s"]))
    if last["ended"] or parent.get("ended"):  # a worker that is stopped may write no last line
        state = "ended"
    else:
        if age_s >= max(_STALLED_S, _STALLED_LINES * last["every_s"]):
            state = "stalled"
        for line in lines[:-1]:
            if line is first or line["elapsed_s"] <= last["elapsed_s"] - _RECENT_S:
                recent = last["stats"] - line["stats"]
    # A worker without RANK in its environment does not know its rank
    ranked = last if parent.get("rank") is None else parent
    own = {name: last[name] for name in ("host", "pid", "worker", "num_workers")}
    of_rank = {name: ranked[name] for name in ("rank", "world_size")}
    return ProcessStats(**own, **of_rank, state=state, age_s=age_s, recent=recent, total=last["stats"])


def _of_latest_run(found: dict[_Key, ProcessStats]) -> dict[_Key, ProcessStats]:
    """Leave out processes of earlier runs, and those that ended some time ago, such as workers of earlier epochs."""
    youngest_s = min((one.age_s for one in found.values()), default=0.0)
    begun_s = [one.age_s + one.total.elapsed_s for one in found.values() if one.state == "running"]
    limit_s = max(begun_s, default=youngest_s + _SHOWN_S)
    limits_s = {"running": limit_s, "stalled": limit_s, "ended": youngest_s + _SHOWN_S}
    return {key: one for key, one in found.items() if one.age_s <= limits_s[one.state]}
