"""What does an image for training cost, from its bytes to a normalised crop: by ``decode_image``, and by others?

    python benchmarks/bench_decode.py [--quick] [--rounds 7]

JPEGs of 500 x 375 and 94 kB in memory become random crops of 224 x 224, half of them flipped, as float32 with the
channels first, normalised. Each side does that for the same number of images in each round, the sides by turns: once in
one thread, whose CPU time is counted, and once in two threads, whose images per second show what of it runs under
Python's global lock. torch has one thread for each of them, as in a worker of ``DataLoader``. Crops are drawn by each
side as it does it; their sizes have the same distribution. Libraries that are missing are named.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from bench_loose_files import images
from PIL import Image
from report import arguments, environment, print_table, spread
from training_peers import MEAN, PIXELS, STD, by_cv2, by_torchvision

from torchdata_remote.formats.crops.boxes import NUM_DRAWS, random_box
from torchdata_remote.formats.decoders import _turbojpeg as turbojpeg
from torchdata_remote.pipes import DecodeImage, IterableWrapper

NUM_IMAGES, QUICK_IMAGES, NUM_THREADS = 256, 8, 2
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
Decode = Callable[[bytes, int], Any]


def ours(dtype: torch.dtype = torch.float32) -> Decode:
    """``decode_image``, without the pipe."""
    pipe = DecodeImage(IterableWrapper([]), PIXELS, dtype=dtype)

    def decode(data: bytes, number: int) -> Any:
        row = torch.empty((3, PIXELS, PIXELS), dtype=dtype)
        pipe.write(data, row, np.random.default_rng(number).random(NUM_DRAWS).tolist())
        return row

    return decode


def ours_by_pillow() -> Decode:
    """The same, as without the extra ``turbo``."""
    decode = ours()

    def without_simplejpeg(data: bytes, number: int) -> Any:
        with patch.object(turbojpeg, "simplejpeg", None):
            return decode(data, number)

    return without_simplejpeg


def by_pillow(data: bytes, number: int) -> Any:
    """Pillow and NumPy, as written by hand."""
    image: Image.Image = Image.open(io.BytesIO(data)).convert("RGB")
    draws = np.random.default_rng(number).random(NUM_DRAWS).tolist()
    top, left, height, width = random_box(image.height, image.width, SCALE, RATIO, draws)
    box = (left, top, left + width, top + height)
    image = image.resize((PIXELS, PIXELS), Image.Resampling.BILINEAR, box=box, reducing_gap=2)
    if draws[0] < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    normalised = (np.asarray(image, np.float32) / 255 - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    return torch.from_numpy(np.ascontiguousarray(normalised.transpose(2, 0, 1)))


def torchvision_tensors() -> Decode:
    """torchvision's own decoder, and its transforms of tensors."""
    io_of_torchvision, v2 = import_module("torchvision.io"), import_module("torchvision.transforms.v2")
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(PIXELS, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )

    def decode(data: bytes, _number: int) -> Any:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return transform(io_of_torchvision.decode_jpeg(encoded, mode=io_of_torchvision.ImageReadMode.RGB))

    return decode


def whole_by_simplejpeg() -> Decode:
    """The whole image, and nothing else: what the decoder alone costs."""
    import simplejpeg  # type: ignore[import-untyped]

    return lambda data, _number: simplejpeg.decode_jpeg(data)


def plain(decode: Callable[[bytes], Any]) -> Decode:
    """A side of ``bench_training``; fails if its libraries are missing."""
    decode(images(1)[0])
    return lambda data, _number: decode(data)


SIDES: dict[str, Callable[[], Decode]] = {
    "decode_image": ours,
    "decode_image, uint8": partial(ours, dtype=torch.uint8),
    "decode_image, by Pillow (without turbo)": ours_by_pillow,
    "Pillow, NumPy": lambda: by_pillow,
    "Pillow, torchvision transforms": lambda: plain(by_torchvision),
    "torchvision.io, transforms.v2": torchvision_tensors,
    "simplejpeg (fast DCT), OpenCV INTER_AREA": lambda: plain(by_cv2),
    "only decoding all of it, by simplejpeg": whole_by_simplejpeg,
}
ONE_THREAD = ("decode_image, by Pillow (without turbo)",)  # changes a module's variable


def cpu_ms(decode: Decode, files: list[bytes]) -> float:
    """CPU milliseconds for each image, in this thread and those of libraries."""
    start_s = time.process_time()
    for number, data in enumerate(files):
        decode(data, number)
    return (time.process_time() - start_s) / len(files) * 1e3


def images_per_s(decode: Decode, files: list[bytes]) -> float:
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        list(pool.map(decode, files[:NUM_THREADS], range(NUM_THREADS)))
        start_s = time.perf_counter()
        list(pool.map(decode, files, range(len(files))))
        return len(files) / (time.perf_counter() - start_s)


def installed(make: Callable[[], Decode]) -> Decode | str:
    """Return a side, or why it is missing."""
    try:
        return make()
    except (ImportError, RuntimeError, OSError) as error:
        return f"not installed: {str(error).splitlines()[0]}"


def main() -> None:
    options = arguments(__doc__ or "", list(SIDES))
    chosen = options.peers or list(SIDES)
    made = images(QUICK_IMAGES) if options.quick else images()
    files = made if options.quick else [made[at % len(made)] for at in range(NUM_IMAGES)]
    torch.set_num_threads(1)
    made_or_missing = {name: installed(SIDES[name]) for name in chosen}
    sides = {name: side for name, side in made_or_missing.items() if not isinstance(side, str)}
    costs: dict[str, list[float]] = {name: [] for name in sides}
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(options.rounds):
        for name, decode in sides.items() if number % 2 == 0 else reversed(sides.items()):
            costs[name].append(cpu_ms(decode, files))
            if name not in ONE_THREAD:
                speeds[name].append(images_per_s(decode, files))
    print(f"{len(made)} JPEGs of {len(made[0]):,} bytes to {PIXELS} x {PIXELS}, {options.shown}")
    print(environment({"pillow", "simplejpeg", "torch", "torchvision", "opencv-python-headless"}, with_store=False))
    first = next(iter(sides))
    rows: list[tuple[str, ...]] = [
        ("", "CPU ms an image (min to max)", f"images/s in {NUM_THREADS} threads", f"CPU, of {first}")
    ]
    for name in chosen:
        side = made_or_missing[name]
        if isinstance(side, str):
            rows.append((name, side))
            continue
        ratios = [one / other for one, other in zip(costs[name], costs[first], strict=True)]
        speed = f"{median(speeds[name]):,.0f}" if speeds[name] else ""
        rows.append((name, spread(costs[name], 2), speed, spread(ratios, 2)))
    print()
    print_table(rows)


if __name__ == "__main__":
    main()
