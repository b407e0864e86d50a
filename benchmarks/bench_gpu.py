"""How fast do images for training reach a GPU, and how much of a training step waits for them?

    python benchmarks/bench_gpu.py [--quick] [--rounds 5] [--device cuda] [--cores 16]

JPEGs of 500 x 375 and 97 kB on local disk become random crops of 224 x 224, half of them flipped, in batches of 256
on the GPU: as bytes, which the GPU normalises. Each side reads an epoch to warm up, then the sides take turns: an epoch
that only reads, and one with a training step for each batch (forward and backward of a perceptron in bfloat16). Sides:
``thread_loader(device="cuda")``; ``thread_loader`` with pinned batches that the loop copies; ``stateful_loader`` with
workers; torch's ``DataLoader`` over torchvision's ``ImageFolder``, with as many workers. A side must deliver all
images, on the device. Libraries that are missing are named.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

import torchdata_remote as tdr

BATCH, PIXELS, NUM_SHARDS = 256, 224, 32
NUM_IMAGES, QUICK_IMAGES = 8_192, 512
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Side:
    """A loader of batches ``(images, ...)``, and whether it puts them on the device."""

    name: str
    batches: Iterable[Any]
    copies: bool


def write_images(folder: Path, num_images: int) -> None:
    """Write the same JPEGs as shards and as one folder a class: 64 pictures, each many times."""
    random = np.random.default_rng(0)
    pictures = []
    for _ in range(64):
        coarse = Image.fromarray(random.integers(0, 256, (47, 63, 3), np.uint8)).resize(
            (500, 375), Image.Resampling.BICUBIC
        )
        noisy = np.clip(np.asarray(coarse, np.int16) + random.normal(0, 12, (375, 500, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(file := io.BytesIO(), "JPEG", quality=90)
        pictures.append(file.getvalue())
    print(f"{num_images:,} images of {sum(map(len, pictures)) / 64e3:.0f} kB")
    with tdr.ShardWriter(f"{folder}/shards/{{shard:06d}}.tar", max_shard_samples=num_images // NUM_SHARDS) as writer:
        for number in range(num_images):
            writer.write({"__key__": f"{number:06d}", "jpg": pictures[number % 64], "cls": number % 8})
    for number in range(num_images):
        path = folder / "loose" / str(number % 8) / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pictures[number % 64])


def ours(folder: Path) -> Any:
    """Shuffled crops of bytes, and classes."""
    pipe = tdr.stream_shards(f"{folder}/shards/", seed=0)
    return pipe.decode_image(PIXELS, crop="random", flip=0.5, dtype=torch.uint8).decode_sample().to_tuple("jpg", "cls")


def of_torchvision(folder: Path, num_workers: int) -> Iterable[Any]:
    """As its documentation says, with bytes instead of floats."""
    from torchvision import datasets, transforms

    transform = transforms.Compose(
        [transforms.RandomResizedCrop(PIXELS), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    )
    return torch.utils.data.DataLoader(
        datasets.ImageFolder(f"{folder}/loose", transform),
        batch_size=BATCH,
        shuffle=True,
        num_workers=num_workers,
        pin_memory=True,
        persistent_workers=True,
        multiprocessing_context="forkserver",
    )


def sides(folder: Path, device: str, cores: int) -> Iterator[Side]:
    """Build each loader, or say what is missing."""
    threads: dict[str, Any] = {"batch_size": BATCH, "num_threads": cores, "prefetch_batches": 3}
    yield Side(
        f'thread_loader(device="{device}"), {cores} threads',
        tdr.thread_loader(ours(folder), **threads, device=device),
        True,
    )
    yield Side(f"thread_loader, {cores} threads, pinned", tdr.thread_loader(ours(folder), **threads), False)
    yield Side(
        f"stateful_loader, {cores} workers, pinned",
        tdr.stateful_loader(ours(folder), batch_size=BATCH, num_workers=cores),
        False,
    )
    try:
        yield Side(f"torchvision's ImageFolder, {cores} workers, pinned", of_torchvision(folder, cores), False)
    except ImportError as error:
        print(f"not measured: {error}")


def step_of(device: str, width: int) -> Callable[[torch.Tensor], None]:
    """A training step of a perceptron on the normalised images."""
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) * 255 for values in (MEAN, STD))
    dtype = torch.bfloat16
    inner = torch.randn(3 * 32 * 32, width, device=device, dtype=dtype) / 100
    weights = [torch.randn(width, width, device=device, dtype=dtype) / 100 for _ in range(6)]
    for weight in (inner, *weights):
        weight.requires_grad_()

    def step(images: torch.Tensor) -> None:
        small = torch.nn.functional.adaptive_avg_pool2d((images.float() - mean) / std, 32).flatten(1).to(dtype)
        found = small @ inner
        for weight in weights:
            found = torch.relu(found @ weight)
        torch.autograd.backward(found.sum())

    return step


def epoch_s(side: Side, device: str, num_images: int, step: Callable[[torch.Tensor], None] | None) -> float:
    """Read an epoch, with a step for each batch; seconds until the device has done all of it."""
    start, seen, total = time.perf_counter(), 0, torch.zeros((), device=device)
    for images, *_ in side.batches:
        on_device = images if side.copies else images.to(device, non_blocking=True)
        assert on_device.device.type == device
        if step is None:
            total += on_device[:, 0, 0, 0].float().sum()
        else:
            step(on_device)
        seen += len(on_device)
    if device == "cuda":
        torch.cuda.synchronize()
    assert seen == num_images, f"{side.name}: {seen:,} of {num_images:,} images"
    return time.perf_counter() - start


def spread(values: list[float]) -> str:
    return f"{median(values):,.1f} ({min(values):,.1f} to {max(values):,.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Images to a GPU.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--width", type=int, default=4_096, help="of the perceptron")
    options = parser.parse_args()
    num_images, rounds = (QUICK_IMAGES, 1) if options.quick else (NUM_IMAGES, options.rounds)
    device = options.device
    name = torch.cuda.get_device_name() if device == "cuda" else "no GPU"
    print(f"torch {torch.__version__}, {name}, {options.cores} cores")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_images(folder, num_images)
        step = step_of(device, 64 if options.quick else options.width)
        images = torch.zeros(BATCH, 3, PIXELS, PIXELS, dtype=torch.uint8, device=device)
        step(images)
        alone = Side("", [(images,)] * (num_images // BATCH), True)
        step_ms = 1e3 * median(epoch_s(alone, device, num_images, step) for _ in range(3)) / (num_images // BATCH)
        loaders = list(sides(folder, device, options.cores))
        for side in loaders:
            epoch_s(side, device, num_images, None)
        read: dict[str, list[float]] = {side.name: [] for side in loaders}
        trained: dict[str, list[float]] = {side.name: [] for side in loaders}
        for _ in range(rounds):
            for side in loaders:
                read[side.name].append(num_images / epoch_s(side, device, num_images, None))
                trained[side.name].append(1e3 * epoch_s(side, device, num_images, step) / (num_images // BATCH))
    print(f"a training step without loading: {step_ms:.1f} ms")
    first = loaders[0].name
    for name, rates in read.items():
        ratio = median(a / b for a, b in zip(read[first], rates, strict=True))
        print(f"{name}: {spread(rates)} images/s, 1/{ratio:.2f} of the first; {spread(trained[name])} ms a step")


if __name__ == "__main__":
    main()
