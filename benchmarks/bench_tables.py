"""What does the table of a map-style dataset cost in each DataLoader worker: memory, pickle, time to start, access?

    python benchmarks/bench_tables.py [--quick] [--files 1000000] [--workers 4] [--methods fork forkserver spawn]

A ``RemoteFiles`` of so many files, of which nothing is read, against a table as it was before: private columns, of
which a worker gets a copy. Memory is the proportional set size (PSS) of the workers, after each of them has read the
whole table, above that with a table of one file. The start is the time to the first item of all workers. The pickle is
that of the dataset, as a process that is spawned gets it. An access gives the URL of a file, in a random order.
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
import time
from collections.abc import Callable
from multiprocessing import context, popen_spawn_posix, reduction
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from report import environment, print_table
from torch.utils.data import DataLoader, Dataset

import torchdata_remote as tdr
from torchdata_remote.core.shared_memory import SharedColumns
from torchdata_remote.datasets.remote_files import FileTable
from torchdata_remote.fetch.listing.url_table import StringColumn, UrlTable

FILES, QUICK_FILES, ACCESSES, ROUNDS = 1_000_000, 20_000, 100_000, 5
METHODS = ("fork", "forkserver", "spawn")
FOLDER = "s3://bucket/imagenet/train/"


def strings(form: str, count: int) -> StringColumn:
    """Strings of one length."""
    data = "".join(map(form.format, range(count))).encode()
    ends = np.arange(1, count + 1) * (len(data) // count)
    return StringColumn.view({"texts.data": np.frombuffer(data, np.uint8), "texts.ends": ends})


def columns_of(num_files: int) -> dict[str, StringColumn]:
    """As a listing of S3 gives them: names as in ImageNet, etags that are MD5 sums."""
    name = "n00000000/{0:017d}.JPEG"
    forms = {"urls": FOLDER + name, "paths": name, "etags": '"{0:032x}"'}
    return {column: strings(form, num_files) for column, form in forms.items()}


def shared_table(num_files: int) -> FileTable:
    texts = columns_of(num_files)
    columns = {**texts["urls"].columns("urls"), **texts["etags"].columns("etags")}
    columns["sizes"], columns["labels"] = np.full(num_files, 94_000, np.int64), np.zeros(num_files, np.int32)
    return FileTable(SharedColumns(columns))


class Copied:
    """The table as it was before it was shared: columns of one process, and the paths, too."""

    def __init__(self, num_files: int) -> None:
        texts = columns_of(num_files)
        urls = {**texts["urls"].columns("urls"), **texts["etags"].columns("etags")}
        self.urls = UrlTable.view({**urls, "sizes": np.full(num_files, 94_000, np.int64)})
        self.paths, self.labels = texts["paths"], np.zeros(num_files, np.int32)

    def __reduce__(self) -> Any:
        return _copied, (self.urls.columns(), self.paths.columns(), self.labels)

    def columns(self) -> list[Any]:
        return [*self.urls.columns().values(), *self.paths.columns().values(), self.labels]


def _copied(urls: Any, paths: Any, labels: Any) -> Copied:
    table = Copied.__new__(Copied)
    table.urls, table.paths, table.labels = UrlTable.view(urls), StringColumn.view(paths), labels
    return table


class Touching(Dataset[float]):
    """Items are what the table costs in this process: two rounds read all of it, the third one measures."""

    def __init__(self, files: tdr.RemoteFiles, num_workers: int) -> None:
        self.files, self.num_workers = files, num_workers

    def __len__(self) -> int:
        return 3 * self.num_workers

    def __getitem__(self, index: int) -> float:
        if index < 2 * self.num_workers:
            table: Any = self.files._files
            every = table.columns() if isinstance(table, Copied) else table.shared.columns.values()
            return float(sum(int(column.max()) for column in every))
        gc.collect()
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return next(float(line.split()[1]) / 1e3 for line in lines if line.startswith("Pss:"))


def dataset_of(table: Any) -> tdr.RemoteFiles:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "one").write_bytes(b"")
        files = tdr.RemoteFiles(folder)
    files._files = table
    return files


def workers_of(table: Any, method: str, num_workers: int) -> tuple[float, float]:
    """PSS of all workers in MB, and seconds to the first item of each."""
    data = Touching(dataset_of(table), num_workers)
    begun = time.perf_counter()
    loader = DataLoader(
        data, batch_size=None, num_workers=num_workers, prefetch_factor=1, multiprocessing_context=method
    )
    items = iter(loader)
    first = [next(items) for _ in range(num_workers)]
    start_s = time.perf_counter() - begun
    assert len(set(first)) == 1
    return sum(list(items)[num_workers:]), start_s


class _Spawned(popen_spawn_posix.Popen):
    """Takes descriptors for a process that is never started."""

    def __init__(self) -> None:
        self._fds: list[int] = []


def pickle_bytes(data: Any) -> int:
    """Length of the pickle that a new process gets."""
    context.set_spawning_popen(_Spawned())
    try:
        return len(reduction.ForkingPickler.dumps(data))
    finally:
        context.set_spawning_popen(None)


def access_ns(tables: dict[str, Any], num_files: int) -> dict[str, float]:
    """CPU for each access, by turns."""
    order = random.Random(0).choices(range(num_files), k=ACCESSES)
    found: dict[str, list[float]] = {name: [] for name in tables}
    for _ in range(ROUNDS):
        for name, table in tables.items():
            urls, start_s = table.urls, time.process_time()
            for number in order:
                urls[number]
            found[name].append((time.process_time() - start_s) / ACCESSES * 1e9)
    return {name: median(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small table, which shows that it runs")
    parser.add_argument("--files", type=int, default=None, help=f"in the table ({FILES:,})")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="start methods of workers")
    args = parser.parse_args()
    num_files = args.files or (QUICK_FILES if args.quick else FILES)
    tables: dict[str, Callable[[int], Any]] = {"one copy for the host": shared_table, "a copy for each worker": Copied}
    rows = [("table", "start", "MB for a million files and worker", "MB, all workers", "s to start", "pickled bytes")]
    costs: dict[tuple[str, str], float] = {}
    for method in args.methods:
        nothing = shared_table(1)
        idle_mb, idle_s = workers_of(nothing, method, args.workers)
        rows.append(("one file", method, "-", "-", f"{idle_s:.2f}", f"{pickle_bytes(dataset_of(nothing)):,}"))
        for name, make in tables.items():
            files = make(num_files)
            pss_mb, start_s = workers_of(files, method, args.workers)
            above_mb = pss_mb - idle_mb
            costs[name, method] = above_mb / args.workers / (num_files / 1e6)
            sent = f"{pickle_bytes(dataset_of(files)):,}" if method != "fork" else "-"
            rows.append((name, method, f"{costs[name, method]:.1f}", f"{above_mb:.0f}", f"{start_s:.2f}", sent))
            del files
    accesses = access_ns({name: make(num_files) for name, make in tables.items()}, num_files)
    print(f"{num_files:,} files, {args.workers} workers{', --quick: too small to mean anything' if args.quick else ''}")
    print(f"{environment({'torchdata_remote'}, with_store=False)}\n")
    print_table(rows)
    print()
    ours, copied = tables
    for method in args.methods:
        print(f"{method}: MB for a million files and worker, ours of copies: {costs[ours, method]:.1f} of "
              f"{costs[copied, method]:.1f}")  # fmt: skip
    print(f"access: {accesses[ours]:,.0f} ns, with private columns {accesses[copied]:,.0f} ns: "
          f"{accesses[ours] / accesses[copied]:.2f}x; target at most 1.1")  # fmt: skip


if __name__ == "__main__":
    main()
