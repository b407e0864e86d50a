"""Batches for training from a bucket, by each peer as its documentation says; imports lie in the functions: all are
optional.

Each reads all samples once, shuffled as it does it, and gives batches of ``job.in_flight`` images and labels: random
crops of 224 x 224, flipped, float, normalised by ImageNet's mean and deviation. A peer's image is decoded by Pillow and
transformed by torchvision, or, where its name ends in ``-cv2``, decoded by simplejpeg and transformed by OpenCV. Each
has two workers, or two threads. The clock starts when some batches were delivered, so that neither starts nor first
connections count; the time to the first batch is measured from the start of the process.
"""

from __future__ import annotations

import atexit
import io
import itertools
import json
import logging
import os
import queue
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
from measure import Job, Peer
from object_peers import s3torchconnector_client

PIXELS, CHANNELS, WORKERS = 224, 3, 2
VALUES = CHANNELS * PIXELS * PIXELS  # of one image
STARTING = 4  # batches before the clock starts
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DISTINCT = 64  # images; file i is number i modulo this
SHARDS, FILES, CHUNKS, MDS = "shards", "files", "litdata", "mds"  # buckets
Open = Callable[[Job], Iterable[Any]]


@lru_cache(1)
def _torchvision() -> Any:
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.RandomResizedCrop(PIXELS),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


def by_torchvision(data: Any) -> Any:
    """Pillow and torchvision, as in the training scripts of both."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return _torchvision()(image.convert("RGB"))


def by_cv2(data: Any) -> Any:
    """simplejpeg and OpenCV, as users write it who have found decoding to be the bottleneck."""
    import cv2
    import simplejpeg  # type: ignore[import-untyped, unused-ignore]
    import torch

    cv2.setNumThreads(0)
    image = simplejpeg.decode_jpeg(bytes(data), fastdct=True, fastupsample=True)
    top, left, height, width = _crop(*image.shape[:2])
    image = cv2.resize(image[top : top + height, left : left + width], (PIXELS, PIXELS), interpolation=cv2.INTER_AREA)
    if np.random.random() < 0.5:
        image = cv2.flip(image, 1)
    factors = 1 / (255 * np.array(STD, np.float32))
    normalised = image * factors - np.array(MEAN, np.float32) / np.array(STD, np.float32)
    return torch.from_numpy(np.ascontiguousarray(normalised.transpose(2, 0, 1)))


def _crop(height: int, width: int) -> tuple[int, int, int, int]:
    """As torchvision's ``RandomResizedCrop`` draws it."""
    for _ in range(10):
        area = height * width * np.random.uniform(0.08, 1)
        ratio = np.exp(np.random.uniform(np.log(3 / 4), np.log(4 / 3)))
        down, right = round((area / ratio) ** 0.5), round((area * ratio) ** 0.5)
        if 0 < down <= height and 0 < right <= width:
            return np.random.randint(0, height - down + 1), np.random.randint(0, width - right + 1), down, right
    return 0, 0, height, width


DECODE = {"": by_torchvision, "-cv2": by_cv2}


def torch_loader(dataset: Any, job: Job, **options: Any) -> Iterable[Any]:
    """torch's ``DataLoader``, whose workers are forked."""
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=job.in_flight, num_workers=WORKERS, **options)


class Decoded:
    """A map-style dataset whose bytes are decoded. Each item is a sample of bytes and a label."""

    def __init__(self, dataset: Any, decode: Callable[[Any], Any]) -> None:
        self.dataset, self.decode = dataset, decode

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        data, label = self.dataset[index]
        return self.decode(data), label


def chain(job: Job) -> Any:
    from torchdata_remote import stream_shards

    return stream_shards(f"s3://{job.bucket}/", seed=0)


def ours(job: Job) -> Iterable[Any]:
    """Nothing but threads."""
    from torchdata_remote import thread_loader

    pipe = chain(job).decode_image(PIXELS).decode_sample().to_tuple("jpg", "cls")
    return thread_loader(pipe, batch_size=job.in_flight, num_threads=WORKERS)


def ours_workers(job: Job) -> Iterable[Any]:
    """The same chain in workers."""
    from torchdata_remote import stateful_loader

    pipe = chain(job).decode_image(PIXELS).decode_sample().to_tuple("jpg", "cls")
    return stateful_loader(pipe, batch_size=job.in_flight, num_workers=WORKERS, multiprocessing_context="forkserver")


