"""How much waiting does ``async_prefetch`` hide, on a store with a fixed answer time?

    python benchmarks/bench_async_prefetch.py

The store keeps its objects in memory and answers each read after ``LATENCY_S``: assumed, not measured. So the best that
``max_in_flight`` requests at once can do is ``max_in_flight`` times as fast as one at a time.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote  # noqa: F401  # registers the functional names

LATENCY_S, NUM_OBJECTS, OBJECT_BYTES, ROUNDS = 0.020, 256, 94_000, 3


class SlowMemoryFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec carries no types
    """``memory`` with a constant answer time."""

    protocol = "slowmemory"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.replace("slowmemory://", "memory://"))
        return stripped

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        time.sleep(LATENCY_S)
        data: bytes = super().cat_file(path, start, end, **options)
        return data


def read_all_s(max_in_flight: int) -> float:
    """Seconds to read every object once."""
    urls = IterableWrapper(["slowmemory://objects/"]).list_remote()
    start = time.perf_counter()
    read = [len(stream.read()) for _, stream in urls.async_prefetch(max_in_flight=max_in_flight)]
    assert read == [OBJECT_BYTES] * NUM_OBJECTS
    return time.perf_counter() - start


def main() -> None:
    fsspec.register_implementation("slowmemory", SlowMemoryFileSystem)
    fsspec.filesystem("slowmemory").pipe({f"/objects/{i:03d}": bytes(OBJECT_BYTES) for i in range(NUM_OBJECTS)})
    ratios: dict[int, list[float]] = {4: [], 16: [], 32: []}
    for _ in range(ROUNDS):
        one_at_a_time_s = read_all_s(1)
        for max_in_flight, found in ratios.items():
            found.append(one_at_a_time_s / read_all_s(max_in_flight))
    for max_in_flight, found in ratios.items():
        spread = f"{min(found):.1f} to {max(found):.1f}"
        print(f"async_prefetch, {max_in_flight:2d} in flight: {median(found):.1f}x ({spread}) against one at a time")


if __name__ == "__main__":
    main()
