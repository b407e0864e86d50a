"""How fast are tar shards on local disk read in one process, by this package and by others?

    python benchmarks/bench_tar.py [--quick] [--rounds 5] [--peers ours webdataset ...]

The files were just written, so they come from the page cache: what is measured is parsing and copying. LitData reads
the same samples in its own format. Sides alternate by rounds, each in a process of its own. Peers come from PyPI: pip
install webdataset torchdata litdata; one that is not there is left out.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from pathlib import Path

from measure import Job
from report import Side, Target, arguments, compare, faster, print_report
from tar_peers import LITDATA_FOLDER, PEERS, write_litdata

import torchdata_remote as tdr

SIZES = {1_500: 100_000, 94_000: 8_000}  # bytes of a jpg: samples
NUM_SHARDS, NUM_CLASSES, QUICK_FRACTION = 4, 1_000, 40

SMALL = (
    Target("against WebDataset", faster("ours", "webdataset"), 10),
    Target("against LitData reading its own format", faster("ours", "litdata"), 1),
    Target("without copying (copy=False), against LitData", faster("ours-views", "litdata")),
)
LARGE = (
    Target("against WebDataset", faster("ours", "webdataset"), 8),
    Target("without copying (copy=False), against WebDataset", faster("ours-views", "webdataset"), 8),
    Target("without copying, against LitData reading its own format", faster("ours-views", "litdata")),
)
BOTH = (
    Target("against tarfile", faster("ours", "tarfile")),
    Target("against torchdata", faster("ours", "torchdata")),
    Target("against the copying alone", faster("ours", "copying")),
    Target("against the bare walk over samples", faster("ours", "walk-samples"), 0.7),
    Target("against the bare walk over members", faster("ours", "walk"), 0.7),
)


def write(folder: str, jpg_bytes: int, num_samples: int) -> Job:
    """The same samples as tar shards and as LitData's chunks; pieces of one random block, so that writing is quick."""
    block = random.Random(0).randbytes(8 * jpg_bytes)
    samples = [
        {"jpg": block[start : start + jpg_bytes], "cls": str(i % NUM_CLASSES).encode()}
        for i, start in enumerate(random.Random(1).choices(range(7 * jpg_bytes), k=num_samples))
    ]
    shard_samples = -(-num_samples // NUM_SHARDS)
    with tdr.ShardWriter(f"{folder}/{{shard:06d}}.tar", max_shard_samples=shard_samples) as writer:
        for i, sample in enumerate(samples):
            writer.write({"__key__": f"{i:06d}", **sample})
    with contextlib.suppress(ModuleNotFoundError):  # its side says that it is missing
        write_litdata(f"{folder}/{LITDATA_FOLDER}", samples)
    names, sizes = zip(*((shard.url.rpartition("/")[2], shard.num_bytes) for shard in writer.shards), strict=True)
    num_bytes = sum(len(sample["jpg"]) + len(sample["cls"]) for sample in samples)
    return Job("", folder, list(names), list(sizes), num_samples, num_bytes)


def main() -> None:
    args = arguments(str(__doc__).splitlines()[0], tuple(PEERS))
    peers = list(args.peers or PEERS)
    for jpg_bytes, all_samples in SIZES.items():
        num_samples = all_samples // QUICK_FRACTION if args.quick else all_samples
        with tempfile.TemporaryDirectory(prefix="bench-tar-") as folder:
            (Path(folder) / LITDATA_FOLDER).mkdir()
            job = write(folder, jpg_bytes, num_samples)
            sides = [Side(name, name, job, num_samples, num_samples) for name in peers]
            results = compare("tar_peers", sides, None, args.rounds)
        title = f"{num_samples:,} samples of {jpg_bytes:,} bytes and a class in {NUM_SHARDS} local shards, {args.shown}"
        print_report(title, PEERS, sides, results, (*(SMALL if jpg_bytes < 10_000 else LARGE), *BOTH))
        print()
        peers = peers[:1] if args.quick else peers


if __name__ == "__main__":
    main()
