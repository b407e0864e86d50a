"""How fast do shuffled, augmented batches of images come out of a bucket, against other loaders and decoding alone?

    python benchmarks/bench_training.py [--quick] [--rounds 5] [--peers ours webdataset ...] [--plot PATH]

JPEGs of 500 x 375 and 94 kB, on a store that answers after 20 ms and sends 60 MB/s on each connection (nginx: apt-get
install nginx libnginx-mod-http-lua curl); store and readers share the machine. They become batches of 64 random crops
of 224 x 224, flipped, float, normalised. Each side reads all images once, shuffled as it does it, with two workers or
two threads, in the format that suits it best: tar shards, loose files, LitData's chunks, MosaicML's shards;
``training_peers`` says how. The first four batches are not timed, so that starts do not count. The time to the first
batch is that from the start of the process, imports included. Sides alternate by rounds, each in a process of its own;
one of ours that does not deliver every image fails the run, another one is run again. MosaicML sometimes reads a shard
that its other worker is still downloading.

The ceiling decodes images in memory with the same function in two threads, and does nothing else. Peers come from PyPI:
pip install torchvision opencv-python-headless simplejpeg webdataset 'litdata[extra]' mosaicml-streaming s3fs
s3torchconnector nvidia-dali-cuda120. Those that are missing are named and left out.
The plot needs matplotlib.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench_loose_files import images
from measure import TIMEOUT_S, Job
from report import Side, Target, arguments, compare, faster, print_report, print_table, spread
from slow_store import SlowStore, slow_store
from tar_peers import write_litdata
from training_peers import BUCKETS, CHUNKS, DISTINCT, FILES, MDS, PEERS, SHARDS, STARTING, VALUES
from training_plot import draw

LATENCY_S, CONNECTION_BYTES_PER_S = 0.020, 60_000_000
BATCH, NUM_CLASSES = 64, 16
WHOLE, QUICK = (12, 256), (4, 32)  # shards, images in each
QUICK_BATCH = 8
OURS = ("ours", "ours-workers")
OTHERS = tuple(name for name in PEERS if not name.startswith(("ours", "memory")))
USUAL = tuple(name for name in OTHERS if not name.endswith("-cv2"))
QUICK_SIDES = ("ours", "ours-function", "image-folder", "memory")
FIRST_BATCH = (*OURS, *(name for name in USUAL if name not in ("image-folder", "s3torchconnector")))
TARGETS = (
    Target("best of ours, against the best other with its usual decoder", lambda r: best(r, OURS, USUAL), 1.3),
    Target("best of ours, against the best other with any decoder", lambda r: best(r, OURS, OTHERS), 1.3),
    *(
        Target(f"best of ours, against {name}", lambda r, name=name: best(r, OURS, (name, f"{name}-cv2")))  # type: ignore[misc]
        for name in USUAL
    ),
    Target("best of ours, of decoding alone", lambda r: best(r, OURS, ("memory",)), 0.9),
    Target("Pillow and torchvision in threads, of that alone", faster("ours-function", "memory-function")),
    Target("Pillow and torchvision in threads, against the best other with it", faster("ours-function", *USUAL)),
)


def best(readings: Mapping[str, Any], ours: tuple[str, ...], others: tuple[str, ...]) -> float | None:
    """The fastest of ours against the fastest of others."""
    speeds = [[readings[name].samples_per_s for name in names if name in readings] for names in (ours, others)]
    return max(speeds[0]) / max(speeds[1]) if all(speeds) else None


def write(folder: Path, num_shards: int, images_in_each: int) -> dict[str, list[str]]:
    """Write the images in each format; return the names in each bucket."""
    files, num_images = images()[:DISTINCT], num_shards * images_in_each
    samples = [
        {"jpg": files[i % len(files)], "cls": str(i * NUM_CLASSES // num_images).encode()} for i in range(num_images)
    ]
    (folder / SHARDS).mkdir(parents=True)
    for shard in range(num_shards):
        with tarfile.open(folder / SHARDS / f"{shard:06d}.tar", "w") as tar:
            for number in range(shard * images_in_each, (shard + 1) * images_in_each):
                for extension, data in samples[number].items():
                    member = tarfile.TarInfo(f"{number:06d}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    for number, sample in enumerate(samples):
        path = folder / FILES / f"{int(sample['cls']):04d}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample["jpg"])
    shard_bytes = sum(len(sample["jpg"]) for sample in samples) // num_shards
    (folder / CHUNKS).mkdir()
    (folder / MDS).mkdir()
    if find_spec("litdata"):
        write_litdata(str(folder / CHUNKS), samples, chunk_bytes=shard_bytes)
    if find_spec("streaming"):
        write_mds(folder / MDS, samples, shard_bytes)
    return {
        bucket: sorted(
            str(path.relative_to(folder / bucket)) for path in (folder / bucket).rglob("*") if path.is_file()
        )
        for bucket in (SHARDS, FILES, CHUNKS, MDS)
    }


def write_mds(folder: Path, samples: list[dict[str, bytes]], shard_bytes: int) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"jpg": "bytes", "cls": "bytes"}, size_limit=shard_bytes) as writer:
        for sample in samples:
            writer.write(sample)


def jobs(store: SlowStore, names: Mapping[str, list[str]], num_images: int, batch: int) -> dict[str, Job]:
    """What each side reads."""
    timed = num_images - STARTING * batch
    return {
        side: Job(store.endpoint_url, bucket, names[bucket], [], timed, timed * VALUES, batch)
        for side, bucket in BUCKETS.items()
    }


def first_batch_s(side: str, job: Job, store: SlowStore) -> float | None:
    """Seconds from the start of a process to its first batch; ``None`` if the side is not installed, or gave up."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with tempfile.TemporaryDirectory(prefix="peer-") as scratch:
        started_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("training_peers.py")), side],
            input=json.dumps(asdict(job)),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**inherited, **store.environment, "TMPDIR": scratch},
            check=False,
        )
    if "ModuleNotFoundError" in done.stderr:
        return None
    if done.returncode or not done.stdout:
        raise RuntimeError(f"{side} failed: {done.stdout[-500:]}{done.stderr[-4000:]}")
    then_s, num_values = done.stdout.split()[-2:]
    if int(num_values) != job.in_flight * VALUES:
        raise RuntimeError(f"{side}: its first batch has {num_values} values: its figures mean nothing.")
    return float(then_s) - started_s


