"""Batches of loose files, by each peer as its documentation says; imports lie in the functions: all are optional.

Each reads the first ``len(job.names)`` files in order, in batches of ``job.in_flight``. A shorter batch for each worker
comes first, before anything is measured: so it has started, and made its client.
"""

from __future__ import annotations

import io
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from measure import Job, Peer
from object_peers import s3torchconnector_client
from PIL import Image
from torch.utils.data import DataLoader, Dataset

PIXELS = 224
DECODED_BYTES = PIXELS * PIXELS * 3
DISTINCT = 64  # images; file i is number i modulo this
Open = Callable[[Job, int, bool], Iterable[Any]]  # job, workers, whether images are decoded: batches


def num_starting(job_batch: int, num_workers: int) -> tuple[int, int]:
    """How many batches start the workers, and of how many files each."""
    return max(1, num_workers), max(1, job_batch // 4)


def batches_of(job: Job, num_workers: int) -> list[list[int]]:
    """The numbers of the files in each batch."""
    count, size = num_starting(job.in_flight, num_workers)
    ends = [*range(size, count * size, size), *range(count * size, len(job.names) + 1, job.in_flight)]
    return [list(range(start, end)) for start, end in zip([0, *ends], ends, strict=False)]


def sizes_of(batch: Any) -> Iterator[int]:
    """Bytes of each item: of the stacked images, or of the files in a list, which come with their label or URL."""
    images = batch[0]
    if isinstance(images, torch.Tensor):
        stacked = images if images.dim() == 4 else batch
        yield from [stacked[0].numel()] * len(stacked)
        return
    for item in batch:
        yield len(item if isinstance(item, bytes) else next(part for part in item if isinstance(part, bytes)))


def measured(open_batches: Open, num_workers: int, decoded: bool, job: Job) -> Iterator[int]:
    """The clock runs when this returns: workers have started, each has delivered a batch and continues."""
    batches = iter(open_batches(job, num_workers, decoded))
    for _ in range(num_starting(job.in_flight, num_workers)[0]):
        next(batches)
    return (size for batch in batches for size in sizes_of(batch))


def torch_loader(dataset: Dataset[Any], job: Job, num_workers: int, decoded: bool) -> Iterable[Any]:
    """torch's ``DataLoader`` with its defaults. Undecoded files stay a list."""
    batches = batches_of(job, num_workers)
    return DataLoader(dataset, batch_sampler=batches, num_workers=num_workers, collate_fn=None if decoded else list)


def smaller(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((PIXELS, PIXELS), Image.Resampling.BILINEAR)))


