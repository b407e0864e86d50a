"""Train a sharded model (FSDP2), optionally with tensor parallelism, on shards; stop and resume by DCP checkpoints.

    python examples/train_with_fsdp2.py --write --url /tmp/fsdp2/digits
    torchrun --nproc-per-node 4 examples/train_with_fsdp2.py --url /tmp/fsdp2/digits --tp 2 --stop-after 20
    torchrun --nproc-per-node 3 examples/train_with_fsdp2.py --url /tmp/fsdp2/digits

Each run resumes from the newest checkpoint, with any number of processes that --tp divides. The checkpoint contains
model, optimizer and loader; each sample is read at most once per epoch, with any number of stops.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import torchdata_remote as tdr

NUM_STREAMS, BATCH_SIZE = 12, 16  # streams: the largest number of readers (data-parallel ranks x workers)


class Training:
    """Model and optimizer; their state is sharded (torch's ``Stateful`` protocol)."""

    def __init__(self, mesh: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
        if mesh["tp"].size() > 1:
            parallelize_module(self.model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(self.model, mesh=mesh["dp"])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def main() -> None:
    parser = argparse.ArgumentParser(description="FSDP2 and tensor parallelism on shards.")
    parser.add_argument("--url", required=True, help="folder or URL of the shards")
    parser.add_argument("--write", action="store_true", help="write scikit-learn's digits there, and do nothing else")
    parser.add_argument("--tp", type=int, default=1, help="ranks that share one batch (1)")
    parser.add_argument("--checkpoint", default="train_with_fsdp2", help="folder of the checkpoints")
    parser.add_argument("--stop-after", type=int, help="steps")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    if options.write:
        write_digits(options.url)
        return

    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (dist.get_world_size() // options.tp, options.tp), mesh_dim_names=("dp", "tp"))
    world = tdr.World.from_mesh(mesh, dp="dp")  # ranks of one tp group read the same data
    samples = tdr.stream_shards(f"{options.url}/index.json", world=world).equalize_ranks(mode="drop")
    pipe = samples.decode_sample().to_tuple("npy", "cls", "__key__")
    loader = tdr.stateful_loader(
        pipe, batch_size=BATCH_SIZE, num_workers=options.workers, num_streams=NUM_STREAMS, state_of_all_ranks=True
    )
    training, at = Training(mesh), {"epoch": 0, "step": 0}
    whole: dict[str, Any] = {"training": training, "loader": loader, "at": at}
    steps = [int(path.parent.name) for path in Path(options.checkpoint).glob("*/.metadata")]  # written last
    if steps:
        load(whole, checkpoint_id=f"{options.checkpoint}/{max(steps)}")
        at = whole["at"]
    savers = dist.new_group(backend="gloo")  # async_save exchanges in a thread, concurrently with the training
    pending: Any = None
    last = None if options.stop_after is None else at["step"] + options.stop_after
    stopping = False
    while at["epoch"] < options.epochs and not stopping:
        for batch, all_have_one in in_step(loader, device):
            images, labels, keys = batch or (torch.zeros(0, 8, 8), torch.zeros(0, dtype=torch.long), [])
            logits = training.model(images.flatten(1).to(device))
            loss = nn.functional.cross_entropy(logits, labels.to(device), reduction="sum") / BATCH_SIZE
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            training.optimizer.step()
            training.optimizer.zero_grad()
            at["step"] += 1
            print(f"epoch {at['epoch']} rank {world.rank} of {world.world_size}: {' '.join(keys)}", flush=True)
            stopping = last is not None and at["step"] >= last and all_have_one
            if stopping:
                break
        else:
            at["epoch"] += 1
        whole["at"] = at
        if pending is not None:
            pending.result()
        pending = async_save(whole, checkpoint_id=f"{options.checkpoint}/{at['step']}", process_group=savers)
    if pending is not None:
        pending.result()
    if dist.get_rank() == 0:
        print("stopped; the same command resumes" if stopping else "all epochs", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may still hold tensors, which Python must not free while it finalizes (pytorch#190489)


def in_step(loader: Any, device: str) -> Iterator[tuple[Any, bool]]:
    """A batch, or ``None`` where this rank has no more, until no rank has; and whether all ranks have one.

    After a resume with another number of processes ranks may have different numbers of batches left.
    """
    batches = iter(loader)
    while True:
        batch = next(batches, None)
        having = torch.tensor(float(batch is not None), device=device)
        dist.all_reduce(having)
        if not having:
            return
        yield batch, bool(having == dist.get_world_size())


def write_digits(url: str) -> None:
    """Write scikit-learn's 1,797 handwritten digits as shards."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    with tdr.ShardWriter(f"{url}/{{shard:04d}}.tar", max_shard_samples=150, overwrite=True) as writer:
        for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            writer.write({"__key__": f"{number:04d}", "npy": (image / 16).astype(np.float32), "cls": int(label)})


if __name__ == "__main__":
    main()
