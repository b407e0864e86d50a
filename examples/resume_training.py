"""Train, stop at any step, and resume exactly.

    python examples/resume_training.py [--data URL] [--checkpoint FILE] [--epochs 5] [--workers 2]

Stop it by Ctrl-C, SIGTERM or SIGUSR1, also of all its processes, and run the same command again. A run that was stopped
ends with the same loss, and the same digest over all keys in their order, as one that was not. It also resumes with
another number of workers: the order, digest and loss then differ, and each epoch still has each sample exactly once.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr

SAVE_EVERY, SHOW_EVERY = 100, 50  # steps
NUM_STREAMS = 12  # the largest number of workers


def main() -> None:
    parser = argparse.ArgumentParser(description="A training that can be stopped anywhere.")
    parser.add_argument("--data", default="resume_training/digits", help="folder or URL; written if need be")
    parser.add_argument("--checkpoint", default="resume_training/checkpoint.pt")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    write_digits(options.data)

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = make_loader(options.data, options.workers)
    at: dict[str, Any] = {"epoch": 0, "step": 0, "samples": 0, "digest": "", "loss": float("nan")}

    def save() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        Path(options.checkpoint).parent.mkdir(parents=True, exist_ok=True)
        torch.save({**state, "random": torch.get_rng_state(), "at": at}, f"{options.checkpoint}.new")
        os.replace(f"{options.checkpoint}.new", options.checkpoint)  # atomic

    if Path(options.checkpoint).exists():
        saved = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        torch.set_rng_state(saved["random"])
        at = saved["at"]
        print(f"resumed at epoch {at['epoch']}, step {at['step']}", flush=True)
    else:
        print("from the beginning", flush=True)

    stop = StopSignal()
    try:
        while (epoch := loader.state_dict()["epoch"]) < options.epochs:
            if epoch > at["epoch"]:
                at.update(epoch=epoch, samples=0)
            for images, labels, keys in loader:
                stop.is_waiting = False  # first of all, so that no signal comes between the batch and this
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch's
                optimizer.step()

                for key in keys:
                    at["digest"] = hashlib.sha256(f"{at['digest']} {key}".encode()).hexdigest()
                at.update(step=at["step"] + 1, samples=at["samples"] + len(keys), loss=loss.item())
                if at["step"] % SHOW_EVERY == 0:
                    print(f"epoch {epoch}, step {at['step']}, loss {at['loss']:.4f}", flush=True)
                if at["step"] % SAVE_EVERY == 0:
                    save()
                stop.is_waiting = True
                stop.raise_if_received()
            print(f"epoch {epoch} had {at['samples']:,} samples", flush=True)
    except KeyboardInterrupt:  # the loader's state is that after the last batch, with which the step has ended
        save()
        sys.exit(f"stopped in epoch {at['epoch']} after step {at['step']}; the same command resumes")
    save()
    print(f"all {options.epochs} epochs: loss {at['loss']:.6f}, digest of the order {at['digest'][:16]}")


def make_loader(data: str, num_workers: int) -> tdr.loaders.StatefulLoader:
    """Batches of images (float32, B x 1 x 8 x 8, 0 to 1), labels (int64, B) and keys."""
    pipe = (
        IterableWrapper([f"{data}/index.json"])
        .list_remote()
        .shuffle_shards(seed=0)
        .sharding_filter_rank()
        .async_prefetch(interleave=2)
        .shard_tar_reader(interleave=2)
        .shuffle_samples(buffer_size=200, seed=0)  # in each stream
        .decode_sample()
        .to_tuple("npy", "cls", "__key__")
    )
    return tdr.stateful_loader(pipe, batch_size=32, num_workers=num_workers, num_streams=NUM_STREAMS)


class StopSignal:
    """Raises ``KeyboardInterrupt`` for Ctrl-C, SIGTERM and SIGUSR1: at once while the loop waits for data, else after
    the step. A second signal ends the process at once."""

    def __init__(self) -> None:
        self.is_waiting, self._is_received = True, False
        for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
            if hasattr(signal, name):  # Windows has no SIGUSR1
                signal.signal(getattr(signal, name), self._note)

    def _note(self, number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        self._is_received = True
        if self.is_waiting:
            raise KeyboardInterrupt

    def raise_if_received(self) -> None:
        if self._is_received:
            raise KeyboardInterrupt


def write_digits(data: str) -> None:
    """Write scikit-learn's 1,797 handwritten digits, each at nine offsets, as tar shards, unless they exist."""
    try:
        list(IterableWrapper([f"{data}/index.json"]).list_remote())
    except FileNotFoundError:
        from sklearn.datasets import load_digits  # here, or each worker would import it

        digits = load_digits()
        with tdr.ShardWriter(f"{data}/{{shard:04d}}.tar", max_shard_samples=500, overwrite=True) as writer:
            for offset in range(9):
                for i, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
                    moved = np.roll(image, (offset // 3 - 1, offset % 3 - 1), axis=(0, 1))
                    pixels = (moved[None] / 16).astype(np.float32)
                    writer.write({"__key__": f"{offset}/{i:04d}", "npy": pixels, "cls": int(label)})
        print(f"{data}: {len(digits.target) * 9:,} images in {len(writer.shards)} shards")


if __name__ == "__main__":
    main()
