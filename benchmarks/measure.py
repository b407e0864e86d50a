"""Run one peer in a process of its own and measure it there: time, processor, memory.

    python benchmarks/measure.py object_peers s3fs < job.json

A peer is opened before the clock starts: what it lists, and the clients it makes, cost it nothing. The clock runs from
the first request for a sample to the last sample, processor seconds over the same span and with child processes that
ended (curl). Memory is the process's peak above what it held when the peer's modules were imported and nothing else had
happened; that of child processes is not in it.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from slow_store import SlowStore

TIMEOUT_S = 300
MIB = 1 << 20


class PeerMissingError(RuntimeError):
    """A peer cannot be measured: it, or something it needs, is not installed, or it failed each time."""


@dataclass(frozen=True)
class Job:
    """What a peer reads: ``names`` are the keys in ``bucket``, of ``sizes`` bytes.

    The store is that of the environment, unless there are options for ours. ``missing`` is why it cannot be read.
    """

    endpoint_url: str
    bucket: str
    names: list[str]
    sizes: list[int]
    num_samples: int
    sample_bytes: int  # of all samples together; objects hold more where they are tar
    in_flight: int = 0
    scheme: str = "s3"
    storage_options: dict[str, Any] = field(default_factory=dict)
    missing: str = ""
    keys: list[str] = field(default_factory=list)  # those to select, where a benchmark selects

    @property
    def urls(self) -> list[str]:
        return [f"{self.scheme}://{self.bucket}/{name}" for name in self.names]


@dataclass(frozen=True)
class Peer:
    """One side of a benchmark.

    Args:
        modules: what it imports, so that imports are behind it when the measuring begins.
        open: gives the bytes of each sample; its iteration is what is measured.
        shown: its name in the table; ``{}`` stands for the requests in flight.
        distribution: what ``pip install`` calls it.
    """

    modules: tuple[str, ...]
    open: Callable[[Job], Iterable[int]]
    shown: str
    distribution: str


@dataclass(frozen=True)
class Reading:
    """What one run of a peer showed."""

    samples: int
    bytes: int
    seconds: float
    first_sample_s: float
    cpu_s: float
    peak_rss_mib: float
    requests: int | None = None  # where there is a store that counts them
    sent_bytes: int = 0  # by that store, for objects

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds


def run_peer(module: str, name: str, job: Job, store: SlowStore | None) -> Reading:
    """Run a peer in a new process; the store, if there is one, counts its requests for objects.

    Raises:
        PeerMissingError: if it is not installed.
        RuntimeError: if it fails, or what it read is not what was written.
    """
    if store is not None:
        store.reset_requests()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with tempfile.TemporaryDirectory(prefix="peer-") as scratch:
        done = subprocess.run(
            [sys.executable, str(Path(__file__)), module, name],
            input=json.dumps(asdict(job)),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**inherited, **(store.environment if store is not None else {}), "TMPDIR": scratch},
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed: {done.stdout[-500:]}{done.stderr[-4000:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if "missing" in answer:
        raise PeerMissingError(answer["missing"])
    reading = Reading(**answer)
    if store is not None:
        reading = replace(reading, requests=store.count_requests()["object"], sent_bytes=store.count_bytes())
    if (reading.samples, reading.bytes) != (job.num_samples, job.sample_bytes):
        raise RuntimeError(
            f"{name} read {reading.samples:,} samples of {reading.bytes:,} bytes together, expected "
            f"{job.num_samples:,} of {job.sample_bytes:,}: its figures mean nothing."
        )
    return reading


def measure(peer: Peer, job: Job) -> Reading:
    """In the peer's own process."""
    for module in peer.modules:
        import_module(module)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew (Linux)
    idle_bytes = status_bytes("VmRSS")
    if job.missing:
        raise ModuleNotFoundError(job.missing)
    sizes = peer.open(job)
    cpu_s, start, first_s, samples, num_bytes = cpu_seconds(), time.perf_counter(), 0.0, 0, 0
    for size in sizes:
        samples += 1
        num_bytes += size
        if samples == 1:
            first_s = time.perf_counter() - start
    seconds = time.perf_counter() - start
    cpu_s = cpu_seconds() - cpu_s
    peak_bytes = status_bytes("VmHWM") - idle_bytes
    return Reading(samples, num_bytes, seconds, first_s, cpu_s, peak_bytes / MIB)


def status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    module, name = sys.argv[1:]
    job = Job(**json.load(sys.stdin))
    try:
        peer: Peer = import_module(module).PEERS[name]
        answer = asdict(measure(peer, job))
    except ModuleNotFoundError as error:
        answer = {"missing": str(error)}
    print("\n" + json.dumps(answer), flush=True)
    os._exit(0)  # some peers wait for their threads here, and that is not the question


if __name__ == "__main__":
    main()
