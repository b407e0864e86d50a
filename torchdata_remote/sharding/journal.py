"""The journal of a job that writes shards: what is finished, and whose job it is."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from types import TracebackType
from typing import Any, NamedTuple

from ..destination import UNFINISHED, Destination
from ..errors import ManifestError, ObjectExistsError, StorageError, TransientStorageError
from ..manifest import ShardInfo, dump_entry, load_entry
from ..urls import redact
from .owner import describe, is_gone, this_process

JOURNAL_NAME = f"{UNFINISHED}job.json"
_KIND = "torchdata_remote-job-v1"
_SHARE = 20  # of the time between two writings, a writing takes at most this part
BEAT_S, LEASE_S = 10.0, 35.0

_log = logging.getLogger("torchdata_remote")


class Left(NamedTuple):
    """What an earlier run left: its plan (``None`` if it had none yet), and its finished shards."""

    plan: str | None
    finished: dict[int, list[ShardInfo]]

    def names(self) -> set[str]:
        """Of the finished shards."""
        return {shard.url.rpartition("/")[2] for shards in self.finished.values() for shard in shards}


class Journal:
    """Holds a destination for one job, as long as the block lasts.

    The journal is written again every few seconds. Whoever finds one whose process has ended takes it over; where
    that cannot be seen, on another machine, it waits and looks whether the journal goes on changing.

    Args:
        destination: that is written to.
        beat_s: seconds between two writings of the journal at the most.
        lease_s: seconds without a change after which a job of another machine is taken for dead.
    """

    def __init__(self, destination: Destination, *, beat_s: float = BEAT_S, lease_s: float = LEASE_S) -> None:
        self._destination, self._beat_s, self._lease_s = destination, beat_s, lease_s
        self._owner: dict[str, Any] | None = this_process()
        self.took_over = False  # whether an earlier run left something
        self._plan: str | None = None
        self._finished: dict[int, list[ShardInfo]] = {}
        self._lock = threading.RLock()
        self._ended = threading.Event()  # noqa: TID251  # set by `with` alone
        self._heart = threading.Thread(target=self._keep, name="torchdata_remote job", daemon=True)
        self._lost: BaseException | None = None
        self._begun = False
        self._url = destination.template.folder + JOURNAL_NAME
        self._written_at = self._writing_s = 0.0

    def __enter__(self) -> Journal:
        return self

    def begin(self) -> Left | None:
        """Take the destination.

        Returns:
            What an earlier run left, if it did.

        Raises:
            ObjectExistsError: if another job writes there now.
        """
        found = self._destination.read(JOURNAL_NAME)
        left = None if found is None else self._take_over(found)
        self.took_over = left is not None
        if left is not None:  # which stays in the journal until there is a plan
            self._plan, self._finished = left.plan, dict(left.finished)
        self._destination.publish(JOURNAL_NAME, self._dump(), overwrite=found is not None)
        self._require_mine()
        self._begun = True
        self._heart.start()
        return left

    def _take_over(self, found: bytes) -> Left:
        deadline, told = time.monotonic() + self._lease_s, False
        while True:
            document = _loaded(found, self._destination)
            owner = document.get("owner")
            if not owner:  # an earlier run has given it up
                return _left(document, self._destination)
            gone = is_gone(owner)
            if gone is False:
                raise self._taken(owner)
            if gone or time.monotonic() >= deadline:
                return _left(document, self._destination)
            if not told:
                told = True
                _log.warning(
                    "%s: an unfinished job of %s lies here; looking for %.0f s whether it goes on",
                    redact(self._url),
                    describe(owner),
                    self._lease_s,
                )
            self._ended.wait(min(1.0, self._lease_s))
            now = self._destination.read(JOURNAL_NAME)
            if now is not None and now != found:
                raise self._taken(owner)
            if now is None:  # it has ended well meanwhile
                return _left(document, self._destination)._replace(finished={})

    def _taken(self, owner: dict[str, Any] | None) -> ObjectExistsError:
        url = redact(self._destination.template.folder)
        who = "has written there" if owner is None else f"writes there now, {describe(owner)}"
        return ObjectExistsError(f"{url}: another job {who}. Wait for its end, or write into another folder.", url=url)

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
        if self._lost is not None:
            raise self._lost
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
        if self._lost is not None:
            raise self._lost
        self._write()

    def remove_leftovers(self) -> None:
        """Remove what lost workers left half written; the journal is not written meanwhile."""
        with self._lock:
            self._destination.remove_leftovers()

    def end(self) -> None:
        """All is written: the journal goes, and the destination is free."""
        self._stop()
        self._destination.delete(JOURNAL_NAME)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._begun and not self._ended.is_set():
            self._stop()
            if self._lost is None and not isinstance(error, TransientStorageError):  # else it would be waited for again
                with contextlib.suppress(StorageError):  # then whoever comes next sees that this process has ended
                    self._require_mine()
                    self._destination.remove_leftovers()
                    self._owner = None  # whoever comes next need not wait
                    if self._plan or self._destination.list(UNFINISHED) != [self._url]:
                        self._destination.publish(JOURNAL_NAME, self._dump())
                    else:
                        self._destination.delete(JOURNAL_NAME)

    def _stop(self) -> None:
        self._ended.set()
        self._heart.join()

    def _keep(self) -> None:
        """In a thread of its own: show that this job lives."""
        while not self._ended.wait(self._beat_s):
            try:
                with contextlib.suppress(TransientStorageError):
                    self._write()
            except Exception as error:  # noqa: BLE001, PERF203  # it belongs to who waits for the job
                self._lost = error
                return

    def _write(self) -> None:
        with self._lock:
            begun = time.monotonic()
            self._require_mine()
            self._destination.publish(JOURNAL_NAME, self._dump())
            self._written_at = time.monotonic()
            self._writing_s = self._written_at - begun

    def _require_mine(self) -> None:
        found = self._destination.read(JOURNAL_NAME)
        owner = _loaded(found, self._destination).get("owner") if found is not None else None
        if owner is None or self._owner is None or owner.get("token") != self._owner["token"]:
            raise self._taken(owner)

    def _dump(self) -> bytes:
        entries = [
            {"task": task, **dump_entry(shard)} for task in sorted(self._finished) for shard in self._finished[task]
        ]
        document = {
            "__kind__": _KIND,
            "owner": self._owner,
            "written_at_s": time.time(),
            "plan": self._plan,
            "tasks": sorted(self._finished),
            "shardlist": entries,
        }
        return json.dumps(document).encode()


def _loaded(data: bytes, destination: Destination) -> dict[str, Any]:
    url = redact(destination.template.folder + JOURNAL_NAME)
    try:
        document = json.loads(data)
        if document["__kind__"] != _KIND:
            raise ValueError(f"__kind__ is {document['__kind__']!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(
            f"{url} is not a journal of this version ({error!r}). Remove it to begin anew.", url=url
        ) from error
    return dict(document)


def _left(document: dict[str, Any], destination: Destination) -> Left:
    url = destination.template.folder + JOURNAL_NAME
    try:
        finished: dict[int, list[ShardInfo]] = {int(task): [] for task in document["tasks"]}
        for entry in document["shardlist"]:
            finished[int(entry["task"])].append(load_entry(entry, url))
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(
            f"{redact(url)} is damaged ({error!r}). Remove it to begin anew.", url=redact(url)
        ) from error
    return Left(document["plan"], finished)
