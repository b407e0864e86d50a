"""The memory that pictures of the page take together."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import fsspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.archive_bytes import pack_tar
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.inspection.picture_memory import PictureMemory
from torchdata_remote.inspection.probe import Budget, list_dataset, probe_shard


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=30), num_threads=st.integers(1, 8))
def test_no_more_is_reserved_than_allowed_and_all_that_fits_alone_is_granted(
    sizes: list[int], num_threads: int
) -> None:
    """By any threads; it is returned, also after an error."""
    memory, lock, held = PictureMemory(10), threading.RLock(), [0]

    def use(num_bytes: int) -> bool:
        try:
            with memory.reserved(num_bytes, timeout_s=60.0) as granted:
                with lock:
                    held[0] += num_bytes if granted else 0
                    assert held[0] <= 10
                with lock:
                    held[0] -= num_bytes if granted else 0
                if num_bytes % 2:
                    raise KeyError
        except KeyError:
            pass
        return granted

    with ThreadPoolExecutor(num_threads) as pool:
        assert list(pool.map(use, sizes)) == [size <= 10 for size in sizes]
    assert memory.free_bytes == 10


@settings(max_examples=20)
@given(num_bytes=st.integers(0, 40_000), seed=st.integers(0, 5))
def test_a_probe_stops_at_its_budget_and_counts_whole_samples(num_bytes: int, seed: int) -> None:
    sizes = [random.Random(seed).randrange(2000) for _ in range(12)]
    tar = pack_tar([(f"{n}.{e}", b"1" * size) for n, size in enumerate(sizes) for e in ("a", "b")])
    fsspec.filesystem("memory").pipe("/budget/0.tar", tar)
    (shard,) = list_dataset("memory://budget/", StorageOptions(None), max_files=9).files
    look = probe_shard(shard, StorageOptions(None), Budget(max_s=60, max_bytes=num_bytes))
    costs = [2 * (512 + size) for size in sizes]
    assert look.complete is (sum(costs) <= num_bytes)
    affordable = next((n for n in range(len(sizes), -1, -1) if sum(costs[:n]) <= num_bytes), 0)
    assert affordable - 1 <= look.num_samples <= affordable
    assert set(look.extensions.values()) <= {look.num_samples}