def ours_function(job: Job, decode: Callable[[Any], Any]) -> Iterable[Any]:
    """With the decoder and transforms of the others, in threads."""
    from torchdata_remote import thread_loader

    def transform(sample: dict[str, Any]) -> tuple[Any, int]:
        return decode(sample["jpg"]), int(sample["cls"])

    return thread_loader(chain(job).parallel_map(transform), batch_size=job.in_flight, num_threads=WORKERS)


def webdataset(job: Job, decode: Callable[[Any], Any]) -> Iterable[Any]:
    """``pipe:curl``, the shuffles of its documentation, batches made in the workers."""
    import webdataset as wds

    urls = [f"pipe:curl -s {job.endpoint_url}/{job.bucket}/{name}" for name in job.names]
    dataset = (
        wds.WebDataset(urls, shardshuffle=100, handler=wds.reraise_exception)
        .shuffle(1000)
        .to_tuple("jpg", "cls")
        .map_tuple(decode, int)
        .batched(job.in_flight)
    )
    return wds.WebLoader(dataset, batch_size=None, num_workers=WORKERS)  # type: ignore[no-any-return, unused-ignore]


def litdata_chunks(job: Job, decode: Callable[[Any], Any]) -> Iterable[Any]:
    """Its own format, which ``litdata.optimize`` writes, and its own loader. About http:// see ``loose_file_peers``."""
    import litdata
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"

    class Images(litdata.StreamingDataset):  # type: ignore[misc, unused-ignore]  # litdata carries no types
        def __getitem__(self, index: Any) -> tuple[Any, int]:
            sample = super().__getitem__(index)
            return decode(sample["jpg"]), int(sample["cls"])

    dataset = Images(
        f"s3://{job.bucket}/",
        cache_dir=tempfile.mkdtemp(prefix="litdata-"),
        shuffle=True,
        storage_options={"endpoint_url": job.endpoint_url},
    )
    return litdata.StreamingDataLoader(dataset, batch_size=job.in_flight, num_workers=WORKERS)  # type: ignore[no-any-return, unused-ignore]


def litdata_raw(job: Job, decode: Callable[[Any], Any]) -> Iterable[Any]:
    """``StreamingRawDataset`` over loose files; see ``loose_file_peers``."""
    import litdata
    from litdata.raw.indexer import FileIndexer
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    logging.disable(logging.WARNING)
    dataset = litdata.StreamingRawDataset(
        f"s3://{job.bucket}/",
        cache_dir=tempfile.mkdtemp(prefix="litdata-"),
        indexer=FileIndexer(extensions=[".jpg"]),
        transform=lambda data: (decode(data), 0),
        max_concurrent_downloads=job.in_flight,
    )
    return torch_loader(dataset, job, shuffle=True)


def mosaicml(job: Job, decode: Callable[[Any], Any]) -> Iterator[Any]:
    """Its own format and shuffle, under torch's loader, as it advises."""
    os.environ["S3_ENDPOINT_URL"] = job.endpoint_url
    import streaming

    class Images(streaming.StreamingDataset):  # type: ignore[misc, unused-ignore]  # it carries no types
        def __getitem__(self, index: Any) -> tuple[Any, int]:
            sample = super().__getitem__(index)
            return decode(sample["jpg"]), int(sample["cls"])

    dataset = Images(
        remote=f"s3://{job.bucket}", local=tempfile.mkdtemp(prefix="mds-"), shuffle=True, batch_size=job.in_flight
    )
    try:
        yield from torch_loader(dataset, job)
    finally:
        atexit._run_exitfuncs()  # removes what it keeps in shared memory, whose names the next process uses again


