"""What do the defaults of the readers cost, and what would other values: first batch, speed, processor, memory?

    python benchmarks/bench_defaults.py [--quick] [--rounds 5] [--peers default shards-only ...]

One option differs from the defaults at a time. Single processes, with their store on the same machine: nginx that
answers after 20 ms and sends 60 MB/s over each connection. "First" is the time to a complete batch of 64 samples, with
listing and connections. How well the orders mix is measured by ``shuffle_quality.py``.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from default_peers import PEERS
from measure import MIB, Job
from report import Round, Side, Target, arguments, compare, faster, print_report
from slow_store import slow_store

import torchdata_remote as tdr

LATENCY_S, CONNECTION_BYTES_PER_S = 0.020, 60_000_000
JPG_BYTES = 94_000
NUM_SHARDS, SHARD_SAMPLES, NUM_LOOSE = 32, 250, 2_000
QUICK_SHARDS, QUICK_SHARD_SAMPLES, QUICK_LOOSE = 4, 50, 100


def peak_rss(found: Round) -> float | None:
    return found["default"].peak_rss_mib if "default" in found else None


TARGETS = (
    Target('the default, against shuffle="shards"', faster("default", "shards-only"), 0.8),
    Target("the default's peak RSS above idle, MiB", peak_rss, 320, at_most=True),
)


def main() -> None:
    args = arguments(str(__doc__).splitlines()[0], tuple(PEERS))
    num_shards, shard_samples = (QUICK_SHARDS, QUICK_SHARD_SAMPLES) if args.quick else (NUM_SHARDS, SHARD_SAMPLES)
    num_loose = QUICK_LOOSE if args.quick else NUM_LOOSE
    source = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="bench-defaults-") as temporary:
        folder = Path(temporary)
        (folder / "loose").mkdir()
        with tdr.ShardWriter(f"{folder}/shards/{{shard:06d}}.tar", max_shard_samples=shard_samples) as writer:
            for i in range(num_shards * shard_samples):
                jpg = source.randbytes(JPG_BYTES)
                writer.write({"__key__": f"{i:06d}", "jpg": jpg, "cls": b"%03d" % (i % 1_000)})
                if i < num_loose:
                    (folder / "loose" / f"{i:06d}.jpg").write_bytes(jpg)
        names = [shard.url.rpartition("/")[2] for shard in writer.shards]
        num_samples = num_shards * shard_samples
        with slow_store(folder, latency_s=LATENCY_S, connection_bytes_per_s=CONNECTION_BYTES_PER_S) as store:

            def side(name: str) -> Side:
                if name.startswith("files"):
                    job = Job(store.endpoint_url, "loose", [], [], num_loose, num_loose * JPG_BYTES)
                else:
                    job = Job(store.endpoint_url, "shards", names, [], num_samples, num_samples * (JPG_BYTES + 3))
                return Side(name, name, job, job.num_samples, job.num_samples)

            sides = [side(name) for name in args.peers or PEERS]
            results = compare("default_peers", sides, store, args.rounds)
    shards = f"{num_shards} shards of {writer.shards[0].num_bytes / MIB:.0f} MiB"
    title = (
        f"{num_samples:,} samples of {JPG_BYTES:,} bytes in {shards}, {LATENCY_S * 1000:.0f} ms to each answer, "
        f"{CONNECTION_BYTES_PER_S / 1e6:.0f} MB/s a connection, {args.shown}"
    )
    print_report(title, PEERS, sides, results, TARGETS)


if __name__ == "__main__":
    main()
