"""Train from shards by a ``torchdata.nodes`` graph, stop at any step, and resume with any number of processes.

    pip install torchdata_remote 'torchdata>=0.11'
    torchrun --nproc-per-node 2 examples/train_with_nodes.py --url s3://bucket/train/index.json --stop-after 100
    torchrun --nproc-per-node 3 examples/train_with_nodes.py --url s3://bucket/train/index.json

The second command resumes where the first one stopped: its checkpoint has the merged state of all ranks. Shards contain
images (jpg or png) with classes (cls), and a manifest: ``torchdata-remote shard`` writes them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torchdata.nodes as tn
from torch import nn
from torch.utils.data import default_collate
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr

NUM_STREAMS = 24  # any number of ranks that divides this resumes


def make_loader(url: str, batch_size: int, workers: int) -> Any:
    """Samples of this rank by ``to_node``; the other nodes are torchdata's."""
    pipe = IterableWrapper([url]).list_remote().shuffle_shards(seed=0).sharding_filter_rank().async_prefetch()
    pipe = pipe.shard_tar_reader().equalize_ranks(mode="drop").shuffle_samples(buffer_size=100, seed=0)
    node = tdr.to_node(pipe, num_streams=NUM_STREAMS)
    node = tn.ParallelMapper(node, to_example, num_workers=workers)
    node = tn.Mapper(tn.Batcher(node, batch_size, drop_last=False), default_collate)
    return tn.Loader(tn.Prefetcher(node, prefetch_factor=2))


def to_example(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """Mean colours of a picture, shape (3,), and its class; in a thread of ``ParallelMapper``."""
    picture = np.array(tdr.decoders.rgb(sample.get("jpg") or sample["png"]))
    return torch.from_numpy(picture).float().mean((0, 1)) / 255, int(sample["cls"])


def main() -> None:
    parser = argparse.ArgumentParser(description="A training by a torchdata.nodes graph.")
    parser.add_argument("--url", required=True, help="manifest of the shards")
    parser.add_argument("--checkpoint", default="train_with_nodes.pt")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2, help="threads of each rank that decode")
    parser.add_argument("--stop-after", type=int, help="steps of this run")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = make_loader(options.url, options.batch_size, options.workers)
    epoch = 0
    if Path(options.checkpoint).exists():
        saved = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        epoch = saved["epoch"]

    def save() -> None:
        states: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(states, loader.state_dict())
        if dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save({**state, "loader": tdr.merge_node_states(states)}, f"{options.checkpoint}.new")
            os.replace(f"{options.checkpoint}.new", options.checkpoint)

    steps = 0
    while epoch < options.epochs:
        num_samples = torch.tensor(0)
        for pictures, classes in loader:
            optimizer.zero_grad()
            loss: Any = nn.functional.cross_entropy(model(pictures), classes)
            loss.backward()
            optimizer.step()
            num_samples += len(classes)
            steps += 1
            if steps == options.stop_after:
                break
        dist.all_reduce(num_samples)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {num_samples} samples by {dist.get_world_size()} ranks")
        if steps == options.stop_after:
            break
        epoch += 1
    save()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may still hold tensors while Python finalizes (pytorch#190489)
