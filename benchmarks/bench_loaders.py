"""What does a batch cost on its way to the loop, and what does the loop wait: with a thread, and with workers?

    python benchmarks/bench_loaders.py [--quick] [--only way]

Batches of 64 images of 3 x 224 x 224. The chain copies each image from memory into the row of a batch, as an image
decoder does, so that the way of the batch is all that differs. Processor seconds are those of all processes; memory is
given and taken by the system, so page faults are in them. The step of the loop is one of many small operations, which
each ask for Python's lock; what it waits for that lock is its time minus what it computed and what it waited for a
processor (Linux' schedstat). The first batch is measured from the start of the process, with and without workers.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

import torchdata_remote as tdr
from torchdata_remote.core.batch_memory import BatchRows
from torchdata_remote.pipes import DataPipe, Env, Pass

BATCH_SIZE, SHAPE = 64, (3, 224, 224)
WAYS = ("in the loop", "thread_loader", "worker")


class Images(DataPipe[Any]):
    """An image for each sample: a copy of one that is in memory, which takes the time of nothing else."""

    def __init__(self, source_datapipe: Any, dtype: torch.dtype, *, rows: bool) -> None:
        self.source_datapipe, self.dtype, self.rows = source_datapipe, dtype, rows

    def open(self, env: Env) -> Pass[Any]:
        return ImagesPass(env.open(self.source_datapipe), self.dtype, env.shared.rows if self.rows else None)


class ImagesPass(Pass[Any]):
    def __init__(self, source: Pass[Any], dtype: torch.dtype, rows: BatchRows | None) -> None:
        super().__init__(source)
        self._dtype, self._rows = dtype, rows

    def items(self) -> Iterator[Any]:
        template = torch.ones(SHAPE, dtype=self._dtype)
        for _ in self.sources[0]:
            row = torch.empty_like(template) if self._rows is None else self._rows.take(SHAPE, self._dtype)
            yield row.copy_(template)


def write_shards(folder: str, num_samples: int) -> None:
    with tdr.ShardWriter(f"{folder}/{{shard}}.tar", max_shard_samples=num_samples // 4) as writer:
        for number in range(num_samples):
            writer.write({"__key__": f"{number}", "txt": "an image"})


def loader_of(pipe: Any, way: str) -> Any:
    if way == "thread_loader":
        return tdr.thread_loader(pipe, batch_size=BATCH_SIZE, num_threads=0)
    return tdr.stateful_loader(
        pipe, batch_size=BATCH_SIZE, num_workers=int(way == "worker"), multiprocessing_context="fork"
    )


def cpu_s() -> float:
    """Of this process and the workers that run."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    seconds = own.ru_utime + own.ru_stime
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def way_ms(folder: str, dtype: torch.dtype, way: str, *, rows: bool) -> float:
    """Processor milliseconds for each image, all in all; the loop reads a little of each batch."""
    pipe = Images(tdr.stream_shards(folder, seed=0, shuffle=False), dtype, rows=rows)
    loader = loader_of(pipe, way)  # whose workers end with it
    batches = iter(loader)
    next(batches)
    before_s, num_images = cpu_s(), 0
    for batch in batches:
        assert batch.view(-1)[::1024].min() == 1
        num_images += len(batch)
    return (cpu_s() - before_s) / num_images * 1e3


def print_ways(folder: str, rounds: int) -> None:
    print(f"{'':<32}" + "".join(f"{way:>16}" for way in WAYS))
    for dtype in (torch.uint8, torch.float32):
        for rows in (False, True):
            found = {way: [way_ms(folder, dtype, way, rows=rows) for _ in range(rounds)] for way in WAYS}
            shown = f"{str(dtype).removeprefix('torch.')}, {'written into the batch' if rows else 'stacked'}"
            print(f"{shown:<32}" + "".join(f"{median(found[way]):13.2f} ms" for way in WAYS))


def waited_ms() -> tuple[float, float]:
    """Milliseconds that this thread has computed, and waited for a processor."""
    computed, waited, _ = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()
    return int(computed) / 1e6, int(waited) / 1e6


