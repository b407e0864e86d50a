"""``shard_dataset``: any data set into shuffled shards, by one process or many."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from ..core.options import StorageOptions
from ..core.urls import split_url
from ..formats.error_policy import OnBadMember, raise_error
from ..formats.limits import MAX_MEMBER_BYTES
from ..formats.manifest import ShardInfo
from ..labels import Labeller
from ..writing.shard_folder import ShardFolder
from ..writing.shard_writer import DEFAULT_MAX_SHARD_BYTES, DEFAULT_MAX_SHARD_SAMPLES
from ..writing.template import ShardTemplate
from .job import SOURCES, Job
from .journal import Journal
from .planned_samples import keep_dataset
from .source import open_source
from .task import ShardOptions, Transform
from .workers.pool import Workers


def shard_dataset(
    source: Any,
    url_template: str,
    *,
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES,
    max_shard_samples: int = DEFAULT_MAX_SHARD_SAMPLES,
    max_member_bytes: int = MAX_MEMBER_BYTES,
    seed: int | None = 0,
    num_workers: int = 0,
    executor: Executor | None = None,
    labels: Labeller | None = None,
    transform: Transform | None = None,
    pattern: str | None = None,
    on_bad_member: OnBadMember = raise_error,
    append: bool = False,
    overwrite: bool = False,
    provenance: bool = False,
    resume: bool = True,
    progress: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
) -> list[ShardInfo]:
    """Write a data set into tar shards, in a uniformly random order of all its samples.

    The source is listed and, where it is made of archives, read once for the places of its samples, about 100 bytes of
    memory for each. Then each shard gathers its samples by ranged reads. Nothing is unpacked, except from compressed
    archives, into temporary objects beside the shards. The same source, seed and limits give the same bytes, whoever
    writes them. A job that was stopped is started again by the same call: shards that are there as they were written,
    by size and checksum, are kept.

    Args:
        source: URL or path of a folder of files (those whose paths differ in the extension only are one sample), of a
            tar, a tar of tars or a compressed one, or of shards; or a map-style dataset of ``(image, label)`` or of
            dicts. With several archives, their names are the first folder of the paths that labels and provenance see.
            ``escape_url(name)`` is no pattern.
        url_template: URL with one ``{shard}`` field in its base name, such as ``s3://b/train/{shard:06d}.tar``. Shards
            are compressed if it ends in ``.tar.gz`` or ``.tar.zst``.
        max_shard_bytes: limit of a shard in bytes, headers and padding included, before compression.
        max_shard_samples: limit of samples in a shard.
        max_member_bytes: limit of a member; a larger one is an error, here and by default in readers.
        seed: of the order; ``None`` keeps the source's.
        num_workers: processes that write a shard each; 0 writes in this one. Each takes up to three windows of
            ``max_shard_bytes / 4``, at most 64 MiB, or three samples, if those are larger.
        executor: any ``concurrent.futures.Executor`` instead; a shard is a task. Dataset and transform must pickle.
        labels: path below the source -> class number or name, such as ``labels.parent_directory()``. It becomes the
            member ``cls``, and the class table ``classes.json`` beside the shards. ``None`` adds none.
        transform: sample -> sample, or ``None`` to leave it out. Members are ``bytes``; ``cls`` is an ``int`` if
            ``labels`` are given.
        pattern: a glob that the source's objects must match: by base name, or by path if it has a slash.
        on_bad_member: called with the ``BadMemberError`` of a member of an archive, or of a file, that cannot be part
            of a sample, such as ``README``; and of what is no archive in an archive of archives. It raises, as
            ``raise_error`` does, or returns to leave that member out, as ``skip_with_warning`` does.
        append: add shards to those that lie there; their classes keep their numbers. The same files are not added
            twice, unless ``resume=False``.
        overwrite: replace all shards of this template. Otherwise finding one is an error.
        provenance: write ``provenance.json`` beside the shards: source path -> class, shard, and the byte at which the
            sample's first header begins.
        resume: keep what an unfinished job of the same plan has written, and do nothing where the same job has come to
            its end. Of a dataset the plan knows type and length, of a transform its name: such jobs are gone on with,
            but not known again after their end.
        progress: show a bar where standard error is a terminal.
        storage_options: for the shards' store and, if it has the same scheme, the source's.
        source_options: for the source's store instead.

    Returns:
        list[ShardInfo]: the shards of this job, in order.

    Raises:
        ObjectExistsError: if there are shards already, of another job or plan, or another job writes there now.
        EmptyListingError: if the source is empty.
        ShardReadError: for a damaged archive. :class:`BadMemberError` for paths that cannot be those of samples.
        ShardWriteError: for names and sizes of members that readers refuse; before anything is written, unless there
            is a ``transform``.
        LabelError: for a file without a label; it is named.
        WorkerLostError: if an executor loses a task several times.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe({"/animals/cat/1.txt": b"miaow", "/animals/dog/1.txt": b"woof"})
        >>> from torchdata_remote import labels
        >>> to = "memory://sharded/{shard:03d}.tar"
        >>> (shard,) = shard_dataset("memory://animals/", to, labels=labels.parent_directory(), overwrite=True)
        >>> shard.url, shard.num_samples
        ('memory://sharded/000.tar', 2)
    """
    if max_shard_bytes < 1 or max_shard_samples < 1 or num_workers < 0:
        raise ValueError(
            "max_shard_bytes and max_shard_samples must be positive and num_workers not negative, got "
            f"{max_shard_bytes}, {max_shard_samples} and {num_workers}"
        )
    if append and overwrite:
        raise ValueError("append adds to what is there, and overwrite replaces it: choose one.")
    if executor is not None and num_workers:
        raise ValueError("num_workers are processes of our own: give executor or num_workers.")
    if num_workers and "memory" in (_scheme(source), _scheme(url_template)):
        raise ValueError("memory:// belongs to one process: num_workers=0 writes there, or reads from it.")
    destination = ShardFolder(ShardTemplate(url_template), StorageOptions(storage_options))
    if source_options is None and isinstance(source, str | os.PathLike):
        source_options = storage_options if _scheme(source) == _scheme(url_template) else None
    own_workers = executor is None and num_workers > 0
    opened = open_source(
        source,
        pattern=pattern,
        labels=labels,
        options=StorageOptions(source_options),
        travels=not own_workers,
        on_bad_member=on_bad_member,
    )
    workers = Workers(executor, num_workers)
    if own_workers and not isinstance(source, str | os.PathLike):
        workers = workers._replace(initializer=keep_dataset, initargs=(source,))
    options = ShardOptions(
        url_template,
        first_number=0,
        num_tasks=0,
        max_shard_bytes=max_shard_bytes,
        max_shard_samples=max_shard_samples,
        transform=transform,
        sources_prefix=destination.template.folder + SOURCES if provenance else None,
        storage_options=destination.options,
        max_member_bytes=max_member_bytes,
    )
    with Journal(destination) as journal:
        return Job(destination, journal, opened, options, seed).run(
            workers, append=append, overwrite=overwrite, resume=resume, progress=progress
        )


def _scheme(source: Any) -> str | None:
    """Of a URL or a path; ``None`` for a dataset."""
    return split_url(os.fspath(source))[0] if isinstance(source, str | os.PathLike) else None
