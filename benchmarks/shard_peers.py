"""Tar shards, read by each peer as its documentation says; imports lie in the functions because all are optional."""

from __future__ import annotations

import io
import logging
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from measure import MIB, Job, Peer
from object_peers import OURS, REGION, TORCHDATA, in_threads, s3torchconnector_client

PART_BYTES = 8 * MIB
S3FS_SHARDS = 2  # in threads, beside the one that is parsed; each asks for all its ranges at once


def sample_bytes(samples: Iterable[dict[str, Any]]) -> Iterator[int]:
    return (len(sample["jpg"]) + len(sample["cls"]) for sample in samples)


def webdataset_samples(shards: Iterable[dict[str, Any]]) -> Iterator[int]:
    """WebDataset's tar reader over streams that something else opened."""
    from webdataset.tariterators import group_by_keys, tar_file_expander

    return sample_bytes(group_by_keys(tar_file_expander(shards)))


def ours(job: Job) -> Iterator[int]:
    from torch.utils.data.datapipes.iter import IterableWrapper

    urls = list(IterableWrapper([f"s3://{job.bucket}/"]).list_remote(pattern="*.tar"))[: len(job.names)]
    return sample_bytes(IterableWrapper(urls).async_prefetch(max_in_flight=job.in_flight).shard_tar_reader())


def ours_brace(job: Job) -> Iterator[int]:
    """The names of the shards only: the first response to each reports its size. The client is made before."""
    from torch.utils.data.datapipes.iter import IterableWrapper

    list(IterableWrapper([f"s3://{job.bucket}/"]).list_remote())
    urls = IterableWrapper([f"s3://{job.bucket}/{{{','.join(job.names)}}}"]).list_remote()
    return sample_bytes(urls.async_prefetch(max_in_flight=job.in_flight).shard_tar_reader())


def ours_http(job: Job) -> Iterator[int]:
    from torch.utils.data.datapipes.iter import IterableWrapper

    urls = IterableWrapper([f"{job.endpoint_url}/{job.bucket}/{name}" for name in job.names])
    return sample_bytes(urls.async_prefetch(max_in_flight=job.in_flight).shard_tar_reader())


def s3fs_cat(job: Job) -> Iterator[int]:
    """``cat``, which is s3fs's way to ask for many ranges of a file at once, of the next shards in threads."""
    import s3fs

    files = s3fs.S3FileSystem(config_kwargs={"max_pool_connections": job.in_flight})
    files.connect()
    options = {"max_concurrency": job.in_flight, "chunksize": PART_BYTES}

    def open_shard(url: str) -> dict[str, Any]:
        return {"url": url, "stream": io.BytesIO(files.cat(url, **options))}

    return webdataset_samples(in_threads(open_shard, job.urls, S3FS_SHARDS))


def s3fs_open(job: Job) -> Iterator[int]:
    """``open`` with the cache that fetches the next block in the background."""
    import s3fs

    files = s3fs.S3FileSystem()
    files.connect()
    options = {"cache_type": "background", "block_size": PART_BYTES}
    return webdataset_samples({"url": url, "stream": files.open(url, "rb", **options)} for url in job.urls)


def s3torchconnector(job: Job) -> Iterator[int]:
    """``S3IterableDataset``, whose readers are files; its client fetches each in parts of 8 MiB at once."""
    from s3torchconnector import S3IterableDataset

    dataset = S3IterableDataset.from_objects(job.urls, **s3torchconnector_client(job))
    return webdataset_samples({"url": reader.key, "stream": reader} for reader in dataset)


def webdataset_curl(job: Job) -> Iterator[int]:
    import webdataset

    urls = [f"pipe:curl -s {job.endpoint_url}/{job.bucket}/{name}" for name in job.names]
    return sample_bytes(webdataset.WebDataset(urls, shardshuffle=False, handler=webdataset.reraise_exception))


