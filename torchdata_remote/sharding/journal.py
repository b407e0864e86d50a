"""The journal of a job that writes shards: what is finished, and whose job it is."""

from __future__ import annotations

import contextlib
import time
from types import TracebackType
from typing import Any, NamedTuple

from ..core.urls import redact
from ..errors import ManifestError, StorageError, TransientStorageError
from ..formats.manifest import ShardInfo, dump_entry, load_entry
from ..writing.claim import BEAT_S, CLAIM_NAME, LEASE_S, Claim
from ..writing.shard_folder import UNFINISHED, ShardFolder

_SHARE = 20  # of the time between two writings, a writing takes at most this part


class PreviousRun(NamedTuple):
    """What an earlier run left: its plan (``None`` if it had none yet), and its finished shards."""

    plan: str | None
    finished: dict[int, list[ShardInfo]]

    def names(self) -> set[str]:
        """Of the finished shards."""
        return {shard.url.rpartition("/")[2] for shards in self.finished.values() for shard in shards}


class Journal(Claim):
    """Holds a destination for one job, as long as the block lasts, and says what the job has finished.

    Args:
        destination: that is written to.
        beat_s: seconds between two writings of the journal at the most.
        lease_s: seconds without a change after which a job of another machine is taken for dead.
    """

    def __init__(self, destination: ShardFolder, *, beat_s: float = BEAT_S, lease_s: float = LEASE_S) -> None:
        super().__init__(destination, beat_s=beat_s, lease_s=lease_s)
        self.took_over = False  # whether an earlier run left something
        self._plan: str | None = None
        self._finished: dict[int, list[ShardInfo]] = {}
        self._begun = self._has_ended = False

    def __enter__(self) -> Journal:
        return self

    def begin(self) -> PreviousRun | None:
        """Take the destination.

        Returns:
            What an earlier run left, if it did.

        Raises:
            ObjectExistsError: if another job writes there now.
        """
        document = self.take()
        self._begun = True
        left = None if document is None else _left(document, self._destination)
        self.took_over = left is not None
        return left

    def _adopt(self, left: dict[str, Any]) -> None:
        adopted = _left(left, self._destination)
        if adopted is not None:  # which stays in the journal until there is a plan
            self._plan, self._finished = adopted.plan, dict(adopted.finished)

    def _ended_well(self, document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "tasks": [], "shardlist": []}

    def plan(self, plan: str) -> None:
        """What will be written, as a digest; what an earlier run finished of another plan is forgotten."""
        with self._lock:
            if self._plan != plan:
                self._plan, self._finished = plan, {}
        self._write()

    def finished(self, task: int, shards: list[ShardInfo]) -> None:
        """A task has ended.

        Raises:
            ObjectExistsError: if another job has taken the destination.
        """
        self.raise_if_lost()
        with self._lock:
            self._finished[task] = shards
        if time.monotonic() - self._written_at > _SHARE * self._writing_s:
            with contextlib.suppress(TransientStorageError):  # it is written again with the next shard
                self._write()

    def check(self) -> None:
        """Whether the destination is still this job's; then all that is finished is written down.

        Raises:
            ObjectExistsError: if another job has taken it.
        """
        self.raise_if_lost()
        self._write()

    def end(self) -> None:
        """All is written: the journal goes, and the destination is free."""
        self._has_ended = True
        with self._giving_back():
            self._destination.delete(CLAIM_NAME)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._begun and not self._has_ended:
            self._has_ended = True
            with self._giving_back():
                if self._lost is None and not isinstance(error, TransientStorageError):  # else it would wait again
                    with contextlib.suppress(StorageError):  # the next job sees that this process has ended
                        self._leave()

    def _leave(self) -> None:
        """Leave what the next run can go on with; it need not wait."""
        self._require_mine()
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
        return {"plan": self._plan, "tasks": sorted(self._finished), "shardlist": entries}


def _left(document: dict[str, Any], destination: ShardFolder) -> PreviousRun | None:
    """What another job left; ``None`` for a claim of a writer, which leaves nothing to go on with."""
    if document.get("is_job") is False:
        return None
    url = destination.template.folder + CLAIM_NAME
    try:
        finished: dict[int, list[ShardInfo]] = {int(task): [] for task in document["tasks"]}
        for entry in document["shardlist"]:
            finished[int(entry["task"])].append(load_entry(entry, url))
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(
            f"{redact(url)} is damaged ({error!r}). Remove it to begin anew.", url=redact(url)
        ) from error
    return PreviousRun(document["plan"], finished)
