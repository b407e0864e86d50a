"""The batches of ``train_imagenet.py``: from loose files or shards, depending on the URL."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr

IMAGENET_CLASSES = 1_000
Classes = Any  # names in the order of their numbers, a labeller of tdr.labels, or None


def open_data(options: argparse.Namespace, rank: int, num_ranks: int) -> LooseFiles | Shards:
    """Open a URL: a manifest or tars as shards, anything else as loose files."""
    given = tdr.StorageOptions.from_file(options.credentials) if options.credentials else tdr.StorageOptions()
    urls = json.loads(Path(options.credentials).read_bytes()) if options.credentials else {}
    store = {**given, **({"endpoint_url": options.endpoint_url} if options.endpoint_url else {})}
    index = options.index or urls.get("train_index_file_download_url")
    classes = options.classes or urls.get("train_classes_file_download_url")
    reading: dict[str, Any] = {"storage_options": store}
    if options.cache_dir:
        reading.update(cache_dir=options.cache_dir, cache_bytes=int(options.cache_gb * 1e9))
    manifest = options.url if options.url.endswith(".json") else f"{options.url.rstrip('/')}/index.json"
    named = read_classes(classes, options.id_base, store)
    if not options.url.endswith(".tar") and index is None and lists(manifest, store):
        return Shards(manifest, options, num_ranks, named, reading)
    if options.url.endswith(".tar") or (index is None and lists(options.url, store, pattern="*.tar", recursive=False)):
        return Shards(options.url, options, num_ranks, named, reading)
    return LooseFiles(options, rank, num_ranks, named, {**reading, "index": index})


def lists(url: str, store: Mapping[str, Any], **how: Any) -> bool:
    """Whether an object exists."""
    try:
        return any(IterableWrapper([url]).list_remote(storage_options=store, **how))
    except FileNotFoundError:
        return False


def read_classes(classes: list[str] | str | None, id_base: int, store: Mapping[str, Any]) -> Classes:
    """Names unchanged; a labeller from a file. Credentials are sent to an s3 server only."""
    source = classes[0] if isinstance(classes, list) and len(classes) == 1 else classes
    if not isinstance(source, str) or (isinstance(classes, list) and not source.endswith(".json")):
        return classes
    options = store if source.startswith("s3://") else None
    return tdr.labels.classes_json(source, id_base=id_base, storage_options=options)


class LooseFiles:
    """Batches of an ImageFolder. The order depends on the epoch only, so any position can be resumed."""

    def __init__(
        self, options: argparse.Namespace, rank: int, num_ranks: int, classes: Classes, reading: Mapping[str, Any]
    ) -> None:
        square = ToTensor(options.image_size)
        self.files = tdr.RemoteImageFolder(
            options.url,
            transform=square,
            decoder=tdr.decoders.rgb(min_size=square.side),
            classes=classes,
            limit=options.dataset_limit,
            **reading,
        )
        self.num_classes, self.num_workers = len(self.files.classes), options.workers
        if not self.num_classes:
            sys.exit(f"{options.url}: images lie in no folders that could be their classes; pass --classes FILE")
        self.batch_size, self.first = options.batch_size, rank * options.batch_size
        self.step_images = num_ranks * options.batch_size
        self.num_images = len(self.files) // self.step_images * self.step_images  # the same in each rank
        if not self.num_images:
            sys.exit(f"{len(self.files):,} images are no step of {self.step_images:,}; pass a smaller --batch-size")

    def batches(self, epoch: int, done: int) -> Iterable[Any]:
        """This rank's batches, without the images that are done: these are not read again."""
        order = torch.randperm(len(self.files), generator=torch.Generator().manual_seed(epoch))
        starts = range(done + self.first, self.num_images, self.step_images)
        return tdr.PrefetchingLoader(
            self.files,
            batch_sampler=[order[start : start + self.batch_size].tolist() for start in starts],
            num_workers=self.num_workers,
            worker_init_fn=leave_ctrl_c,
            pin_memory=torch.cuda.is_available(),
        )

    def state(self) -> None:
        """Empty: the epoch and the number of finished images are the whole position."""

    def load(self, states: list[Any]) -> None:
        """Nothing to load: ``batches`` takes the position."""


class Shards:
    """Batches of tar shards, by a loader with a state."""

    def __init__(
        self, url: str, options: argparse.Namespace, num_ranks: int, classes: Classes, reading: Mapping[str, Any]
    ) -> None:
        self.num_images, self.limit = None, options.dataset_limit
        self.step_images = num_ranks * options.batch_size
        samples: Any = tdr.stream_shards(url, **reading)
        if url.endswith(".json"):
            samples = samples.equalize_ranks(mode="drop")
            self.num_images = min(len(samples) * num_ranks, self.limit or sys.maxsize)
        elif num_ranks > 1:
            sys.exit(f"Ranks have equal shares by a manifest only: torchdata-remote manifest {url}")
        square = ToTensor(options.image_size)
        pictures = dict.fromkeys(("jpg", "jpeg", "png"), tdr.decoders.rgb(min_size=square.side))
        pipe = samples.decode_sample(decoders=pictures).to_tuple("jpg;jpeg;png", "cls").map(square, input_col=0)
        self.loader = tdr.stateful_loader(pipe, batch_size=options.batch_size, num_workers=options.workers)
        self.state, self.load = self.loader.state_dict, self.loader.load_state_dict
        self.num_classes = number_of(classes or classes_beside(url, reading["storage_options"]))

    def batches(self, epoch: int, done: int) -> Iterable[Any]:
        """This rank's batches, after those of the loaded state."""
        self.loader.set_epoch(epoch)
        return islice(self.loader, None if self.limit is None else -(-(self.limit - done) // self.step_images))


def classes_beside(url: str, store: Mapping[str, Any]) -> Classes:
    """The classes that ``shard_dataset`` has written beside the shards."""
    try:
        return tdr.labels.classes_json(f"{url.rpartition('/')[0]}/classes.json", id_base=0, storage_options=store)
    except FileNotFoundError:
        return None


def number_of(classes: Classes) -> int:
    """The number of classes."""
    if classes is None:
        return IMAGENET_CLASSES
    return len(classes) if isinstance(classes, list) else 1 + max(entry["id"] for entry in classes.table.values())


class ToTensor:
    """Convert a picture to uint8, 3 x S x S: a square with a margin for the random crop.

    Args:
        image_size: side of that crop, in pixels.
    """

    def __init__(self, image_size: int) -> None:
        self.side = image_size * 8 // 7

    def __call__(self, image: Image.Image) -> torch.Tensor:
        square = ImageOps.fit(image, (self.side, self.side), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def leave_ctrl_c(worker: int) -> None:
    """Ignore Ctrl-C, which reaches all processes: the training process handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
