"""What does the dataset service cost, beside nginx with the same files and beside the disk alone?

    python benchmarks/bench_service.py [--quick] [--rounds 5]

Requests: 200 clients that want files or ranges all the time (8 for large files), sent by wrk (`apt-get install wrk`).
Reading: the same chain over ``datasets://`` and over ``s3://`` from nginx (no latency, no limit of bandwidth), whole
epochs, every byte. Copying: ``push`` and ``pull``, against writing the same files to the same disk and waiting for it,
as both do, by eight threads. Client and server share this machine. By turns, in one process; fresh copies each round.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from http_load import Answered, Load, nginx, send
from report import arguments, environment, print_table, spread
from slow_store import slow_store
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr

IN_FLIGHT = 32
LOAD_S, QUICK_LOAD_S = 5.0, 1.0
NGINX_PROCESSES = (1, 2)
COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Files:
    """What is read or copied: ``num`` files of ``num_bytes``."""

    shown: str
    num: int
    num_bytes: int

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for number in range(self.num):
            (folder / f"{number:05d}.bin").write_bytes(os.urandom(self.num_bytes))

    @property
    def total_bytes(self) -> int:
        return self.num * self.num_bytes


WHOLE = Files("2,000 files of 94 kB", 2_000, 94_000), Files("8 files of 64 MiB", 8, 64 << 20)
QUICK = (Files("20 files of 94 kB", 20, 94_000),)
LOADS = (
    Load("files of 1.5 kB, 200 clients", 500, 1_500, 200),
    Load("files of 94 kB, 200 clients", 500, 94_000, 200),
    Load("files of 64 MiB, 8 clients", 8, 64 << 20, 8),
    Load("ranges of 1 MiB, 200 clients", 8, 64 << 20, 200, 1 << 20),
)


@contextmanager
def service(root: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "torchdata_remote.cli", "serve", "--root", str(root), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("http://").partition("/")[0]
    finally:
        process.terminate()
        process.wait(60)


def read_all(url: str, files: Files, storage_options: Mapping[str, str] | None = None) -> None:
    pipe = IterableWrapper([url]).list_remote(storage_options=storage_options)
    streams = pipe.async_prefetch(max_in_flight=IN_FLIGHT, storage_options=storage_options)
    num_bytes = sum(len(piece) for _, stream in streams for piece in stream.parts())
    assert num_bytes == files.total_bytes


def write_and_wait(source: Path, target: Path) -> None:
    """As little as can be done: copied, and on disk."""
    target.mkdir()

    def copy(name: str) -> None:
        with open(source / name, "rb") as file, open(target / name, "wb") as copied:
            shutil.copyfileobj(file, copied, COPY_BYTES)
            os.fsync(copied.fileno())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(copy, sorted(os.listdir(source))))


def seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def measure(files: Files, num_rounds: int, work: Path) -> dict[str, list[float]]:
    """Seconds of each side, in each round."""
    found: dict[str, list[float]] = {name: [] for name in ("nginx", "datasets", "disk", "push", "pull")}
    source = work / "hosted" / "bucket"
    files.write(source)
    with slow_store(work / "hosted", latency_s=0.0) as nginx, service(work / "hosted") as address:
        options = {"endpoint_url": nginx.endpoint_url, "key": "nobody", "secret": "nothing", "region": "us-east-1"}
        for number in range(num_rounds + 1):  # the first one warms up
            copy, pulled = f"copy{number}", work / f"pulled{number}"
            sides: dict[str, Callable[[], object]] = {
                "nginx": lambda: read_all("s3://bucket/", files, options),
                "datasets": lambda: read_all(f"datasets://{address}/bucket/", files),
                "disk": lambda: write_and_wait(source, work / "written"),
                "push": lambda copy=copy: tdr.push(source, f"datasets://{address}/{copy}"),  # type: ignore[misc]
                "pull": lambda copy=copy, pulled=pulled: tdr.pull(f"datasets://{address}/{copy}", pulled),  # type: ignore[misc]
            }
            for name, side in sides.items():
                took_s = seconds(side)
                if number:
                    found[name].append(took_s)
            for folder in (work / "written", pulled, work / "hosted" / copy):
                shutil.rmtree(folder)
    shutil.rmtree(work / "hosted")
    return found


def measure_load(load: Load, num_rounds: int, load_s: float, work: Path) -> dict[str, list[Answered]]:
    """Answered requests of each side, in each round."""
    root = work / "served"
    Files("", load.num_files, load.file_bytes).write(root / "bucket")
    names = sorted(os.listdir(root / "bucket"))
    with ExitStack() as stack:
        sides = {"service": (f"http://{stack.enter_context(service(root))}", "/datasets/bucket/files/")}
        for processes in NGINX_PROCESSES:
            url = stack.enter_context(nginx(root, processes, work / f"nginx{processes}"))
            sides[f"nginx, processes: {processes}"] = (url, "/bucket/")
        found: dict[str, list[Answered]] = {name: [] for name in sides}
        for number in range(num_rounds + 1):  # the first one warms up
            for name, (url, prefix) in sides.items():
                answered = send(load, url, [prefix + file for file in names], load_s, work)
                if number:
                    found[name].append(answered)
    return found


def print_load(args: argparse.Namespace) -> None:
    rows = [("requests", "side", "requests/s (min to max)", "MB/s", "ms, 99 %")]
    ratios = []
    for load in LOADS[1:2] if args.quick else LOADS:
        with tempfile.TemporaryDirectory() as work:
            found = measure_load(load, args.rounds, QUICK_LOAD_S if args.quick else LOAD_S, Path(work))
        for name, answers in found.items():
            rates = [one.per_s for one in answers]
            shown = f"{median(rates) * load.request_bytes / 1e6:,.0f}"
            rows.append((load.shown, name, spread(rates, 0), shown, spread([one.p99_ms for one in answers], 0)))
        for other in [name for name in found if name != "service"]:
            values = [own.per_s / one.per_s for own, one in zip(found["service"], found[other], strict=True)]
            ratios.append(f"{load.shown}: service against {other}: {spread(values, 2)}")
    print_table(rows)
    print("\n" + "\n".join(ratios) + "\n")


def main() -> None:
    args = arguments(__doc__ or "", [])
    print(f"Dataset service, {args.shown}\n{environment(set(), with_store=True)}\n")
    print_load(args)
    rows = [("files", "side", "MB/s (min to max)", "files/s")]
    ratios = []
    for files in QUICK if args.quick else WHOLE:
        with tempfile.TemporaryDirectory() as work:
            found = measure(files, args.rounds, Path(work))
        for name, took in found.items():
            rates = [files.total_bytes / 1e6 / one for one in took]
            rows.append((files.shown, name, spread(rates, 0), f"{files.num / sorted(took)[len(took) // 2]:,.0f}"))
        for ours, theirs in (("datasets", "nginx"), ("push", "disk"), ("pull", "disk")):
            values = [other / own for own, other in zip(found[ours], found[theirs], strict=True)]
            ratios.append(f"{files.shown}: {ours} against {theirs}: {spread(values, 2)}")
    print_table(rows)
    print("\n" + "\n".join(ratios))


if __name__ == "__main__":
    main()
