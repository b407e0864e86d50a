"""Read one byte range of an object over several attempts: only missing bytes are requested again.

Every response is validated, so that two versions of an object are never mixed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple, Protocol

from ..core.checksums import BlockCheck, Checksums
from ..core.concurrency_limit import ConcurrencyLimit
from ..core.object_version import same_etag
from ..core.options import PROGRESS_BYTES, RetryPolicy
from ..core.retry import Attempts
from ..core.stats.counters import FETCH
from ..core.urls import redact
from ..errors import ObjectChangedError, ObjectNotFoundError, ShardCorruptError, StorageError, TransientStorageError
from ..storage import Answer, RangeNotSatisfiableError
from .listing.whereabouts import about_missing

CHANGED_ANSWERS = 4  # responses with the same other version until the object counts as changed


class RangeSource(Protocol):
    """A store, or one object of it."""

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Send one request, as :class:`Store` does."""


class RangeRequest(NamedTuple):
    """A byte range of an object.

    Args:
        url: for errors.
        path: in the source.
        start: first byte.
        end: byte after the last one; may exceed the object's end. ``None`` for the rest.
        size: of the object, if known.
        etag: of the version to read, if known.
        checksums: to verify the bytes before they are used; then ``start`` and ``end`` are block borders, or the end of
            the object.
    """

    url: str
    path: str
    start: int
    end: int | None
    size: int | None
    etag: str | None
    checksums: Checksums | None = None


class ObjectVersion(NamedTuple):
    """Headers of the first response: the object's size and etag, and the byte after the last one of the range."""

    size: int
    etag: str | None
    end: int


def ignore_version(version: ObjectVersion) -> None:
    """For those who need no headers."""


def read_range(
    source: RangeSource,
    request: RangeRequest,
    policy: RetryPolicy,
    *,
    in_flight: ConcurrencyLimit,
    on_found: Callable[[ObjectVersion], None] = ignore_version,
    sleep: Callable[[float], object] = time.sleep,
    on_damage: Callable[[], bool] = lambda: False,
) -> Generator[memoryview, None, None]:
    """Read a byte range, and retry transient faults.

    Args:
        source: sends one request per call, without retries.
        request: the range.
        policy: limits of the retries. An attempt fails when it receives fewer than ``PROGRESS_BYTES`` in
            ``progress_timeout_s``.
        in_flight: delays requests when the store asks for fewer.
        on_found: called once, with the headers of the first response.
        sleep: waits for a number of seconds; raises to stop waiting.
        on_damage: called when a block fails its checksum for the first time; returns whether the bytes came from a
            cache, which has dropped them. Then they are requested again at once, without an error.

    Yields:
        memoryview: the bytes, in consecutive pieces, as they arrive. Closing the iterator ends the request.

    Raises:
        TransientStorageError: when the limits of the policy are reached.
        ObjectChangedError: if size or etag changed.
        StorageError: for permanent faults; all these with url, range, etag, attempts and seconds.
        ShardCorruptError: if a block does not match its checksum twice.
    """
    attempts = Attempts(policy, sleep=sleep)
    download = _Range(source, request, policy.progress_timeout_s, on_found, on_damage)
    while not (download.is_found and download.at == download.end):
        began_s, began_at = time.perf_counter(), download.at
        try:
            with in_flight.permit(), attempts.watch(request.url, download.position):
                try:
                    yield from download.attempt()
                finally:
                    FETCH.worked(began_s, max(0, download.at - began_at), requests=1)
        except TransientStorageError as error:  # a request costs a thousand times more
            if error.overloaded:
                in_flight.slow_down()
            if download.at - began_at >= PROGRESS_BYTES:
                attempts.start_anew()
            FETCH.add(retries=1)
            try:
                attempts.wait(error)
            except StorageError as final:
                raise _with_context(final, download, attempts) from error
        except StorageError as error:
            if isinstance(error, ObjectNotFoundError):
                error.args = (f"{error}{about_missing(source, request.url)}",)
            raise _with_context(error, download, attempts) from error


def at_most(pieces: Iterable[memoryview], num_bytes: int) -> Iterator[memoryview]:
    """Yield so many bytes: a server that ignores ranges sends the rest of the object."""
    for piece in pieces:
        yield piece[:num_bytes]
        num_bytes -= len(piece)
        if num_bytes <= 0:
            return


