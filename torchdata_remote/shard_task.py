"""One planned shard: written, or seen to be there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from .engine import Engine
from .errors import RemoteDataError, ShardReadError, ShardWriteError, StorageError
from .manifest import ShardInfo
from .open_shard import OpenShard, pack_sample
from .options import MIB, FetchOptions, RetryPolicy, StorageOptions
from .planned_samples import LABEL, Drawn, PlannedSamples
from .retry import call_with_retries
from .sample import Sample, check_writable
from .sample_index import dump_index, index_url
from .shard_template import ShardTemplate
from .storage import open_store, publish
from .streams import parts_of, stream_objects
from .tar import END_OF_ARCHIVE
from .urls import RemoteUrl

Transform = Callable[[Sample], Sample | None]

_WINDOW_BYTES = 64 * MIB


@dataclass(frozen=True)
class ShardOptions:
    """What all shards of a job have in common.

    Args:
        url_template: their names.
        first_number: of the first shard.
        num_tasks: planned shards.
        max_shard_bytes: limit of a shard's tar in bytes.
        max_shard_samples: limit of samples in a shard.
        transform: makes of each sample another one, or ``None`` to leave it out.
        sources_prefix: URL prefix of the objects that tell where samples come from; ``None`` writes none.
        storage_options: for the shards' store.
    """

    url_template: str
    first_number: int
    num_tasks: int
    max_shard_bytes: int
    max_shard_samples: int
    transform: Transform | None
    sources_prefix: str | None
    storage_options: StorageOptions


@dataclass(frozen=True)
class ShardTask:
    """One planned shard.

    Args:
        number: among the planned shards, from 0.
        samples: what goes into it.
        options: of all shards.
        finished: what an earlier run has written, which is to be compared with what is there.
    """

    number: int
    samples: PlannedSamples
    options: ShardOptions
    finished: tuple[ShardInfo, ...] | None = None


def write_shard(task: ShardTask) -> list[ShardInfo]:
    """Write a planned shard, if it is not there already.

    Where sizes were not known before, it may not fit its limits: then what is left goes into shards numbered behind the
    planned ones, which is the same in every run.

    Returns:
        The shards written, none if the transform left out all samples.
    """
    if task.finished is not None and _is_whole(task.finished, task.options):
        return list(task.finished)
    writing = _Writing(task)
    try:
        for drawn in transformed(task.samples, task.options.transform, task.options.max_shard_bytes):
            writing.add(drawn)
        return writing.finish()
    except BaseException:
        writing.abort()
        raise


def transformed(samples: PlannedSamples, transform: Transform | None, max_shard_bytes: int) -> Iterator[Drawn]:
    """Samples as they will be written; members are ``bytes`` for the transform."""
    with closing(samples.draw(min(_WINDOW_BYTES, max(MIB, max_shard_bytes // 4)))) as source:  # type: ignore[type-var]
        if transform is None:
            yield from source
            return
        for name, sample in source:
            whole = {key: bytes(value) if isinstance(value, memoryview) else value for key, value in sample.items()}
            try:
                made = transform(whole)
            except RemoteDataError:
                raise
            except Exception as error:
                raise ShardWriteError(f"transform failed for {name!r}: {type(error).__name__}: {error}") from error
            if made is not None:
                yield Drawn(name, made)


class _Writing:
    """The shards of one task."""

    def __init__(self, task: ShardTask) -> None:
        self._task, self._options = task, task.options
        self._template = ShardTemplate(self._options.url_template)
        self._open: OpenShard | None = None
        self._written: list[ShardInfo] = []
        self._sources: list[tuple[str, Any, str, int]] = []

    def add(self, drawn: Drawn) -> None:
        """Add a sample to the shard at hand, or to the next one."""
        key = check_writable(drawn.sample)
        packed = pack_sample(key, drawn.sample)
        shard = self._open
        if shard is not None and (
            shard.num_bytes + packed.num_bytes + len(END_OF_ARCHIVE) > self._options.max_shard_bytes
            or shard.num_samples >= self._options.max_shard_samples
        ):
            self._close(shard)
            shard = None
        if shard is None:
            number = self._task.number + len(self._written) * self._options.num_tasks
            url = self._template.url(self._options.first_number + number)
            store, path = open_store(url, self._options.storage_options)
            shard = self._open = OpenShard(url, store.create(path, overwrite=True))
        shard.check_key(key)
        if self._options.sources_prefix is not None:
            name = shard.url.rpartition("/")[2]
            self._sources.append((drawn.source, drawn.sample.get(LABEL), name, shard.num_bytes))
        shard.add(key, packed)

    def _close(self, shard: OpenShard) -> None:
        info = shard.finish()
        self._open = None
        if info.url.endswith(".tar"):
            self._publish(index_url(info.url), dump_index([*shard.offsets, shard.num_bytes]))
        self._written.append(info)

    def finish(self) -> list[ShardInfo]:
        """End the last shard."""
        if self._open is not None:
            self._close(self._open)
        if self._options.sources_prefix is not None:
            sources = {
                source: {"class": label, "targetFile": name, "position": position}
                for source, label, name, position in self._sources
            }
            self._publish(f"{self._options.sources_prefix}{self._task.number:06d}", json.dumps(sources).encode())
        return self._written

    def _publish(self, url: str, data: bytes) -> None:
        publish(url, data, self._options.storage_options, overwrite=True)

    def abort(self) -> None:
        """Leave nothing of the shard at hand."""
        if self._open is not None:
            self._open.pending.abort()


def _is_whole(shards: tuple[ShardInfo, ...], options: ShardOptions) -> bool:
    """Whether shards are what an earlier run wrote, by size and checksum, with what belongs to them."""
    try:
        return all(_is_same(shard, options.storage_options) for shard in shards)
    except (StorageError, ShardReadError):
        return False


def _is_same(shard: ShardInfo, options: StorageOptions) -> bool:
    index_bytes = 8 * (shard.num_samples + 1)
    if shard.url.endswith(".tar") and _size_of(index_url(shard.url), options) != index_bytes:
        return False
    if _size_of(shard.url, options) != shard.num_bytes:
        return False
    md5 = hashlib.md5(usedforsecurity=False)
    for url, stream in stream_objects([RemoteUrl(shard.url, shard.num_bytes)], Engine(FetchOptions(), options)):
        with closing(stream):
            for part in parts_of(url, stream):
                md5.update(part)
    return md5.hexdigest() == shard.md5


def _size_of(url: str, options: StorageOptions) -> int | None:
    store, path = open_store(url, options)
    found = call_with_retries(lambda: store.find(path), RetryPolicy())
    return None if found is None else found.size
