"""Samples written to local disk by each peer as its documentation says; ``job.sizes`` holds the bytes of a jpg.

Samples are cut from a block of random bytes while the clock runs, which costs all sides the same. The block is made
when this module is imported, before memory is looked at. What is written goes where ``tempfile`` points, which is
removed afterwards.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

from measure import Job, Peer
from shard_peers import WEBDATASET

SHARD_BYTES = 64 << 20  # MosaicML's default, and what LitData's documentation takes
OURS = ("torchdata_remote",)
LITDATA = ("litdata.streaming.writer",)
MOSAIC = ("streaming.base.format.mds.writer",)
NUM_CLASSES = 1_000
TAR_BLOCK, CHUNK_BYTES = 512, 4 << 20
BLOCK = random.Random(0).randbytes(32 << 20)

# Importing ``streaming`` imports torchvision, of which no build fits every torch; its writer needs neither.
_spec = find_spec("streaming")
if _spec is not None and "streaming" not in sys.modules:
    sys.modules["streaming"] = module_from_spec(_spec)


def class_of(index: int) -> bytes:
    return b"%d" % (index % NUM_CLASSES)


def samples(job: Job) -> Iterator[tuple[str, bytes, bytes]]:
    """Key, jpg and cls of each."""
    (jpg_bytes,) = job.sizes
    places = len(BLOCK) - jpg_bytes
    for index in range(job.num_samples):
        start = index * 7_368_787 % places
        yield f"{index:06d}", BLOCK[start : start + jpg_bytes], class_of(index)


def check(folder: str, job: Job) -> None:
    """That something of the right size was written.

    Raises:
        RuntimeError: if not.
    """
    num_bytes = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    if num_bytes < 0.9 * job.sample_bytes:
        raise RuntimeError(f"{num_bytes:,} bytes were written of {job.sample_bytes:,}")


def sync_files(folder: str) -> None:
    """Wait until the disk has all files of a folder, and their names."""
    for path in (*Path(folder).rglob("*"), Path(folder)):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def ours(job: Job, ending: str = ".tar") -> Iterator[int]:
    import torchdata_remote as tdr

    folder = tempfile.mkdtemp()
    with tdr.ShardWriter(f"{folder}/{{shard:06d}}{ending}", max_shard_bytes=SHARD_BYTES) as writer:
        for key, jpg, cls in samples(job):
            writer.write({"__key__": key, "jpg": jpg, "cls": cls})
            yield len(jpg) + len(cls)
    check(folder, job)


def ours_zstd(job: Job) -> Iterator[int]:
    return ours(job, ".tar.zst")


def webdataset(job: Job) -> Iterator[int]:
    import webdataset

    folder = tempfile.mkdtemp()
    with webdataset.ShardWriter(f"{folder}/%06d.tar", maxsize=SHARD_BYTES, verbose=0) as writer:
        for key, jpg, cls in samples(job):
            writer.write({"__key__": key, "jpg": jpg, "cls": cls})
            yield len(jpg) + len(cls)
    check(folder, job)


def litdata(job: Job) -> Iterator[int]:
    """As ``litdata.optimize`` does it, in this process."""
    from litdata.streaming.writer import BinaryWriter

    folder = tempfile.mkdtemp()
    writer = BinaryWriter(folder, chunk_bytes=SHARD_BYTES)
    for index, (_, jpg, cls) in enumerate(samples(job)):
        writer[index] = {"jpg": jpg, "cls": cls}
        yield len(jpg) + len(cls)
    writer.done()
    writer.merge()
    check(folder, job)


def mosaic(job: Job, sync: bool = False, **options: Any) -> Iterator[int]:
    from streaming.base.format.mds.writer import MDSWriter

    folder = tempfile.mkdtemp()
    with MDSWriter(out=folder, columns={"jpg": "bytes", "cls": "bytes"}, **options) as writer:
        for _, jpg, cls in samples(job):
            writer.write({"jpg": jpg, "cls": cls})
            yield len(jpg) + len(cls)
    if sync:
        sync_files(folder)
    check(folder, job)


def mosaic_synced(job: Job) -> Iterator[int]:
    """Until the disk has everything, as ours: its shards are what is timed, and so is their fsync."""
    return mosaic(job, sync=True)


def mosaic_zstd(job: Job) -> Iterator[int]:
    """As in the first example of its README."""
    return mosaic(job, compression="zstd")


def mosaic_md5(job: Job) -> Iterator[int]:
    """With what our manifest has as well."""
    return mosaic(job, hashes=["md5"])


def ceiling(job: Job, with_md5: bool = False) -> Iterator[int]:
    """As many bytes as our tars have, with the samples among them, in chunks; nothing is framed."""
    md5 = hashlib.md5(usedforsecurity=False)
    chunk: list[bytes] = []
    with Path(tempfile.mkdtemp(), "plain").open("wb", buffering=0) as file:

        def flush() -> None:
            data = b"".join(chunk)
            chunk.clear()
            if with_md5:
                md5.update(data)
            file.write(data)

        held = 0
        for _, jpg, cls in samples(job):
            padding = bytes(2 * TAR_BLOCK - len(jpg) % TAR_BLOCK + 2 * TAR_BLOCK - len(cls))
            chunk += (jpg, cls, padding)
            held += len(jpg) + len(cls) + len(padding)
            if held >= CHUNK_BYTES:
                flush()
                held = 0
            yield len(jpg) + len(cls)
        flush()
        os.fsync(file.fileno())


def ceiling_md5(job: Job) -> Iterator[int]:
    return ceiling(job, with_md5=True)


PEERS = {
    "ours": Peer(OURS, ours, "torchdata_remote ShardWriter", "torchdata_remote"),
    "ours-zstd": Peer(OURS, ours_zstd, "the same, .tar.zst", "torchdata_remote"),
    "webdataset": Peer(WEBDATASET, webdataset, "WebDataset ShardWriter", "webdataset"),
    "litdata": Peer(LITDATA, litdata, "LitData BinaryWriter, its own format", "litdata"),
    "mosaic": Peer(MOSAIC, mosaic, "MosaicML MDSWriter as it comes, its own format", "mosaicml-streaming"),
    "mosaic-synced": Peer(MOSAIC, mosaic_synced, "the same, then an fsync of its files", "mosaicml-streaming"),
    "mosaic-md5": Peer(MOSAIC, mosaic_md5, "the same, hashes=['md5']", "mosaicml-streaming"),
    "mosaic-zstd": Peer(MOSAIC, mosaic_zstd, "the same, compression='zstd'", "mosaicml-streaming"),
    "ceiling": Peer(OURS, ceiling, "ceiling: as many bytes, write and fsync", "torchdata_remote"),
    "ceiling-md5": Peer(OURS, ceiling_md5, "ceiling: the same, with their MD5", "torchdata_remote"),
}
