"""How fast are loose files of 94 kB read in batches of 64 under torch's loaders, by this package and by others?

    python benchmarks/bench_loose_files.py [--quick] [--rounds 5] [--peers ours plain ...]

The files are JPEGs of 500 x 375 in folders of classes, on a store that answers after 20 ms or 130 ms, made by nginx
(apt-get install nginx libnginx-mod-http-lua); server and readers share the machine. All sides have the same number of
workers, started by fork, and read in the order of the listing, which is LitData's best. The clock runs from where each
worker has delivered a first, shorter batch, so that neither starts nor first connections count. Undecoded files reach
the main process as bytes; decoded ones as a tensor of 64 x 224 x 224 x 3. Ours decode by ``decoders.rgb``, and so does
the ceiling; the others by PIL, as they are documented. CPU is that of workers too, from their start on; memory that of
the main process. Sides alternate by rounds, each in a process of its own. Peers come from PyPI: pip install s3fs
s3torchconnector 'litdata[extra]'. Slow ones read fewer files.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from loose_file_peers import DECODED_BYTES, DISTINCT, LOADERS, PEERS, num_starting, peer_name
from measure import Job
from PIL import Image
from report import Side, Target, arguments, compare, faster, print_report
from slow_store import SlowStore, slow_store

BUCKET, BATCH, QUICK_BATCH, NUM_CLASSES = "photos", 64, 8, 16
HEIGHT, WIDTH, NOISE, QUALITY = 375, 500, 20, 90  # which makes 94 kB
QUICK = ("ours", "ours-ahead", "plain", "memory")
ONLY_DECODED = ("ours-ahead-pil", "memory")
OTHERS = ("plain", "s3torchconnector", "litdata", "litdata-tuned")
BEST_OTHER = (
    Target("ours under DataLoader, against the best other loader", faster("ours", *OTHERS), 1),
    Target("ours under PrefetchingLoader, against the best other loader", faster("ours-ahead", *OTHERS), 1),
)


@dataclass(frozen=True)
class Row:
    """One question: a store, a number of workers, and what the ratios should be.

    Args:
        num_batches: that a side reads; a slow one reads fewer, to end in time.
    """

    what: str
    latency_s: float
    num_workers: int
    decoded: bool
    num_batches: int
    slow: Mapping[str, int]
    targets: tuple[Target, ...]

    @property
    def loaders(self) -> tuple[str, ...]:
        return tuple(name for name in LOADERS if self.decoded or name not in ONLY_DECODED)

    def batches_of(self, loader: str, quick: bool) -> int:
        whole = self.slow.get(loader, self.num_batches)
        return min(whole, 2 * max(1, self.num_workers)) if quick else whole


def against_plain(factor: float) -> tuple[Target, ...]:
    return (
        Target("ours under DataLoader, against the plain dataset", faster("ours", "plain"), factor),
        Target("ours under PrefetchingLoader, against the plain dataset", faster("ours-ahead", "plain"), factor),
    )


DECODED = (
    Target("ours under DataLoader, of decoding from memory", faster("ours", "memory"), 0.85),
    Target("ours under PrefetchingLoader, of decoding from memory", faster("ours-ahead", "memory"), 0.85),
    *BEST_OTHER,
    Target("ours with the decoder of the others, against the best of them", faster("ours-ahead-pil", *OTHERS)),
)
ROWS = (
    Row("undecoded", 0.020, 0, False, 48, {"plain": 2, "s3torchconnector": 4}, (*against_plain(40), *BEST_OTHER)),
    Row("undecoded", 0.130, 4, False, 64, {"plain": 4, "s3torchconnector": 4}, (*against_plain(25), *BEST_OTHER)),
    Row("decoded to 224 x 224", 0.020, 4, True, 24, {"plain": 4, "s3torchconnector": 8}, DECODED),
)


def images(count: int = DISTINCT) -> list[bytes]:
    """Coloured gradients under noise, which compresses as a photograph does; each another one."""
    down, right = np.mgrid[0 : 1 : HEIGHT * 1j, 0 : 1 : WIDTH * 1j]
    source = np.random.default_rng(0)
    made = []
    for _ in range(count):
        gradients = np.stack([down * a + right * (1 - a) for a in source.random(3)], axis=-1) * 255
        pixels = gradients + source.normal(0, NOISE, (HEIGHT, WIDTH, 3))
        file = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
        made.append(file.getvalue())
    return made


def write_images(folder: Path, num_files: int) -> tuple[list[str], list[int]]:
    """Names in the bucket, sorted, and sizes; files with the same image are links to one."""
    files = images()
    originals = folder / "originals"
    originals.mkdir(parents=True)
    for number, data in enumerate(files):
        (originals / f"{number}").write_bytes(data)
    names = [f"train/{i * NUM_CLASSES // num_files:04d}/{i:06d}.jpg" for i in range(num_files)]
    for i, name in enumerate(names):
        path = folder / "store" / BUCKET / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(originals / f"{i % DISTINCT}", path)
    return names, [len(files[i % DISTINCT]) for i in range(num_files)]


def num_files(num_batches: int, batch: int, num_workers: int) -> int:
    """What a side reads, with what starts its workers."""
    count, size = num_starting(batch, num_workers)
    return count * size + num_batches * batch


def side(row: Row, loader: str, names: list[str], sizes: list[int], store: SlowStore, quick: bool) -> Side:
    batch = QUICK_BATCH if quick else BATCH
    num_batches = row.batches_of(loader, quick)
    num_samples, read = num_batches * batch, num_files(num_batches, batch, row.num_workers)
    sample_bytes = num_samples * DECODED_BYTES if row.decoded else sum(sizes[read - num_samples : read])
    job = Job(store.endpoint_url, BUCKET, names[:read], sizes[:read], num_samples, sample_bytes, batch)
    most = max(row.batches_of(name, quick) for name in row.loaders) * batch
    return Side(loader, peer_name(loader, row.num_workers, row.decoded), job, num_samples, most)


def answer(row: Row, folder: Path, names: list[str], sizes: list[int], args: argparse.Namespace) -> None:
    """Run the sides of a row, and print its table."""
    loaders = [name for name in args.peers or (QUICK if args.quick else LOADERS) if name in row.loaders]
    with slow_store(folder / "store", latency_s=row.latency_s) as store:
        sides = [side(row, name, names, sizes, store, args.quick) for name in loaders]
        results = compare("loose_file_peers", sides, store, args.rounds)
    title = (
        f"JPEGs of {sum(sizes) // len(sizes):,} bytes, {row.what}, {row.num_workers} workers, "
        f"{row.latency_s * 1000:.0f} ms to each answer, batches of {QUICK_BATCH if args.quick else BATCH}, "
        f"{args.shown}"
    )
    print_report(title, PEERS, sides, results, row.targets)
    print()


def main() -> None:
    args = arguments(str(__doc__).splitlines()[0], tuple(LOADERS))
    most = max(num_files(row.num_batches, BATCH, row.num_workers) for row in ROWS)
    with tempfile.TemporaryDirectory(prefix="bench-loose-files-") as temporary:
        names, sizes = write_images(Path(temporary), 1_024 if args.quick else most)
        for row in (ROWS[0], ROWS[-1]) if args.quick else ROWS:  # together they have each kind of side
            answer(row, Path(temporary), names, sizes, args)


if __name__ == "__main__":
    main()
