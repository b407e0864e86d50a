"""Train with Fabric, stop at any step by ``fabric.save``, and resume with any number of processes.

    python examples/train_with_fabric.py --devices 2 --stop-after 20
    python examples/train_with_fabric.py --devices 3

The first command stops in mid-epoch. The second one resumes there: three processes train on the rest of the epoch,
exactly once. ``--url`` is a folder or bucket of shards with a manifest; without it the handwritten digits of
scikit-learn are written to one.
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
    """Batches of 32, equally many in each rank; its state is that of all ranks, of which Fabric stores rank 0's."""
    pipe = IterableWrapper([f"{url}/index.json"]).list_remote().shuffle_shards(seed=0).sharding_filter_rank()
    pipe = pipe.shard_tar_reader().equalize_ranks(mode="drop").shuffle_samples(buffer_size=200, seed=0)
    return tdr.stateful_loader(
        pipe.decode_sample().map(to_example),
        batch_size=32,
        num_workers=num_workers,
        num_streams=NUM_STREAMS,
        state_of_all_ranks=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="train_with_fabric/digits", help="of shards")
    parser.add_argument("--checkpoint", default="train_with_fabric/last.ckpt")
    parser.add_argument("--devices", type=int, default=1, help="processes")
    parser.add_argument("--workers", type=int, default=0, help="of each process")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--stop-after", type=int, default=-1, metavar="STEPS")
    options = parser.parse_args()

    from lightning.fabric import Fabric  # not above: a loader's workers import this module

    fabric = Fabric(accelerator="cpu", devices=options.devices, strategy="ddp")
    fabric.launch()
    if fabric.is_global_zero and "://" not in options.url and not Path(options.url, "index.json").exists():
        digits(options.url)
    fabric.barrier()

    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters(), lr=1e-3))
    loader = fabric.setup_dataloaders(make_loader(options.url, options.workers))
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader, "epoch": 0, "step": 0}
    if Path(options.checkpoint).exists():
        fabric.load(options.checkpoint, state)
    for epoch in range(state["epoch"], options.epochs):
        samples = torch.zeros(())
        for pixels, labels in loader:
            fabric.backward(nn.functional.cross_entropy(model(pixels), labels))
            optimizer.step()
            optimizer.zero_grad()
            samples += len(labels)
            state["step"] += 1
            if state["step"] == options.stop_after:
                fabric.save(options.checkpoint, state)
                fabric.print(f"stopped after {state['step']} steps")
                return
        total: Any = fabric.all_reduce(samples, reduce_op="sum")
        fabric.print(f"epoch {epoch}: {int(total)} samples since the start or the checkpoint")
        state["epoch"] = epoch + 1
        fabric.save(options.checkpoint, state)


if __name__ == "__main__":
    main()
