"""Write a dataset into an S3 bucket as tar shards, train from the stream, draw the predictions.

The images are the 1,797 handwritten digits of 8 x 8 pixels that ship with scikit-learn. The bucket is on an S3 server
that this script starts (moto's), unless ``AWS_ENDPOINT_URL`` names another one.

    python examples/quickstart.py [--epochs 8] [--num-workers 2] [--picture quickstart.png]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import botocore.session
import numpy as np
import torch
from PIL import Image, ImageDraw
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper
from tqdm import tqdm

import torchdata_remote as tdr

HELD_OUT = 360
Batch = list[torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description="Digits into a bucket, and a model from the stream.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--picture", default="quickstart.png", help="where the predictions are drawn")
    options = parser.parse_args()
    torch.manual_seed(0)
    with s3_server():
        bucket = f"digits-{uuid.uuid4().hex[:8]}"
        botocore.session.get_session().create_client("s3", region_name="us-east-1").create_bucket(Bucket=bucket)

        samples = digits()
        written = {
            "test": write(samples[:HELD_OUT], f"s3://{bucket}/test/{{shard:06d}}.tar"),
            "train": write(samples[HELD_OUT:], f"s3://{bucket}/train/{{shard:06d}}.tar"),
        }
        for split, shards in written.items():
            count, size = sum(s.num_samples for s in shards), sum(s.num_bytes for s in shards)
            print(f"s3://{bucket}/{split}/: {count:,} images in {len(shards)} shards, {size:,} bytes")

        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        train = loader(f"s3://{bucket}/train/", options.num_workers)
        for epoch in range(options.epochs):
            total = len(samples) - HELD_OUT
            with tqdm(total=total, unit=" samples", desc=f"epoch {epoch + 1}", mininterval=0.5) as bar:
                for images, labels in train:
                    loss = nn.functional.cross_entropy(model(images), labels)
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]  # torch's
                    optimizer.step()
                    bar.update(len(labels))
                    bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)

        right = 0
        picture = None
        for images, labels in loader(f"s3://{bucket}/test/", min(options.num_workers, len(written["test"]))):
            predicted = model(images).argmax(dim=1)
            right += int((predicted == labels).sum())
            picture = picture or draw(images, labels, predicted)
        assert picture is not None
        picture.save(options.picture)
        print(f"held-out accuracy: {100 * right / HELD_OUT:.1f} % ({right} of {HELD_OUT})")
        print(f"one streamed batch with its predictions: {options.picture}")


def digits() -> list[dict[str, Any]]:
    """The digits as samples, in random order: the dataset is sorted by writer."""
    data = load_digits()
    order = list(range(len(data.target)))
    random.Random(0).shuffle(order)
    return [
        {
            "__key__": f"{data.target[i]}/{i:04d}",
            "png": Image.fromarray((data.images[i] * 255 / 16).astype(np.uint8)),
            "cls": int(data.target[i]),
        }
        for i in order
    ]


def write(samples: list[dict[str, Any]], url_template: str) -> list[tdr.ShardInfo]:
    """Write the samples; images are encoded by their extension, here to PNG."""
    return list(IterableWrapper(samples).write_shards(url_template, max_shard_samples=120))


def loader(url: str, num_workers: int) -> DataLoader[Batch]:
    """Batches of images (float32, B x 8 x 8, 0 to 1) and labels (int64, B)."""
    pipe: tdr.IterDataPipe[Any] = tdr.stream_shards(url, seed=0).decode_sample().to_tuple("png", "cls").map(to_tensors)
    return DataLoader(
        pipe,
        batch_size=32,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        multiprocessing_context="forkserver" if num_workers else None,
    )


def to_tensors(sample: tuple[Image.Image, int]) -> tuple[torch.Tensor, int]:
    image, label = sample
    return torch.from_numpy(np.asarray(image.convert("L"), dtype=np.float32) / 255), label


def draw(images: torch.Tensor, labels: torch.Tensor, predicted: torch.Tensor) -> Image.Image:
    """The images side by side, eight in a row, the prediction below: green if right, red with the label if not."""
    cell, columns = 80, 8
    sheet = Image.new("RGB", (cell * columns, (cell + 20) * -(-len(images) // columns)), "white")
    pen = ImageDraw.Draw(sheet)
    for i, (image, label, guess) in enumerate(zip(images, labels.tolist(), predicted.tolist(), strict=True)):
        x, y = cell * (i % columns), (cell + 20) * (i // columns)
        digit = Image.fromarray((255 - image.numpy() * 255).astype(np.uint8))
        sheet.paste(digit.resize((cell - 4, cell - 4), Image.Resampling.NEAREST), (x + 2, y + 2))
        text = f"{guess}" if guess == label else f"{guess}, is {label}"
        pen.text((x + 6, y + cell - 2), text, fill="green" if guess == label else "red", font_size=14)
    return sheet


@contextlib.contextmanager
def s3_server() -> Iterator[None]:
    """Run an S3 server on this machine within the block, unless the environment names one."""
    if "AWS_ENDPOINT_URL" in os.environ:
        print(f"S3 server: {os.environ['AWS_ENDPOINT_URL']}")
        yield
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(url):
                break
            if server.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended with exit code {server.returncode}")
            time.sleep(0.1)
        os.environ.update(AWS_ENDPOINT_URL=url, AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
        print(f"S3 server: {url} (moto's; set AWS_ENDPOINT_URL to use another)")
        yield
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
