"""Train a classifier on local or remote images: loose files in ImageFolder layout, or shards.

    python examples/train_imagenet.py s3://bucket/imagenet/train/ [--index index.json.gz] [--classes classes.json]
    torchrun --nproc-per-node 8 examples/train_imagenet.py s3://bucket/shards/ --cache-dir /scratch/cache

A folder with a manifest or tars is read as shards. Stop it by Ctrl-C or SIGTERM, and run the same command again: it
resumes with the next batch, and ends with the same weights as a run that was never stopped.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from imagenet_data import open_data
from torch import nn
from tqdm import tqdm

SAVE_EVERY = 500  # steps
MEAN, STD = (torch.tensor(values)[:, None, None] for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a classifier on loose images or shards, local or remote.")
    parser.add_argument("url", help="folder or URL of images or of shards, or the shards' manifest")
    parser.add_argument("--classes", nargs="+", help="JSON file of classes (path or URL), or their names in order")
    parser.add_argument("--id-base", type=int, default=1, help="the number that the ids in that file count from (1)")
    parser.add_argument("--index", help="JSON list of loose files (path or URL): then nothing is listed")
    parser.add_argument("--credentials", help="JSON file of s3 credentials, if the AWS environment has none")
    parser.add_argument("--endpoint-url", help="of an S3 server that is not Amazon's")
    parser.add_argument("--dataset-limit", type=int, help="images in an epoch; of loose files, the first ones")
    parser.add_argument("--cache-dir", help="local folder for objects that were read: later epochs need no network")
    parser.add_argument("--cache-gb", type=float, default=200, help="bound on its size (200)")
    parser.add_argument("--model", help="'tiny', or one of torchvision's (resnet50 where torchvision is installed)")
    parser.add_argument("--image-size", type=int, default=224, help="pixels (224)")
    parser.add_argument("--batch-size", type=int, default=64, help="images in a batch of one rank (64)")
    parser.add_argument("--epochs", type=int, default=90, help="(90)")
    parser.add_argument("--workers", type=int, default=4, help="processes of each rank that load images (4)")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate for 256 images in a step (0.1)")
    parser.add_argument("--checkpoint", default="train_imagenet.pt", help="local file, from which training resumes")
    parser.add_argument("--max-steps", type=int, help="stop after this number of steps, as by Ctrl-C")
    return parser.parse_args()


def main() -> None:
    options, stop = parse_arguments(), StopSignal()
    rank, num_ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if num_ranks > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)
    data = open_data(options, rank, num_ranks)
    model = make_model(options.model, data.num_classes).to(device)
    parallel = nn.parallel.DistributedDataParallel(model) if num_ranks > 1 else model
    lr = options.lr * data.step_images / 256
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=1e-4)
    at = {"epoch": 0, "images": 0, "step": 0}  # images of this epoch, in all ranks together
    if os.path.exists(options.checkpoint):
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        data.load(saved["data"])
        at = saved["at"]
    last_step = None if options.max_steps is None else at["step"] + options.max_steps

    def save() -> None:
        states: list[Any] = [data.state()] * num_ranks
        if num_ranks > 1:
            dist.all_gather_object(states, data.state())
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": states, "at": at}
            torch.save(state, f"{options.checkpoint}.new")
            os.replace(f"{options.checkpoint}.new", options.checkpoint)  # atomic

    for epoch in range(at["epoch"], options.epochs):
        begun_s, begun_at, loss = time.monotonic(), at["images"], torch.tensor(float("nan"))
        bar = tqdm(desc=f"epoch {epoch}", total=data.num_images, initial=begun_at, unit=" images", disable=rank > 0)
        for images, labels in data.batches(epoch, begun_at):
            torch.manual_seed(at["step"] * num_ranks + rank)  # of crops and dropout: the same after a stop
            inputs = augmented(images.to(device, non_blocking=True), options.image_size)
            loss = nn.functional.cross_entropy(parallel(inputs), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()

            at.update(step=at["step"] + 1, images=at["images"] + len(labels) * num_ranks)
            bar.update(len(labels) * num_ranks)  # which shows images/s
            stopping = agreed(stop.received or at["step"] == last_step, device)
            if stopping or at["step"] % SAVE_EVERY == 0:
                save()
            if stopping:
                bar.close()
                end(
                    f"stopped in epoch {epoch} after step {at['step']}; the same command resumes" if rank == 0 else None
                )
        bar.close()
        num_images = at["images"] - begun_at
        if rank == 0 and num_images:
            speed = num_images / (time.monotonic() - begun_s)
            print(f"epoch {epoch}: {num_images:,} images, {speed:,.0f} images/s, loss {loss.item():.4f}", flush=True)
        at.update(epoch=epoch + 1, images=0)
        save()
    end(None)


def end(message: str | None) -> None:
    """End the process with exit code 0: torchrun treats any other one as a failure."""
    if message is not None:
        print(message, flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
        # gloo's threads may still hold tensors of the last exchange. Freeing one while Python finalizes aborts the
        # process (pytorch#190489), so it is not finalized.
        sys.stderr.flush()
        os._exit(0)
    sys.exit(0)


def agreed(flag: bool, device: torch.device) -> bool:
    """Whether the value is true in any rank."""
    if not dist.is_initialized():
        return flag
    votes = torch.tensor(float(flag), device=device)
    dist.all_reduce(votes)
    return bool(votes.item() > 0)


def augmented(images: torch.Tensor, size: int) -> torch.Tensor:
    """A random crop of the batch, each image flipped or not, as float32 of mean 0 and variance 1 or so."""
    x, y = torch.randint(images.shape[-1] - size + 1, (2,)).tolist()
    crop = images[..., y : y + size, x : x + size] / 255
    flips = (torch.rand(len(images), 1, 1, 1) < 0.5).to(crop.device)
    return (torch.where(flips, crop.flip(-1), crop) - MEAN.to(crop)) / STD.to(crop)


def make_model(name: str | None, num_classes: int) -> nn.Module:
    if name != "tiny":
        try:
            models: Any = import_module("torchvision.models")
        except (ImportError, RuntimeError):  # RuntimeError if it was built for another torch
            if name is not None:
                raise
        else:
            model: nn.Module = models.get_model(name or "resnet50", num_classes=num_classes)
            return model
    layers = (nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, num_classes))


class StopSignal:
    """Records Ctrl-C and SIGTERM, so that the step is completed first. A second signal ends the process at once."""

    def __init__(self) -> None:
        self.received = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self.received = True
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    main()
