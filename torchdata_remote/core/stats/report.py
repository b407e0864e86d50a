"""Report the time spent in each stage of this process: subtract two snapshots of the counters."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..arguments.calls import explained
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
