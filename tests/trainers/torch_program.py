"""A rank of plain torch DDP: an epoch of each loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from .data import LOADERS, NUM_SAMPLES, loader_of, numbers_of
from .launch import attempt, run_as_rank


def main(*, folder: str, num_workers: list[int]) -> None:
    """Report the numbers of the samples of an epoch, for each loader and number of workers."""
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for name in LOADERS:
        for workers in num_workers:
            sampler: Any = DistributedSampler(range(NUM_SAMPLES), seed=0)  # type: ignore[arg-type]
            loader = loader_of(name, Path(folder), batch_size=4, num_workers=workers, sampler=sampler)
            attempt(f"{name}, {workers} workers", lambda loader=loader: _epoch(model, loader))  # type: ignore[misc]
    dist.destroy_process_group()


def _epoch(model: torch.nn.Module, loader: Any) -> list[int]:
    numbers = []
    for batch in loader:
        model(batch["x"]).sum().backward()
        numbers += numbers_of(batch)
    return numbers


if __name__ == "__main__":
    run_as_rank(main)
