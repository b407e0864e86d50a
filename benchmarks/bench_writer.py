"""How fast are samples written to shards on local disk by one process, by this package and by others?

    python benchmarks/bench_writer.py [--quick] [--rounds 5] [--peers ours webdataset ...]

All write shards of 64 MiB; LitData and MosaicML in their own formats, which have no headers and no padding: a sample of
1.5 kB takes 3 kB in a tar. Ours alone makes checksums. Ours, and one side of MosaicML, wait until the disk has all of
it. Sides alternate by rounds, each in a process of its own. Peers come from PyPI: pip install webdataset litdata
mosaicml-streaming; one that is not there is left out.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence

from measure import Job
from report import Side, Target, arguments, compare, faster, print_report
from shard_dataset_peers import PEERS as SHARD_DATASET
from shard_dataset_peers import PIXELS, make_archive
from writer_peers import PEERS, class_of

QUICK_FRACTION = 40

SMALL = (
    Target("against WebDataset", faster("ours", "webdataset"), 5),
    Target("against LitData, its own format", faster("ours", "litdata"), 2.5),
    Target("against MosaicML as it comes, its own format", faster("ours", "mosaic")),
    Target("against MosaicML, both until the disk has everything", faster("ours", "mosaic-synced"), 1),
    Target("against MosaicML with MD5", faster("ours", "mosaic-md5")),
    Target("against MosaicML as its README writes, compressed", faster("ours", "mosaic-zstd")),
)
LARGE = (
    Target("against WebDataset", faster("ours", "webdataset"), 2),
    Target("against LitData, its own format", faster("ours", "litdata")),
    Target("against MosaicML as it comes, its own format", faster("ours", "mosaic")),
    Target("against MosaicML, both until the disk has everything", faster("ours", "mosaic-synced")),
    Target("against MosaicML with MD5", faster("ours", "mosaic-md5")),
)
BOTH = (
    Target("against writing as many bytes", faster("ours", "ceiling")),
    Target("against writing as many bytes, with MD5", faster("ours", "ceiling-md5")),
)


def writers(
    args: Namespace, jpg_bytes: int, all_samples: int, targets: tuple[Target, ...], peers: Sequence[str]
) -> None:
    """The same samples, written by each side."""
    num_samples = all_samples // QUICK_FRACTION if args.quick else all_samples
    sample_bytes = num_samples * jpg_bytes + sum(len(class_of(index)) for index in range(num_samples))
    job = Job("", "", [], [jpg_bytes], num_samples, sample_bytes)
    sides = [Side(name, name, job, num_samples, num_samples) for name in peers]
    results = compare("writer_peers", sides, None, args.rounds)
    title = f"{num_samples:,} samples of {jpg_bytes:,} bytes and a class, written to local disk, {args.shown}"
    print_report(title, PEERS, sides, results, (*targets, *BOTH))


def small_samples(args: Namespace) -> None:
    writers(args, 1_500, 100_000, SMALL, list(args.peers or PEERS))


def large_samples(args: Namespace) -> None:
    peers = list(args.peers or PEERS)
    writers(args, 94_000, 8_000, LARGE, peers[:1] if args.quick else peers)


def sharding(args: Namespace, what: str, job: Job, names: tuple[str, ...], *targets: Target) -> None:
    """One source, by each side."""
    sides = [Side(name, name, job, job.num_samples, job.num_samples) for name in names]
    results = compare("shard_dataset_peers", sides, None, args.rounds)
    print_report(f"{what}, {args.shown}", SHARD_DATASET, sides, results, targets)


def shuffling(args: Namespace) -> None:
    """A tar of tars into shards, in a uniformly random order, beside a plain copy of it."""
    num_samples, jpg_bytes = (200 if args.quick else 8_000), 94_000
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        archive_bytes = make_archive(folder, num_samples, jpg_bytes)
        sharding(
            args,
            f"Tar of tars, {num_samples:,} samples of {jpg_bytes:,} bytes",
            Job("", folder, [], [], num_samples, archive_bytes),
            ("full-shuffle", "copy-disk", "copy"),
            Target("against a copy that is on disk, as ours is", faster("full-shuffle", "copy-disk"), 0.5),
            Target("against cp", faster("full-shuffle", "copy")),
        )


def encoding(args: Namespace) -> None:
    """A dataset of pictures, encoded by one process and by two."""
    num_samples = 64 if args.quick else 6_400
    sharding(
        args,
        f"{num_samples:,} pictures of {PIXELS} x {PIXELS}",
        Job("", "", [], [], num_samples, num_samples),
        ("encode-0", "encode-1", "encode-2"),
        Target("2 workers against 1", faster("encode-2", "encode-1"), 1.6),
        Target("2 workers against none", faster("encode-2", "encode-0")),
    )


# Each prints its part of the report.
SECTIONS: tuple[Callable[[Namespace], None], ...] = (small_samples, large_samples, shuffling, encoding)


def main() -> None:
    args = arguments(str(__doc__).splitlines()[0], tuple(PEERS))
    for section in SECTIONS:
        section(args)
        print()


if __name__ == "__main__":
    main()
