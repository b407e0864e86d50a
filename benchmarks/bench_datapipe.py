"""What does an item cost that goes through a pipe: torch's, this package's, and the chains that users build?

    python benchmarks/bench_datapipe.py [--quick]

The pipes hand out the same items, by the same code; the loop over plain items is taken off. ``to_tuple`` is compared
with torch's ``map`` and a function that makes the same tuples.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any

from torch.utils.data import IterDataPipe

from torchdata_remote.pipes import DataPipe, Env, Pass
from torchdata_remote.pipes.passes import ListPass

NUM_ITEMS, ROUNDS = (3_000, 1) if "--quick" in sys.argv else (300_000, 5)
SAMPLES: list[Any] = [{"__key__": "a", "__url__": "b", "cls": b"1", "jpg": b"2"}] * NUM_ITEMS


class TorchPipe(IterDataPipe[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from SAMPLES


class OurPipe(DataPipe[Any]):
    def open(self, env: Env) -> Pass[Any]:
        return ListPass(SAMPLES)


def pair(sample: dict[str, bytes]) -> tuple[bytes, bytes]:
    return sample["jpg"], sample["cls"]


def per_item_us(items: Iterable[Any]) -> float:
    """Microseconds for each item."""
    start_s = time.perf_counter()
    assert sum(1 for _ in items) == NUM_ITEMS
    return (time.perf_counter() - start_s) / NUM_ITEMS * 1e6


def compare(what: str, theirs: Callable[[], Iterable[Any]], ours: Callable[[], Iterable[Any]]) -> None:
    their_us, our_us = [], []
    for _ in range(ROUNDS):
        loop_us = per_item_us(SAMPLES)
        their_us.append(per_item_us(theirs()) - loop_us)
        our_us.append(per_item_us(ours()) - loop_us)
    ratios = [their / our for their, our in zip(their_us, our_us, strict=True)]
    print(
        f"{what} costs {median(our_us):.2f} µs instead of {median(their_us):.2f}: "
        f"{median(ratios):.1f}x ({min(ratios):.1f} to {max(ratios):.1f}) as fast as with torch's IterDataPipe"
    )


def main() -> None:
    compare("an item", TorchPipe, OurPipe)
    compare("a tuple", lambda: TorchPipe().map(pair), lambda: OurPipe().to_tuple("jpg", "cls"))


if __name__ == "__main__":
    main()
