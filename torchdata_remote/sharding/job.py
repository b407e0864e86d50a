"""Run one job that writes shards: look at the destination, plan, run the tasks, publish the manifest."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.arguments import is_pil_image
from ..core.progress import Progress
from ..core.urls import redact
from ..errors import ShardWriteError, StorageError, TransientStorageError
from ..fetch.sample_table import Int64s
from ..formats.companions import without_companion_ending
from ..formats.manifest import CLASSES_NAME, MANIFEST_NAME, PROVENANCE_NAME, ShardInfo, dump_manifest
from ..labels import dump_table, load_table
from ..writing import UNFINISHED, ShardFolder, pack_sample
from .finished_shards import sources_url, unchanged_tasks
from .journal import Journal, PreviousRun
from .plan import cut_by_bytes, cut_evenly, sample_order
from .provenance import merge_sources
from .run_here import run_here
from .source import ShardSource
from .task import ShardOptions, ShardTask, transformed, write_shard
from .temporary_objects import TemporaryObjects
from .workers.pool import Workers, run_tasks

SOURCES = f"{UNFINISHED}sources-"
_MEASURED = 64  # samples that are packed to estimate the size of one, if sizes are not known


class Job:
    """Writes the samples of a source into shards.

    Args:
        destination: folder of the shards.
        journal: claims the folder, and records finished shards.
        source: of the samples.
        options: of all shards; their numbers are filled in here.
        seed: of the samples' order.
    """

    def __init__(
        self, destination: ShardFolder, journal: Journal, source: ShardSource, options: ShardOptions, seed: int | None
    ) -> None:
        self._destination, self._journal, self._source = destination, journal, source
        self._options, self._seed = options, seed
        self._old_shards: list[ShardInfo] = []  # existing ones that are kept
        self._old_jobs: list[Any] = []

    def run(self, workers: Workers, *, append: bool, overwrite: bool, resume: bool, progress: bool) -> list[ShardInfo]:
        """Run the job; returns its shards, including those that an earlier run wrote."""
        previous = self._journal.open()
        candidates = self._check_destination(previous, append=append, overwrite=overwrite, resume=resume)
        self._journal.remove_leftovers()
        known = self._existing_classes() if append else None
        self._source.prepare(self._destination, known=known, resume=resume, progress=progress)
        if not len(self._source):
            raise ShardWriteError("The source has no samples.")
        plan = self._plan_digest()
        if self._options.transform is None:
            are_checked = previous is not None and previous.plan == plan  # a plan is recorded after its names
            self._source.require_writable(self._options.max_member_bytes, are_names_checked=are_checked)
        for job in candidates:
            if job["plan"] == plan:
                return self._finished_before(job)
        if candidates and not append:
            raise self._destination.exists_error(MANIFEST_NAME)
        unfinished = previous if resume else None
        if unfinished is not None and unfinished.plan not in (None, plan) and unfinished.finished and not overwrite:
            url = redact(self._destination.template.folder)
            raise ShardWriteError(
                f"{url} holds the shards of an unfinished job with another source, seed, labels or limits. Start that "
                "one again to finish it, or pass overwrite=True to replace its shards, or resume=False."
            )
        kept = unfinished if unfinished is not None and unfinished.plan == plan else PreviousRun(plan, {})
        self._journal.set_plan(plan)
        if overwrite:
            self._destination.remove_description()
        try:
            shards = self._write(workers, kept, progress)
            self._finish(shards, plan, overwrite=overwrite)
        except StorageError as error:
            if not isinstance(error, TransientStorageError):
                self._journal.check()  # the claim may have been lost, which is the better error
            raise
        return shards

    def _check_destination(
        self, previous: PreviousRun | None, *, append: bool, overwrite: bool, resume: bool
    ) -> list[dict[str, Any]]:
        """Check the existing shards against the options; returns the finished jobs of which one may be this one."""
        manifest = self._destination.manifest()
        if overwrite:
            return []
        if manifest is None:
            if previous is None:
                self._destination.require_empty(has_manifest=False)
            return []
        shards, jobs = manifest
        same = [job for job in jobs if isinstance(job, dict) and job.get("source") == self._source.digest]
        if (
            not self._source.is_known or self._options.transform is not None
        ):  # only recognised if it was stopped after its manifest
            written = previous.names() if previous is not None else set()
            same = [job for job in same if set(job["shards"]) == written]
        if append:
            self._old_shards, self._old_jobs = shards, jobs
            listed = {shard.url.rpartition("/")[2] for shard in shards}
            unlisted = [name for name in self._destination.shards() if without_companion_ending(name) not in listed]
            if unlisted and previous is None:
                raise self._destination.exists_error(unlisted[0])
            numbers = [self._destination.template.index(shard.url) or 0 for shard in shards]
            self._options = replace(self._options, first_number=max(numbers, default=-1) + 1)
        elif not (same and resume):
            raise self._destination.exists_error(MANIFEST_NAME)
        return same if resume else []

    def _finished_before(self, job: dict[str, Any]) -> list[ShardInfo]:
        """Return the shards of this job, which an earlier run completed."""
        manifest = self._destination.manifest()
        assert manifest is not None
        self._clean()
        names = set(job["shards"])
        return [shard for shard in manifest[0] if shard.url.rpartition("/")[2] in names]

    def _existing_classes(self) -> Any:
        data = self._destination.read(CLASSES_NAME)
        return None if data is None else load_table(data, self._destination.template.folder + CLASSES_NAME)

    def _plan_digest(self) -> str:
        options, transform = self._options, self._options.transform
        decisive = (
            self._source.plan_digest(),
            self._seed,
            options.max_shard_bytes,
            options.max_shard_samples,
            self._destination.template.url(0).rpartition("/")[2],
            None if transform is None else getattr(transform, "__qualname__", type(transform).__qualname__),
            options.sources_prefix is not None,
        )
        return hashlib.sha256(repr(decisive).encode()).hexdigest()

    def _write(self, workers: Workers, kept: PreviousRun, progress: bool) -> list[ShardInfo]:
        order = sample_order(len(self._source), self._seed)
        cuts = list(self._cuts(order))
        options = self._options = replace(self._options, num_tasks=len(cuts))
        unchanged = unchanged_tasks(kept.finished, kept.etags, self._destination, options.sources_prefix)
        tasks = (
            ShardTask(
                number,
                self._source.select(order[cut]),
                options,
                tuple(kept.finished[number]) if number in kept.finished else None,
            )
            for number, cut in enumerate(cuts)
            if number not in unchanged
        )
        shards: list[ShardInfo] = []

        def add(number: int, written: list[ShardInfo]) -> None:
            shards.extend(written)
            cut = cuts[number]
            shown.add_shards(len(written), cut.stop - cut.start, sum(shard.num_bytes for shard in written))

        with Progress("shard", len(order), "samples", shown=progress) as shown:
            run = (
                run_tasks(tasks, write_shard, workers)
                if workers.executor is not None or workers.num_workers
                else run_here(tasks)
            )
            for number in sorted(unchanged):
                add(number, kept.finished[number])
            for task, written in run:
                self._journal.add_finished(task.number, *written)
                add(task.number, written.shards)
        if not shards:
            raise ShardWriteError("transform left out all samples.")
        return sorted(shards, key=lambda shard: self._destination.template.index(shard.url) or 0)

    def _cuts(self, order: Int64s) -> Iterator[slice]:
        options = self._options
        sizes = self._source.sample_bytes() if options.transform is None else None
        if sizes is not None:
            return cut_by_bytes(sizes[order], options.max_shard_bytes, options.max_shard_samples)
        measured = order[np.unique(np.linspace(0, len(order) - 1, _MEASURED).astype(np.int64))]
        num_bytes, pictures = 0, set()
        here = self._source.select(measured, here=True)
        for _, sample in transformed(here, options.transform, options.max_shard_bytes):
            num_bytes += pack_sample(sample, options.max_member_bytes).num_bytes
            pictures |= {
                name
                for name, value in sample.items()
                # What a transform has made of a picture has no format
                if is_pil_image(value) and (value.format or options.transform is None)
            }
        if pictures:
            warnings.warn(
                f"The dataset returns PIL images, which are encoded as {', '.join(sorted(pictures))}: where they were "
                "decoded from files, other bytes are written. To keep those of the files, shard their folder, or let "
                "the dataset return bytes.",
                RuntimeWarning,
                stacklevel=2,
            )
        return cut_evenly(len(order), num_bytes / len(measured), options.max_shard_bytes, options.max_shard_samples)

    def _finish(self, shards: list[ShardInfo], plan: str, *, overwrite: bool) -> None:
        self._journal.check()
        self._journal.remove_leftovers()
        if self._source.classes is not None:
            self._destination.publish(CLASSES_NAME, dump_table(self._source.classes))
        self._merge_provenance()
        every = [*self._old_shards, *shards]
        names = [shard.url.rpartition("/")[2] for shard in shards]
        if overwrite or self._journal.took_over:
            self._destination.keep_only(every)
        self._journal.check()
        job = {"source": self._source.digest, "plan": plan, "shards": names}
        self._destination.publish(MANIFEST_NAME, dump_manifest(every, [*self._old_jobs, job]))
        self._clean()

    def _merge_provenance(self) -> None:
        """Write one provenance file per job, since two sources may have the same paths."""
        if self._options.sources_prefix is None:
            return
        stem, ending = PROVENANCE_NAME.split(".")
        name = f"{stem}-{self._options.first_number:06d}.{ending}" if self._options.first_number else PROVENANCE_NAME
        to = self._destination.template.folder + name
        urls = [sources_url(self._options.sources_prefix, number) for number in range(self._options.num_tasks)]
        merge_sources(urls, to, self._options.storage_options)

    def _clean(self) -> None:
        """Remove the objects that only an unfinished job needs, the journal last."""
        for prefix in ("sources-", "unpacked-", "index"):
            TemporaryObjects(
                f"{self._destination.template.folder}{UNFINISHED}{prefix}", self._destination.options
            ).remove()
        self._journal.end()