def print_first_batches(
    sides: list[str], job_of: Mapping[str, Job], store: SlowStore, num_rounds: int
) -> dict[str, list[float]]:
    """Print the table of times to the first batch, and return them."""
    rounds: list[dict[str, float]] = []
    for number in range(num_rounds):
        rounds.append({})
        for side in sides if number % 2 == 0 else reversed(sides):
            seconds = first_batch_s(side, job_of[side], store)
            if seconds is not None:
                rounds[-1][side] = seconds
    taken = {side: [one[side] for one in rounds if side in one] for side in sides}
    taken = {side: values for side, values in taken.items() if values}

    def of_others(names: Collection[str]) -> str:
        """The best of ours, of the time of the best of these."""
        ratios = [
            min(one[name] for name in one if name in OURS) / min(one[name] for name in one if name in names)
            for one in rounds
            if any(name in OURS for name in one) and any(name in names for name in one)
        ]
        return spread(ratios, 2) if ratios else "not measured"

    rows = [("peer", "s to the first batch", "ours, of its time")]
    print_table(
        [*rows, *((PEERS[side].shown, spread(values, 2), of_others((side,))) for side, values in taken.items())]
    )
    print(f"\nfirst batch of ours, of the best other's time: {of_others(USUAL)}; target at most 0.5")
    return taken


def main() -> None:
    args = arguments(str(__doc__).splitlines()[0], tuple(PEERS), with_plot=True)
    num_shards, images_in_each = QUICK if args.quick else WHOLE
    batch, num_images = QUICK_BATCH if args.quick else BATCH, num_shards * images_in_each
    with tempfile.TemporaryDirectory(prefix="bench-training-") as temporary:
        folder = Path(temporary)
        names = write(folder, num_shards, images_in_each)
        with slow_store(folder, latency_s=LATENCY_S, connection_bytes_per_s=CONNECTION_BYTES_PER_S) as store:
            job_of = jobs(store, names, num_images, batch)
            chosen = args.peers or (QUICK_SIDES if args.quick else tuple(PEERS))
            sides = [
                Side(name, name, job_of[name], job_of[name].num_samples, job_of[name].num_samples) for name in chosen
            ]
            results = compare("training_peers", sides, store, args.rounds)
            title = f"{num_images:,} JPEGs of 94 kB, batches of {batch}, {args.shown}"
            print_report(title, PEERS, sides, results, TARGETS)
            print()
            first_batches = print_first_batches(
                [name for name in chosen if name in FIRST_BATCH], job_of, store, args.rounds
            )
    if args.plot:
        measured = {side for one in results.rounds for side in one}
        speeds = {
            side: [one[side].samples_per_s for one in results.rounds if side in one]
            for side in PEERS
            if side in measured
        }
        draw(speeds, first_batches, args.plot)
        print(f"\ndrawn: {args.plot}")


if __name__ == "__main__":
    main()
