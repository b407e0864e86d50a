"""What does this package add to the time of opening and reading loose files of a local folder?

    python benchmarks/bench_local_files.py [--quick] [--rounds 5] [--peers plain stream-files ...]

The files are in the page cache. Single processes, one after the other, by turns.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from local_file_peers import PEERS
from measure import Job
from report import Round, Side, Target, arguments, compare, print_report

FILE_BYTES, NUM_FILES, QUICK_FILES = 94_000, 6_000, 600


def slower(ours: str, theirs: str) -> Callable[[Round], float | None]:
    """CPU seconds of one side against those of another, which other work on the machine hardly changes."""

    def value(found: Round) -> float | None:
        return found[ours].cpu_s / found[theirs].cpu_s if ours in found and theirs in found else None

    return value


TARGETS = (
    Target("stream_files, CPU against open and read", slower("stream-files", "plain"), 1.5, at_most=True),
    Target("a list of paths, CPU against open and read", slower("paths", "plain"), 1.5, at_most=True),
    Target("RemoteFiles, CPU of batches against open and read", slower("batches", "plain-batches"), 1.5, at_most=True),
    Target("RemoteFiles, CPU of items against open and read", slower("items", "plain")),
)


def main() -> None:
    args = arguments(str(__doc__).splitlines()[0], tuple(PEERS))
    names = [f"{number:06d}.jpg" for number in range(QUICK_FILES if args.quick else NUM_FILES)]
    source = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="bench-local-files-") as folder:
        for name in names:
            (Path(folder) / name).write_bytes(source.randbytes(FILE_BYTES))
        job = Job("", folder, names, [], len(names), len(names) * FILE_BYTES)
        sides = [Side(name, name, job, len(names), len(names)) for name in args.peers or PEERS]
        results = compare("local_file_peers", sides, None, args.rounds)
    print_report(f"{len(names):,} files of {FILE_BYTES:,} bytes, {args.shown}", PEERS, sides, results, TARGETS)


if __name__ == "__main__":
    main()
