"""The dataset of all rows: 120 images whose pixels are their number, as shards and as loose files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, SequentialSampler

import torchdata_remote as tdr
from torchdata_remote import IterableWrapper, IterDataPipe

NUM_SAMPLES, NUM_SHARDS, NUM_STREAMS = 120, 12, 12

LOADERS = (
    "DataLoader(pipe)",
    "stateful_loader(pipe)",
    "DataLoader(Resumable)",
    "DataLoader(RemoteImageFolder)",
    "DataLoader(ShardedDataset)",
    "PrefetchingLoader",
)
"""What the trainer of a row receives."""

# torch alone, whose program takes seconds to import

RESUMABLE = "stateful_loader(pipe)"
NUM_BEFORE = 3
KINDS = {"save": 0, "async_save": 2}
"""Way to save -> workers of its loader."""
STOPS = {"2 x 2": (2, ("2 x 2", "4 x 1", "1 x 4")), "both": (0, ("both", "shard", "permuted"))}
"""Mesh of a stop -> workers, and the meshes that resume it."""

Cells = list[tuple[str, int]]


def cells_of(world_size: int, *, complete: bool) -> Cells:
    """Loaders with their numbers of workers: all; or each once with two ranks, that of most users with workers."""
    if complete:
        return [(loader, workers) for loader in LOADERS for workers in (0, 2)]
    if world_size == 2:
        return [*((loader, 0) for loader in LOADERS), ("stateful_loader(pipe)", 2)]
    return [("stateful_loader(pipe)", 2), ("PrefetchingLoader", 0)]


def write_dataset(folder: Path) -> None:
    """``folder/shards`` with a manifest and indexes, and ``folder/images`` in ImageFolder layout."""
    with tdr.ShardWriter(f"{folder}/shards/{{shard:02d}}.tar", max_shard_samples=NUM_SAMPLES // NUM_SHARDS) as writer:
        for number in range(NUM_SAMPLES):
            picture = io.BytesIO()
            Image.new("L", (2, 2), number).save(picture, "PNG")
            writer.write({"__key__": f"{number:03d}", "png": picture.getvalue()})
            loose = folder / "images" / f"{number % 3}" / f"{number:03d}.png"
            loose.parent.mkdir(parents=True, exist_ok=True)
            loose.write_bytes(picture.getvalue())


def to_example(image: Any) -> dict[str, torch.Tensor]:
    """What models take: ``x`` float32 of shape (4,), and ``number`` int64 of shape (), which names the sample."""
    number = image.getpixel((0, 0))
    number = number[0] if isinstance(number, tuple) else number
    return {"x": torch.full((4,), number / NUM_SAMPLES), "number": torch.tensor(number)}


def of_sample(sample: dict[str, Any]) -> dict[str, torch.Tensor]:
    """An example from a sample of a shard."""
    png = sample["png"]
    return to_example(Image.open(io.BytesIO(png)) if isinstance(png, bytes) else png)


def of_pair(pair: tuple[dict[str, torch.Tensor], int]) -> dict[str, torch.Tensor]:
    """An example from an image with its label."""
    return pair[0]


class Images(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The examples of a ``RemoteImageFolder`` without their labels; batches are fetched at once."""

    def __init__(self, folder: Path) -> None:
        self._images = tdr.RemoteImageFolder(f"{folder}/images/", transform=to_example)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return of_pair(self._images[index])

    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor]]:
        return list(map(of_pair, self._images.__getitems__(indices)))


def samples_of(folder: Path, world: tdr.World | None = None) -> IterDataPipe[Any]:
    """The chain of samples: shuffled shards, split, read, equal ranks."""
    pipe = IterableWrapper([f"{folder}/shards/index.json"]).list_remote().shuffle_shards(seed=0)
    equal = pipe.sharding_filter_rank(world=world).shard_tar_reader().equalize_ranks(mode="drop")
    chain: IterDataPipe[Any] = equal.shuffle_samples(buffer_size=7, seed=0)
    return chain


def pipe_of(folder: Path, world: tdr.World | None = None) -> IterDataPipe[Any]:
    """The chain of examples."""
    chain: IterDataPipe[Any] = samples_of(folder, world).map(of_sample)
    return chain


def dataset_of(loader: str, folder: Path, world: tdr.World | None = None) -> Any:
    """The dataset that a row's loader reads, for trainers that make the loader themselves."""
    if loader == "DataLoader(pipe)":
        return pipe_of(folder, world)
    if loader == "DataLoader(Resumable)":
        return tdr.Resumable(pipe_of(folder, world), num_streams=NUM_STREAMS)
    if loader == "DataLoader(RemoteImageFolder)":
        return Images(folder)
    if loader == "DataLoader(ShardedDataset)":
        return tdr.ShardedDataset(f"{folder}/shards/", transform=of_sample)
    raise ValueError(f"{loader} is given as a loader")


def loader_of(
    loader: str,
    folder: Path,
    *,
    batch_size: int,
    num_workers: int,
    sampler: Any = None,
    world: tdr.World | None = None,
    **options: Any,
) -> Any:
    """The loader of a row.

    Args:
        loader: one of ``LOADERS``.
        folder: as ``write_dataset`` has filled it.
        batch_size: examples in a batch of one rank.
        num_workers: processes of each rank.
        sampler: for map-style datasets under ``DataLoader``; ``None`` is in order.
        world: for chains and ``PrefetchingLoader``: this rank's place.
        **options: more of them.
    """
    context = "fork" if num_workers else None  # an import of torch takes seconds in each forkserver
    if loader == "stateful_loader(pipe)":
        options = {"multiprocessing_context": context} | options if context else options
        return tdr.stateful_loader(
            pipe_of(folder, world), batch_size=batch_size, num_workers=num_workers, num_streams=NUM_STREAMS, **options
        )
    if loader == "PrefetchingLoader":
        images = tdr.RemoteImageFolder(f"{folder}/images/", transform=to_example)
        options = {"shuffle": True, "seed": 0, "world": world, "collate_fn": examples_of_pairs, **options}
        options |= {"multiprocessing_context": context} if context else {}
        return tdr.PrefetchingLoader(images, batch_size, num_workers=num_workers, **options)  # it divides by itself
    dataset = dataset_of(loader, folder, world)
    if not isinstance(dataset, torch.utils.data.IterableDataset):
        options["sampler"] = SequentialSampler(dataset) if sampler is None else sampler
    return DataLoader(dataset, batch_size, num_workers=num_workers, multiprocessing_context=context, **options)


def examples_of_pairs(pairs: list[Any]) -> Any:
    """A batch of the examples of images with labels."""
    return torch.utils.data.default_collate([of_pair(pair) for pair in pairs])


def numbers_of(batch: Any) -> list[int]:
    """Which samples are in a batch."""
    return [int(number) for number in batch["number"]]
