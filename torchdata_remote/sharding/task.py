"""Write one planned shard, or verify that an earlier run wrote it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from ..core.options import MIB, FetchOptions, RetryPolicy, StorageOptions
from ..core.urls import RemoteUrl
from ..errors import RemoteDataError, ShardReadError, ShardWriteError, StorageError
from ..fetch.session import FetchSession
from ..fetch.streams import parts_of, stream_objects
from ..formats.key_index import keys_url
from ..formats.limits import MAX_MEMBER_BYTES
from ..formats.manifest import ShardInfo
from ..formats.sample import Sample
from ..formats.sample_index import dump_index, index_url
from ..formats.shard_members import ShardDigest, ShardMembers, read_shard_members
from ..storage import publish, read_whole
from ..writing import RollingShardWriter, ShardTemplate
from .finished_shards import Written, entry_of, etags_of, objects_of, sources_url
from .planned_samples import LABEL, Drawn, PlannedSamples

Transform = Callable[[Sample], Sample | None]

_WINDOW_BYTES = 64 * MIB


@dataclass(frozen=True)
class ShardOptions:
    """Options that all shards of a job share.

    Args:
        url_template: names of the shards.
        first_number: of the first shard.
        num_tasks: planned shards.
        max_shard_bytes: limit of a shard's tar in bytes.
        max_shard_samples: limit of samples in a shard.
        transform: maps a sample to another one, or to ``None`` to leave it out.
        sources_prefix: URL prefix of the provenance objects; ``None`` writes none.
        storage_options: for the shards' store.
        max_member_bytes: limit of a member.
    """

    url_template: str
    first_number: int
    num_tasks: int
    max_shard_bytes: int
    max_shard_samples: int
    transform: Transform | None
    sources_prefix: str | None
    storage_options: StorageOptions
    max_member_bytes: int = MAX_MEMBER_BYTES


@dataclass(frozen=True)
class ShardTask:
    """One planned shard.

    Args:
        number: among the planned shards, from 0.
        samples: to write into it.
        options: of all shards.
        finished: shards that an earlier run has written, to be verified; ``None`` if it has not.
    """

    number: int
    samples: PlannedSamples
    options: ShardOptions
    finished: tuple[ShardInfo, ...] | None = None


def write_shard(task: ShardTask) -> Written:
    """Write a planned shard, unless an earlier run did.

    If sizes were not known before, the samples may exceed the limits: then the rest goes into shards numbered after the
    planned ones, in the same way in every run.

    Returns:
        The shards written; none if the transform left out all samples.
    """
    return start_shard(task)()


def start_shard(task: ShardTask) -> Callable[[], Written]:
    """As :func:`write_shard`, but return a function that waits for the end of the upload."""
    options = task.options
    if task.finished is not None:
        etags = _etags_of(task, task.finished)  # of what is read now
        if _is_whole(task, task.finished):
            verified = Written(list(task.finished), etags)
            return lambda: verified
    template = ShardTemplate(options.url_template)
    writer = RollingShardWriter(
        lambda index: template.url(options.first_number + task.number + index * options.num_tasks),
        max_shard_bytes=options.max_shard_bytes,
        max_shard_samples=options.max_shard_samples,
        max_member_bytes=options.max_member_bytes,
        overwrite=True,
        options=options.storage_options,
    )
    sources: dict[str, dict[str, Any]] = {}
    try:
        for source, sample in transformed(task.samples, options.transform, options.max_shard_bytes):
            writer.add(sample)
            if options.sources_prefix is not None:
                url, position = writer.last_position()
                name = url.rpartition("/")[2]
                sources[source] = {"class": _class_of(sample), "targetFile": name, "position": position}
        if options.sources_prefix is not None:
            publish(
                sources_url(options.sources_prefix, task.number),
                json.dumps(sources).encode(),
                options.storage_options,
                overwrite=True,
            )
        writer.end()
    except BaseException:
        writer.abort()
        raise

    def finish() -> Written:
        shards = writer.result()
        return Written(shards, _etags_of(task, shards))

    return finish


def _sources_url(task: ShardTask) -> str | None:
    prefix = task.options.sources_prefix
    return None if prefix is None else sources_url(prefix, task.number)


def _etags_of(task: ShardTask, shards: Sequence[ShardInfo]) -> dict[str, str]:
    return etags_of(objects_of(shards, _sources_url(task)), task.options.storage_options)


def _class_of(sample: Sample) -> int | None:
    """Return the class number of a sample; ``None`` if it has none."""
    label = sample.get(LABEL)
    text = bytes(label).decode("utf-8", "replace") if isinstance(label, bytes | memoryview) else str(label)
    return int(text) if text.isascii() and text.isdigit() else None


def transformed(samples: PlannedSamples, transform: Transform | None, max_shard_bytes: int) -> Iterator[Drawn]:
    """Yield samples as they will be written; the transform gets members as ``bytes``."""
    with closing(samples.draw(min(_WINDOW_BYTES, max(MIB, max_shard_bytes // 4)))) as source:  # type: ignore[type-var]
        if transform is None:
            yield from source
            return
        for name, sample in source:
            whole = {key: bytes(value) if isinstance(value, memoryview) else value for key, value in sample.items()}
            try:
                result = transform(whole)
            except RemoteDataError:
                raise
            except Exception as error:
                raise ShardWriteError(f"transform failed for {name!r}: {type(error).__name__}: {error}") from error
            if result is not None:
                yield Drawn(name, result)


def _is_whole(task: ShardTask, shards: tuple[ShardInfo, ...]) -> bool:
    """Whether shards and the objects beside them are as an earlier run wrote them, by size and checksum."""
    options = task.options.storage_options
    try:
        sources = _sources_url(task)
        if sources is not None and entry_of(sources, options) is None:
            return False
        return all(_is_same(shard, options) for shard in shards)
    except (StorageError, ShardReadError):
        return False


def _is_same(shard: ShardInfo, options: StorageOptions) -> bool:
    entry = entry_of(shard.url, options)
    if entry is None or entry.size != shard.num_bytes:
        return False
    for url, stream in stream_objects([RemoteUrl(shard.url, shard.num_bytes)], FetchSession(FetchOptions(), options)):
        with closing(stream):
            digest = ShardDigest(parts_of(url, stream))
            found = read_shard_members(shard.url, digest)
        if digest.info(shard.url, found.num_samples) != replace(shard, index_crc32=None, keys_crc32=None):
            return False
        return found.compression is not None or _are_beside(shard, found, options)
    return True


def _are_beside(shard: ShardInfo, found: ShardMembers, options: StorageOptions) -> bool:
    """Whether the objects beside a shard are as they were written; journals of earlier releases lack checksums."""
    index = read_whole(index_url(shard.url), options, RetryPolicy())
    if index != dump_index(found.offsets) or shard.index_crc32 not in (None, zlib.crc32(index)):
        return False
    if shard.keys_crc32 is None:
        return True
    # By their sum: another zlib may compress them in another way
    return zlib.crc32(read_whole(keys_url(shard.url), options, RetryPolicy())) == shard.keys_crc32
