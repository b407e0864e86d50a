"""A rank of plain torch DDP: an epoch of each loader, an epoch that is stopped, and the rest of it."""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from .data import NUM_SAMPLES, Cells, loader_of, numbers_of
from .launch import attempt

RESUMABLE = "stateful_loader(pipe)"
BATCH_SIZE, STOP_AFTER = 4, 5


def main(*, folder: str, cells: Cells, checkpoints: str, num_workers: list[int], saves: bool = False) -> None:
    """Report the numbers of the samples of an epoch of each loader, and of epochs that are stopped and resumed.

    Args:
        folder: of the dataset.
        cells: loaders and numbers of workers of the epochs.
        checkpoints: folder of the states.
        num_workers: of the loaders that are stopped and resumed.
        saves: whether this job reads a whole epoch, and saves states in the middle of it.
    """
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))

    def loader(name: str, workers: int) -> Any:
        options: dict[str, Any] = {"state_of_all_ranks": True}
        if name != RESUMABLE:
            options = {"sampler": DistributedSampler(range(NUM_SAMPLES), seed=0)}  # type: ignore[arg-type]
        return loader_of(name, Path(folder), batch_size=BATCH_SIZE, num_workers=workers, **options)

    def trained(batches: Any) -> list[int]:
        numbers = []
        for batch in batches:
            model(batch["x"]).sum().backward()
            numbers += numbers_of(batch)
        return numbers

    def stopped(workers: int) -> list[int]:
        stateful = loader(RESUMABLE, workers)
        numbers = trained(islice(stateful, STOP_AFTER))
        state = stateful.state_dict()
        if dist.get_rank() == 0:
            torch.save(state, Path(checkpoints, f"{workers}.pt"))
        dist.barrier()
        return numbers

    def resumed(workers: int) -> list[int]:
        stateful = loader(RESUMABLE, workers)
        stateful.load_state_dict(torch.load(Path(checkpoints, f"{workers}.pt")))
        return trained(stateful)

    for name, workers in cells:
        attempt(f"{name}, {workers} workers", lambda name=name, workers=workers: trained(loader(name, workers)))  # type: ignore[misc]
    for workers in num_workers:
        if saves:
            attempt(f"whole, {workers} workers", lambda workers=workers: trained(loader(RESUMABLE, workers)))  # type: ignore[misc]
            attempt(f"stopped, {workers} workers", partial(stopped, workers))
        attempt(f"resumed, {workers} workers", partial(resumed, workers))
    dist.barrier()
    dist.destroy_process_group()
