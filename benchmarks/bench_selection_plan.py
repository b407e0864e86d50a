"""How long does it take to plan a selection, how much memory do the wanted keys take, and how long is the plan?

    python benchmarks/bench_selection_plan.py [--quick]

Files of keys are in memory, so the time is that of the processor; a store adds one request for each shard, 16 at a
time. Samples have two members and keys of 20 characters; one of ten is selected, at random.
"""

from __future__ import annotations

import pickle
import random
import sys
import time
import tracemalloc
import zlib

import fsspec
import numpy as np

from torchdata_remote import IterableWrapper, RemoteUrl
from torchdata_remote.fetch.selections.selection import key_column
from torchdata_remote.formats.key_index import KeyIndex, dump_keys

NUM_SHARDS, NUM_SAMPLES, NUM_KEYS = (20, 100, 10_000) if "--quick" in sys.argv else (1_000, 1_000, 10_000_000)
SHARE = 10


def shards() -> tuple[list[RemoteUrl], list[str]]:
    """Write the files of keys of shards that need not be there; return their URLs, and all keys."""
    memory, urls, all_keys = fsspec.filesystem("memory"), [], []
    numbers = np.random.default_rng(0)
    for shard in range(NUM_SHARDS):
        keys = [f"train/{shard:06d}/{sample:07d}" for sample in range(NUM_SAMPLES)]
        sizes = numbers.integers(1_000, 200_000, 2 * NUM_SAMPLES)
        sizes[1::2] = 1
        starts = np.cumsum(512 + sizes + -sizes % 512) - sizes - -sizes % 512
        members = np.arange(2 * NUM_SAMPLES) % 2
        index = KeyIndex(keys, np.full(NUM_SAMPLES, 2), ["jpg", "cls"], members, starts, sizes)
        data = dump_keys(index)
        memory.pipe(f"/bench-select/{shard:06d}.tar.keys", data)
        url = f"memory://bench-select/{shard:06d}.tar"
        size = int(index.stops()[-1]) + 1024
        urls.append(RemoteUrl(url, size, num_samples=NUM_SAMPLES, index_crc32=0, keys_crc32=zlib.crc32(data)))
        all_keys += keys
    return urls, all_keys


def main() -> None:
    urls, keys = shards()
    chosen = random.Random(0).sample(keys, len(keys) // SHARE)
    for what, options in (
        ("keys", {"keys": chosen}),
        ("a function", {"where": lambda sample: sample.key.endswith("7")}),
        ("members", {"members": ["cls"]}),
    ):
        pipe = IterableWrapper(urls, deepcopy=False).select(**options)
        began_s = time.process_time()
        found = list(pipe)
        planned_s = time.process_time() - began_s
        num_samples = sum(url.num_samples or 0 for url in found)
        print(
            f"select by {what}: {num_samples:,} of {len(keys):,} samples in {NUM_SHARDS:,} shards planned in "
            f"{planned_s:.2f} s of processor time; {len(pickle.dumps(found)) / num_samples:.1f} bytes of plan for each"
        )
    tracemalloc.start()
    column = key_column(f"train/{number:014d}" for number in range(NUM_KEYS))
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    wanted = dict.fromkeys(column)  # as a plan has them
    _, peak = tracemalloc.get_traced_memory()
    print(
        f"{len(wanted):,} wanted keys of 20 characters: {kept / NUM_KEYS:.0f} bytes each, and "
        f"{peak / NUM_KEYS:.0f} at most while it is planned"
    )


if __name__ == "__main__":
    main()
