"""Samples in local files, read by each peer as its documentation says; ``job.bucket`` is the folder."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from measure import Job, Peer
from object_peers import OURS, TORCHDATA
from shard_peers import WEBDATASET, sample_bytes

LITDATA_FOLDER = "litdata"
TAR = ("torchdata_remote.formats.tar", "torchdata_remote.formats.grouping")


def paths(job: Job) -> list[str]:
    return [f"{job.bucket}/{name}" for name in job.names]


def chain(job: Job, **options: Any) -> Iterator[int]:
    from torch.utils.data.datapipes.iter import IterableWrapper

    listed = IterableWrapper([f"{job.bucket}/"]).list_remote(pattern="*.tar")
    return sample_bytes(listed.async_prefetch().shard_tar_reader(**options))


def ours(job: Job) -> Iterator[int]:
    return chain(job)


def ours_views(job: Job) -> Iterator[int]:
    return chain(job, copy=False)


def mapped(job: Job) -> Iterator[list[memoryview]]:
    for path in paths(job):
        with Path(path).open("rb") as file:
            yield [memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))]


def walk(job: Job) -> Iterator[int]:
    """Names and bytes of members, by the tar room alone: no pipe, no thread, no sample."""
    from torchdata_remote.formats.tar import TarOptions, read_member_batches

    for parts in mapped(job):
        batches = read_member_batches(parts, url="", options=TarOptions())
        members = itertools.chain.from_iterable(values for _, values in batches)
        for first, second in zip(members, members, strict=True):
            yield len(first) + len(second)


def walk_samples(job: Job) -> Iterator[int]:
    """The same, and members grouped into samples."""
    from torchdata_remote.formats.grouping import samples_of
    from torchdata_remote.formats.tar import TarOptions, read_member_batches

    for parts in mapped(job):
        yield from sample_bytes(samples_of(read_member_batches(parts, url="", options=TarOptions()), url=""))


def copying(job: Job) -> Iterator[int]:
    """As many bytes, in as many pieces of one length, copied out of the mapped files; nothing is parsed."""
    num_pieces = job.num_samples // len(job.names)
    piece_bytes, left_over = divmod(job.sample_bytes, num_pieces * len(job.names))
    for (view,) in mapped(job):
        step = len(view) // num_pieces
        for start in range(0, num_pieces * step, step):
            yield len(view[start : start + piece_bytes].tobytes()) + left_over
            left_over = 0


def webdataset(job: Job) -> Iterator[int]:
    import webdataset

    return sample_bytes(webdataset.WebDataset(paths(job), shardshuffle=False, handler=webdataset.reraise_exception))


def torchdata(job: Job) -> Iterator[int]:
    """torchdata's own pipes; members of a stream must be read before they are grouped."""
    from torchdata.datapipes.iter import IterableWrapper

    def read(member: tuple[str, Any]) -> tuple[str, bytes]:
        return member[0], member[1].read()

    members = IterableWrapper(paths(job)).open_files(mode="b").load_from_tar(mode="r|").map(read)
    return (len(sample[".jpg"]) + len(sample[".cls"]) for sample in members.webdataset())


def tarfile(job: Job) -> Iterator[int]:
    """Python's own module, members in pairs."""
    import tarfile

    def members(path: str) -> Iterator[bytes]:
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                yield file.read()
                archive.members.clear()  # type: ignore[attr-defined]  # or it would keep them all

    for path in paths(job):
        data = members(path)
        yield from (len(first) + len(second) for first, second in zip(data, data, strict=True))


def litdata(job: Job) -> Iterable[int]:
    """The same samples in LitData's own chunks."""
    import litdata

    dataset = litdata.StreamingDataset(f"{job.bucket}/{LITDATA_FOLDER}", shuffle=False)
    return sample_bytes(dataset)


def write_litdata(folder: str, samples: list[dict[str, bytes]], chunk_bytes: int | str = "64MB") -> None:
    """As ``litdata.optimize`` does it, in this process."""
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(folder, chunk_bytes=chunk_bytes)
    for index, sample in enumerate(samples):
        writer[index] = sample
    writer.done()
    writer.merge()


PEERS = {
    "ours": Peer(OURS, ours, "torchdata_remote: list_remote, async_prefetch, shard_tar_reader", "torchdata_remote"),
    "ours-views": Peer(OURS, ours_views, "the same, copy=False", "torchdata_remote"),
    "walk": Peer(TAR, walk, "bare walk over members, no pipes", "torchdata_remote"),
    "walk-samples": Peer(TAR, walk_samples, "bare walk over samples, no pipes", "torchdata_remote"),
    "copying": Peer(TAR, copying, "ceiling: the bytes copied, nothing parsed", "torchdata_remote"),
    "webdataset": Peer(WEBDATASET, webdataset, "WebDataset", "webdataset"),
    "torchdata": Peer(TORCHDATA, torchdata, "torchdata load_from_tar + webdataset", "torchdata"),
    "tarfile": Peer(("tarfile",), tarfile, "tarfile", "webdataset"),
    "litdata": Peer(("litdata",), litdata, "LitData StreamingDataset, its own format (memoryview slices)", "litdata"),
}
