"""Objects and shards in stores of three clouds, by this package and by gcsfs and adlfs.

Imports lie in the functions because all are optional. ``cat`` and asyncio's ``gather`` of ``_cat_file`` are what
fsspec's documentation names for many objects at once ("Async", "Copying files and directories"); ``open`` in a Dataset
is what most training code does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from measure import MIB, Job, Peer

PART_BYTES = 8 * MIB
NUM_WORKERS = 2

# It asks for the kind of a bucket by gRPC, which an emulator does not speak, and waits for a minute
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")


def ours_loose(job: Job, backend: str = "automatic") -> Iterator[int]:
    """The listing's URLs know sizes and etags."""
    return (len(sample["jpg"]) for sample in _streams(job, "*.jpg", backend).file_reader())


def ours_shards(job: Job, backend: str = "automatic") -> Iterator[int]:
    """Samples, in the order of the shards."""
    return (len(sample["jpg"]) for sample in _streams(job, "*.tar", backend).shard_tar_reader())


def _streams(job: Job, pattern: str, backend: str) -> Any:
    from torch.utils.data.datapipes.iter import IterableWrapper

    return IterableWrapper(_listed(job, pattern), deepcopy=False).async_prefetch(
        max_in_flight=job.in_flight, backend=backend, storage_options=job.storage_options
    )


def _listed(job: Job, pattern: str) -> list[Any]:
    from torch.utils.data.datapipes.iter import IterableWrapper

    source = IterableWrapper([f"{job.scheme}://{job.bucket}/"])
    listed = source.list_remote(pattern=pattern, storage_options=job.storage_options)
    return list(listed)[: len(job.names)]


def filesystem(job: Job, **options: Any) -> Any:
    import fsspec

    return fsspec.filesystem(job.scheme, **job.storage_options, **options)


def paths(job: Job) -> list[str]:
    return [f"{job.bucket}/{name}" for name in job.names]


def cat(job: Job) -> Iterator[int]:
    """``cat`` of all paths in one call; all bytes are in memory at its end."""
    files = filesystem(job)

    def read() -> Iterator[int]:
        yield from map(len, files.cat(paths(job), batch_size=job.in_flight).values())

    return read()


def gather(job: Job) -> Iterator[int]:
    """``_cat_file`` of each path, so many at once."""
    return _gathered(job, [(path, None, None) for path in paths(job)])


def gather_ranges(job: Job) -> Iterator[int]:
    """``_cat_file`` of each range of 8 MiB of each shard, so many at once; the tar is not parsed."""
    ranges = [
        (path, start, min(start + PART_BYTES, size))
        for path, size in zip(paths(job), job.sizes, strict=True)
        for start in range(0, size, PART_BYTES)
    ]
    return _gathered(job, ranges)


def _gathered(job: Job, ranges: Sequence[tuple[str, int | None, int | None]]) -> Iterator[int]:
    loop = asyncio.new_event_loop()
    files = filesystem(job, asynchronous=True, loop=loop, skip_instance_cache=True)

    async def read_all() -> list[int]:
        limit = asyncio.Semaphore(job.in_flight)
        if hasattr(files, "set_session"):
            await files.set_session()

        async def read(path: str, start: int | None, end: int | None) -> int:
            async with limit:
                return len(await files._cat_file(path, start=start, end=end))

        return await asyncio.gather(*(read(*one) for one in ranges))

    def read() -> Iterator[int]:
        yield from loop.run_until_complete(read_all())

    return read()


class Opened:
    """A map-style dataset that opens a file for each item, with a filesystem for each process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._files: Any = None

    def __len__(self) -> int:
        return len(self._job.names)

    def __getitem__(self, index: int) -> int:
        if self._files is None:
            self._files = filesystem(self._job)
        with self._files.open(paths(self._job)[index], "rb") as file:
            size = 0
            while data := file.read(PART_BYTES):
                size += len(data)
        return size


def opened(job: Job) -> Iterator[int]:
    """``open`` of each path in two workers of torch's ``DataLoader``, which have started and read one before."""
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        Opened(job),  # type: ignore[arg-type]  # it has what a Dataset has
        batch_size=None,
        num_workers=NUM_WORKERS,
        multiprocessing_context="forkserver",
        persistent_workers=True,
    )
    items = iter(loader)
    return chain([next(items)], items)


OURS = ("torchdata_remote.datasets", "torchdata_remote.pipes", "obstore", "botocore.session")


def peers(name: str, library: str, modules: tuple[str, ...]) -> dict[str, Peer]:
    def peer(what: str, open_: Callable[[Job], Iterator[int]], shown: str) -> tuple[str, Peer]:
        return f"{name}-{what}", Peer(
            (*modules, *(OURS if "through" in what else ())), open_, f"{library} {shown}", library
        )

    return dict(
        [
            peer("cat", cat, "cat(list), batch_size={}"),
            peer("gather", gather, "_cat_file, asyncio.gather of {}"),
            peer("ranges", gather_ranges, "_cat_file of 8 MiB, gather of {}, not parsed"),
            peer("open", opened, f"open, DataLoader with {NUM_WORKERS} workers"),
            peer("through-loose", partial(ours_loose, backend="fsspec"), "through torchdata_remote, {} in flight"),
            peer("through-shards", partial(ours_shards, backend="fsspec"), "through torchdata_remote, {} in flight"),
        ]
    )


PEERS = {
    **{
        f"ours-{what}-{store}": Peer(OURS, read, f"torchdata_remote from {shown}, {{}} in flight", "torchdata_remote")
        for what, read in (("loose", ours_loose), ("shards", ours_shards))
        for store, shown in (
            ("s3", "s3"),
            ("gs", "gs"),
            ("az", "az"),
            ("tls", "s3, TLS with a CA"),
            ("proxy", "s3, http proxy"),
            ("headers", "s3, SSE-C, requester pays"),
            ("company", "s3, CA, proxy, SSE-C, requester pays"),
        )
    },
    **peers("gcsfs", "gcsfs", ("gcsfs",)),
    **peers("adlfs", "adlfs", ("adlfs",)),
}
