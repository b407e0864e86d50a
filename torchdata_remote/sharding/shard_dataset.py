"""``shard_dataset``: write any dataset into shuffled shards, by one process or many."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from ..core import arguments as check
from ..core.arguments import explained, seed_of, whole
from ..core.options import StorageOptions
from ..core.processes import require_main_guard
from ..core.progress import hidden_unless
from ..core.urls import split_url
from ..formats.error_policy import OnBadMember, raise_error
from ..formats.labels import Labeller
from ..formats.limits import MAX_MEMBER_BYTES
from ..formats.manifest import ShardInfo
from ..formats.split_name import SplitName
from ..writing import DEFAULT_MAX_SHARD_BYTES, DEFAULT_MAX_SHARD_SAMPLES, ShardFolder, ShardLimits, ShardTemplate
from .job import Job
from .source import open_source, with_stored_files
from .task import ShardOptions, Transform
from .workers import Workers


@explained
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
    split_name: SplitName = None,
    on_bad_member: OnBadMember = raise_error,
    append: bool = False,
    overwrite: bool = False,
    provenance: bool = False,
    resume: bool = True,
    progress: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
) -> list[ShardInfo]:
    """Write a dataset into tar shards, in a uniformly random order of all its samples.

    The source is listed and, if it consists of archives, read once to index its samples (about 100 bytes of memory
    each). Then each shard reads its samples by ranged requests. Only compressed archives are unpacked, into temporary
    objects beside the shards. The same source, seed and limits give the same bytes, with any number of workers and any
    executor. The same call resumes a job that was stopped: the index of the same archives is loaded instead of made,
    and finished shards are kept, if a listing has them with etags as stored. Stores without etags keep none.

    Args:
        source: URL or path of a folder of files (those whose paths differ in the extension only are one sample), of a
            tar, a tar of tars or a compressed one, or of shards; or a map-style dataset of ``(image, label)`` or of
            dicts. With several archives, their names are the first folder of the paths in labels and provenance.
            Links in a tar are followed to members of the same tar. Images and sounds of a ``datasets.Dataset`` are
            written as they are stored. ``escape_url(name)`` takes a name literally.
        url_template: URL with one ``{shard}`` field in its base name, such as ``s3://b/train/{shard:06d}.tar``. Shards
            are compressed if it ends in ``.tar.gz`` or ``.tar.zst``.
        max_shard_bytes: limit of a shard in bytes, headers and padding included, before compression.
        max_shard_samples: limit of samples in a shard.
        max_member_bytes: limit of a member; a larger one is an error, here and by default in readers.
        seed: of the order; ``None`` keeps the order of the source.
        num_workers: processes that write one shard at a time; 0 writes in this one. Each needs memory for three windows
            of ``max_shard_bytes / 4``, at most 64 MiB, or for three samples, if those are larger.
        executor: any ``concurrent.futures.Executor`` instead; a shard is a task. Dataset and transform must pickle.
            Its tasks cannot reach ``memory://`` of this process, unless it has threads.
        labels: maps a path below the source to a class number or name, such as ``labels.parent_directory()``. It is
            written as member ``cls``, and the class table as ``classes.json`` beside the shards. ``None`` adds none.
        transform: maps a sample to a sample, or to ``None`` to leave it out. Members are ``bytes``; ``cls`` is an
            ``int`` if ``labels`` are given.
        pattern: a glob that the source's objects must match: by base name, or by path if it has a slash.
        split_name: how names of files are split into key and extension: at the ``"first"`` dot, as readers of shards
            do; at the ``"last"`` one (``22.05.png`` is ``22_05``); or by a function from a base name to ``(key,
            extension)``, such as ``os.path.splitext``. Dots of the key become underscores, dots before the extension
            are dropped. ``None`` is the first dot, and warns of two files in one sample whose names look like
            those of two: ``22.05.png`` and ``22.06.jpg``, but not ``a.png`` and ``a.seg.png``. Not for archives.
        on_bad_member: called with the ``BadMemberError`` of a member of an archive, or of a file, that cannot be part
            of a sample, such as ``README``, or that is not an archive in an archive of archives. It raises, as
            ``raise_error`` does, or returns to leave that member out, as ``skip_with_warning`` does.
        append: add shards to existing ones; existing classes keep their numbers. The same files are not added twice,
            unless ``resume=False``.
        overwrite: replace all shards of this template. Otherwise an existing one is an error.
        provenance: write ``provenance.json`` beside the shards: source path -> class, shard, and the first byte of the
            sample in it.
        resume: keep the shards of an unfinished job of the same plan, and do nothing if the same job is complete. The
            plan identifies a dataset by type and length, a transform by its name: such jobs are resumed, but not
            recognised when they are complete.
        progress: show a progress bar if standard error is a terminal.
        storage_options: for the shards' store and, if it has the same scheme, the source's.
        source_options: for the source's store instead.

    Returns:
        list[ShardInfo]: the shards of this job, in order.

    Raises:
        ObjectExistsError: if shards of another job or plan exist, or another writer uses the folder.
        EmptyListingError: if the source is empty.
        ShardReadError: for a damaged archive, and for two that differ by their ending only. :class:`BadMemberError` for
            paths that cannot be part of a sample.
        ShardWriteError: for names and sizes of members that readers refuse; before anything is written, unless there
            is a ``transform``.
        LabelError: with the first file that has no label.
        WorkerLostError: if a task loses its worker several times.
        WorkerStartError: with ``num_workers``, outside of ``if __name__ == "__main__":``.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe({"/animals/cat/1.txt": b"miaow", "/animals/dog/1.txt": b"woof"})
        >>> from torchdata_remote import labels
        >>> to = "memory://sharded/{shard:03d}.tar"
        >>> (shard,) = shard_dataset("memory://animals/", to, labels=labels.parent_directory(), overwrite=True)
        >>> shard.url, shard.num_samples
        ('memory://sharded/000.tar', 2)
    """
    options = ShardOptions(
        ShardFolder(ShardTemplate(url_template), StorageOptions(storage_options)),
        first_number=0,
        num_tasks=0,
        limits=ShardLimits(max_shard_bytes, max_shard_samples, max_member_bytes).checked(),
        transform=check.function_or_none("transform", transform, example="lambda sample: sample"),
        provenance=check.flag("provenance", provenance),
    )
    num_workers = whole("num_workers", num_workers, at_least=0)
    seed = None if seed is None else seed_of(seed)
    check.function_or_none("labels", labels, example="labels.parent_directory()")
    check.function("on_bad_member", on_bad_member, example="tdr.skip_with_warning")
    check.instance_or_none("executor", executor, Executor, example="ProcessPoolExecutor(4)")
    check.text_or_none("pattern", pattern, example="*.jpg")
    flags = {"append": append, "overwrite": overwrite, "resume": resume, "progress": progress}
    flags = {name: check.flag(name, value) for name, value in flags.items()}
    if flags["append"] and flags["overwrite"]:
        raise check.marked(ValueError("append keeps existing shards, and overwrite replaces them: choose one."))
    if executor is not None and num_workers:
        raise check.marked(
            ValueError("executor and num_workers exclude each other: num_workers starts worker processes itself.")
        )
    is_url = isinstance(source, str | os.PathLike)
    schemes = split_url(url_template)[0], split_url(os.fspath(source))[0] if is_url else None
    if "memory" in schemes and num_workers:
        raise check.marked(
            ValueError("memory:// exists in one process only: read or write it without worker processes, or use files.")
        )
    if source_options is None and schemes[0] == schemes[1]:
        source_options = storage_options
    if num_workers:
        require_main_guard()
    source = with_stored_files(source)
    with hidden_unless(flags["progress"]):
        opened = open_source(
            source,
            pattern=pattern,
            split_name=split_name,
            labels=labels,
            options=StorageOptions(source_options),
            travels=not num_workers,
            on_bad_member=on_bad_member,
        )
    workers = Workers(executor, num_workers, shared=None if is_url else source)
    return Job(opened, options, seed).run(workers, **flags)
