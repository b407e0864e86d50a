"""Train with Hugging Face Accelerate: stop in mid-epoch, resume with another number of processes.

    torchrun --nproc-per-node 2 examples/train_with_accelerate.py --url s3://bucket/train/ --stop-after 40
    torchrun --nproc-per-node 3 examples/train_with_accelerate.py --url s3://bucket/train/

On GPUs ``accelerate launch --num_processes 2`` does the same; with ``--cpu`` it starts one process.

``--url`` has shards of images with a manifest (``index.json``) and classes in ``cls``, as ``torchdata-remote shard``
writes them from a folder of images. The second command continues after the last batch of the first: each sample of each
epoch is trained on once. ``accelerator.save_state`` stores the position of all processes' loaders; no batch is read
only to be skipped.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

import torchdata_remote as tdr

SIZE = 16  # pixels of a side
NUM_STREAMS = 12  # the largest number of processes x workers


def to_example(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """A float32 image of shape (3, SIZE, SIZE) in 0..1, and its class."""
    image = next(sample[kind] for kind in ("jpg", "jpeg", "png") if kind in sample).convert("RGB").resize((SIZE, SIZE))
    return torch.from_numpy(np.asarray(image, np.float32) / 255).permute(2, 0, 1), int(sample["cls"])


def make_loader(url: str, num_processes: int, num_workers: int) -> tdr.loaders.StatefulLoader:
    """Batches of this process' share; with ``equalize_ranks`` all processes end an epoch together."""
    urls = tdr.IterableWrapper([f"{url.rstrip('/')}/index.json"]).list_remote().shuffle_shards(seed=0)
    samples = urls.sharding_filter_rank().async_prefetch().shard_tar_reader().equalize_ranks(mode="drop")
    pipe = samples.shuffle_samples(buffer_size=100, seed=0).decode_sample().map(to_example)
    batch_size = 2 * NUM_STREAMS // (num_processes * max(1, num_workers))  # 24 samples a step, in any world
    return tdr.stateful_loader(pipe, batch_size=batch_size, num_workers=num_workers, num_streams=NUM_STREAMS)


class Progress:
    """Counters that ``save_state`` stores, too."""

    def __init__(self) -> None:
        self.epoch, self.step, self.num_samples = 0, 0, 0

    def state_dict(self) -> dict[str, int]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="shards with index.json")
    parser.add_argument("--checkpoint", default="train_with_accelerate", help="folder")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0, help="of each process")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="save, and end")
    options = parser.parse_args()

    torch.manual_seed(0)
    accelerator, progress = Accelerator(), Progress()
    model: nn.Module = nn.Sequential(
        nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, options.classes)
    )
    loader = make_loader(options.url, accelerator.num_processes, options.workers)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-3), loader)
    accelerator.register_for_checkpointing(progress)
    if Path(options.checkpoint).exists():
        accelerator.load_state(options.checkpoint)  # the loader's state too: do not call skip_first_batches
        accelerator.print(f"resumed: epoch {progress.epoch}, step {progress.step}")

    while progress.epoch < options.epochs:
        for images, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            progress.step += 1
            progress.num_samples += len(accelerator.gather_for_metrics(labels))
            if progress.step == options.stop_after:
                accelerator.save_state(options.checkpoint)  # each process calls this
                accelerator.print(f"stopped: epoch {progress.epoch}, step {progress.step}")
                return end(accelerator)
        accelerator.print(f"epoch {progress.epoch}: {progress.num_samples} samples, loss {loss.item():.3f}")
        progress.epoch, progress.num_samples = progress.epoch + 1, 0
    return end(accelerator)


def end(accelerator: Accelerator) -> None:
    """End all processes without finalizing Python: gloo's threads may still hold tensors (pytorch#190489)."""
    accelerator.wait_for_everyone()
    accelerator.end_training()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
