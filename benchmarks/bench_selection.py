"""What do some samples of a dataset cost, samples joined from two datasets, and seconds of videos?

    python benchmarks/bench_selection.py [--quick] [--rounds 5] [--peers select-10-random filter ...]

The store is nginx: 20 ms to each response, 60 MB/s a connection. 1, 10 and 50 % of the keys of a dataset are selected,
at random and in runs; what the store sent is compared with what was wanted. Captions are joined to images, in order and
by keys, and compared with shards that hold both. Two seconds are decoded from the middle of each of some videos.
Single processes, no DataLoader workers; sides alternate by rounds, each in a process of its own.
Peers come from PyPI: pip install datasets s3fs 'litdata[extra]' megatron-energon; av for the videos.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from measure import MIB, Job
from report import Round, Side, Target, arguments, compare, faster, print_report
from selection_data import JPG_BYTES, JSON_BYTES, MISSING, Written, write
from selection_peers import IMAGES, KINDS, PEERS, PERCENT
from slow_store import SlowStore, slow_store

LATENCY_S, CONNECTION_BYTES_PER_S = 0.020, 60_000_000
PART_BYTES = 8 * MIB
NUM_SHARDS, SHARD_SAMPLES = 36, 500
QUICK_SHARDS, QUICK_SHARD_SAMPLES = 3, 100
RUN = 50  # consecutive keys of a cluster
NUM_VIDEOS, VIDEO_S = 6, 30
QUICK_VIDEOS, QUICK_VIDEO_S = 2, 6
SELECTED = tuple(f"select-{percent}-{kind}" for percent in PERCENT for kind in KINDS)
SIDES = (
    *SELECTED,
    "filter",
    "datasets",
    "litdata",
    "both",
    "join",
    "join-keys",
    "both-local",
    "join-local",
    "energon-local",
    "clips",
    "videos",
)
QUICK = (*SELECTED, "filter", "both", "join", "join-keys", "both-local", "join-local")


def chosen(keys: list[str], percent: int, kind: str) -> list[str]:
    """Choose keys at random, or runs of consecutive ones."""
    source, number = random.Random(percent), len(keys) * percent // 100
    if kind == "random":
        return sorted(source.sample(keys, number))
    run = min(RUN, max(1, number))
    starts = source.sample(range(0, len(keys), run), number // run)
    return sorted(key for start in starts for key in keys[start : start + run])


def side(name: str, written: Written, store: SlowStore, folder: Path) -> Side:
    keys, names, peer = written.keys, [], f"ours-{name}"
    if name.startswith("select"):
        _, percent, kind = name.split("-")
        keys = chosen(keys, int(percent), kind)
    elif name == "filter":
        keys = chosen(keys, 50, "random")
    elif name in ("datasets", "litdata"):
        keys, names, peer = chosen(keys, 10, "random"), written.parquet, name
    elif name == "join-keys":
        keys = [key for number, key in enumerate(keys) if number % MISSING]
    elif name == "energon-local":
        peer = name
    sample_bytes = JPG_BYTES + (JSON_BYTES if "join" in name or "both" in name or "energon" in name else 0)
    num_samples = len(keys)
    if name in ("clips", "videos"):
        num_samples, sample_bytes, keys = written.num_videos, written.clip_bytes, []
    bucket = str(folder) if "local" in name else IMAGES
    job = Job(store.endpoint_url, bucket, names, [], num_samples, num_samples * sample_bytes, 16, keys=keys)
    return Side(f"ours-{name}" if peer.startswith("ours") else name, peer, job, num_samples, num_samples)


def sent(name: str, num_shards: int) -> Callable[[Round], float | None]:
    """How many times the wanted bytes the store sent, beyond one part a shard."""

    def value(readings: Round) -> float | None:
        reading = readings.get(f"ours-{name}")
        return None if reading is None else max(0, reading.sent_bytes - num_shards * PART_BYTES) / reading.bytes

    return value


def sent_in_all(name: str) -> Callable[[Round], float | None]:
    def value(readings: Round) -> float | None:
        reading = readings.get(name)
        return None if reading is None else reading.sent_bytes / reading.bytes

    return value


def sent_for_a_clip(readings: Round) -> float | None:
    reading = readings.get("ours-clips")
    return None if reading is None else reading.sent_bytes / reading.samples / MIB


def targets(num_shards: int, video_bytes: int) -> list[Target]:
    shown = {name: name.replace("select-", "").replace("-", " %, ") for name in SELECTED}
    return [
        *(
            Target(f"sent against wanted, {shown[name]}, without a part a shard", sent(name, num_shards), 1.3, True)
            for name in SELECTED
        ),
        *(Target(f"sent against wanted, {shown[name]}", sent_in_all(f"ours-{name}")) for name in SELECTED),
        Target("sent against wanted, 10 %, random: datasets", sent_in_all("datasets")),
        Target("sent against wanted, 10 %, random: LitData", sent_in_all("litdata")),
        *(
            Target(
                f"select 50 %, {kind}, against everything and filter",
                faster(f"ours-select-50-{kind}", "ours-filter"),
                1,
            )
            for kind in KINDS
        ),
        Target("select 10 %, random, against datasets", faster("ours-select-10-random", "datasets")),
        Target("select 10 %, random, against LitData", faster("ours-select-10-random", "litdata")),
        Target("join in order, against one shard set", faster("ours-join", "ours-both"), 0.8),
        Target("join by keys, against one shard set", faster("ours-join-keys", "ours-both"), 0.8),
        Target("local: join in order, against one shard set", faster("ours-join-local", "ours-both-local"), 0.8),
        Target("local: join in order, against Energon", faster("ours-join-local", "energon-local")),
        Target(f"MiB sent for 2 s of a video of {video_bytes / MIB:.0f} MiB", sent_for_a_clip),
        Target("2 s of videos, lazy, against whole", faster("ours-clips", "ours-videos")),
    ]


def main() -> None:
    args = arguments(str(__doc__).splitlines()[0], SIDES)
    num_shards, shard_samples = (QUICK_SHARDS, QUICK_SHARD_SAMPLES) if args.quick else (NUM_SHARDS, SHARD_SAMPLES)
    names = args.peers or (QUICK if args.quick else SIDES)
    video = (QUICK_VIDEOS, QUICK_VIDEO_S) if args.quick else (NUM_VIDEOS, VIDEO_S)
    with tempfile.TemporaryDirectory(prefix="bench-selection-") as temporary:
        folder = Path(temporary)
        written = write(folder, num_shards, shard_samples, video if {"clips", "videos"} & set(names) else None)
        with slow_store(folder, latency_s=LATENCY_S, connection_bytes_per_s=CONNECTION_BYTES_PER_S) as store:
            sides = [side(name, written, store, folder) for name in names]
            results = compare("selection_peers", sides, store, args.rounds)
    title = (
        f"{len(written.keys):,} samples of {JPG_BYTES:,} bytes in {num_shards} shards, captions of {JSON_BYTES:,} "
        f"bytes, {LATENCY_S * 1000:.0f} ms to each response, {CONNECTION_BYTES_PER_S / 1e6:.0f} MB/s a connection, "
        f"{args.shown}"
    )
    print_report(title, PEERS, sides, results, targets(num_shards, written.video_bytes))


if __name__ == "__main__":
    main()
