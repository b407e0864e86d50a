"""What does the cache cost in the first epoch, how many requests does it save later, and how long is its longest step?

    python benchmarks/bench_cache.py [--quick] [--rounds 5]

Objects of 10 kB in random order from the slow store (nginx: 20 ms to each answer; and without a delay), 64 in flight,
by a single process. First epochs with an empty cache and without a cache alternate. Requests are counted by the store.
The longest step is that of a cache that is filled with 300,000 objects of 100 bytes, and then with other ones, which
take their room: each lookup and each reservation of room is timed.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from report import arguments, spread
from slow_store import SlowStore, slow_store

import torchdata_remote as tdr
from torchdata_remote.fetch.cache.disk_cache import DiskCache

LATENCIES_S = (0.020, 0.0)
OBJECT_BYTES, NUM_OBJECTS, QUICK_OBJECTS, IN_FLIGHT, BUCKET = 10_000, 3_000, 300, 64, "objects"
SHARES, EPOCHS = (0.25, 0.5, 0.8), 4
SMALL_BYTES, NUM_SMALL, QUICK_SMALL = 100, 300_000, 1_000
MAX_COST, MAX_LOST, MAX_STEP_S = 1.3, 0.02, 0.1


def options_of(store: SlowStore) -> dict[str, str]:
    return {"endpoint_url": store.endpoint_url, "key": "nobody", "secret": "nothing", "region": "us-east-1"}


def read(
    store: SlowStore, urls: Sequence[str], cache_dir: str | None, cache_bytes: int | None, seed: int = 0
) -> tuple[float, float]:
    """Read all objects once; return wall and CPU seconds."""
    order = list(urls)
    random.Random(seed).shuffle(order)
    pipe = tdr.IterableWrapper(order, deepcopy=False).async_prefetch(
        max_in_flight=IN_FLIGHT, cache_dir=cache_dir, cache_bytes=cache_bytes, storage_options=options_of(store)
    )
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    num_bytes = sum(len(stream.read()) for _, stream in pipe)
    assert num_bytes == len(urls) * OBJECT_BYTES
    return time.perf_counter() - wall_s, time.process_time() - cpu_s


def first_epochs(
    store: SlowStore, urls: Sequence[str], folder: str, rounds: int
) -> Iterator[tuple[float, float, float]]:
    """Yield wall seconds and CPU seconds of a first epoch with a cache, relative to none; and of the second epoch."""
    read(store, urls, None, None)
    for number in range(rounds):
        cache_dir, cache_bytes = f"{folder}/cache-{number}", 1 << 30
        sides = {}
        for side in ((True, False), (False, True))[number % 2]:
            sides[side] = read(store, urls, cache_dir if side else None, cache_bytes if side else None)
        again_s, _ = read(store, urls, cache_dir, cache_bytes, seed=1)
        with_cache, without = sides[True], sides[False]
        yield with_cache[0] / without[0], with_cache[1] / without[1], again_s / without[0]


def saved(store: SlowStore, urls: Sequence[str], folder: str, share: float) -> list[float]:
    """Return the share of GETs that each later epoch saves, in a cache that holds ``share`` of the data."""
    found, cache_bytes = [], round(share * len(urls) * OBJECT_BYTES)
    for seed in range(EPOCHS + 1):
        store.reset_requests()
        read(store, urls, f"{folder}/share-{share}", cache_bytes, seed)
        found.append(1 - store.count_requests()["object"] / len(urls))
    return found[1:]


def longest_step_s(folder: str, num_objects: int) -> tuple[float, float]:
    """Fill a cache, then read other objects until they have replaced all; return the longest step and the total."""
    disk, data = DiskCache(folder, num_objects * SMALL_BYTES), memoryview(bytes(SMALL_BYTES))
    longest_s, begin, num_before = 0.0, time.perf_counter(), 0
    for dataset, num_epochs in (("before", 1), ("after", 5)):
        for _ in range(num_epochs):
            num_found = num_stored = 0
            for number in range(num_objects):
                start = time.perf_counter()
                if disk.find(f"{dataset}/{number}", SMALL_BYTES, "1") is not None:
                    num_found += 1
                elif (writer := disk.fill(f"{dataset}/{number}", SMALL_BYTES, "1")) is not None:
                    writer.write(0, data)
                    num_stored += 1
                longest_s = max(longest_s, time.perf_counter() - start)
            num_before = num_before or num_stored
    assert num_before > 0.5 * num_objects, "the index takes a third of a cache of such small objects"
    assert num_found > 0.9 * num_before, "the other objects are in the cache now"
    return longest_s, time.perf_counter() - begin


def verdict(*, ok: bool) -> str:
    return "met" if ok else "NOT met"


def main() -> None:
    args = arguments(str(__doc__).splitlines()[0], ())
    num_objects, num_small = (QUICK_OBJECTS, QUICK_SMALL) if args.quick else (NUM_OBJECTS, NUM_SMALL)
    rounds = args.rounds or (1 if args.quick else 5)
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as folder:
        bucket, source = Path(folder, "store", BUCKET), random.Random(0)
        bucket.mkdir(parents=True)
        for number in range(num_objects):
            (bucket / f"{number:06d}.bin").write_bytes(source.randbytes(OBJECT_BYTES))
        print(f"{num_objects:,} objects of {OBJECT_BYTES:,} bytes, {IN_FLIGHT} in flight, {rounds} rounds, medians")
        for latency_s in LATENCIES_S:
            with slow_store(bucket.parent, latency_s=latency_s) as store:
                source_urls = tdr.IterableWrapper([f"s3://{BUCKET}/"])
                urls = list(source_urls.list_remote(storage_options=options_of(store)))
                with tempfile.TemporaryDirectory(prefix="bench-cache-") as caches:
                    wall, cpu, again = zip(*first_epochs(store, urls, caches, rounds), strict=True)
                print(
                    f"{latency_s * 1e3:.0f} ms: first epoch with a cache against none: {spread(wall, 2)} wall time, "
                    f"{spread(cpu, 2)} CPU; second epoch {spread(again, 2)} wall time"
                )
                if latency_s:
                    print(f"  at most {MAX_COST} wall time: {verdict(ok=median(wall) <= MAX_COST)}")
                    for share in SHARES:
                        epochs = saved(store, urls, folder, share)
                        ok = min(epochs) >= share - MAX_LOST
                        shown = ", ".join(f"{100 * one:.1f}" for one in epochs)
                        print(f"  {share:.0%} of the data kept: GETs saved in %, by epoch: {shown}: {verdict(ok=ok)}")
        longest_s, total_s = longest_step_s(f"{folder}/small", num_small)
        print(
            f"{num_small:,} objects of {SMALL_BYTES} bytes, all replaced: longest step {longest_s * 1e3:.0f} ms "
            f"of {total_s:.0f} s: {verdict(ok=longest_s <= MAX_STEP_S)}"
        )


if __name__ == "__main__":
    main()