def by_pil(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


def our_dataset(job: Job, decoded: bool, **options: Any) -> Any:
    from torchdata_remote import RemoteFiles, RemoteImageFolder

    url = f"s3://{job.bucket}/"
    if decoded:
        return RemoteImageFolder(url, transform=smaller, max_in_flight=job.in_flight, **options)
    return RemoteFiles(url, max_in_flight=job.in_flight)


def ours(job: Job, num_workers: int, decoded: bool) -> Iterable[Any]:
    return torch_loader(our_dataset(job, decoded), job, num_workers, decoded)


def ours_ahead(job: Job, num_workers: int, decoded: bool, **options: Any) -> Iterable[Any]:
    """The next batches' files are asked for while this one is used."""
    from torchdata_remote import PrefetchingLoader

    batches, collate = batches_of(job, num_workers), None if decoded else list
    dataset = our_dataset(job, decoded, **options)
    return PrefetchingLoader(dataset, batch_sampler=batches, num_workers=num_workers, collate_fn=collate)


def ours_ahead_pil(job: Job, num_workers: int, decoded: bool) -> Iterable[Any]:
    """With the decoder of the others."""
    return ours_ahead(job, num_workers, decoded, decoder=by_pil)


class S3ImageFolder(Dataset[Any]):
    """The plain one: list the bucket, open each file by s3fs. A client does not survive a fork: each process has one.

    Without workers, the client that has listed knows the sizes; in a worker it asks for each file's before it reads.

    Args:
        url: of the folder.
        decoded: whether files are decoded.
    """

    def __init__(self, url: str, decoded: bool) -> None:
        self.paths, self.decoded = sorted(self.client().find(url)), decoded
        self.files: Any = None
        classes = sorted({path.split("/")[-2] for path in self.paths})
        self.labels = [classes.index(path.split("/")[-2]) for path in self.paths]

    @staticmethod
    def client() -> Any:
        import s3fs

        return s3fs.S3FileSystem()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.files = self.files or self.client()
        with self.files.open(self.paths[index], "rb") as file:
            data = smaller(Image.open(file).convert("RGB")) if self.decoded else file.read()
        return data, self.labels[index]


def plain(job: Job, num_workers: int, decoded: bool) -> Iterable[Any]:
    return torch_loader(S3ImageFolder(f"s3://{job.bucket}/", decoded), job, num_workers, decoded)


def s3torchconnector_map(job: Job, num_workers: int, decoded: bool) -> Iterable[Any]:
    """``S3MapDataset`` with a transform, as in its README."""
    from s3torchconnector import S3MapDataset

    def transform(reader: Any) -> Any:
        return smaller(Image.open(reader).convert("RGB")) if decoded else reader.read()

    dataset = S3MapDataset.from_objects(job.urls, transform=transform, **s3torchconnector_client(job))
    return torch_loader(dataset, job, num_workers, decoded)


def litdata_raw(job: Job, num_workers: int, decoded: bool, **options: Any) -> Iterable[Any]:
    """``StreamingRawDataset``, which fetches a batch at once too, and looks ahead where the order is that of the files.

    Needs zstd and s3fs. It refuses ``http://`` and no option of its own allows it, so a private one is changed.
    """
    import litdata
    from litdata.raw.indexer import FileIndexer
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    logging.disable(logging.WARNING)  # it cannot write its index to the bucket, and continues without
    dataset = litdata.StreamingRawDataset(
        f"s3://{job.bucket}/",
        cache_dir=tempfile.mkdtemp(prefix="litdata-"),
        indexer=FileIndexer(extensions=[".jpg"]),
        transform=(lambda data: smaller(by_pil(data))) if decoded else None,
        **options,
    )
    return torch_loader(dataset, job, num_workers, decoded)


def litdata_tuned(job: Job, num_workers: int, decoded: bool) -> Iterable[Any]:
    """As many at once as ours, and a batch ahead."""
    return litdata_raw(job, num_workers, decoded, max_concurrent_downloads=job.in_flight, max_prefetch=job.in_flight)


class FromMemory(Dataset[Any]):
    """The same files, their bytes in memory, decoded by our decoder."""

    def __init__(self, files: Sequence[bytes], num_files: int) -> None:
        self.files, self.num_files = files, num_files

    def __len__(self) -> int:
        return self.num_files

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from torchdata_remote import decoders

        return smaller(decoders.rgb(self.files[index % len(self.files)])), 0


def from_memory(job: Job, num_workers: int, decoded: bool) -> Iterable[Any]:
    from torchdata_remote import RemoteFiles

    files = RemoteFiles(f"s3://{job.bucket}/").__getitems__(range(DISTINCT))
    return torch_loader(FromMemory([data for _, data in files], len(job.names)), job, num_workers, decoded)


OURS = ("torchdata_remote.datasets", "torchdata_remote.pipes", "obstore", "botocore.session")
LITDATA = ("litdata", "s3fs", "obstore")
LOADERS: dict[str, tuple[tuple[str, ...], Open, str, str]] = {
    "ours": (OURS, ours, "torchdata_remote, DataLoader", "torchdata_remote"),
    "ours-ahead": (OURS, ours_ahead, "torchdata_remote, PrefetchingLoader", "torchdata_remote"),
    "ours-ahead-pil": (
        OURS,
        ours_ahead_pil,
        "torchdata_remote, PrefetchingLoader, decoding by PIL",
        "torchdata_remote",
    ),
    "plain": (("s3fs",), plain, "s3fs open of each file, DataLoader", "s3fs"),
    "s3torchconnector": (("s3torchconnector",), s3torchconnector_map, "S3MapDataset, DataLoader", "s3torchconnector"),
    "litdata": (LITDATA, litdata_raw, "litdata StreamingRawDataset, DataLoader", "litdata"),
    "litdata-tuned": (LITDATA, litdata_tuned, "litdata, {0} at once and {0} ahead", "litdata"),
    "memory": (OURS, from_memory, "ceiling: decoded from memory, DataLoader", "torchdata_remote"),
}


def peer_name(loader: str, num_workers: int, decoded: bool) -> str:
    return f"{loader} {num_workers} {'decoded' if decoded else 'undecoded'}"


PEERS = {
    peer_name(name, num_workers, decoded): Peer(
        modules, partial(measured, loader, num_workers, decoded), shown, distribution
    )
    for name, (modules, loader, shown, distribution) in LOADERS.items()
    for num_workers in (0, 4)
    for decoded in (False, True)
}
