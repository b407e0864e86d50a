"""Run the sides of a benchmark by turns, and print one table and the ratios."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from statistics import median

from measure import Job, Peer, PeerMissingError, Reading, run_peer
from slow_store import SlowStore, nginx_path

_MAX_AGAIN = 2
Round = Mapping[str, Reading]
COLUMNS = ("samples/s (min to max)", "MB/s", "CPU-s/1,000", "requests", "peak MiB above idle", "ms to first")


@dataclass(frozen=True)
class Side:
    """A peer with its settings.

    Args:
        name: in ``--peers`` and among the readings.
        peer: whose it is, in ``PEERS``.
        job: what it reads.
        samples: what its speed counts, where it does not hand on samples itself.
        of_samples: what the others read; a slow side reads fewer, to end in time.
    """

    name: str
    peer: str
    job: Job
    samples: int
    of_samples: int


@dataclass(frozen=True)
class Target:
    """A figure of each round (``None`` where a side that it needs was not measured), and what it should be, if set."""

    shown: str
    value: Callable[[Round], float | None]
    limit: float | None = None
    at_most: bool = False


@dataclass(frozen=True)
class Results:
    rounds: list[Round]
    missing: dict[str, str]


def arguments(description: str, names: Sequence[str], *, with_plot: bool = False) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=None, help="how often each side runs (5; with --quick, 1)")
    parser.add_argument("--quick", action="store_true", help="small and few: shows that it runs, measures nothing")
    parser.add_argument("--peers", nargs="+", choices=names, metavar="PEER", help=f"only these of {', '.join(names)}")
    if with_plot:
        parser.add_argument("--plot", metavar="PATH", help="where a picture is drawn")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else 5)
    args.shown = f"{args.rounds} round(s)" + (", --quick: too small to mean anything" if args.quick else "")
    return args


def compare(module: str, sides: Sequence[Side], store: SlowStore | None, num_rounds: int) -> Results:
    """All sides in each round, in turned order every other time; those not installed are left out and named."""
    results = Results([], {})
    for number in range(num_rounds):
        readings: dict[str, Reading] = {}
        for side in sides if number % 2 == 0 else reversed(sides):
            if side.name in results.missing:
                continue
            try:
                readings[side.name] = replace(_measured(module, side, store), samples=side.samples)
            except PeerMissingError as error:
                results.missing[side.name] = str(error)
        results.rounds.append(readings)
    return results


def _measured(module: str, side: Side, store: SlowStore | None) -> Reading:
    """Run a side; another project's one that fails is run again, twice at most.

    Raises:
        PeerMissingError: if it is not installed, or failed each time.
        RuntimeError: if it is ours, and failed.
    """
    reason = ""
    for _ in range(1 + _MAX_AGAIN):
        try:
            return run_peer(module, side.peer, side.job, store)
        except PeerMissingError:  # noqa: PERF203  # a process each time
            raise
        except RuntimeError as error:
            if side.name.startswith("ours"):
                raise
            reason = str(error).splitlines()[-1]
            print(f"{side.name} failed: {reason}", file=sys.stderr)
    raise PeerMissingError(f"it failed each time: {reason}")


def faster(ours: str, *theirs: str) -> Callable[[Round], float | None]:
    """How many times as fast one side is as the fastest of others."""

    def value(readings: Round) -> float | None:
        against = [readings[name].samples_per_s for name in theirs if name in readings]
        return readings[ours].samples_per_s / max(against) if ours in readings and against else None

    return value


def spread(values: Sequence[float], digits: int) -> str:
    return f"{median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Rows of cells, the first of them the heading; a row of two cells has its reason in the second one."""
    widths = [max(len(cells[i]) for cells in rows if len(cells) > i) for i in range(len(rows[0]))]
    widths[1] = max(len(cells[1]) for cells in rows if len(cells) > 2)
    for cells in rows:
        shown = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=False)]
        print("  ".join([cells[0].ljust(widths[0]), *shown]))


def print_report(
    title: str, peers: Mapping[str, Peer], sides: Sequence[Side], results: Results, targets: Sequence[Target]
) -> None:
    with_store = any(reading.requests is not None for readings in results.rounds for reading in readings.values())
    print(f"{title}\n{environment({peers[side.peer].distribution for side in sides}, with_store)}\n")
    rows = [("peer", *COLUMNS), *(row(peers[side.peer], side, results) for side in sides)]
    print_table(rows)
    print()
    for target in targets:
        values = [value for value in map(target.value, results.rounds) if value is not None]
        wanted = f"; target {'at most' if target.at_most else 'at least'} {target.limit:g}" if target.limit else ""
        print(f"{target.shown}: {spread(values, 2) if values else 'not measured'}{wanted}")


def row(peer: Peer, side: Side, results: Results) -> tuple[str, ...]:
    name = peer.shown.format(side.job.in_flight)
    if side.samples != side.of_samples:
        name += f" (of {side.samples:,} samples)"
    readings = [readings[side.name] for readings in results.rounds if side.name in readings]
    if not readings:
        return name, f"not measured: {results.missing[side.name]}"

    def middle(value: Callable[[Reading], float]) -> float:
        return median(map(value, readings))

    return (
        name,
        spread([reading.samples_per_s for reading in readings], 0),
        f"{middle(lambda reading: reading.bytes / reading.seconds / 1e6):,.0f}",
        f"{middle(lambda reading: reading.cpu_s / reading.samples * 1000):.3f}",
        "-" if readings[0].requests is None else f"{middle(lambda reading: reading.requests or 0):,.0f}",
        f"{middle(lambda reading: reading.peak_rss_mib):,.0f}",
        f"{middle(lambda reading: reading.first_sample_s * 1000):,.0f}",
    )


def installed(distribution: str) -> str:
    try:
        return f"{distribution} {version(distribution)}"
    except PackageNotFoundError:
        return f"{distribution} not installed"


def environment(distributions: set[str], with_store: bool) -> str:
    """Versions and processors."""
    here = f"{os.cpu_count()} CPUs, Python {platform.python_version()}"
    if with_store:
        nginx = subprocess.run([nginx_path(), "-v"], capture_output=True, text=True, check=True).stderr.strip()
        here += f", {nginx.rpartition(': ')[2]}"
    return f"{here}; {', '.join(map(installed, sorted({*distributions, 'torch', 'obstore'})))}"
