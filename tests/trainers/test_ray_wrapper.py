"""Ray Train's ``prepare_data_loader`` prefetches a batch, which no state may lose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from .data import NUM_SAMPLES, loader_of, numbers_of


def _prepared(loader: Any) -> Any:
    ray_loaders = pytest.importorskip("ray.train.torch.train_loop_utils")  # here: it takes seconds
    return ray_loaders._WrappedDataLoader(loader, torch.device("cpu"), auto_transfer=True)


@pytest.mark.parametrize(("given", "times"), [("stateful_loader(pipe)", 2), ("PrefetchingLoader", 1)])
def test_the_prefetched_batch_is_not_lost(dataset: Path, given: str, times: int) -> None:
    """Also of a loader that was prepared twice, and of one that has no workers of its own."""

    def make() -> Any:
        return loader_of(given, dataset, batch_size=4, num_workers=0)

    loader, numbers = make(), []
    prepared = loader
    for _ in range(times):
        prepared = _prepared(prepared)
    for number, batch in enumerate(prepared, 1):
        numbers += numbers_of(batch)
        if number == 3:
            state = loader.state_dict()
            break
    again = make()
    again.load_state_dict(state)
    numbers += [number for batch in again for number in numbers_of(batch)]
    assert sorted(numbers) == list(range(NUM_SAMPLES))
