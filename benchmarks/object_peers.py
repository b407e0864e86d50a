"""Loose objects, read by each peer as its documentation says; imports lie in the functions because all are optional."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from measure import Job, Peer

REGION = "us-east-1"
AHEAD = 2  # times the threads: so that none waits for the one that is next in order
T = TypeVar("T")
R = TypeVar("R")


def in_threads(function: Callable[[T], R], items: Iterable[T], num_threads: int) -> Iterator[R]:
    """Results in order, with ``num_threads`` calls at once and a bounded number of results waiting."""
    with ThreadPoolExecutor(num_threads) as threads:
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(threads.submit(function, item))
            if len(waiting) >= AHEAD * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def ours(job: Job) -> Iterator[int]:
    """The listing's URLs know sizes and etags."""
    from torch.utils.data.datapipes.iter import IterableWrapper

    listed = IterableWrapper([f"s3://{job.bucket}/"]).list_remote(pattern="*.jpg")
    return samples_of(list(listed)[: len(job.names)], job)


def ours_unlisted(job: Job) -> Iterator[int]:
    """URLs without a listing: sizes and versions are those that the responses report."""
    return samples_of(job.urls, job)


def ours_braces(job: Job) -> Iterator[int]:
    """A range of names, as WebDataset writes it."""
    last = job.names[-1].removesuffix(".jpg")
    return samples_of([f"s3://{job.bucket}/{{{'0' * len(last)}..{last}}}.jpg"], job, listed=False)


def ours_http(job: Job) -> Iterator[int]:
    """Plain http URLs of the same objects."""
    return samples_of([f"{job.endpoint_url}/{job.bucket}/{name}" for name in job.names], job)


def samples_of(urls: list[str], job: Job, *, listed: bool = True) -> Iterator[int]:
    from torch.utils.data.datapipes.iter import IterableWrapper

    # The client is made before the clock starts, as that of the peer that lists
    list(IterableWrapper([job.urls[0]]).list_remote().async_prefetch().file_reader())
    source = IterableWrapper(urls, deepcopy=False)
    pipe = (source if listed else source.list_remote()).async_prefetch(max_in_flight=job.in_flight).file_reader()
    return (len(sample["jpg"]) for sample in pipe)


def s3fs_cat(job: Job, **options: Any) -> Iterator[int]:
    """``cat`` of all keys at once in asyncio, which s3fs does fastest: no batch waits for the one before.

    All bytes are in memory at its end.
    """
    import s3fs

    files = s3fs.S3FileSystem(asynchronous=True, **options)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(files.set_session())

    def read() -> Iterator[int]:
        found: dict[str, bytes] = loop.run_until_complete(files._cat(job.urls, batch_size=job.in_flight))
        yield from map(len, found.values())

    return read()


def s3fs_tuned(job: Job) -> Iterator[int]:
    """s3fs at its best: by default it asks for each object's size first, and botocore opens ten connections."""
    return s3fs_cat(job, max_concurrency=1, config_kwargs={"max_pool_connections": job.in_flight})


def s3torchconnector_client(job: Job) -> dict[str, Any]:
    from s3torchconnector import S3ClientConfig

    config = S3ClientConfig(force_path_style=True)
    return {"region": REGION, "endpoint": job.endpoint_url, "s3client_config": config}


def s3torchconnector_iterable(job: Job) -> Iterator[int]:
    """``S3IterableDataset``: one object after the other."""
    from s3torchconnector import S3IterableDataset

    dataset = S3IterableDataset.from_objects(job.urls, **s3torchconnector_client(job))
    return (len(reader.read()) for reader in dataset)


def s3torchconnector_threads(job: Job) -> Iterator[int]:
    """``S3MapDataset``, its items read in threads."""
    from s3torchconnector import S3MapDataset

    dataset = S3MapDataset.from_objects(job.urls, **s3torchconnector_client(job))
    return in_threads(lambda i: len(dataset[i].read()), range(len(dataset)), job.in_flight)


def torchdata_fsspec(job: Job) -> Iterator[int]:
    """torchdata's own pipes."""
    from torchdata.datapipes.iter import IterableWrapper

    listed = IterableWrapper([f"s3://{job.bucket}/"]).list_files_by_fsspec(masks="*.jpg")
    pipe = IterableWrapper(list(listed)[: len(job.names)]).open_files_by_fsspec(mode="rb")
    return (len(stream.read()) for _, stream in pipe)


def litdata_raw(job: Job) -> Iterator[int]:
    """``StreamingRawDataset`` in a ``DataLoader`` without workers, batches and look-ahead as large as the concurrency.

    Needs zstd and s3fs. It refuses ``http://`` and no option of its own allows it, so a private one is changed.
    """
    import litdata
    from litdata.raw.indexer import FileIndexer
    from litdata.streaming import downloader
    from torch.utils.data import DataLoader, Subset

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    logging.disable(logging.WARNING)  # it cannot write its index to the bucket, and continues without
    dataset = litdata.StreamingRawDataset(
        f"s3://{job.bucket}/",
        cache_dir=tempfile.mkdtemp(prefix="litdata-"),
        indexer=FileIndexer(extensions=[".jpg"]),
        max_concurrent_downloads=job.in_flight,
        max_prefetch=job.in_flight,
    )
    some = Subset(dataset, range(len(job.names)))
    batches = DataLoader(some, batch_size=job.in_flight, collate_fn=list)
    return (len(data) for batch in batches for data in batch)


def ceiling(job: Job) -> Iterator[int]:
    """obstore in threads and nothing else."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(job.bucket, endpoint=job.endpoint_url, region=REGION, client_options={"allow_http": True})
    return in_threads(lambda name: len(obstore.get(store, name).bytes()), job.names, job.in_flight)


TORCHDATA = ("torchdata.datapipes.iter", "s3fs")
OURS = ("torchdata_remote.datasets", "torchdata_remote.pipes", "obstore", "botocore.session")

PEERS = {
    "ours": Peer(OURS, ours, "torchdata_remote, {} in flight", "torchdata_remote"),
    "ours-unlisted": Peer(OURS, ours_unlisted, "torchdata_remote, no listing, {} in flight", "torchdata_remote"),
    "ours-braces": Peer(OURS, ours_braces, "torchdata_remote, brace range, {} in flight", "torchdata_remote"),
    "ours-http": Peer(OURS, ours_http, "torchdata_remote, http, {} in flight", "torchdata_remote"),
    "s3fs": Peer(("s3fs",), s3fs_tuned, "s3fs cat, batch_size={}, max_concurrency=1", "s3fs"),
    "s3fs-default": Peer(("s3fs",), s3fs_cat, "s3fs cat, batch_size={}, all else as it comes", "s3fs"),
    "s3torchconnector": Peer(
        ("s3torchconnector",), s3torchconnector_iterable, "s3torchconnector S3IterableDataset", "s3torchconnector"
    ),
    "s3torchconnector-threads": Peer(
        ("s3torchconnector",), s3torchconnector_threads, "s3torchconnector S3MapDataset, {} threads", "s3torchconnector"
    ),
    "torchdata": Peer(TORCHDATA, torchdata_fsspec, "torchdata open_files_by_fsspec", "torchdata"),
    "litdata": Peer(
        ("litdata", "s3fs", "obstore"), litdata_raw, "litdata StreamingRawDataset, {} in flight", "litdata"
    ),
    "ceiling": Peer(("obstore",), ceiling, "ceiling: obstore in {} threads", "obstore"),
}
