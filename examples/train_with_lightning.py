"""Train with Lightning, stop at any step by its own checkpoint, and resume with any number of processes.

    python examples/train_with_lightning.py --devices 2 --stop-after 20
    python examples/train_with_lightning.py --devices 3

The first command stops in mid-epoch. The second one resumes there: three processes train on the rest of the epoch,
exactly once. ``torchrun --nproc-per-node 2 examples/train_with_lightning.py --devices 2`` works alike.

``--url`` is a folder or bucket of shards with a manifest; without it the handwritten digits of scikit-learn are written
to one. ``LightningResume`` lets Lightning's checkpoints contain the position of all ranks.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchdata_remote as tdr
from torchdata_remote.core.iter_datapipe import IterableWrapper

NUM_STREAMS = 24  # any number of processes x workers that divides this resumes


def digits(url: str) -> None:
    """1,797 handwritten digits of 8 x 8 pixels as shards, once."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    with tdr.ShardWriter(f"{url}/train-{{shard:02d}}.tar", max_shard_samples=75) as writer:
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            writer.write({"__key__": f"{number:04d}", "npy": (image / 16).astype("float32"), "cls": int(label)})


def to_example(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """Pixels, float32 of shape (64,), and the digit."""
    return torch.from_numpy(sample["npy"]), sample["cls"]


def make_loader(url: str, num_workers: int) -> tdr.loaders.StatefulLoader:
    """Batches of 32; each rank has the same number of them."""
    pipe = IterableWrapper([f"{url}/index.json"]).list_remote().shuffle_shards(seed=0).sharding_filter_rank()
    pipe = pipe.shard_tar_reader().equalize_ranks(mode="drop").shuffle_samples(buffer_size=200, seed=0)
    return tdr.stateful_loader(
        pipe.decode_sample().map(to_example), batch_size=32, num_workers=num_workers, num_streams=NUM_STREAMS
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="train_with_lightning/digits", help="of shards")
    parser.add_argument("--checkpoints", default="train_with_lightning/checkpoints")
    parser.add_argument("--devices", type=int, default=1, help="processes")
    parser.add_argument("--workers", type=int, default=0, help="of each process")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--stop-after", type=int, default=-1, metavar="STEPS")
    options = parser.parse_args()

    import lightning  # not above: a loader's workers import this module

    from torchdata_remote.loaders.trainers import LightningResume

    class Digits(lightning.LightningModule):
        """Classify digits."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            pixels, labels = batch
            loss = nn.functional.cross_entropy(self.net(pixels), labels)
            self.log("samples", float(len(labels)), reduce_fx="sum", sync_dist=True, on_epoch=True, on_step=False)
            return loss

        def on_train_epoch_end(self) -> None:
            samples = int(self.trainer.callback_metrics["samples"])
            self.print(f"epoch {self.current_epoch}: {samples} samples since the start or the checkpoint")

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    if not Path(options.url, "index.json").exists() and "://" not in options.url:
        digits(options.url)  # rank 0's: Lightning starts the others later
    last = Path(options.checkpoints, "last.ckpt")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.devices,
        strategy="ddp",
        max_epochs=options.epochs,
        max_steps=options.stop_after,
        logger=False,
        callbacks=[
            LightningResume(),
            lightning.pytorch.callbacks.ModelCheckpoint(options.checkpoints, every_n_train_steps=5, save_last=True),
        ],
    )
    trainer.fit(Digits(), make_loader(options.url, options.workers), ckpt_path=last if last.exists() else None)
    trainer.print(f"stopped after {trainer.global_step} steps")


if __name__ == "__main__":
    main()
