"""What the processes of a training do at the moment: rates, waits, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal

from ..core.recording import Stats
from ..core.stats import StageStats, stages

State = Literal["running", "stalled", "ended", "gone"]

_WAITS_FOR = {"list": "the listing", "fetch": "the store", "read": "reading of shards", "decode": "decoding"}
_ADVICE = {
    "list": "list the manifest, or pass list_once=True",
    "fetch": "raise max_in_flight, or use larger objects or a cache",
    "read": "add workers, and do not compress shards",
    "decode": "add workers, or decode smaller images",
}
_MANY_RETRIES = 0.2  # of the requests
# A worker that waits less is blocked for the rest of the time: its batches are not taken. A rank that reads in its own
# process loses what it waits.
_LEAST_WAIT_OF_WORKERS, _LEAST_WAIT_OF_RANK = 0.5, 0.2
_SIMILAR = 0.15
_NOTHING = Stats(0.0, *(StageStats() for _ in stages))


@dataclass(frozen=True)
class ProcessStats:
    """A process that reads.

    Args:
        host: name of its machine; ``None`` if it is not recorded, as are the others.
        pid: of the process.
        rank: of the training process.
        world_size: number of ranks.
        worker: ``DataLoader`` worker; ``None`` in the process of the rank itself.
        num_workers: in the loader.
        state: ``"running"``; ``"stalled"`` without a line for some time; ``"ended"`` after the last line; ``"gone"``
            without one.
        age_s: seconds since the latest line.
        recent: of the last 10 s; since its first piece of work if the process has ended.
        total: since the process began.
    """

    host: str | None
    pid: int
    rank: int | None
    world_size: int | None
    worker: int | None
    num_workers: int | None
    state: State
    age_s: float
    recent: Stats
    total: Stats

    @property
    def name(self) -> str:
        """Rank and worker, as far as they are known."""
        parts = {"rank": self.rank, "worker": self.worker}
        return (
            " ".join(f"{what} {number}" for what, number in parts.items() if number is not None)
            or f"process {self.pid}"
        )

    @property
    def retries(self) -> int:
        """Requests that were repeated since the process began."""
        return sum(getattr(self.total, one.name).retries for one in stages)

    @property
    def waits(self) -> dict[str, float]:
        """Fraction of the time that was waited for each stage."""
        scalars = self.recent.as_scalars("")
        return {one.name: scalars[f"waiting_{one.name}"] for one in stages}


@dataclass(frozen=True)
class TrainingStats:
    """Statistics of all processes of a training.

    Args:
        processes: by rank and worker.
        notes: what could not be read.
    """

    processes: tuple[ProcessStats, ...]
    notes: tuple[str, ...] = ()

    @property
    def counted(self) -> list[ProcessStats]:
        """The processes in the total: those that run; if none does, those that have ended."""
        running = [one for one in self.processes if one.state == "running"]
        return running or [one for one in self.processes if one.state != "stalled"]

    def as_scalars(self, prefix: str = "data/") -> dict[str, float]:
        """Return the sum of rates and the mean of waits over all processes, under the names of ``Stats.as_scalars``.

        Args:
            prefix: of the names; a slash at its end makes them one group.
        """
        each = [one.recent.as_scalars(prefix) for one in self.counted] or [_NOTHING.as_scalars(prefix)]
        return {
            name: sum(one[name] for one in each) if name.endswith("_per_s") else fmean(one[name] for one in each)
            for name in each[0]
        }

    @property
    def waits(self) -> dict[str, float]:
        """Fraction of the time that was waited for each stage, the mean of all processes."""
        return _mean_waits(self.counted)

    @property
    def retries(self) -> int:
        """Requests that were repeated since the processes began."""
        return sum(one.retries for one in self.processes)

    @property
    def verdict(self) -> str:
        """What the training waits for, and what to change."""
        sentences = []
        if stalled := [one for one in self.processes if one.state == "stalled"]:
            oldest = max(stalled, key=lambda one: one.age_s)
            others = f" and {len(stalled) - 1} more" if len(stalled) > 1 else ""
            sentences.append(
                f"{oldest.name}{others}: no line for {oldest.age_s:.0f} s. The process hangs, or its machine is gone."
            )
        if reading := [one for one in self.counted if one.recent.samples or any(one.waits.values())]:
            sentences.append(_bottleneck(reading))
        return " ".join(sentences) or "Nothing is read yet."

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers as plain JSON."""
        return {
            "processes": [
                {
                    "host": one.host,
                    "pid": one.pid,
                    "rank": one.rank,
                    "world_size": one.world_size,
                    "worker": one.worker,
                    "num_workers": one.num_workers,
                    "state": one.state,
                    "age_s": round(one.age_s, 3),
                    "elapsed_s": one.total.elapsed_s,
                    "samples": one.total.samples,
                    "retries": one.retries,
                    **one.recent.as_scalars(""),
                }
                for one in self.processes
            ],
            "all": self.as_scalars(""),
            "verdict": self.verdict,
            "notes": list(self.notes),
        }


def _bottleneck(reading: list[ProcessStats]) -> str:
    ranks: dict[object, list[ProcessStats]] = {}
    for one in reading:
        ranks.setdefault((one.host, one.pid) if one.rank is None else one.rank, []).append(one)
    waits = {rank: _mean_waits(own) for rank, own in ranks.items()}
    slowest = max(waits, key=lambda rank: sum(waits[rank].values()))
    own, share = ranks[slowest], sum(waits[slowest].values())
    if share < (_LEAST_WAIT_OF_RANK if all(one.worker is None for one in own) else _LEAST_WAIT_OF_WORKERS):
        return (
            f"The training step is the bottleneck (or collating, or pipes of your own): readers wait for it "
            f"{_percent(1 - share)} of the time."
        )
    stage = max(waits[slowest], key=lambda name: waits[slowest][name])
    requests = sum(one.recent.fetch.requests for one in own)
    repeated = sum(one.recent.fetch.retries for one in own) / max(1, requests)
    advice = _ADVICE[stage]
    if stage == "fetch" and repeated >= _MANY_RETRIES:
        advice = f"{_percent(repeated)} of the requests are repeated; look at the store's log, or lower max_in_flight"
    rest = [sum(found.values()) for rank, found in waits.items() if rank != slowest]
    if rest and share - median(rest) > _SIMILAR:
        name = own[0].name if own[0].rank is None else f"rank {own[0].rank}"
        where = "" if own[0].host is None else f" on {own[0].host}"
        others = f", and other ranks wait {_percent(median(rest))}"
        waited = f"{_WAITS_FOR[stage]} {_percent(waits[slowest][stage])} of the time"
        return f"{name}{where} waits for {waited}{others}: {advice}."
    who = "All ranks wait" if rest else ("The workers wait" if len(own) > 1 else "The process waits")
    return f"{who} for {_WAITS_FOR[stage]} {_percent(_mean_waits(reading)[stage])} of the time: {advice}."


def _mean_waits(processes: list[ProcessStats]) -> dict[str, float]:
    each = [one.waits for one in processes]
    return {one.name: fmean(waits[one.name] for waits in each) if each else 0.0 for one in stages}


def _percent(share: float) -> str:
    return f"{min(1.0, share):.0%}"
