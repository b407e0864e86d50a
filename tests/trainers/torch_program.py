"""A rank of plain torch DDP: an epoch of each loader, an epoch that is stopped, and the rest of it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from .data import LOADERS, NUM_SAMPLES, loader_of, numbers_of
from .launch import attempt, report, run_as_rank

RESUMABLE = ("stateful_loader(pipe)",)
BATCH_SIZE = 4


def main(*, folder: str, num_workers: list[int], checkpoint: str, stop_after: int | None = None) -> None:
    """Report the numbers of the samples of an epoch, for each loader and number of workers.

    Args:
        folder: of the dataset.
        num_workers: each of them in turn.
        checkpoint: prefix of files; where they exist, only the rest of the epoch is read.
        stop_after: write these files after so many batches, and read no more.
    """
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    resuming = Path(f"{checkpoint}-0").exists()
    for number, name in enumerate(LOADERS):
        if name not in RESUMABLE and (resuming or stop_after is not None):
            continue
        for workers in num_workers:
            sampler: Any = DistributedSampler(range(NUM_SAMPLES), seed=0)  # type: ignore[arg-type]
            options: dict[str, Any] = {"state_of_all_ranks": True} if name == "stateful_loader(pipe)" else {}
            if name not in RESUMABLE:
                options["sampler"] = sampler
            loader = loader_of(name, Path(folder), batch_size=BATCH_SIZE, num_workers=workers, **options)
            file = Path(f"{checkpoint}-{number}-{workers}")
            attempt(
                f"{name}, {workers} workers",
                lambda loader=loader, file=file: _epoch(model, loader, file, stop_after),  # type: ignore[misc]
            )
    if dist.get_rank() == 0 and stop_after is not None:
        Path(f"{checkpoint}-0").touch()
    report("world_size", dist.get_world_size())
    dist.barrier()
    dist.destroy_process_group()


def _epoch(model: torch.nn.Module, loader: Any, file: Path, stop_after: int | None) -> list[int]:
    if file.exists():
        loader.load_state_dict(torch.load(file))
    numbers = []
    for batch in islice(loader, stop_after):
        model(batch["x"]).sum().backward()
        numbers += numbers_of(batch)
    if stop_after is not None:
        state = loader.state_dict()
        if dist.get_rank() == 0:
            torch.save(state, file)
    return numbers


if __name__ == "__main__":
    run_as_rank(main)
