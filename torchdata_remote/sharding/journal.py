"""The journal of a job that writes shards: its owner, its plan, and the finished shards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple

from ..core.urls import redact
from ..errors import ManifestError, StorageError, TransientStorageError
from ..formats.manifest import ShardInfo, dump_entry, load_entry
from ..writing import BEAT_S, CLAIM_NAME, LEASE_S, UNFINISHED, Claim, ShardFolder

_MIN_INTERVAL = 20  # shortest time between two writes, as a multiple of the duration of a write


class PreviousRun(NamedTuple):
    """State of an earlier run: its plan (``None`` if it had none yet), and its finished shards by task.

    ``etags`` are those of the objects that it has finished, by base name, if the store reports them.
    """

    plan: str | None
    finished: dict[int, list[ShardInfo]]
    etags: Mapping[str, str] = MappingProxyType({})

    def names(self) -> set[str]:
        """Return the base names of the finished shards."""
        return {shard.url.rpartition("/")[2] for shards in self.finished.values() for shard in shards}


class Journal(Claim):
    """Claims a folder for one job while the block runs, and records what the job has finished.

    Args:
        destination: the folder.
        beat_s: longest interval between two writes of the journal, in seconds.
        lease_s: seconds without a change after which a job on another machine counts as dead.
    """

    def __init__(self, destination: ShardFolder, *, beat_s: float = BEAT_S, lease_s: float = LEASE_S) -> None:
        super().__init__(destination, beat_s=beat_s, lease_s=lease_s)
        self.took_over = False  # whether there was an unfinished run
        self._plan: str | None = None
        self._finished: dict[int, list[ShardInfo]] = {}
        self._etags: dict[str, str] = {}
        self._is_open = False

    def __enter__(self) -> Journal:
        return self

    def open(self) -> PreviousRun | None:
        """Claim the folder.

        Returns:
            The state of an unfinished run, if there was one.

        Raises:
            ObjectExistsError: if another job writes there now.
        """
        document = self.take()
        self._is_open = True
        previous = None if document is None else _previous_run(document, self._destination)
        self.took_over = previous is not None
        return previous

    def _adopt(self, previous: dict[str, Any]) -> None:
        run = _previous_run(previous, self._destination)
        if run is not None:  # stays in the journal until there is a plan
            self._plan, self._finished, self._etags = run.plan, dict(run.finished), dict(run.etags)

    def _completed(self, document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "tasks": [], "shardlist": [], "etags": {}}

    def set_plan(self, plan: str) -> None:
        """Record the digest of the plan; finished shards of another plan are dropped from the journal."""
        with self._lock:
            if self._plan != plan:
                self._plan, self._finished, self._etags = plan, {}, {}
        self._write()

    def add_finished(self, task: int, shards: list[ShardInfo], etags: Mapping[str, str] = MappingProxyType({})) -> None:
        """Record the shards of a finished task.

        Args:
            task: its number.
            shards: that it has written.
            etags: of its objects, by base name, if the store reports them.

        Raises:
            ObjectExistsError: if another job has taken the destination.
        """
        self.raise_if_lost()
        with self._lock:
            self._finished[task] = shards
            self._etags |= etags
        if time.monotonic() - self._written_at > _MIN_INTERVAL * self._writing_s:
            with contextlib.suppress(TransientStorageError):  # it is written again with the next shard
                self._write()

    def check(self) -> None:
        """Require that the folder still belongs to this job, and write the journal.

        Raises:
            ObjectExistsError: if another job has taken it.
        """
        self.raise_if_lost()
        self._write()

    def end(self) -> None:
        """Remove the journal of a completed job, which releases the folder."""
        self._is_open = False
        with self._releasing():
            self._destination.delete(CLAIM_NAME)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_open:
            self._is_open = False
            with self._releasing():
                if self._lost is None and not isinstance(error, TransientStorageError):  # else it would wait again
                    with contextlib.suppress(StorageError):  # the next job sees that this process has ended
                        self._leave()

    def _leave(self) -> None:
        """Store what the next run can resume, without an owner, so that it need not wait."""
        self._require_own()
        self._destination.remove_leftovers()
        self._owner = None
        if self._plan or self._destination.list(UNFINISHED) != [self._url]:
            self._destination.publish(CLAIM_NAME, self._dump())
        else:
            self._destination.delete(CLAIM_NAME)

    def _contents(self) -> dict[str, Any]:
        entries = [
            {"task": task, **dump_entry(shard)} for task in sorted(self._finished) for shard in self._finished[task]
        ]
        tasks = sorted(self._finished)
        return {"plan": self._plan, "tasks": tasks, "shardlist": entries, "etags": dict(self._etags)}


def _previous_run(document: dict[str, Any], destination: ShardFolder) -> PreviousRun | None:
    """Parse the journal of another job; ``None`` for the claim of a writer, which cannot be resumed."""
    if document.get("is_job") is False:
        return None
    url = destination.template.folder + CLAIM_NAME
    try:
        finished: dict[int, list[ShardInfo]] = {int(task): [] for task in document["tasks"]}
        for entry in document["shardlist"]:
            finished[int(entry["task"])].append(load_entry(entry, url))
        etags = {str(name): str(etag) for name, etag in document.get("etags", {}).items()}  # missing in older journals
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(
            f"{redact(url)} is damaged ({error!r}). Remove it to start again.", url=redact(url)
        ) from error
    return PreviousRun(document["plan"], finished, etags)
