"""What does a resume of ``shard_dataset`` cost after a kill at 90 %: its share of the CPU of the whole job?

    python benchmarks/bench_shard_resume.py [--quick] [--rounds 3] [--sources tar nested files shards] [--workers 0 2]

Each source is written into shards three times in new processes: undisturbed; until 90 % of the shards are
finished, then ended by SIGKILL; and resumed. Processor seconds are those of all processes of a job, from the start of
the interpreter on: the children of a job become those of this process (``PR_SET_CHILD_SUBREAPER``), which waits for
them.
Modules are compiled before, as they are once installed. Undisturbed and resumed runs have to leave the same manifest,
or the benchmark fails.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measure import MIB
from report import environment, print_table, spread
from shard_dataset_peers import ARCHIVE, add, make_archive

JPG_BYTES, KILLED_AT, LIMIT = 94_000, 0.9, 0.15
WHOLE = 40_000, 16 * MIB  # samples, limit of a shard
QUICK = 400, MIB
PR_SET_CHILD_SUBREAPER = 36
TIMEOUT_S = 300
SCRIPT = """
import os, signal, sys
import torchdata_remote as tdr

def kill_after(num_tasks):
    from torchdata_remote.core.progress import Progress
    add_shards, finished = Progress.add_shards, []

    def add_and_kill(progress, *arguments):
        add_shards(progress, *arguments)
        finished.append(arguments)
        if len(finished) >= num_tasks:
            os.kill(os.getpid(), signal.SIGKILL)

    Progress.add_shards = add_and_kill

if __name__ == "__main__":
    source, template, shard_bytes, num_workers, num_tasks = sys.argv[1:]
    if int(num_tasks):
        kill_after(int(num_tasks))
    tdr.shard_dataset(
        source, template, max_shard_bytes=int(shard_bytes), num_workers=int(num_workers), progress=False,
    )
