"""What does an item cost that goes through a pipe: torch's, and this package's?

    python benchmarks/bench_datapipe.py

Both hand out the same numbers, by the same code; the loop over plain numbers is taken off.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from statistics import median

from torch.utils.data import IterDataPipe

from torchdata_remote.pipes.base.datapipe import DataPipe

NUM_ITEMS, ROUNDS = 300_000, 5


class TorchPipe(IterDataPipe[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(NUM_ITEMS)


class OurPipe(DataPipe[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(NUM_ITEMS)


def per_item_us(items: Iterable[int]) -> float:
    """Microseconds for each item."""
    start_s = time.perf_counter()
    assert sum(1 for _ in items) == NUM_ITEMS
    return (time.perf_counter() - start_s) / NUM_ITEMS * 1e6


def main() -> None:
    torch_us, our_us = [], []
    for _ in range(ROUNDS):
        loop_us = per_item_us(range(NUM_ITEMS))
        torch_us.append(per_item_us(TorchPipe()) - loop_us)
        our_us.append(per_item_us(OurPipe()) - loop_us)
    ratios = [theirs / ours for theirs, ours in zip(torch_us, our_us, strict=True)]
    print(
        f"an item costs {median(our_us):.2f} µs instead of {median(torch_us):.2f}: "
        f"{median(ratios):.1f}x ({min(ratios):.1f} to {max(ratios):.1f}) as fast as torch's IterDataPipe"
    )


if __name__ == "__main__":
    main()
