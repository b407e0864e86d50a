"""What does listing a bucket cost: CPU for a key, requests, time, memory?

    python benchmarks/bench_listing.py [--quick] [--rounds N] [--keys N] [--before COMMIT]

The store is nginx with Lua, which answers ListObjectsV2 from memory after 20 ms. It runs in a process of its own, whose
CPU is not counted. ``--before`` adds this package at an earlier commit, checked out beside the repository. Layouts are
listed by this package only; there the question is the number of requests, of those that a listing in one piece needs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from report import print_table, spread
from slow_store import SlowStore, slow_store

LATENCY_S, PAGE_KEYS, TIMEOUT_S = 0.020, 1_000, 900
ROOT = Path(__file__).resolve().parent.parent
SHOWN = {
    "ours": "torchdata_remote, list_remote",
    "before": "the same, at {}",
    "obstore": "obstore, list",
    "s3fs": "s3fs, find",
    "boto3": "boto3, paginator",
}


def hash_of(number: int) -> str:
    return hashlib.sha256(b"%d" % number).hexdigest()[:16]


LAYOUTS: dict[str, Callable[[int], Iterator[str]]] = {
    "one folder": lambda num: (f"train/{n:08d}.jpg" for n in range(num)),
    "four folders": lambda num: (f"{n * 4 // num}/{n:08d}.jpg" for n in range(num)),
    "folders of 1,300": lambda num: (f"n{n // 1_300 * 37:08d}/{n:08d}.jpg" for n in range(num)),
    "tiny folders": lambda num: (f"{n // 2:08d}/{n % 2}.jpg" for n in range(num)),
    "huge, then tiny": lambda num: (f"a/{n:08d}.jpg" if n < num // 2 else f"b{n:08d}/x.jpg" for n in range(num)),
    "tiny, then huge": lambda num: (f"a{n:08d}/x.jpg" if n < num // 2 else f"b/{n:08d}.jpg" for n in range(num)),
    "30 folders": lambda num: (f"{hash_of(n * 30 // num)}/{n:08d}.jpg" for n in range(num)),
    "hashes in 30": lambda num: (f"{n * 30 // num:02d}/{hash_of(n)}.jpg" for n in range(num)),
    "days": lambda num: (f"{n // 172_800}/{n // 14_400 % 12:02d}/{n // 480 % 30:02d}/{n % 480}" for n in range(num)),
    "deep": lambda num: (f"{n // 90_000}/{n // 9_000 % 10}/{n // 300 % 30:02d}/{n:08d}.jpg" for n in range(num)),
}


@dataclass(frozen=True)
class Reading:
    """What one listing took."""

    keys: int
    cpu_s: float
    seconds: float
    bytes: int
    requests: int = 0


def listed_by(name: str, store: SlowStore, num_keys: int, package: Path) -> Reading:
    """List the bucket in a process of its own.

    Raises:
        RuntimeError: if it fails, or keys are missing.
    """
    store.reset_requests()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/listing_peers.py"), name, "s3://b/"],
        env={**environment, **store.environment, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed: {done.stderr[-3000:]}")
    reading = Reading(**json.loads(done.stdout.splitlines()[-1]), requests=store.count_requests()["list"])
    if reading.keys != num_keys:
        raise RuntimeError(f"{name} lists {reading.keys:,} of {num_keys:,} keys: its figures mean nothing.")
    return reading


@contextmanager
def bucket(layout: str, num_keys: int) -> Iterator[SlowStore]:
    with tempfile.TemporaryDirectory(prefix="bench-listing-") as folder:
        names = sorted(f"b/{key}" for key in LAYOUTS[layout](num_keys))
        with slow_store(Path(folder), latency_s=LATENCY_S, listed=names) as store:
            yield store


@contextmanager
def checked_out(commit: str | None) -> Iterator[Path | None]:
    """This repository at a commit."""
    if commit is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="bench-listing-") as folder:
        tree = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def compare(num_keys: int, num_rounds: int, commit: str | None) -> None:
    """All sides list one folder, alternately."""
    readings: dict[str, list[Reading]] = {}
    with bucket("one folder", num_keys) as store, checked_out(commit) as before:
        sides = [name for name in SHOWN if name != "before" or before is not None]
        for number in range(num_rounds):
            for name in sides if number % 2 == 0 else reversed(sides):
                package = before if name == "before" and before is not None else ROOT
                readings.setdefault(name, []).append(listed_by(name, store, num_keys, package))
    print(f"{num_keys:,} keys in one folder, {LATENCY_S * 1e3:g} ms to each page, {num_rounds} round(s)\n")
    rows: list[tuple[str, ...]] = [("listed by", "CPU us a key", "s", "requests", "bytes a key")]
    for name in sides:
        of_side = readings[name]
        rows.append(
            (
                SHOWN[name].format(commit),
                spread([one.cpu_s / one.keys * 1e6 for one in of_side], 1),
                f"{median(one.seconds for one in of_side):,.1f}",
                f"{median(one.requests for one in of_side):,.0f}",
                f"{median(one.bytes / one.keys for one in of_side):,.0f}",
            )
        )
    print_table(rows)
    print()
    for name in sides[1:]:
        ratios = [one.cpu_s / other.cpu_s for one, other in zip(readings["ours"], readings[name], strict=True)]
        target = "; target at most 0.33" if name == "before" else ""
        print(f"CPU against {SHOWN[name].format(commit)}: {spread(ratios, 2)}{target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few keys: shows that it runs, measures nothing")
    parser.add_argument("--rounds", type=int, default=None, help="how often each side lists (3; with --quick, 1)")
    parser.add_argument("--keys", type=int, default=None, help="in the compared listing (1,000,000)")
    parser.add_argument("--before", metavar="COMMIT", help="also list by this package at a commit")
    args = parser.parse_args()
    num_keys = args.keys or (20_000 if args.quick else 1_000_000)
    compare(num_keys, args.rounds or (1 if args.quick else 3), args.before)
    print()
    rows: list[tuple[str, ...]] = [("layout", "requests", "of a flat listing", "s", "s / latency")]
    num_keys = 20_000 if args.quick else 300_000
    for layout in LAYOUTS:
        with bucket(layout, num_keys) as store:
            reading = listed_by("ours", store, num_keys, ROOT)
        ratio = reading.requests / (num_keys / PAGE_KEYS)
        rows.append(
            (
                layout,
                f"{reading.requests:,}",
                f"{ratio:.2f}",
                f"{reading.seconds:,.1f}",
                f"{reading.seconds / LATENCY_S:,.0f}",
            )
        )
    print(f"{num_keys:,} keys, in one piece {num_keys // PAGE_KEYS:,} requests; target at most 1.2 times\n")
    print_table(rows)


if __name__ == "__main__":
    main()