"""
"""The job; what imports it needs is part of its costs."""


@dataclass(frozen=True)
class Case:
    """A source, and how it is written into shards."""

    name: str
    url: str
    shard_bytes: int
    num_workers: int


def samples(num_samples: int) -> Iterator[tuple[str, bytes]]:
    data = np.random.default_rng(0).bytes(2 * JPG_BYTES)
    for number in range(num_samples):
        yield f"n{number % 20:08d}_{number}.JPEG", data[number % JPG_BYTES :][:JPG_BYTES]


def make_tar(folder: str, num_samples: int) -> str:
    with tarfile.open(f"{folder}/{ARCHIVE}", "w") as archive:
        for name, data in samples(num_samples):
            add(archive, name, data)
    return f"{folder}/{ARCHIVE}"


def make_nested(folder: str, num_samples: int) -> str:
    make_archive(folder, num_samples, JPG_BYTES)
    return f"{folder}/{ARCHIVE}"


def make_files(folder: str, num_samples: int) -> str:
    for name, data in samples(num_samples):
        below = Path(folder, name.partition("_")[0])
        below.mkdir(exist_ok=True)
        (below / name).write_bytes(data)
    return f"{folder}/"


def make_shards(folder: str, num_samples: int) -> str:
    """Shards of another tool, without a manifest."""
    taken, number = samples(num_samples), 0
    while chunk := [one for _, one in zip(range(500), taken, strict=False)]:
        with tarfile.open(f"{folder}/{number:06d}.tar", "w") as archive:
            for name, data in chunk:
                add(archive, name, data)
        number += 1
    return f"{folder}/"


SOURCES: dict[str, tuple[str, Callable[[str, int], str]]] = {
    "tar": ("a tar", make_tar),
    "nested": ("a tar of tars", make_nested),
    "files": ("loose files", make_files),
    "shards": ("shards", make_shards),
}


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(case: Case, folder: Path, kill_at: int = 0) -> float:
    """Processor seconds of a job, with those of all its processes; it is killed when so many shards are recorded."""
    before_s, begun = children_cpu_s(), time.monotonic()
    arguments = [case.url, f"{folder}/{{shard:06d}}.tar", *map(str, (case.shard_bytes, case.num_workers, kill_at))]
    environment = {
        **os.environ,
        "TORCHDATA_REMOTE_PROGRESS": "0",
        "PYTHONPYCACHEPREFIX": str(folder.parent / "pycache"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as scripts:
        script = Path(scripts, "job.py")
        script.write_text(SCRIPT)
        process = subprocess.Popen([sys.executable, str(script), *arguments], env=environment)
        code = process.wait(TIMEOUT_S)
        with contextlib.suppress(ChildProcessError):  # when none is left
            while time.monotonic() < begun + TIMEOUT_S:  # workers and the fork server, which are ours now
                os.wait()
    if code != (-signal.SIGKILL if kill_at else 0):
        raise RuntimeError(f"the job of {case.name} ended with {code}")
    return children_cpu_s() - before_s


def compile_modules(scratch: Path, num_workers: int) -> None:
    """By a small job."""
    (scratch / "few").mkdir(exist_ok=True)
    run(Case("few files", make_files(str(scratch / "few"), 4), MIB, num_workers), scratch / "written")
    for folder in ("few", "written"):
        shutil.rmtree(scratch / folder)


@dataclass(frozen=True)
class Costs:
    """Processor seconds of a whole job, and of the resume of one that was killed."""

    whole_s: float
    resume_s: float

    @property
    def share(self) -> float:
        return self.resume_s / self.whole_s


def measure(case: Case, scratch: Path) -> Costs:
    whole, stopped = scratch / "whole", scratch / "stopped"
    whole_s = run(case, whole)
    manifest = (whole / "index.json").read_bytes()
    num_shards = len(json.loads(manifest)["shardlist"])
    run(case, stopped, round(KILLED_AT * num_shards))
    resume_s = run(case, stopped)
    if (stopped / "index.json").read_bytes() != manifest:
        raise RuntimeError(f"the resumed job of {case.name} wrote other shards")
    for folder in (whole, stopped):
        shutil.rmtree(folder)
    return Costs(whole_s, resume_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small jobs, which show that it runs")
    parser.add_argument("--rounds", type=int, default=None, help="how often each job runs (3; with --quick, 1)")
    parser.add_argument("--samples", type=int, default=None, help="how many instead")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    args = parser.parse_args()
    num_samples, shard_bytes = QUICK if args.quick else WHOLE
    num_samples = args.samples or num_samples
    rounds = args.rounds or (1 if args.quick else 3)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    rows = [("source", "workers", "CPU s, whole job", "CPU s, resume at 90 %", "share")]
    shares = []
    for name in args.sources:
        shown, make = SOURCES[name]
        with tempfile.TemporaryDirectory(prefix="bench-shard-resume-") as temporary:
            source = Path(temporary, "source")
            source.mkdir()
            url = make(str(source), num_samples)
            for num_workers in args.workers:
                case = Case(shown, url, shard_bytes, num_workers)
                compile_modules(Path(temporary), num_workers)
                found = [measure(case, Path(temporary)) for _ in range(rounds)]
                whole, resumed = ([getattr(costs, field) for costs in found] for field in ("whole_s", "resume_s"))
                share = spread([costs.share for costs in found], 2)
                rows.append((shown, f"{num_workers}", spread(whole, 2), spread(resumed, 2), share))
                shares.append((f"{shown}, {num_workers} workers", share))
    print(
        f"{num_samples:,} samples of {JPG_BYTES:,} bytes, shards of {shard_bytes // MIB} MiB, {rounds} round(s)"
        f"{', --quick: too small to mean anything' if args.quick else ''}\n"
        f"{environment({'torchdata_remote'}, with_store=False)}\n"
    )
    print_table(rows)
    print()
    for what, share in shares:
        print(f"resume of {what}, share of a whole job's CPU: {share}; target at most {LIMIT}")


if __name__ == "__main__":
    main()
