"""Train a small classifier on the dataset that this pod has mounted: images in folders, or tar shards.

    torchrun main.py [--data /datasets/my_dataset] [--checkpoint checkpoint.pt] [--epochs 5]

``torchrun`` starts it again whenever a pod comes or goes; it then goes on from the last epoch that was finished. All
ranks read the checkpoint and rank 0 writes it, so it lies where all pods see it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import DistributedSampler

import torchdata_remote as tdr

PIXELS = 64  # side of the images that the net sees


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a classifier on a mounted dataset.")
    parser.add_argument("--data", type=Path, default=Path("/datasets/my_dataset"), help="folder of images or of shards")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--workers", type=int, default=2, help="processes that load, of each rank")
    options = parser.parse_args()

    with_gpu, launched = torch.cuda.is_available(), "RANK" in os.environ  # by torchrun
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if with_gpu else torch.device("cpu")
    if with_gpu:
        torch.cuda.set_device(device)
    if launched:
        dist.init_process_group("nccl" if with_gpu else "gloo")
    rank, num_ranks = (dist.get_rank(), dist.get_world_size()) if launched else (0, 1)

    sharded = (options.data / "index.json").exists()  # the shards' manifest
    data: Images | Shards = Shards(options) if sharded else Images(options, rank, num_ranks)
    torch.manual_seed(0)
    model = small_net(data.num_classes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first_epoch = 0
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first_epoch = saved["epoch"]
    parallel = nn.parallel.DistributedDataParallel(model) if launched else model
    if rank == 0:
        print(f"{num_ranks} ranks, {data.num_classes} classes, from epoch {first_epoch}", flush=True)

    for epoch in range(first_epoch, options.epochs):
        num_images, total_loss = 0, 0.0
        for images, labels in data.batches(epoch):
            inputs = images.to(device, non_blocking=True) / 255 - 0.5
            loss = nn.functional.cross_entropy(parallel(inputs), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
            num_images += len(labels)
            total_loss += loss.item() * len(labels)
        if rank == 0:
            print(f"epoch {epoch}: {num_images} images a rank, loss {total_loss / num_images:.4f}", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
            options.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            torch.save(state, f"{options.checkpoint}.new")
            os.replace(f"{options.checkpoint}.new", options.checkpoint)  # the old one or the new one, never half of it
    if launched:
        dist.barrier()  # nobody ends before the last checkpoint is there
        dist.destroy_process_group()


class Images:
    """Images in a folder for each class; each rank has as many, by DistributedSampler."""

    def __init__(self, options: argparse.Namespace, rank: int, num_ranks: int) -> None:
        self.files = tdr.RemoteImageFolder(str(options.data), transform=to_tensor)
        self.num_classes = len(self.files.classes)
        self.sampler: Any = DistributedSampler(self.files, num_ranks, rank)
        self.loader = tdr.PrefetchingLoader(
            self.files, batch_size=options.batch_size, sampler=self.sampler, num_workers=options.workers
        )

    def batches(self, epoch: int) -> Iterable[Any]:
        """This rank's: images (uint8, B x 3 x 64 x 64) and labels (int64, B)."""
        self.sampler.set_epoch(epoch)  # another order each time
        return self.loader


class Shards:
    """Tar shards as a stream; each rank has as many samples, by the manifest."""

    def __init__(self, options: argparse.Namespace) -> None:
        table = options.data / "classes.json"  # which shard_dataset writes
        self.num_classes = len(json.loads(table.read_text())) if table.exists() else 1_000
        pictures = dict.fromkeys(("jpg", "jpeg", "png"), tdr.decoders.rgb(min_size=PIXELS))
        samples = tdr.stream_shards(f"{options.data}/index.json").equalize_ranks(mode="drop")
        pairs = samples.decode_sample(decoders=pictures).to_tuple("jpg;jpeg;png", "cls").map(to_tensor, input_col=0)
        self.loader = tdr.stateful_loader(pairs, batch_size=options.batch_size, num_workers=options.workers)

    def batches(self, epoch: int) -> Iterable[Any]:
        """This rank's: images (uint8, B x 3 x 64 x 64) and labels (int64, B)."""
        self.loader.set_epoch(epoch)
        return self.loader


def to_tensor(image: Image.Image) -> torch.Tensor:
    """A picture as uint8, 3 x 64 x 64."""
    square = ImageOps.fit(image, (PIXELS, PIXELS), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def small_net(num_classes: int) -> nn.Module:
    layers = (nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, num_classes))


if __name__ == "__main__":
    main()
