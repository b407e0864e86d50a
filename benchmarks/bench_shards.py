"""How fast are tar shards read, by this package and by others, over connections of 60 MB/s that answer after 20 ms?

    python benchmarks/bench_shards.py [--quick] [--rounds 5] [--peers ours-16 webdataset ...]

Single processes, no DataLoader workers. Latency and bandwidth are assumed and made by nginx (apt-get install nginx
libnginx-mod-http-lua); server and reader share the machine. Sides alternate by rounds, each in a process of its own.
Peers come from PyPI: pip install s3fs s3torchconnector webdataset torchdata 'litdata[extra]'; curl must be there. Slow
ones read fewer shards.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

from measure import MIB, Job
from report import Round, Side, Target, arguments, compare, faster, print_report
from shard_peers import PART_BYTES, PEERS
from slow_store import SlowStore, slow_store

import torchdata_remote as tdr

LATENCY_S, CONNECTION_BYTES_PER_S = 0.020, 60_000_000
JPG_BYTES, NUM_CLASSES = 94_000, 1_000
NUM_SHARDS, SHARD_SAMPLES, LOOSE_SAMPLES = 16, 500, 1_024
QUICK_SHARDS, QUICK_SHARD_SAMPLES, QUICK_LOOSE_SAMPLES = 4, 200, 128
SHARDS, LOOSE = "shards", "loose"
SIDES = {  # name: peer, in flight, fraction of the shards
    "ours-16": ("ours", 16, 1),
    "ours-32": ("ours", 32, 1),
    "brace-16": ("ours-brace", 16, 1),
    "http-16": ("ours-http", 16, 1),
    "s3fs": ("s3fs", 16, 2),
    "s3fs-open": ("s3fs-open", 1, 8),
    "s3torchconnector": ("s3torchconnector", 1, 2),
    "webdataset": ("webdataset", 1, 4),
    "torchdata": ("torchdata", 1, 8),
    "litdata-32": ("litdata", 32, None),
    "litdata-128": ("litdata", 128, None),
    "ceiling-16": ("ceiling", 16, 1),
    "ceiling-32": ("ceiling", 32, 1),
}
QUICK = ("ours-16", "brace-16", "http-16", "s3torchconnector", "webdataset", "s3fs", "ceiling-16")


def peak_rss(readings: Round) -> float | None:
    return readings["ours-16"].peak_rss_mib if "ours-16" in readings else None


TARGETS = (
    Target("ours, 16 in flight, against WebDataset pipe:curl", faster("ours-16", "webdataset"), 12),
    Target("ours, 16 in flight, against s3torchconnector", faster("ours-16", "s3torchconnector"), 6),
    Target("ours, 16 in flight, against the ceiling", faster("ours-16", "ceiling-16"), 0.85),
    Target("a brace range, against the listed prefix", faster("brace-16", "ours-16"), 0.95),
    Target("a list of http URLs, against the listed prefix", faster("http-16", "ours-16"), 0.95),
    Target("ours, 16 in flight, peak RSS above idle at max_buffer_bytes=128 MiB, MiB", peak_rss, 192, at_most=True),
)


@dataclass(frozen=True)
class Written:
    """What the store holds: shards, and the first of their samples again as loose files."""

    samples: list[int]  # bytes of each sample's members
    shards: list[tuple[str, int]]  # name and bytes
    shard_samples: int
    num_loose: int


def write(folder: Path, num_shards: int, shard_samples: int, num_loose: int) -> Written:
    (folder / LOOSE).mkdir()
    source, samples = random.Random(0), []
    with tdr.ShardWriter(f"{folder}/{SHARDS}/{{shard:06d}}.tar", max_shard_samples=shard_samples) as writer:
        for i in range(num_shards * shard_samples):
            key, jpg, cls = f"{i:06d}", source.randbytes(JPG_BYTES), str(i % NUM_CLASSES).encode()
            writer.write({"__key__": key, "jpg": jpg, "cls": cls})
            samples.append(len(jpg) + len(cls))
            if i < num_loose:
                (folder / LOOSE / f"{key}.jpg").write_bytes(jpg)
                (folder / LOOSE / f"{key}.cls").write_bytes(cls)
    shards = [(shard.url.rpartition("/")[2], shard.num_bytes) for shard in writer.shards]
    return Written(samples, shards, shard_samples, num_loose)


def side(name: str, written: Written, store: SlowStore) -> Side:
    peer, in_flight, fraction = SIDES[name]
    if fraction is None:
        samples = written.samples[: written.num_loose]
        job = Job(store.endpoint_url, LOOSE, [], [], len(samples), sum(samples), in_flight)
    else:
        shards = written.shards[: max(1, len(written.shards) // fraction)]
        samples = written.samples[: len(shards) * written.shard_samples]
        names, sizes = [name for name, _ in shards], [size for _, size in shards]
        expected = len(samples), sum(samples)
        if peer == "ceiling":  # it counts parts, and bytes as they lie in the shards
            expected = sum(-(-size // PART_BYTES) for size in sizes), sum(sizes)
        job = Job(store.endpoint_url, SHARDS, names, sizes, *expected, in_flight)
    return Side(name, peer, job, samples=len(samples), of_samples=len(written.samples))


def main() -> None:
    args = arguments(str(__doc__).splitlines()[0], tuple(SIDES))
    num_shards, shard_samples = (QUICK_SHARDS, QUICK_SHARD_SAMPLES) if args.quick else (NUM_SHARDS, SHARD_SAMPLES)
    with tempfile.TemporaryDirectory(prefix="bench-shards-") as temporary:
        folder = Path(temporary)
        written = write(folder, num_shards, shard_samples, QUICK_LOOSE_SAMPLES if args.quick else LOOSE_SAMPLES)
        with slow_store(folder, latency_s=LATENCY_S, connection_bytes_per_s=CONNECTION_BYTES_PER_S) as store:
            sides = [side(name, written, store) for name in args.peers or (QUICK if args.quick else SIDES)]
            results = compare("shard_peers", sides, store, args.rounds)
    title = (
        f"{len(written.samples):,} samples of {JPG_BYTES:,} bytes and a class in {num_shards} shards of "
        f"{written.shards[0][1] / MIB:.0f} MiB, {LATENCY_S * 1000:.0f} ms to each answer, "
        f"{CONNECTION_BYTES_PER_S / 1e6:.0f} MB/s a connection, {args.shown}"
    )
    print_report(title, PEERS, sides, results, TARGETS)


if __name__ == "__main__":
    main()