class _Range:
    """One range: each attempt requests the bytes that are still missing."""

    def __init__(
        self,
        source: RangeSource,
        request: RangeRequest,
        progress_timeout_s: float,
        on_found: Callable[[ObjectVersion], None],
        on_damage: Callable[[], bool],
    ) -> None:
        self._source, self.request, self._on_found, self._on_damage = source, request, on_found, on_damage
        self._progress_timeout_s, self.at = progress_timeout_s, request.start  # the next missing byte
        self._size, self.etag, self.end = request.size, request.etag, request.end  # of the version that is read
        self.is_found = False  # whether there was a response
        self._other_versions: tuple[str, ...] = ()  # equal ones, in consecutive responses
        self._damaged_blocks: frozenset[int] = frozenset()
        self._check: BlockCheck | None = None
        self._dropped = False  # whether a cache has dropped its bytes

    def position(self) -> int:
        """Return the next missing byte."""
        return self.at

    def attempt(self) -> Iterator[memoryview]:
        """Request the missing bytes once, and yield them as they are received."""
        answer = self._send()
        chunks = answer.chunks
        try:
            self._require_same_version(answer)
            end = self._require_same_range(answer)
            self.etag = self.etag or answer.etag
            if not self.is_found:
                self.is_found, self._size, self.end = True, answer.total_bytes, end
                if self.request.checksums is not None:
                    self._check = BlockCheck(self.request.checksums, answer.total_bytes, self.request.start)
                self._on_found(ObjectVersion(answer.total_bytes, self.etag, end))
            yield from self._receive(answer, end)
        finally:
            chunks.close()

    def _send(self) -> Answer:
        path, at = self.request.path, self.at
        try:
            return self._source.read(path, at, self.end, self.etag)
        except RangeNotSatisfiableError as error:
            if at == 0 and self._size is None:
                return self._source.read(path, 0, None, self.etag)  # an empty object has no ranges
            raise self._changed(f"is shorter than the {self._size or at:,} bytes it had") from error

    def _require_same_version(self, answer: Answer) -> None:
        """Accept an object as replaced only after several consecutive responses with the same other version.

        One or two may belong to other requests, through a proxy that mixes up responses. Stores that support If-Match
        return 412 at once.
        """
        size, etag = self._size, self.etag
        if size in (None, answer.total_bytes) and same_etag(etag, answer.etag):
            self._other_versions = ()
            return
        received = _shown(answer.total_bytes, answer.etag)
        self._other_versions = (*(other for other in self._other_versions if other == received), received)
        if len(self._other_versions) == CHANGED_ANSWERS:
            raise self._changed(f"has {received}, where it had {_shown(size, etag)}")
        raise self._broken(f"asked for a version of {_shown(size, etag)}, got one of {received}")

    def _changed(self, how: str) -> ObjectChangedError:
        url = redact(self.request.url)
        return ObjectChangedError(f"{url} {how}. It was replaced: list it again.", url=url)

    def _require_same_range(self, answer: Answer) -> int:
        """Require that the response matches the request; return the byte after the last one."""
        total, end = answer.total_bytes, self.end
        end = total if end is None else min(end, total)
        if self.at > total:
            raise self._changed(f"ends at byte {total:,}, before the requested byte {self.at:,}")
        if answer.start == 0 and answer.end == total:  # everything: a server may ignore ranges
            return total if self._size is None else end
        if (answer.start, answer.end) != (self.at, end):
            error = self._broken(f"asked for bytes {self.at:,} to {end:,}, got {answer.start:,} to {answer.end:,}")
            error.likely_permanent = True
            raise error
        return end

    def _receive(self, answer: Answer, end: int) -> Iterator[memoryview]:
        """Yield the missing bytes; fail when fewer than ``PROGRESS_BYTES`` are received in ``progress_timeout_s``."""
        skip, dropped = self.at - answer.start, self._dropped
        began, num_bytes = time.monotonic(), 0
        for chunk in answer.chunks:
            length = len(chunk)
            if skip or length > end - self.at:
                piece = chunk[skip : skip + end - self.at]
                skip = max(0, skip - length)
            else:
                piece = chunk
            if not piece:
                pass
            elif self._check is None:
                self.at += len(piece)
                yield piece
            else:
                yield from self._verified(piece, self._check)
            if self.at == end or self._dropped != dropped:
                return
            num_bytes += length
            elapsed_s = time.monotonic() - began
            if num_bytes >= PROGRESS_BYTES:
                began, num_bytes = time.monotonic(), 0
            elif elapsed_s > self._progress_timeout_s:
                raise self._broken(f"{num_bytes:,} bytes in {elapsed_s:.1f} s")
        if self.at < end:
            raise self._broken(f"the body ended at byte {self.at:,} of {end:,}")

    def _verified(self, piece: memoryview, check: BlockCheck) -> Iterator[memoryview]:
        """Advance by a piece, and yield the bytes that are verified."""
        while piece:
            inside = piece[: check.block_end(self.at) - self.at]
            piece = piece[len(inside) :]
            self.at += len(inside)
            yield from check.take(inside)
            if check.damaged_at is not None:
                self.at, check.damaged_at = check.damaged_at, None
                if not self._dropped and self._on_damage():
                    self._dropped = True
                    return
                self._raise_damage()

    def _raise_damage(self) -> None:
        if self.at not in self._damaged_blocks:
            self._damaged_blocks |= {self.at}
            raise self._broken(f"the block at byte {self.at:,} does not match its checksum")
        url = redact(self.request.url)
        raise ShardCorruptError(
            f"{url}: the block at byte {self.at:,} does not match its checksum in the manifest, also when it was "
            f"fetched again (etag {self.etag}). The object is damaged: write the shard again, or restore it.",
            url=url,
        )

    def _broken(self, how: str) -> TransientStorageError:
        url = redact(self.request.url)
        return TransientStorageError(f"{url}: {how}.", url=url)


def _shown(size: int | None, etag: str | None) -> str:
    return ("an unknown size" if size is None else f"{size:,} bytes") + ("" if etag is None else f", etag {etag}")


def _with_context(error: StorageError, download: _Range, attempts: Attempts) -> StorageError:
    """Copy an error, with range, etag, attempts and seconds added."""
    request, etag = download.request, download.etag
    kind = StorageError if isinstance(error, RangeNotSatisfiableError) else type(error)
    num_attempts = error.attempts or attempts.count
    end = "the end" if request.end is None else f"{request.end:,}"
    counted = "" if error.attempts else f", attempt {num_attempts}, after {attempts.elapsed_s:.1f} s"
    return kind(
        f"{error} (Bytes {request.start:,} to {end}, etag {etag}{counted}.)",
        url=error.url or redact(request.url),
        start_byte=request.start,
        end_byte=request.end,
        etag=etag,
        attempts=num_attempts,
        elapsed_s=attempts.elapsed_s,
    )
