"""A rank of FSDP2: an epoch of each loader with a sharded model; checkpoints of ``torch.distributed.checkpoint``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DistributedSampler

import torchdata_remote as tdr

from .data import NUM_SAMPLES, Cells, loader_of, numbers_of
from .launch import attempt, report


class Training:
    """What torch calls ``Stateful``: a sharded model with its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 12), torch.nn.Linear(12, 1))
        for layer in self.model:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def numbers(self, batches: Iterator[Any]) -> list[list[int]]:
        """Train on each batch; which samples were in it."""
        found = []
        for batch in batches:
            self.model(batch["x"]).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            found.append(numbers_of(batch))
        return found

    def weights(self) -> list[float]:
        """Of the whole model, as any number of ranks gathers them."""
        return [value for layer in self.model.parameters() for value in layer.full_tensor().flatten().tolist()]  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


Loaded = tuple[Training, tdr.StatefulLoader]


def main(
    *,
    folder: str,
    cells: Cells,
    kinds: dict[str, tuple[int, bool]],
    begin: str,
    end: str,
    num_batches: int,
) -> None:
    """An epoch of each loader; then, for each way to save, load a checkpoint, train, and save another in mid-epoch.

    Args:
        folder: of the images.
        cells: loaders and numbers of workers of the epochs.
        kinds: way to save -> its loader's number of workers and ``state_of_all_ranks``.
        begin: folder of the checkpoints to begin with, or ``""``.
        end: folder of the checkpoints to write, or ``""``.
        num_batches: in which the training is then.
    """
    dist.init_process_group("gloo")
    for name, workers in cells:
        sampler: Any = DistributedSampler(range(NUM_SAMPLES), seed=0)  # type: ignore[arg-type]
        loader = loader_of(name, Path(folder), batch_size=4, num_workers=workers, sampler=sampler)
        attempt(f"{name}, {workers} workers", lambda loader=loader: flat(Training().numbers(iter(loader))))  # type: ignore[misc]
    for kind, (workers, all_ranks) in kinds.items():

        def loaded(checkpoint: str, kind: str = kind, workers: int = workers, all_ranks: bool = all_ranks) -> Loaded:
            training, name = Training(), "stateful_loader(pipe)"
            loader = loader_of(name, Path(folder), batch_size=4, num_workers=workers, state_of_all_ranks=all_ranks)
            if checkpoint:
                load({"training": training, "loader": loader}, checkpoint_id=f"{checkpoint}/{kind}")
            return training, loader

        attempt(kind, lambda kind=kind, loaded=loaded: stop_and_go_on(kind, loaded, begin, end, num_batches))  # type: ignore[misc]
    dist.destroy_process_group()


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def stop_and_go_on(
    kind: str, loaded: Callable[[str], Loaded], begin: str, end: str, num_batches: int
) -> list[list[int]]:
    """Of the batches up to the end of the epoch, or to the next checkpoint; reports also what follows that one."""
    training, loader = loaded(begin)
    batches = iter(loader)
    found = training.numbers(islice(batches, num_batches))
    if not end:
        # Where workers stopped at different places, other numbers of ranks need not have equally many batches.
        return [*found, *map(numbers_of, batches)]
    whole, where = {"training": training, "loader": loader}, f"{end}/{kind}"
    at_checkpoint = training.weights()
    if kind == "async_save":
        # Its thread exchanges while the training does: in a group of its own, or they would take each other's messages.
        pending = async_save(whole, checkpoint_id=where, process_group=dist.new_group(backend="gloo"))
        following = training.numbers(islice(batches, 1))
        assert isinstance(pending, Future)
        pending.result()
    else:
        save(whole, checkpoint_id=where)
        following = []
    following += training.numbers(batches)
    report(f"{kind}, following", following)
    again, loader = loaded(end)
    report(f"{kind}, same weights", again.weights() == at_checkpoint)
    report(f"{kind}, again", again.numbers(iter(loader)))
    return found
