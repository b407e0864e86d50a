"""Claim a destination: one writer at a time, of all threads, processes and machines."""

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

from ..core.process_identity import describe, is_gone, is_this_process, this_process
from ..core.urls import redact
from ..errors import ObjectExistsError, StorageError, TransientStorageError
from .shard_folder import UNFINISHED, ShardFolder

CLAIM_NAME = f"{UNFINISHED}job.json"
BEAT_S, LEASE_S = 10.0, 35.0

_KIND = "torchdata_remote-job-v1"
_AT_EXIT_S = 2.0
_SETTLE_S, _SETTLE_TIMES = 0.5, 4  # wait after a takeover: at least, and as multiple of what looking and writing took

_log = logging.getLogger("torchdata_remote")
_held: dict[str, Claim] = {}  # of this process, by token


class Claim:
    """A small object in the destination's folder that says which process writes there, rewritten every few seconds.

    A claim whose process has ended is taken over at once. Where that cannot be seen, because it runs on another
    machine, it is taken over once it has not changed for ``lease_s`` seconds.

    Args:
        destination: that is written to.
        beat_s: seconds between two writings of the claim at the most.
        lease_s: seconds without a change after which the owner of another machine is taken for dead.
    """

    def __init__(self, destination: ShardFolder, *, beat_s: float = BEAT_S, lease_s: float = LEASE_S) -> None:
        self._destination, self._beat_s, self._lease_s = destination, beat_s, lease_s
        self._owner: dict[str, Any] | None = this_process()
        self._token = self._owner["token"]
        self._pid = os.getpid()
        self._url = destination.template.folder + CLAIM_NAME
        self._lock = threading.RLock()
        # SimpleQueue, because a finalizer may put into it: True ends the heart, and the claim with it
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._heart = threading.Thread(target=self._keep, name="torchdata_remote job", daemon=True)
        self._is_forgotten = False
        self._lost: BaseException | None = None
        self._written_at = self._writing_s = 0.0

    @property
    def is_held(self) -> bool:
        """Whether it was taken, in this process, and not given back since."""
        return self._token in _held and os.getpid() == self._pid

    def take(self) -> dict[str, Any] | None:
        """Claim the destination.

        Returns:
            The document that another owner left, who has ended or has given the destination up; ``None`` if there was
            none.

        Raises:
            ObjectExistsError: if another owner writes there now.
            ManifestError: if what lies there is no claim.
        """
        found = self._destination.read(CLAIM_NAME)
        left = None if found is None else self._take_over(found)
        if left is not None:
            self._adopt(left)
        _held[self._token] = self
        try:
            self._publish_first(found)
            self._written_at = time.monotonic()
            self._heart.start()
        except BaseException:
            del _held[self._token]
            raise
        return left

    def _publish_first(self, found: bytes | None) -> None:
        """Of several that take over one claim, the last to write it holds it (M. Fischer's mutual exclusion)."""
        begun = time.monotonic()
        there = None if found is None else self._destination.read(CLAIM_NAME)
        try:
            if there is not None and there != found:
                raise ObjectExistsError("taken over meanwhile")
            self._destination.publish(CLAIM_NAME, self._dump(), overwrite=there is not None)
        except ObjectExistsError as error:  # another one was faster
            raise self._destination.taken(self._owner_there()) from error
        if there is not None:
            time.sleep(max(_SETTLE_S, _SETTLE_TIMES * (time.monotonic() - begun)))
        self._require_mine()  # not every store honours the condition

    def _take_over(self, found: bytes) -> dict[str, Any]:
        deadline, told = time.monotonic() + self._lease_s, False
        while True:
            document = self._loaded(found)
            owner = document.get("owner")
            if not owner:  # given up
                return document
            gone = self._is_gone(owner)
            if gone is False:
                raise self._destination.taken(owner)
            if gone or time.monotonic() >= deadline:
                return document
            if not told:
                told = True
                _log.warning(
                    "%s: an unfinished job of %s lies here; looking for %.0f s whether it goes on",
                    redact(self._url),
                    describe(owner),
                    self._lease_s,
                )
            time.sleep(min(1.0, self._lease_s))
            now = self._destination.read(CLAIM_NAME)
            if now is not None and now != found:
                raise self._destination.taken(owner)
            if now is None:  # it has ended well meanwhile
                return self._ended_well(document)

    def _is_gone(self, owner: dict[str, Any]) -> bool | None:
        if not is_this_process(owner):
            return is_gone(owner)
        other = _held.get(str(owner.get("token")))
        if other is not None and other._is_forgotten:  # it gives its place back just now
            other._heart.join()
        return str(owner.get("token")) not in _held

    def raise_if_lost(self) -> None:
        """Raise an ``ObjectExistsError`` if a beat has found another owner."""
        if self._lost is not None:
            raise self._lost

    def require_held(self) -> None:
        """Look whether the destination is still this owner's.

        Raises:
            ObjectExistsError: if another one has taken it.
        """
        self.raise_if_lost()
        with self._lock:
            self._require_mine()

    def remove_leftovers(self) -> None:
        """Remove what lost writers left half written; the claim is not written meanwhile."""
        with self._lock:
            self._destination.remove_leftovers()

    def release(self) -> None:
        """Remove the claim if it is still this owner's. A second time, and in a forked child, does nothing."""
        if self.is_held:
            with self._giving_back():
                self._remove()

    def forget(self) -> None:
        """Have the claim removed by its own thread, without waiting; safe in a finalizer."""
        self._is_forgotten = True
        self._orders.put(True)

    def _remove(self) -> None:
        if self._lost is None:
            try:
                self._require_mine()
                self._destination.delete(CLAIM_NAME)
            except ObjectExistsError:
                pass  # another one's by now
            except StorageError as error:
                _log.warning(
                    "%s could not be removed, and keeps others from writing there until this process has ended: %s",
                    redact(self._url),
                    error,
                )

    @contextlib.contextmanager
    def _giving_back(self) -> Iterator[None]:
        """No beat comes any more. Within the block the destination still counts as this owner's."""
        self._orders.put(False)
        self._heart.join()
        try:
            yield
        finally:
            _held.pop(self._token, None)

    def _keep(self) -> None:
        """In a thread of its own: show that this owner lives."""
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    if self._orders.get(timeout=self._beat_s):
                        self._remove()
                        _held.pop(self._token, None)
                    return
                with contextlib.suppress(TransientStorageError):
                    self._write()
        except Exception as error:  # noqa: BLE001  # it belongs to who waits for the job
            self._lost = error
            _held.pop(self._token, None)

    def _write(self) -> None:
        with self._lock:
            begun = time.monotonic()
            self._require_mine()
            self._destination.publish(CLAIM_NAME, self._dump())
            self._written_at = time.monotonic()
            self._writing_s = self._written_at - begun

    def _require_mine(self) -> None:
        owner = self._owner_there()
        if owner is None or self._owner is None or owner.get("token") != self._token:
            raise self._destination.taken(owner)

    def _owner_there(self) -> dict[str, Any] | None:
        found = self._destination.read(CLAIM_NAME, is_expected=True)
        return self._loaded(found).get("owner") if found is not None else None

    def _dump(self) -> bytes:
        document = {"__kind__": _KIND, "owner": self._owner, "written_at_s": time.time(), **self._contents()}
        return json.dumps(document).encode()

    def _loaded(self, data: bytes) -> dict[str, Any]:
        return self._destination.document(data, CLAIM_NAME, _KIND)

    def _contents(self) -> dict[str, Any]:
        """Of the claim, beside its owner: nothing that a job could go on with."""
        return {"is_job": False, "plan": None, "tasks": [], "shardlist": []}

    def _adopt(self, left: dict[str, Any]) -> None:
        """Before the claim is written: take what has to stay of another owner's."""

    def _ended_well(self, document: dict[str, Any]) -> dict[str, Any]:
        """What is left of a claim that its owner has removed."""
        return document


@atexit.register
def _release_all() -> None:
    """Daemon threads are stopped where they are when the interpreter ends."""
    deadline = time.monotonic() + _AT_EXIT_S
    for claim in [claim for claim in list(_held.values()) if claim.is_held]:
        claim.forget()
        claim._heart.join(max(0.0, deadline - time.monotonic()))
