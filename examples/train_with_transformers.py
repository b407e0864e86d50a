"""Train with the transformers ``Trainer``: stop in mid-epoch, resume with another number of processes.

    torchrun --nproc-per-node 2 examples/train_with_transformers.py --url s3://bucket/train/ --stop-after 40
    torchrun --nproc-per-node 3 examples/train_with_transformers.py --url s3://bucket/train/

``--url`` has shards of images with a manifest (``index.json``) and classes in ``cls``, as ``torchdata-remote shard``
writes them from a folder of images. The second command continues after the last batch of the first: each sample of each
epoch is trained on once. The ``checkpoint-N`` folders contain the position of all processes' loaders; no batch is read
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
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import torchdata_remote as tdr
from torchdata_remote.loaders.trainers import RemoteTrainerMixin

SIZE = 16  # pixels of a side
NUM_STREAMS = 12  # as many processes x workers at most


class ImageTrainer(RemoteTrainerMixin, Trainer):  # type: ignore[misc]  # no types are read of it
    """``Trainer``, with chains of pipes as datasets."""

    num_streams = NUM_STREAMS


class Classifier(nn.Module):
    """A small model with a loss, as ``Trainer`` expects it."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 64), nn.ReLU(), nn.Linear(64, num_classes))
        self.num_samples = 0  # trained on in this run, by this process

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.num_samples += len(labels)
        logits = self.layers(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class StopAfter(TrainerCallback):  # type: ignore[misc]  # no types are read of it
    """Save a checkpoint after some steps, and end."""

    def __init__(self, num_steps: int | None) -> None:
        self._num_steps = num_steps

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self._num_steps:
            control.should_save = control.should_training_stop = True


def to_example(sample: dict[str, Any]) -> dict[str, Any]:
    """A float32 image of shape (3, SIZE, SIZE) in 0..1, and its class."""
    image = next(sample[kind] for kind in ("jpg", "jpeg", "png") if kind in sample).convert("RGB").resize((SIZE, SIZE))
    pixels = torch.from_numpy(np.asarray(image, np.float32) / 255).permute(2, 0, 1)
    return {"images": pixels, "labels": int(sample["cls"])}


def make_pipe(url: str) -> Any:
    """The chain; ``equalize_ranks`` lets all processes end an epoch together, and tells ``Trainer`` its length."""
    urls = tdr.IterableWrapper([f"{url.rstrip('/')}/index.json"]).list_remote().shuffle_shards(seed=0)
    samples = urls.sharding_filter_rank().async_prefetch().shard_tar_reader().equalize_ranks(mode="drop")
    return samples.shuffle_samples(buffer_size=100, seed=0).decode_sample().map(to_example)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="shards with index.json")
    parser.add_argument("--checkpoint", default="train_with_transformers", help="folder")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0, help="of each process")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="save, and end")
    options = parser.parse_args()

    slots = int(os.environ.get("WORLD_SIZE", "1")) * max(1, options.workers)
    arguments = TrainingArguments(
        output_dir=options.checkpoint,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=2 * NUM_STREAMS // slots,  # 24 samples a step, in any world
        dataloader_num_workers=options.workers,
        save_steps=1000,
        report_to=[],
    )
    model = Classifier(options.classes)
    trainer = ImageTrainer(
        model, arguments, train_dataset=make_pipe(options.url), callbacks=[StopAfter(options.stop_after)]
    )
    trainer.train(resume_from_checkpoint=any(Path(options.checkpoint).glob("checkpoint-*")))
    print(f"\nprocess {arguments.process_index}: {model.num_samples} samples, step {trainer.state.global_step}")
    sys.stdout.flush()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    os._exit(0)  # without finalizing Python: gloo's threads may still hold tensors (pytorch#190489)


if __name__ == "__main__":
    main()