class S3Bytes:
    """The bucket's files, read by nothing but HTTP."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __iter__(self) -> Iterator[tuple[bytes, str]]:
        for name in self.job.names:
            with urllib.request.urlopen(f"{self.job.endpoint_url}/{self.job.bucket}/{name}") as answer:
                yield answer.read(), name


class S3ImageFolder:
    """What ``torchvision.datasets.ImageFolder`` does, over s3fs: lists, and opens each file."""

    def __init__(self, url: str) -> None:
        self.paths = sorted(self.client().find(url))
        classes = sorted({path.split("/")[-2] for path in self.paths})
        self.labels = [classes.index(path.split("/")[-2]) for path in self.paths]
        self.files: Any = None

    @staticmethod
    def client() -> Any:
        import s3fs

        return s3fs.S3FileSystem()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.files = self.files or self.client()  # a client does not survive a fork
        return self.files.cat_file(self.paths[index]), self.labels[index]


def image_folder(job: Job, decode: Callable[[Any], Any]) -> Iterable[Any]:
    """Each file is one request in turn: many more workers than cores hide the latency best."""
    from torch.utils.data import DataLoader

    dataset: Any = Decoded(S3ImageFolder(f"s3://{job.bucket}/"), decode)
    return DataLoader(dataset, batch_size=job.in_flight, num_workers=4 * WORKERS, shuffle=True)


def s3torchconnector_map(job: Job, decode: Callable[[Any], Any]) -> Iterable[Any]:
    """``S3MapDataset`` with a transform, as in its README."""
    from s3torchconnector import S3MapDataset

    dataset = S3MapDataset.from_objects(
        job.urls, transform=lambda reader: (decode(reader.read()), 0), **s3torchconnector_client(job)
    )
    return torch_loader(dataset, job, shuffle=True)


def dali(job: Job) -> Iterable[Any]:
    """Its CPU operators in two threads, behind its reader of loose files, which reads buckets."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator

    @pipeline_def(batch_size=job.in_flight, num_threads=WORKERS, device_id=None, prefetch_queue_depth=2)  # type: ignore[untyped-decorator, unused-ignore]
    def images() -> Any:
        data, labels = fn.readers.file(
            files=job.urls, labels=[0] * len(job.urls), random_shuffle=True, initial_fill=job.in_flight, name="files"
        )
        decoded = fn.decoders.image_random_crop(
            data, device="cpu", random_area=(0.08, 1.0), random_aspect_ratio=(3 / 4, 4 / 3)
        )
        resized = fn.resize(decoded, size=(PIXELS, PIXELS), antialias=True)
        normalised = fn.crop_mirror_normalize(
            resized,
            dtype=types.FLOAT,
            mean=[255 * value for value in MEAN],
            std=[255 * value for value in STD],
            mirror=fn.random.coin_flip(),
        )
        return normalised, labels

    batches = DALIClassificationIterator(images(), reader_name="files", auto_reset=False)
    return ((batch[0]["data"], batch[0]["label"]) for batch in batches)


