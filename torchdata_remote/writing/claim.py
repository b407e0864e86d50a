"""Claim a folder: one writer at a time, over all threads, processes and machines."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

from ..core.processes import describe, is_gone, is_this_process, this_process
from ..core.threads import ForkSafeThread
from ..core.urls import redact
from ..errors import ObjectExistsError, StorageError, TransientStorageError
from .shard_folder import UNFINISHED, ShardFolder

CLAIM_NAME = f"{UNFINISHED}job.json"
BEAT_S, LEASE_S = 10.0, 35.0

_KIND = "torchdata_remote-job-v1"
_AT_EXIT_S = 2.0
_SETTLE_S, _SETTLE_TIMES = 0.5, 4  # wait after a takeover: at least, and as a multiple of its reading and writing

_log = logging.getLogger("torchdata_remote")
_held: dict[str, Claim] = {}  # claims of this process, by token


class Claim:
    """A small object in the folder that names the process that writes there; rewritten as a heartbeat.

    The claim of an ended process is taken over at once. A claim of another machine is taken over after ``lease_s``
    seconds without a change.

    Args:
        destination: the folder.
        beat_s: longest interval between two heartbeats, in seconds.
        lease_s: seconds without a change after which an owner on another machine counts as dead.
    """

    def __init__(self, destination: ShardFolder, *, beat_s: float = BEAT_S, lease_s: float = LEASE_S) -> None:
        self._destination, self._beat_s, self._lease_s = destination, beat_s, lease_s
        self._owner: dict[str, Any] | None = this_process()
        self._token = self._owner["token"]
        self._pid = os.getpid()
        self._url = destination.template.folder + CLAIM_NAME
        self._lock = threading.RLock()
        # SimpleQueue, because a finalizer may put into it: ends the heartbeat, and if True removes the claim
        self._stop: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._heartbeat = ForkSafeThread(target=self._keep_alive, name="torchdata_remote job", daemon=True)
        self._is_forgotten = False
        self._lost: BaseException | None = None
        self._written_at = self._writing_s = 0.0

    @property
    def is_held(self) -> bool:
        """Whether this process took it and has not released it."""
        return self._token in _held and os.getpid() == self._pid

    def take(self) -> dict[str, Any] | None:
        """Claim the destination.

        Returns:
            The document of a previous owner that has ended or released the folder; ``None`` if there was none.

        Raises:
            ObjectExistsError: if another owner writes there now.
            ManifestError: if the existing object is not a claim.
        """
        existing = self._destination.read(CLAIM_NAME)
        previous = None if existing is None else self._take_over(existing)
        if previous is not None:
            self._adopt(previous)
        _held[self._token] = self
        try:
            self._publish_first(existing)
            self._written_at = time.monotonic()
            self._heartbeat.start()
        except BaseException:
            del _held[self._token]
            raise
        return previous

    def _publish_first(self, existing: bytes | None) -> None:
        """Write the claim; if several take over the same one, the last to write holds it (M. Fischer's algorithm)."""
        start = time.monotonic()
        current = None if existing is None else self._destination.read(CLAIM_NAME)
        try:
            if current is not None and current != existing:
                raise ObjectExistsError("taken over meanwhile")
            self._destination.publish(CLAIM_NAME, self._dump(), overwrite=current is not None)
        except ObjectExistsError as error:  # another one was faster
            raise self._destination.taken_error(self._stored_owner()) from error
        if current is not None:
            time.sleep(max(_SETTLE_S, _SETTLE_TIMES * (time.monotonic() - start)))
        self._require_own()  # not every store supports conditional writes

    def _take_over(self, existing: bytes) -> dict[str, Any]:
        deadline, has_warned = time.monotonic() + self._lease_s, False
        while True:
            document = self._load(existing)
            owner = document.get("owner")
            if not owner:  # released
                return document
            gone = self._is_gone(owner)
            if gone is False:
                raise self._destination.taken_error(owner)
            if gone or time.monotonic() >= deadline:
                return document
            if not has_warned:
                has_warned = True
                _log.warning(
                    "%s: there is an unfinished job of %s; watching for %.0f s whether it is still running",
                    redact(self._url),
                    describe(owner),
                    self._lease_s,
                )
            time.sleep(min(1.0, self._lease_s))
            current = self._destination.read(CLAIM_NAME)
            if current is not None and current != existing:
                raise self._destination.taken_error(owner)
            if current is None:  # the job was completed meanwhile
                return self._completed(document)

    def _is_gone(self, owner: dict[str, Any]) -> bool | None:
        if not is_this_process(owner):
            return is_gone(owner)
        other = _held.get(str(owner.get("token")))
        if other is not None and other._is_forgotten:  # it is being released
            other._heartbeat.join()
        return str(owner.get("token")) not in _held

    def raise_if_lost(self) -> None:
        """Raise an ``ObjectExistsError`` if a heartbeat has found another owner."""
        if self._lost is not None:
            raise self._lost

    def require_held(self) -> None:
        """Read the claim and require that it still belongs to this owner.

        Raises:
            ObjectExistsError: if another one has taken it.
        """
        self.raise_if_lost()
        with self._lock:
            self._require_own()

    def remove_leftovers(self) -> None:
        """Remove partial objects of killed writers, with heartbeats paused."""
        with self._lock:
            self._destination.remove_leftovers()

    def release(self) -> None:
        """Remove the claim if it still belongs to this owner. A second call, or one in a forked child, does nothing."""
        if self.is_held:
            with self._releasing():
                self._remove()

    def forget(self) -> None:
        """Let the heartbeat thread remove the claim, without waiting. Safe in a finalizer."""
        self._is_forgotten = True
        self._stop.put(True)

    def _remove(self) -> None:
        if self._lost is None:
            try:
                self._require_own()
                self._destination.delete(CLAIM_NAME)
            except ObjectExistsError:
                pass  # another owner has taken it
            except StorageError as error:
                _log.warning(
                    "%s could not be removed, and blocks other writers until this process has ended: %s",
                    redact(self._url),
                    error,
                )

    @contextlib.contextmanager
    def _releasing(self) -> Iterator[None]:
        """Stop the heartbeat; the claim counts as held until the block ends."""
        self._stop.put(False)
        self._heartbeat.join()
        try:
            yield
        finally:
            _held.pop(self._token, None)

    def _keep_alive(self) -> None:
        """Rewrite the claim every ``beat_s`` seconds, in its own thread."""
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    if self._stop.get(timeout=self._beat_s):
                        self._remove()
                        _held.pop(self._token, None)
                    return
                with contextlib.suppress(TransientStorageError):
                    self._write()
        except Exception as error:  # noqa: BLE001  # raised by raise_if_lost
            self._lost = error
            _held.pop(self._token, None)

    def _write(self) -> None:
        with self._lock:
            start = time.monotonic()
            self._require_own()
            self._destination.publish(CLAIM_NAME, self._dump())
            self._written_at = time.monotonic()
            self._writing_s = self._written_at - start

    def _require_own(self) -> None:
        owner = self._stored_owner()
        if owner is None or self._owner is None or owner.get("token") != self._token:
            raise self._destination.taken_error(owner)

    def _stored_owner(self) -> dict[str, Any] | None:
        data = self._destination.read(CLAIM_NAME, is_expected=True)
        return self._load(data).get("owner") if data is not None else None

    def _dump(self) -> bytes:
        document = {"__kind__": _KIND, "owner": self._owner, "written_at_s": time.time(), **self._contents()}
        return json.dumps(document).encode()

    def _load(self, data: bytes) -> dict[str, Any]:
        return self._destination.document(data, CLAIM_NAME, _KIND)

    def _contents(self) -> dict[str, Any]:
        """Return the fields besides the owner: a writer leaves nothing that a job could resume."""
        return {"is_job": False, "plan": None, "tasks": [], "shardlist": []}

    def _adopt(self, previous: dict[str, Any]) -> None:
        """Take over the fields of a previous owner that have to be preserved, before the claim is written."""

    def _completed(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document of a job that was completed, and its claim removed, during the takeover."""
        return document


@atexit.register
def _release_all() -> None:
    """Remove all claims before the interpreter stops their daemon threads."""
    deadline = time.monotonic() + _AT_EXIT_S
    for claim in [claim for claim in list(_held.values()) if claim.is_held]:
        claim.forget()
        claim._heartbeat.join(max(0.0, deadline - time.monotonic()))