def step(model: Any, batch: Any) -> tuple[float, float]:
    """Milliseconds of a step without waiting for processors, and those in which it waited for Python's lock."""
    began, (computed, waited) = time.perf_counter(), waited_ms()
    with torch.no_grad():
        model(batch)
    now, now_waited = waited_ms()
    total = (time.perf_counter() - began) * 1e3 - (now_waited - waited)
    return total, total - (now - computed)


def decode(data: bytes) -> torch.Tensor:
    """A millisecond in a library that releases Python's lock, as decoders do."""
    return torch.ones(SHAPE).mul_(len(data)).add_(1)


def print_steps(folder: str, num_steps: int) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(300)))
    small = torch.zeros(8, 32)
    for way in WAYS:
        pipe = tdr.stream_shards(folder, seed=0, shuffle=False).decode_sample({"txt": decode}).to_tuple("txt")
        steps: list[tuple[float, float]] = []
        for _ in loader_of(pipe, way):
            steps += [step(model, small) for _ in range(5)]
            if len(steps) >= num_steps:
                break
        total, lock = (sum(column) / len(steps) for column in zip(*steps, strict=True))
        print(
            f"a step of 300 operations, batches from {way:<14} {total:5.2f} ms, of which {lock:5.2f} wait for the lock"
        )


FIRST = """
import sys
import time
import torchdata_remote as tdr

if __name__ == "__main__":
    pipe = tdr.stream_shards(sys.argv[1], seed=0, shuffle=False).to_tuple("txt")
    if sys.argv[2] == "thread_loader":
        loader = tdr.thread_loader(pipe, batch_size=64)
    else:
        loader = tdr.stateful_loader(pipe, batch_size=64, num_workers=2)
    if sys.argv[2] == "later":
        time.sleep(4)  # as a script that builds a model
    began = time.perf_counter()
    next(iter(loader))
    first = time.perf_counter() - began
    if sys.argv[2] == "later":
        loader.load_state_dict(loader.state_dict())
        began = time.perf_counter()
        next(iter(loader))
        print(first, time.perf_counter() - began)
"""
"""Run as a file: workers import it."""


def first_s(script: Path, *arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, *([str(script)] if arguments else []), *(arguments or ("-c", "import torch"))], check=True
    )
    return time.perf_counter() - began


def print_first(folder: str, rounds: int) -> None:
    script = Path(folder) / "first.py"
    script.write_text(FIRST)
    sides = {"import torch": (), "thread_loader": (folder, "thread_loader"), "2 workers": (folder, "workers")}
    found: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, arguments in sides.items():
            found[side].append(first_s(script, *arguments))
    ratio = median(a / b for a, b in zip(found["thread_loader"], found["2 workers"], strict=True))
    shown = ", ".join(f"{side} {median(seconds):.2f} s" for side, seconds in found.items())
    print(f"a process that ends after its first batch: {shown}; a thread takes {ratio:.2f} of the time of workers")
    later = [sys.executable, str(script), folder, "later"]
    runs = [subprocess.run(later, check=True, capture_output=True, text=True).stdout.split() for _ in range(rounds)]
    first, resumed = (median(map(float, column)) for column in zip(*runs, strict=True))
    print(f"2 workers, 4 s after their loader was built: first batch {first:.2f} s; after a resume {resumed:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="What batches cost on their way to the loop.")
    parser.add_argument("--only", choices=("way", "step", "first"), help="one of the three questions")
    parser.add_argument("--quick", action="store_true", help="few batches, one round")
    arguments = parser.parse_args()
    quick, only = arguments.quick, arguments.only
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_shards(folder, BATCH_SIZE * (8 if quick else 60))
        if only in (None, "way"):
            print_ways(folder, 1 if quick else 3)
        if only in (None, "step"):
            print_steps(folder, 10 if quick else 200)
        if only in (None, "first"):
            print_first(folder, 1 if quick else 5)


if __name__ == "__main__":
    main()
