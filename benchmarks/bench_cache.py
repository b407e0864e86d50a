"""What does the cache cost in the first epoch, and how many requests does it save later?

    python benchmarks/bench_cache.py [--quick] [--rounds 5]

Objects of 94 kB and of 10 kB in random order from the slow store (nginx: 20 ms to each answer), 64 in flight, by a
single process. First epochs with an empty cache and without a cache alternate, beside the floor: ``obstore.get`` in as
many threads, whose CPU is the measure of what the cache adds. Requests are counted by the store. URLs without a
version ask in later epochs whether another one is there.

Put TMPDIR on a disk from which little was deleted lately: ext4 looks at each inode that was deleted in the last
minutes before it makes a file, which may cost half a millisecond.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import NamedTuple

from report import arguments, spread
from slow_store import SlowStore, slow_store

import torchdata_remote as tdr

LATENCY_S, IN_FLIGHT, BUCKET = 0.020, 64, "objects"
OBJECTS, QUICK_OBJECTS = {94_000: 2_000, 10_000: 3_000}, 200
BLOCK_BYTES = 4_096  # of the disk, by which the cache counts
SHARES, EPOCHS = (0.25, 0.5, 0.8), 4
MAX_COST, MAX_CPU, MAX_LOST = 1.2, 0.6, 0.02


class Cost(NamedTuple):
    """Seconds for all objects."""

    wall_s: float
    cpu_s: float


def options_of(store: SlowStore) -> dict[str, str]:
    return {"endpoint_url": store.endpoint_url, "key": "nobody", "secret": "nothing", "region": "us-east-1"}


def read(store: SlowStore, urls: Sequence[str], cache_dir: str | None, cache_bytes: int | None, seed: int = 0) -> Cost:
    """Read all objects once."""
    order = list(urls)
    random.Random(seed).shuffle(order)
    pipe = tdr.IterableWrapper(order, deepcopy=False).async_prefetch(
        max_in_flight=IN_FLIGHT, cache_dir=cache_dir, cache_bytes=cache_bytes, storage_options=options_of(store)
    )
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    assert all(stream.read() for _, stream in pipe)
    return Cost(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def floor(store: SlowStore, urls: Sequence[str]) -> Cost:
    """Read all objects once by obstore."""
    import obstore
    from obstore.store import S3Store

    options = options_of(store)
    bucket = S3Store(
        BUCKET,
        endpoint=options["endpoint_url"],
        access_key_id=options["key"],
        secret_access_key=options["secret"],
        region=options["region"],
        client_options={"allow_http": True},
    )
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        assert all(threads.map(lambda url: obstore.get(bucket, url.rpartition("/")[2]).bytes(), urls))
    return Cost(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def first_epochs(store: SlowStore, urls: Sequence[str], folder: str, rounds: int) -> bool:
    """Print what the first epoch with a cache costs, and the second one; return whether the targets are met."""
    read(store, urls, None, None)
    wall, again, added, of_floor = list[float](), list[float](), list[float](), list[float]()
    for number in range(rounds):
        cache_dir, cache_bytes = f"{folder}/cache-{number}", 1 << 30
        sides = {}
        for side in ((True, False), (False, True))[number % 2]:
            sides[side] = read(store, urls, cache_dir if side else None, cache_bytes if side else None)
        with_cache, without = sides[True], sides[False]
        wall.append(with_cache.wall_s / without.wall_s)
        added.append((with_cache.cpu_s - without.cpu_s) / len(urls) * 1e3)
        of_floor.append((with_cache.cpu_s - without.cpu_s) / floor(store, urls).cpu_s)
        again.append(read(store, urls, cache_dir, cache_bytes, seed=1).wall_s / without.wall_s)
    met = [median(wall) <= MAX_COST, median(of_floor) <= MAX_CPU]
    print(
        f"  first epoch with a cache against none: {spread(wall, 2)} wall time, at most {MAX_COST}: {verdict(met[0])}"
    )
    print(f"  CPU that the cache adds: {spread(added, 3)} ms an object,")
    print(f"  of the CPU of a GET by obstore: {spread(of_floor, 2)}, at most {MAX_CPU}: {verdict(met[1])}")
    print(f"  second epoch: {spread(again, 2)} wall time")
    return all(met)


def saved(store: SlowStore, urls: Sequence[str], folder: str, cache_bytes: int) -> list[float]:
    """Return the share of GETs that each later epoch saves, in a cache that holds so many bytes."""
    found = []
    for seed in range(EPOCHS + 1):
        store.reset_requests()
        read(store, urls, f"{folder}/bytes-{cache_bytes}", cache_bytes, seed)
        found.append(1 - store.count_requests()["object"] / len(urls))
    return found[1:]


def requests_without_versions(store: SlowStore, urls: Sequence[str], folder: str) -> list[float]:
    """Return how many requests bare URLs cost, per object, in each of two epochs, of which the second one is cached."""
    found, bare = [], [str(url) for url in urls]
    for seed in range(2):
        store.reset_requests()
        read(store, bare, f"{folder}/bare", 1 << 30, seed)
        found.append(store.count_requests()["object"] / len(urls))
    return found


def verdict(ok: bool) -> str:
    return "met" if ok else "NOT met"


def measure(num_bytes: int, num_objects: int, rounds: int, folder: str) -> None:
    """Print the figures for objects of one size."""
    bucket, source = Path(folder, f"store-{num_bytes}", BUCKET), random.Random(0)
    bucket.mkdir(parents=True)
    for number in range(num_objects):
        (bucket / f"{number:06d}.bin").write_bytes(source.randbytes(num_bytes))
    print(f"{num_objects:,} objects of {num_bytes:,} bytes, {IN_FLIGHT} in flight, {rounds} rounds, medians")
    with (
        slow_store(bucket.parent, latency_s=LATENCY_S) as store,
        tempfile.TemporaryDirectory(prefix="bench-cache-") as caches,
    ):
        urls = list(tdr.IterableWrapper([f"s3://{BUCKET}/"]).list_remote(storage_options=options_of(store)))
        first_epochs(store, urls, caches, rounds)
        on_disk = -(-(num_bytes + 100) // BLOCK_BYTES) * BLOCK_BYTES
        for share in SHARES:
            epochs = saved(store, urls, caches, round(share * num_objects * num_bytes))
            ok = min(epochs) >= share * num_bytes / on_disk - MAX_LOST
            shown = ", ".join(f"{100 * one:.1f}" for one in epochs)
            print(f"  {share:.0%} of the data kept, GETs saved in %, by epoch: {shown}: {verdict(ok)}")
        first, second = requests_without_versions(store, urls, caches)
        print(f"  bare URLs: {first:.2f} requests an object, then {second:.2f}: {verdict((first, second) == (1, 1))}")


def main() -> None:
    args = arguments(str(__doc__).splitlines()[0], ())
    rounds = args.rounds or (1 if args.quick else 5)
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as folder:
        for num_bytes, num_objects in OBJECTS.items():
            measure(num_bytes, QUICK_OBJECTS if args.quick else num_objects, rounds, folder)


if __name__ == "__main__":
    main()
