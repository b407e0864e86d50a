"""``shard_dataset`` on local disk, and what it is compared with; ``job.bucket`` is the folder of the source.

What is written goes where ``tempfile`` points, which is removed afterwards.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measure import Job, Peer
from PIL import Image

OURS = ("torchdata_remote",)
ARCHIVE = "train.tar"
CLASSES, PIXELS, PICTURES = 20, 128, 32
SHARD_BYTES = 64 << 20
COPY_BYTES = 4 << 20


def make_archive(folder: str, num_samples: int, jpg_bytes: int) -> int:
    """A tar of tars, one for each class, as in ImageNet; returns its length in bytes."""
    data = np.random.default_rng(0).bytes(2 * jpg_bytes)
    path = f"{folder}/{ARCHIVE}"
    with tarfile.open(path, "w") as archive:
        for number in range(CLASSES):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as members:
                for index in range(number, num_samples, CLASSES):
                    add(members, f"n{number:08d}_{index}.JPEG", data[index % jpg_bytes :][:jpg_bytes])
            add(archive, f"n{number:08d}.tar", inner.getvalue())
    return os.path.getsize(path)


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def full_shuffle(job: Job) -> Iterator[int]:
    """All samples in a random order, labelled by their inner archive."""
    import torchdata_remote as tdr

    with tempfile.TemporaryDirectory() as folder:
        shards = tdr.shard_dataset(
            f"{job.bucket}/{ARCHIVE}",
            f"{folder}/{{shard:06d}}.tar",
            max_shard_bytes=SHARD_BYTES,
            labels=tdr.labels.parent_directory(),
            progress=False,
        )
        num_samples = sum(shard.num_samples for shard in shards)
        yield from spread(job.sample_bytes, num_samples)


def copy(job: Job, *, on_disk: bool) -> Iterator[int]:
    """The archive's bytes into another file; as ours, until the disk has them, or as ``cp``."""
    with tempfile.TemporaryDirectory() as folder:
        with Path(job.bucket, ARCHIVE).open("rb") as source, Path(folder, "copy").open("wb") as target:
            shutil.copyfileobj(source, target, COPY_BYTES)
            if on_disk:
                target.flush()
                os.fsync(target.fileno())
        yield from spread(job.sample_bytes, job.num_samples)


def copy_to_disk(job: Job) -> Iterator[int]:
    return copy(job, on_disk=True)


def copy_to_cache(job: Job) -> Iterator[int]:
    return copy(job, on_disk=False)


def spread(num_bytes: int, num_samples: int) -> Iterator[int]:
    """So many bytes over so many samples."""
    yield num_bytes - (num_samples - 1) * (num_bytes // num_samples)
    yield from [num_bytes // num_samples] * (num_samples - 1)


class Pictures:
    """A map-style dataset of pictures with some noise, to be encoded as PNG."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        draw = np.random.default_rng(0)
        slope = np.linspace(0, 200, PIXELS)[:, None, None]
        noise = draw.integers(0, 24, (PICTURES, PIXELS, PIXELS, 3))
        self._pictures = (slope + noise).astype(np.uint8)

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self._pictures[index % PICTURES]), index % CLASSES


def encode(job: Job, num_workers: int) -> Iterator[int]:
    """A dataset of pictures, encoded as PNG; the start of the processes is counted."""
    import torchdata_remote as tdr

    with tempfile.TemporaryDirectory() as folder:
        shards = tdr.shard_dataset(
            Pictures(job.num_samples),
            f"{folder}/{{shard:06d}}.tar",
            max_shard_samples=max(1, job.num_samples // 32),
            num_workers=num_workers,
            progress=False,
        )
        yield from spread(job.sample_bytes, sum(shard.num_samples for shard in shards))


def encode_here(job: Job) -> Iterator[int]:
    return encode(job, 0)


def encode_by_one(job: Job) -> Iterator[int]:
    return encode(job, 1)


def encode_by_two(job: Job) -> Iterator[int]:
    return encode(job, 2)


PEERS = {
    "full-shuffle": Peer(OURS, full_shuffle, "shard_dataset, tar of tars, full shuffle", "torchdata_remote"),
    "copy-disk": Peer((), copy_to_disk, "the archive copied, until the disk has it", "torchdata_remote"),
    "copy": Peer((), copy_to_cache, "the archive copied, as cp does", "torchdata_remote"),
    "encode-0": Peer(OURS, encode_here, "shard_dataset, PIL to PNG, in this process", "torchdata_remote"),
    "encode-1": Peer(OURS, encode_by_one, "the same, 1 worker", "torchdata_remote"),
    "encode-2": Peer(OURS, encode_by_two, "the same, 2 workers", "torchdata_remote"),
}
