"""Write a dataset into an S3 bucket as tar shards, train from the stream, draw what the model sees in new images.

The images are the 1,797 handwritten digits of 8 x 8 pixels that ship with scikit-learn. The bucket is on an S3 server
that this script starts (moto's), unless ``AWS_ENDPOINT_URL`` names another one.

    python examples/quickstart.py [--epochs 8] [--num-workers 2] [--picture quickstart.png]
"""

from __future__ import annotations

if __name__ == "__main__":  # workers import this file, too
    print("Importing torch, which takes some seconds the first time ...", flush=True)

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
from pathlib import Path
from typing import Any

import botocore.session
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from tqdm import tqdm

import torchdata_remote as tdr

HELD_OUT = 360
BATCH_SIZE = 32
START_S = 25  # the S3 server's
RIGHT, WRONG = "#0072b2", "#d55e00"  # blue and vermilion, which colour-blind readers can tell apart


def main() -> None:
    parser = argparse.ArgumentParser(description="Digits into a bucket, and a model from the stream.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--picture", default="quickstart.png", help="where loss and predictions are drawn")
    options = parser.parse_args()
    if problem := refused(options.picture, options.epochs, options.num_workers):
        parser.error(problem)
    torch.manual_seed(0)
    for name in ("no_proxy", "NO_PROXY"):  # a proxy that http_proxy names does not reach a server on this machine
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))
    with s3_server():
        bucket = f"digits-{uuid.uuid4().hex[:8]}"
        botocore.session.get_session().create_client("s3", region_name="us-east-1").create_bucket(Bucket=bucket)

        samples = digits()
        write(samples[:HELD_OUT], f"s3://{bucket}/test/{{shard:06d}}.tar")
        write(samples[HELD_OUT:], f"s3://{bucket}/train/{{shard:06d}}.tar")

        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        losses = train(model, f"s3://{bucket}/train/", options.epochs, options.num_workers)
        images, labels, predicted = predict(model, f"s3://{bucket}/test/")

    right = int((predicted == labels).sum())
    accuracy = f"{100 * right / len(labels):.1f} % ({right} of {len(labels)})"
    print(f"held-out accuracy: {accuracy}")
    draw(f"accuracy {accuracy}", losses, options.epochs, images, labels, predicted).savefig(options.picture)
    print(f"the loss, and the predictions that were hardest: {options.picture}")


def refused(picture: str, epochs: int, num_workers: int) -> str | None:
    """What is wrong with the options, found before anything is started; ``None`` if nothing is."""
    path, kinds = Path(picture), Figure().canvas.get_supported_filetypes()
    if epochs < 1 or num_workers < 0:
        return f"--epochs must be at least 1, and --num-workers at least 0; got {epochs} and {num_workers}"
    if path.suffix[1:].lower() not in kinds:
        return f"--picture must end in one of {', '.join(f'.{kind}' for kind in sorted(kinds))}; got {picture!r}"
    if path.is_dir() or not path.parent.is_dir():
        return f"--picture must be a file in a folder that exists, got {picture!r}"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return f"--picture: {picture!r} cannot be written"
    return None


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


def write(samples: list[dict[str, Any]], url_template: str) -> None:
    """Write the samples as tar shards; images are encoded by their extension, here to PNG."""
    with tdr.ShardWriter(url_template, max_shard_samples=120) as writer:
        for sample in samples:
            writer.write(sample)
    print(f"{url_template}: {len(samples):,} images")


def train(model: nn.Module, url: str, epochs: int, num_workers: int) -> list[float]:
    """Train from the shards below a URL; returns the loss of each batch."""
    pipe = tdr.stream_shards(url, seed=0).decode_sample().to_tuple("png", "cls").map(to_tensors)
    loader = tdr.stateful_loader(pipe, batch_size=BATCH_SIZE, num_workers=num_workers)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    if num_workers:
        started = "1 worker, which imports" if num_workers == 1 else f"{num_workers} workers, which import"
        print(f"Starting {started} torch, too; the first batch comes in some seconds ...")
    with tqdm(total=epochs * (1797 - HELD_OUT), unit=" samples", mininterval=0.5) as bar:
        for epoch in range(epochs):
            bar.set_description(f"epoch {epoch + 1} of {epochs}")
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch's
                optimizer.step()
                losses.append(loss.item())
                bar.update(len(labels))
                bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
    return losses


@torch.no_grad()
def predict(model: nn.Module, url: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Predict what all images show; returns images, labels and predictions, the least certain ones first."""
    pipe = tdr.stream_shards(url, shuffle=False).decode_sample().to_tuple("png", "cls").map(to_tensors)
    batches = list(tdr.stateful_loader(pipe, batch_size=BATCH_SIZE, num_workers=0))
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    certainty, predicted = model(images).softmax(dim=1).max(dim=1)
    order = certainty.argsort()
    return images[order], labels[order], predicted[order]


def to_tensors(sample: tuple[Image.Image, int]) -> tuple[torch.Tensor, int]:
    """A sample's image as float32, 8 x 8, 0 to 1; and its label."""
    image, label = sample
    return torch.from_numpy(np.asarray(image.convert("L"), dtype=np.float32) / 255), label


def draw(
    title: str, losses: list[float], epochs: int, images: torch.Tensor, labels: torch.Tensor, predicted: torch.Tensor
) -> Figure:
    """Draw the loss of each batch, and the first images in rows of eight, each with its prediction."""
    figure = Figure(figsize=(12, 6.4), dpi=110, layout="constrained")
    figure.suptitle(f"Handwritten digits, streamed from S3: {title}", fontsize=16)
    left, right = figure.subfigures(1, 2, width_ratios=(2, 3), squeeze=False)[0]

    curve = left.subplots()
    curve.plot(np.linspace(0, epochs, len(losses)), losses, color=RIGHT, alpha=0.35, label="each batch")
    means = [part.mean() for part in np.array_split(losses, epochs)]
    curve.plot(np.arange(epochs) + 0.5, means, "o-", color=RIGHT, label="mean of an epoch")
    curve.set(title="Training loss", xlabel="epochs", ylabel="cross entropy", xlim=(0, epochs), ylim=(0, None))
    curve.grid(alpha=0.3)
    curve.legend()

    cells = right.subplots(5, 8)
    right.suptitle(f"The {cells.size} of {len(labels)} new images that the model is least certain of", fontsize=12)
    for cell, image, label, guess in zip(cells.flat, images.numpy(), labels.tolist(), predicted.tolist(), strict=False):
        colour = RIGHT if guess == label else WRONG
        cell.imshow(image, cmap="gray_r", interpolation="bicubic")
        cell.set(xticks=[], yticks=[])
        cell.spines[:].set(color=colour, linewidth=2.5)
        cell.set_xlabel(f"{guess}" if guess == label else f"{guess}, is {label}", color=colour, fontsize=13)
    key = [Patch(color=RIGHT, label="right"), Patch(color=WRONG, label="wrong: prediction, label")]
    right.legend(handles=key, loc="outside lower center", ncols=2)
    return figure


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
    print(f"S3 server: starting moto's at {url} (set AWS_ENDPOINT_URL to use another) ...", flush=True)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while not answers(url):
            if server.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended with exit code {server.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(command)} does not answer at {url} after {START_S} s")
            time.sleep(0.1)
        os.environ.update(AWS_ENDPOINT_URL=url, AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
        yield
    finally:
        server.terminate()
        server.wait()


def answers(url: str) -> bool:
    """Whether a server answers within a second, without a proxy."""
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=1).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
