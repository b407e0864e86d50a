"""Run one job that writes shards: look at the destination, plan, run the tasks, publish the manifest."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np

from ..core.arguments import is_pil_image
from ..core.options import FetchOptions
from ..core.partition import permutation_array
from ..core.progress import Progress
from ..core.urls import redact
from ..errors import ManifestError, ShardWriteError, StorageError, TransientStorageError
from ..fetch.sample_table import Int64s
from ..fetch.session import FetchSession
from ..fetch.streams import parts_of, stream_objects
from ..formats.key_index import without_companion_ending
from ..formats.labels import dump_table, load_table
from ..formats.manifest import (
    CLASSES_NAME,
    MANIFEST_NAME,
    PROVENANCE_NAME,
    UNFINISHED,
    ShardInfo,
    dump_manifest,
    load_entry,
)
from ..formats.tar import END_OF_ARCHIVE
from ..storage import open_store
from ..writing import pack_sample
from .source import DatasetSource, FilesSource
from .task import ShardOptions, ShardTask, Written, transformed, write_here, write_shard
from .workers import Workers, run_tasks

_MEASURED = 64  # samples that are packed to estimate the size of one, if sizes are not known


class Job:
    """Writes the samples of a source into shards.

    Args:
        source: of the samples.
        options: of all shards; their numbers and their folder's claim are filled in here.
        seed: of the samples' order.
    """

    def __init__(self, source: FilesSource | DatasetSource, options: ShardOptions, seed: int | None) -> None:
        self._source, self._options, self._seed, self._folder = source, options, seed, options.folder
        self._old_shards: list[ShardInfo] = []  # existing ones that are kept
        self._old_jobs: list[Any] = []
        self._sizes: Int64s | None = None  # of the samples in shards, if they are known before they are written

    def run(self, workers: Workers, *, append: bool, overwrite: bool, resume: bool, progress: bool) -> list[ShardInfo]:
        """Run the job; returns its shards, including those that an earlier run wrote."""
        folder = self._folder
        previous = folder.unfinished()
        if previous is not None and previous.get("plan") is None:  # of a writer, which cannot be resumed
            previous = None
        done_before = self._check_destination(previous, append=append, overwrite=overwrite, resume=resume)
        plan = self._planned(append=append, resume=resume, progress=progress)
        is_same = previous is not None and previous["plan"] == plan
        for job in done_before:
            if job["plan"] == plan:
                if is_same:  # it was stopped after its manifest
                    folder.claim(replace=True, plan=plan)
                if is_same or previous is None:
                    folder.end()
                return [shard for shard in (folder.manifest() or ([], []))[0] if _name(shard) in job["shards"]]
        if done_before and not append:
            raise folder.exists_error(MANIFEST_NAME)
        if previous is not None and not (is_same or overwrite) and resume:
            url = redact(folder.template.folder)
            raise ShardWriteError(
                f"{url} holds the shards of an unfinished job with another source, seed, labels or limits. Start that "
                "one again to finish it, or pass overwrite=True to replace its shards, or resume=False."
            )
        with self._claimed(plan, replace=overwrite or previous is not None):
            if overwrite:
                folder.remove_description()
            elif previous is None:  # while the source was indexed, another writer may have come and gone
                found = self._check_destination(None, append=append, overwrite=False, resume=resume)
                if found and not append:
                    raise folder.exists_error(MANIFEST_NAME)
            shards = self._write(workers, self._finished() if is_same and resume else {}, progress)
            self._publish(shards, plan, keep_only=overwrite or previous is not None)
        folder.end()
        return shards

    @contextlib.contextmanager
    def _claimed(self, plan: str, *, replace: bool) -> Iterator[None]:
        """After an exception, leave what the next run can resume; if nothing is finished, any other job may begin."""
        self._options = dataclasses.replace(self._options, records=f"{UNFINISHED}{plan[:16]}-")
        if self._folder.claim(replace=replace, plan=plan, first_number=self._options.first_number):
            self._folder.remove_leftovers()
        try:
            yield
        except TransientStorageError:  # else it would wait again
            raise
        except BaseException as error:
            try:
                self._folder.require_claim()
                self._folder.remove_leftovers()
                if not self._folder.listed(self._options.records):
                    self._folder.release()
            except StorageError:
                if isinstance(error, StorageError):
                    raise  # the claim may have been lost, which is the better error
            raise

    def _check_destination(
        self, previous: dict[str, Any] | None, *, append: bool, overwrite: bool, resume: bool
    ) -> list[dict[str, Any]]:
        """Check the existing shards against the options; returns the finished jobs of which one may be this one."""
        folder = self._folder
        manifest = folder.manifest()
        if overwrite:
            return []
        if manifest is None:
            if previous is None:
                folder.require_empty(has_manifest=False)
            return []
        shards, jobs = manifest
        same = [job for job in jobs if isinstance(job, dict) and job.get("source") == self._source.digest]
        if not self._source.is_known or self._options.transform is not None:
            # Only recognised if it was stopped after its manifest
            same = [job for job in same if previous is not None and self._first_number(job) >= previous["first_number"]]
        if append:
            self._old_shards, self._old_jobs = shards, jobs
            listed = set(map(_name, shards))
            unlisted = [name for name in folder.shards() if without_companion_ending(name) not in listed]
            if unlisted and previous is None:
                raise folder.exists_error(unlisted[0])
            numbers = [folder.template.index(shard.url) or 0 for shard in shards]
            self._options = dataclasses.replace(self._options, first_number=max(numbers, default=-1) + 1)
        elif not (same and resume):
            raise folder.exists_error(MANIFEST_NAME)
        return same if resume else []

    def _first_number(self, job: dict[str, Any]) -> int:
        template = self._folder.template
        return min((template.index(template.folder + name) or 0 for name in job["shards"]), default=-1)

    def _planned(self, *, append: bool, resume: bool, progress: bool) -> str:
        """Prepare the source; returns a digest of everything that decides what is written."""
        folder, options, transform = self._folder, self._options, self._options.transform
        known = folder.read(CLASSES_NAME) if append else None
        table = None if known is None else load_table(known, folder.template.folder + CLASSES_NAME)
        self._source.prepare(folder, known=table, resume=resume, progress=progress)
        if not len(self._source):
            raise ShardWriteError("The source has no samples.")
        if transform is None:
            self._sizes = self._source.sample_bytes(options.limits.max_member_bytes)
        decisive = (
            self._source.plan_digest(),
            self._seed,
            options.limits.max_shard_bytes,
            options.limits.max_shard_samples,
            self._folder.template.url(0).rpartition("/")[2],
            None if transform is None else getattr(transform, "__qualname__", type(transform).__qualname__),
            options.provenance,
        )
        return hashlib.sha256(repr(decisive).encode()).hexdigest()

    def _write(self, workers: Workers, finished: dict[int, list[ShardInfo]], progress: bool) -> list[ShardInfo]:
        num_samples = len(self._source)
        order = np.arange(num_samples)
        if self._seed is not None:
            order = permutation_array(num_samples, "shard_dataset", self._seed)
        cuts = list(self._cuts(order))
        options = self._options = dataclasses.replace(self._options, num_tasks=len(cuts))
        tasks = (
            ShardTask(number, self._source.select(order[cut]), options)
            for number, cut in enumerate(cuts)
            if number not in finished
        )
        shards: list[ShardInfo] = []
        with Progress("shard", num_samples, "samples", shown=progress) as shown:

            def add(written: Written) -> None:
                number, new = written
                shards.extend(new)
                cut = cuts[number]
                shown.add_shards(len(new), cut.stop - cut.start, sum(shard.num_bytes for shard in new))

            for number in sorted(finished):
                add((number, finished[number]))
            has_workers = workers.executor is not None or workers.num_workers
            with closing(run_tasks(tasks, write_shard, workers) if has_workers else write_here(tasks)) as run:
                for written in run:
                    add(written)
        if not shards:
            raise ShardWriteError("transform left out all samples.")
        return sorted(shards, key=lambda shard: self._folder.template.index(shard.url) or 0)

    def _cuts(self, order: Int64s) -> Iterator[slice]:
        """Split samples into runs that fill one shard each."""
        sizes, limits, at = self._sizes, self._options.limits, 0
        max_bytes = limits.max_shard_bytes - len(END_OF_ARCHIVE)
        if sizes is None:
            # Runs of equal length; a tenth of a shard is reserved for samples that are larger than the mean
            fitting = int(max_bytes / (1.1 * max(self._mean_bytes(order), 1.0)))
            num_shards = -(-len(order) // max(1, min(fitting, limits.max_shard_samples)))
            for index in range(num_shards):
                yield slice(index * len(order) // num_shards, (index + 1) * len(order) // num_shards)
            return
        ends = np.append(0, np.cumsum(sizes[order]))
        while at < len(order):
            last = int(np.searchsorted(ends, ends[at] + max_bytes, side="right")) - 1
            last = max(at + 1, min(last, at + limits.max_shard_samples))
            yield slice(at, last)
            at = last

    def _mean_bytes(self, order: Int64s) -> float:
        """Estimate the bytes of a sample in a shard."""
        options = self._options
        measured = order[np.unique(np.linspace(0, len(order) - 1, _MEASURED).astype(np.int64))]
        num_bytes, pictures = 0, set()
        here = self._source.select(measured, here=True)
        for _, sample in transformed(here, options):
            num_bytes += pack_sample(sample, options.limits.max_member_bytes).num_bytes
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
        return num_bytes / len(measured)

    # What is finished: the records of the plan whose objects are in the folder as they were written

    def _records(self, names: list[str]) -> Iterator[tuple[str, bytes]]:
        """Yield names and contents of records."""
        folder = self._folder.template.folder
        session = FetchSession(FetchOptions(), self._folder.options)
        for url, stream in stream_objects([folder + name for name in names], session):
            with closing(stream):
                yield url.rpartition("/")[2], b"".join(parts_of(url, stream))

    def _finished(self) -> dict[int, list[ShardInfo]]:
        """Return the shards of the tasks that an earlier run has finished."""
        folder, prefix, finished = self._folder, self._options.records, {}
        listed = folder.listed()
        for name, data in self._records([name for name in listed if name.startswith(prefix)]):
            url = folder.template.folder + name
            with contextlib.suppress(ValueError, KeyError, TypeError, ManifestError):  # then it is written again
                record = json.loads(data.partition(b"\n")[0])
                if all(
                    version is not None and name in listed and folder.version(name, listed[name].etag) == version
                    for name, version in record["versions"].items()
                ):
                    finished[int(name.removeprefix(prefix))] = [load_entry(one, url) for one in record["shardlist"]]
        return finished

    def _publish(self, shards: list[ShardInfo], plan: str, *, keep_only: bool) -> None:
        """Write what describes the shards, the manifest last."""
        folder = self._folder
        folder.require_claim()
        folder.remove_leftovers()
        if self._source.classes is not None:
            folder.publish(CLASSES_NAME, dump_table(self._source.classes))
        if self._options.provenance:
            self._merge_provenance()
        every = [*self._old_shards, *shards]
        names = list(map(_name, shards))
        if keep_only:
            folder.keep_only(every)
        folder.require_claim()
        job = {"source": self._source.digest, "plan": plan, "shards": names}
        folder.publish(MANIFEST_NAME, dump_manifest(every, [*self._old_jobs, job]))

    def _merge_provenance(self) -> None:
        """Write one provenance file per job, since two sources may have the same paths."""
        options, (stem, ending) = self._options, PROVENANCE_NAME.split(".")
        name = f"{stem}-{options.first_number:06d}.{ending}" if options.first_number else PROVENANCE_NAME
        store, path = open_store(self._folder.template.folder + name, self._folder.options)
        pending = store.create(path, overwrite=True)
        try:
            separator = b"{\n"
            for _, data in self._records([options.record(number) for number in range(options.num_tasks)]):
                body = data.partition(b"\n")[2][1:-1]  # one record is in memory at a time
                if body:
                    pending.write(separator + body)
                    separator = b",\n"
            pending.write(b"\n}\n")
            pending.commit()
        except BaseException:
            pending.abort()
            raise


def _name(shard: ShardInfo) -> str:
    return shard.url.rpartition("/")[2]
