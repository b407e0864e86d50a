"""Shards and loose files, read with the defaults and with other values of one option."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from measure import MIB, Job, Peer
from object_peers import OURS

BATCH_SAMPLES = 64


def sizes_of(samples: Iterable[dict[str, Any]]) -> Iterator[int]:
    """Bytes of each sample; those of the first batch once it is complete, so that the first one is timed with it."""
    sizes = (len(sample["jpg"]) + len(sample.get("cls", b"")) for sample in samples)
    return chain(list(islice(sizes, BATCH_SAMPLES)), sizes)


def of_shards(**options: Any) -> Callable[[Job], Iterator[int]]:
    def read(job: Job) -> Iterator[int]:
        import torchdata_remote as tdr

        def lazily() -> Iterator[int]:
            yield from sizes_of(tdr.stream_shards(f"s3://{job.bucket}/", **options))

        return lazily()

    return read


def of_files(**options: Any) -> Callable[[Job], Iterator[int]]:
    def read(job: Job) -> Iterator[int]:
        import torchdata_remote as tdr

        def lazily() -> Iterator[int]:
            yield from sizes_of(tdr.stream_files(f"s3://{job.bucket}/", pattern="*.jpg", **options))

        return lazily()

    return read


def of_chain(interleave: int = 16, **options: Any) -> Callable[[Job], Iterator[int]]:
    """The default chain of ``stream_shards`` with options of ``async_prefetch`` that it does not take."""

    def read(job: Job) -> Iterator[int]:
        from torch.utils.data.datapipes.iter import IterableWrapper

        import torchdata_remote  # noqa: F401  # registers the functional names

        def lazily() -> Iterator[int]:
            listed: Any = IterableWrapper([f"s3://{job.bucket}/"]).list_remote(pattern="*.tar")
            urls = listed.shuffle_shards(seed=0).sharding_filter_rank()
            samples = urls.async_prefetch(interleave=interleave, **options).shard_tar_reader(interleave=interleave)
            yield from sizes_of(samples.shuffle_samples(buffer_size=10_000, max_buffer_bytes=64 * MIB))

        return lazily()

    return read


def _peer(shown: str, read: Callable[[Job], Iterator[int]]) -> Peer:
    return Peer(OURS, read, shown, "torchdata_remote")


PEERS = {
    "default": _peer("shards: the default", of_shards()),
    "shards-only": _peer('shuffle="shards": as before', of_shards(shuffle="shards")),
    "in-order": _peer("shuffle=False", of_shards(shuffle=False)),
    "interleave-8": _peer("interleave=8", of_shards(interleave=8)),
    "interleave-32": _peer("interleave=32", of_shards(interleave=32)),
    "shuffle-16-mib": _peer("shuffle_buffer_bytes=16 MiB", of_shards(shuffle_buffer_bytes=16 * MIB)),
    "shuffle-256-mib": _peer("shuffle_buffer_bytes=256 MiB", of_shards(shuffle_buffer_bytes=256 * MIB)),
    "in-flight-4": _peer("max_in_flight=4", of_shards(max_in_flight=4)),
    "in-flight-8": _peer("max_in_flight=8", of_shards(max_in_flight=8)),
    "in-flight-32": _peer("max_in_flight=32", of_shards(max_in_flight=32)),
    "in-flight-64": _peer("max_in_flight=64", of_shards(max_in_flight=64)),
    "buffer-32-mib": _peer("max_buffer_bytes=32 MiB", of_chain(max_buffer_bytes=32 * MIB)),
    "buffer-64-mib": _peer("max_buffer_bytes=64 MiB", of_chain(max_buffer_bytes=64 * MIB)),
    "buffer-256-mib": _peer("max_buffer_bytes=256 MiB", of_chain(max_buffer_bytes=256 * MIB)),
    "part-1-mib": _peer("part_bytes=1 MiB", of_chain(part_bytes=1 * MIB)),
    "part-4-mib": _peer("part_bytes=4 MiB", of_chain(part_bytes=4 * MIB)),
    "files": _peer("loose files: the default", of_files()),
    "files-8": _peer("loose files: max_in_flight=8", of_files(max_in_flight=8)),
    "files-16": _peer("loose files: max_in_flight=16", of_files(max_in_flight=16)),
    "files-32": _peer("loose files: max_in_flight=32", of_files(max_in_flight=32)),
    "files-128": _peer("loose files: max_in_flight=128", of_files(max_in_flight=128)),
}