def torchdata_fsspec(job: Job) -> Iterator[int]:
    """torchdata's own pipes; members of a stream must be read before they are grouped."""
    from torchdata.datapipes.iter import IterableWrapper

    def read(member: tuple[str, Any]) -> tuple[str, bytes]:
        return member[0], member[1].read()

    listed = IterableWrapper([f"s3://{job.bucket}/"]).list_files_by_fsspec(masks="*.tar")
    urls = IterableWrapper(list(listed)[: len(job.names)])
    members = urls.open_files_by_fsspec(mode="rb").load_from_tar(mode="r|").map(read)
    return (len(sample[".jpg"]) + len(sample[".cls"]) for sample in members.webdataset())


def litdata_raw(job: Job) -> Iterator[int]:
    """``StreamingRawDataset`` does not open tars: it reads the same samples as loose files, two requests for each."""
    import litdata
    from litdata.streaming import downloader
    from torch.utils.data import DataLoader, Subset

    class Pairs(litdata.StreamingRawDataset):  # type: ignore[misc, unused-ignore]  # litdata carries no types
        def setup(self, files: list[Any]) -> list[list[Any]]:
            in_order = sorted(files, key=lambda file: str(file.path))
            return [in_order[i : i + 2] for i in range(0, len(in_order), 2)]

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"  # see object_peers
    logging.disable(logging.WARNING)
    dataset = Pairs(
        f"s3://{job.bucket}/",
        cache_dir=tempfile.mkdtemp(prefix="litdata-"),
        max_concurrent_downloads=job.in_flight,
        max_prefetch=job.in_flight,
    )
    some: Subset[Any] = Subset(dataset, range(job.num_samples))
    batches = DataLoader(some, batch_size=job.in_flight, collate_fn=list)
    return (sum(map(len, pair)) for batch in batches for pair in batch)


def ceiling(job: Job) -> Iterator[int]:
    """The shards' bytes in ranges of 8 MiB by obstore in threads, nothing parsed: one number a shard."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(job.bucket, endpoint=job.endpoint_url, region=REGION, client_options={"allow_http": True})
    parts = [
        (name, start, min(start + PART_BYTES, size))
        for name, size in zip(job.names, job.sizes, strict=True)
        for start in range(0, size, PART_BYTES)
    ]

    def fetch(part: tuple[str, int, int]) -> int:
        name, start, end = part
        return len(obstore.get_range(store, name, start=start, end=end))

    return in_threads(fetch, parts, job.in_flight)


WEBDATASET = ("webdataset", "webdataset.tariterators")

PEERS = {
    "ours": Peer(OURS, ours, "torchdata_remote, {} in flight", "torchdata_remote"),
    "ours-brace": Peer(OURS, ours_brace, "the same, a brace range, {} in flight", "torchdata_remote"),
    "ours-http": Peer(OURS, ours_http, "the same, a list of http URLs, {} in flight", "torchdata_remote"),
    "s3fs": Peer(("s3fs", *WEBDATASET), s3fs_cat, "s3fs cat + WebDataset's tar reader, {} ranges", "s3fs"),
    "s3fs-open": Peer(("s3fs", *WEBDATASET), s3fs_open, "s3fs open + WebDataset's tar reader", "s3fs"),
    "s3torchconnector": Peer(
        ("s3torchconnector", *WEBDATASET),
        s3torchconnector,
        "s3torchconnector + WebDataset's tar reader",
        "s3torchconnector",
    ),
    "webdataset": Peer(WEBDATASET, webdataset_curl, "WebDataset pipe:curl", "webdataset"),
    "torchdata": Peer(TORCHDATA, torchdata_fsspec, "torchdata load_from_tar + webdataset", "torchdata"),
    "litdata": Peer(
        ("litdata", "s3fs", "obstore"), litdata_raw, "litdata StreamingRawDataset (loose files), {} at once", "litdata"
    ),
    "ceiling": Peer(("obstore",), ceiling, "ceiling: obstore in {} threads, nothing parsed", "obstore"),
}