def from_memory(job: Job) -> Iterable[Any]:
    """The ceiling: our decoder alone, in as many threads, on images in memory; each thread writes whole batches."""
    import torch

    from torchdata_remote import IterableWrapper
    from torchdata_remote.core.batch_memory import BatchRows
    from torchdata_remote.core.collating import LoaderCollate, collate_samples
    from torchdata_remote.pipes.chain import all_pipes
    from torchdata_remote.pipes.env import Env, Shared

    files = [data for data, _ in itertools.islice(iter(S3Bytes(job)), DISTINCT)]

    def decoded(thread: int) -> Iterator[Any]:
        numbers = range(thread * len(job.names) // WORKERS, (thread + 1) * len(job.names) // WORKERS)
        samples = [{"__key__": str(number), "jpg": files[number % len(files)]} for number in numbers]
        pipe, rows = IterableWrapper(samples, deepcopy=False).decode_image(PIXELS), BatchRows(job.in_flight)
        images = pipe.open(Env(Shared(all_pipes(pipe), rows=rows)))
        collate, labels = LoaderCollate(collate_samples), torch.zeros(job.in_flight)
        while batch := [sample["jpg"] for sample in itertools.islice(images, job.in_flight)]:
            number = len(batch)
            yield collate(batch), labels[:number]  # collating clears the list

    return in_turn([partial(decoded, thread) for thread in range(WORKERS)])


def function_from_memory(job: Job, decode: Callable[[Any], Any]) -> Iterable[Any]:
    """The same with the decoder and the transforms of the others."""
    import torch

    files = [data for data, _ in itertools.islice(iter(S3Bytes(job)), DISTINCT)]

    def decoded(thread: int) -> Iterator[Any]:
        for first in range(thread * job.in_flight, len(job.names), WORKERS * job.in_flight):
            numbers = range(first, min(first + job.in_flight, len(job.names)))
            yield torch.stack([decode(files[number % len(files)]) for number in numbers]), torch.zeros(len(numbers))

    return in_turn([partial(decoded, thread) for thread in range(WORKERS)])


def in_turn(sources: list[Callable[[], Iterator[Any]]]) -> Iterator[Any]:
    """What several threads make, one batch of each ahead."""
    made: queue.SimpleQueue[Any] = queue.SimpleQueue()
    room = threading.Semaphore(2 * len(sources))

    def run(source: Callable[[], Iterator[Any]]) -> None:
        for batch in source():
            room.acquire()
            made.put(batch)
        made.put(None)

    for source in sources:
        threading.Thread(target=run, args=(source,), daemon=True).start()
    running = len(sources)
    while running:
        batch = made.get()
        room.release()
        if batch is None:
            running -= 1
        else:
            yield batch


def counted(batches: Iterable[Any]) -> Iterator[int]:
    """The number of values in each image."""
    for images, labels in batches:
        assert len(images) == len(labels)
        assert tuple(images.shape[1:]) == (CHANNELS, PIXELS, PIXELS)
        yield from [images[0].numel()] * len(images)


def measured(open_batches: Open, job: Job) -> Iterator[int]:
    """The clock starts when this returns: workers have started, and some batches were delivered."""
    batches = iter(open_batches(job))
    for _ in range(STARTING):
        next(batches)
    return counted(batches)


OURS = ("torchdata_remote.loaders", "torchdata_remote.pipes", "obstore", "botocore.session")
TORCH = ("torch.utils.data", "torchvision.transforms", "PIL.Image")
NAMES: dict[str, tuple[str, tuple[str, ...], Any, str, str]] = {  # bucket, modules, how, shown, distribution
    "ours": (SHARDS, OURS, ours, "torchdata_remote, thread_loader, decode_image", "torchdata_remote"),
    "ours-workers": (SHARDS, OURS, ours_workers, "torchdata_remote, stateful_loader, decode_image", "torchdata_remote"),
    "ours-function": (
        SHARDS,
        (*OURS, *TORCH),
        ours_function,
        "torchdata_remote, thread_loader, {}",
        "torchdata_remote",
    ),
    "webdataset": (SHARDS, ("webdataset", *TORCH), webdataset, "WebDataset pipe:curl, {}", "webdataset"),
    "litdata": (CHUNKS, ("litdata", *TORCH), litdata_chunks, "LitData StreamingDataset, {}", "litdata"),
    "litdata-raw": (FILES, ("litdata", "s3fs", "obstore", *TORCH), litdata_raw, "LitData raw, {}", "litdata"),
    "mosaicml": (MDS, ("streaming", *TORCH), mosaicml, "MosaicML streaming, {}", "mosaicml-streaming"),
    "image-folder": (FILES, ("s3fs", *TORCH), image_folder, "image folder over s3fs, 8 workers, {}", "torchvision"),
    "s3torchconnector": (
        FILES,
        ("s3torchconnector", *TORCH),
        s3torchconnector_map,
        "S3MapDataset, {}",
        "s3torchconnector",
    ),
    "dali": (FILES, ("nvidia.dali",), dali, "DALI, its file reader and CPU operators", "nvidia-dali-cuda120"),
    "memory": (FILES, OURS, from_memory, "ceiling: decode_image from memory", "torchdata_remote"),
    "memory-function": (FILES, TORCH, function_from_memory, "ceiling: from memory, {}", "torchvision"),
}
WITH_DECODERS = (
    "ours-function",
    "webdataset",
    "litdata",
    "litdata-raw",
    "mosaicml",
    "image-folder",
    "s3torchconnector",
    "memory-function",
)
SHOWN_DECODERS = {"": "Pillow + torchvision", "-cv2": "simplejpeg + OpenCV"}
OPEN: dict[str, Open] = {}
PEERS: dict[str, Peer] = {}
BUCKETS: dict[str, str] = {}
for _name, (_bucket, _modules, _open, _shown, _distribution) in NAMES.items():
    for _suffix, _decode in DECODE.items() if _name in WITH_DECODERS else [("", None)]:
        _side = f"{_name}{_suffix}"
        BUCKETS[_side] = _bucket
        OPEN[_side] = partial(_open, decode=_decode) if _decode else _open
        _more = ("cv2", "simplejpeg") if _suffix else ()
        PEERS[_side] = Peer(
            (*_modules, *_more), partial(measured, OPEN[_side]), _shown.format(SHOWN_DECODERS[_suffix]), _distribution
        )


def main() -> None:
    """Print when the first batch was there, by the clock that all processes share."""
    job = Job(**json.load(sys.stdin))
    batches = iter(OPEN[sys.argv[1]](job))
    images, _ = next(batches)
    print(f"\n{time.monotonic()} {images.numel()}", flush=True)
    del batches  # ends workers, whose shared memory the next process would use
    os._exit(0)


if __name__ == "__main__":
    main()
