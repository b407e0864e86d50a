"""Read one byte range of an object over several attempts: only missing bytes are requested again.

Every response is validated, so that two versions of an object are never mixed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import NamedTuple, Protocol

from ..core.checksums import BlockCheck, Checksums
from ..core.concurrency_limit import ConcurrencyLimit
from ..core.object_version import same_etag
from ..core.options import PROGRESS_BYTES, RetryPolicy
from ..core.retry import Attempts
from ..core.stats.counters import FETCH
from ..core.urls import RemoteUrl, redact
from ..errors import (
    ObjectChangedError,
    ObjectNotFoundError,
    RemoteDataError,
    ShardCorruptError,
    StorageError,
    TransientStorageError,
)
from ..storage import Answer, RangeNotSatisfiableError, Store
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


class ObjectReader:
    """Reads ranges of one object, all of one version, with retries; in several threads at once.

    Attributes:
        plain_url: of the object.
        store: of the object.
        path: in the store.
        source: of its responses; the store, if there is no other one.
        listed_size: in bytes; ``None`` if it is not known.
        size: as it was listed, or as the first response reported it; ``None`` before that, and for a store that may
            ignore ranges.
        etag: likewise.
        on_damage: as of ``read_range``.

    Args:
        url: of the object; a ``RemoteUrl`` brings size, etag and checksums.
        store: of the object.
        path: in the store.
        retry: policy for transient faults.
        in_flight: limit shared with concurrent readers.
        checked: whether checksums that a manifest has are verified: ranges are whole blocks then.
    """

    size: int | None = None
    etag: str | None = None

    def __init__(
        self,
        url: str,
        store: Store,
        path: str,
        retry: RetryPolicy,
        in_flight: ConcurrencyLimit,
        *,
        checked: bool = False,
    ) -> None:
        listed = url if isinstance(url, RemoteUrl) else RemoteUrl(url)
        self.plain_url, self.listed_size = str(url), listed.size
        self.store, self.path = store, path
        self.source: RangeSource = store
        self.checksums = listed.checksums if checked else None
        self._retry, self._in_flight = retry, in_flight
        self.on_damage: Callable[[], object] = lambda: None
        if listed.size is not None and not store.may_ignore_ranges:
            self.size = listed.size
        if listed.etag is not None:
            self.etag = listed.etag

    @property
    def version(self) -> RemoteUrl:
        """The URL with size and etag, as far as they are known."""
        return RemoteUrl(self.plain_url, self.listed_size if self.size is None else self.size, self.etag)

    def pieces(
        self,
        start: int,
        end: int | None,
        *,
        sleep: Callable[[float], object] = time.sleep,
        on_found: Callable[[ObjectVersion], None] = ignore_version,
    ) -> Generator[memoryview, None, None]:
        """Read bytes ``start`` to ``end`` (exclusive), as ``read_range``."""

        def found(version: ObjectVersion) -> None:
            self._require_same(version)
            on_found(version)

        return read_range(
            self.source,
            RangeRequest(self.plain_url, self.path, start, end, self.size, self.etag, self.checksums),
            self._retry,
            in_flight=self._in_flight,
            on_found=found,
            sleep=sleep,
            on_damage=self.on_damage,
        )

    def _require_same(self, found: ObjectVersion) -> None:
        """Record size and etag from a response, by calls that no other thread interrupts.

        Raises:
            ObjectChangedError: if another response, or the listing, had others.
        """
        known = vars(self)
        size, etag = known.setdefault("size", found.size), self.etag
        if found.etag is not None:
            etag = known.setdefault("etag", found.etag)
        listed = size if self.listed_size is None else self.listed_size
        if not (found.size == size == listed and same_etag(etag, found.etag)):
            had = _shown(listed, etag)
            raise _changed(self.plain_url, f"has {_shown(found.size, found.etag)}, where it had {had}")


def read_range(
    source: RangeSource,
    request: RangeRequest,
    policy: RetryPolicy,
    *,
    in_flight: ConcurrencyLimit,
    on_found: Callable[[ObjectVersion], None] = ignore_version,
    sleep: Callable[[float], object] = time.sleep,
    on_damage: Callable[[], object] = lambda: None,
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
        on_damage: called when a block fails its checksum: a cache drops it, before it is requested again.

    Yields:
        memoryview: the bytes, in consecutive pieces, as they arrive. Closing the iterator ends the request.

    Raises:
        TransientStorageError: when the limits of the policy are reached.
        ObjectChangedError: if size or etag changed.
        StorageError: for permanent faults; all these with url, range, etag, attempts and seconds.
        ShardCorruptError: if a block does not match its checksum twice.
    """
    attempts, url = Attempts(policy, sleep=sleep), request.url
    at, end, size, etag = request.start, request.end, request.size, request.etag
    is_found, damaged_at = False, -1
    others: list[str] = []  # equal versions that were not asked for, in consecutive responses
    check: BlockCheck | None = None

    def position() -> int:
        return at

    while not (is_found and at == end):
        began_s, began_at = time.perf_counter(), at
        try:
            with in_flight.permit(), attempts.watch(url, position):
                try:
                    answer = _send(source, request.path, at, end, size, etag, url)
                    with closing(answer.chunks):
                        _require_same_version(answer, size, etag, others, url)
                        end = _end_of(answer, at, end, size, url)
                        etag = etag or answer.etag
                        if not is_found:
                            is_found, size = True, answer.total_bytes
                            check = None if request.checksums is None else BlockCheck(request.checksums, size, at)
                            on_found(ObjectVersion(size, etag, end))
                        for piece in _missing(answer, at, end, policy.progress_timeout_s, url):
                            if check is None:
                                at += len(piece)
                                yield piece
                                continue
                            at = yield from _verified(check, piece, at)
                            if check.damaged_at is not None:
                                is_again = damaged_at == check.damaged_at
                                at, damaged_at, check.damaged_at = check.damaged_at, check.damaged_at, None
                                on_damage()
                                raise _damaged(url, at, etag, is_again=is_again)
                finally:
                    FETCH.worked(began_s, max(0, at - began_at), requests=1)
        except StorageError as error:  # a request costs a thousand times more
            try:
                if not isinstance(error, TransientStorageError):
                    raise
                if error.overloaded:
                    in_flight.slow_down()
                if at - began_at >= PROGRESS_BYTES:
                    attempts.start_anew()
                FETCH.add(retries=1)
                attempts.wait(error)
            except StorageError as final:
                raise _with_context(final, source, request, etag, attempts) from error


def _send(
    source: RangeSource, path: str, at: int, end: int | None, size: int | None, etag: str | None, url: str
) -> Answer:
    try:
        return source.read(path, at, end, etag)
    except RangeNotSatisfiableError as error:
        if at == 0 and size is None:
            return source.read(path, 0, None, etag)  # an empty object has no ranges
        raise _changed(url, f"is shorter than the {size or at:,} bytes it had") from error


def _require_same_version(answer: Answer, size: int | None, etag: str | None, others: list[str], url: str) -> None:
    """Accept an object as replaced only after several consecutive responses with the same other version.

    One or two may belong to other requests, through a proxy that mixes up responses. Stores that support If-Match
    return 412 at once.
    """
    if size in (None, answer.total_bytes) and same_etag(etag, answer.etag):
        others.clear()
        return
    received = _shown(answer.total_bytes, answer.etag)
    others[:] = [*(other for other in others if other == received), received]
    if len(others) == CHANGED_ANSWERS:
        raise _changed(url, f"has {received}, where it had {_shown(size, etag)}")
    raise _broken(url, f"asked for a version of {_shown(size, etag)}, got one of {received}")


def _end_of(answer: Answer, at: int, end: int | None, size: int | None, url: str) -> int:
    """Require that the response matches the request; return the byte after the last one."""
    total = answer.total_bytes
    stop = total if end is None else min(end, total)
    if at > total:
        raise _changed(url, f"ends at byte {total:,}, before the requested byte {at:,}")
    if answer.start == 0 and answer.end == total:  # everything: a server may ignore ranges
        return total if size is None else stop
    if (answer.start, answer.end) != (at, stop):
        error = _broken(url, f"asked for bytes {at:,} to {stop:,}, got {answer.start:,} to {answer.end:,}")
        error.likely_permanent = True
        raise error
    return stop


def _missing(answer: Answer, at: int, end: int, timeout_s: float, url: str) -> Iterator[memoryview]:
    """Yield the missing bytes; fail when fewer than ``PROGRESS_BYTES`` are received in ``timeout_s``."""
    skip, began_s, num_bytes = at - answer.start, time.monotonic(), 0
    for chunk in answer.chunks:
        length = len(chunk)
        piece = chunk[skip : skip + end - at] if skip or length > end - at else chunk
        skip = max(0, skip - length)
        at += len(piece)
        if piece:
            yield piece
        if at == end:
            return
        num_bytes += length
        elapsed_s = time.monotonic() - began_s
        if num_bytes >= PROGRESS_BYTES:
            began_s, num_bytes = time.monotonic(), 0
        elif elapsed_s > timeout_s:
            raise _broken(url, f"{num_bytes:,} bytes in {elapsed_s:.1f} s")
    if at < end:
        raise _broken(url, f"the body ended at byte {at:,} of {end:,}")


def _broken(url: str, how: str) -> TransientStorageError:
    return TransientStorageError(f"{redact(url)}: {how}.", url=redact(url))


def _changed(url: str, how: str) -> ObjectChangedError:
    return ObjectChangedError(f"{redact(url)} {how}. It was replaced: list it again.", url=redact(url))


def _shown(size: int | None, etag: str | None) -> str:
    return ("an unknown size" if size is None else f"{size:,} bytes") + ("" if etag is None else f", etag {etag}")


def _verified(check: BlockCheck, piece: memoryview, at: int) -> Generator[memoryview, None, int]:
    """Yield the bytes of blocks that are complete and match; return the byte after the piece, or after damage."""
    while piece and check.damaged_at is None:
        inside = piece[: check.block_end(at) - at]
        piece = piece[len(inside) :]
        at += len(inside)
        yield from check.take(inside)
    return at


def _damaged(url: str, at: int, etag: str | None, *, is_again: bool) -> RemoteDataError:
    what = f"the block at byte {at:,} does not match its checksum"
    if not is_again:
        return _broken(url, what)
    return ShardCorruptError(
        f"{redact(url)}: {what} in the manifest, also when it was fetched again (etag {etag}). The object is damaged: "
        "write the shard again, or restore it.",
        url=redact(url),
    )


def _with_context(
    error: StorageError, source: RangeSource, request: RangeRequest, etag: str | None, attempts: Attempts
) -> StorageError:
    """Copy an error, with range, etag, attempts and seconds added."""
    about = about_missing(source, request.url) if isinstance(error, ObjectNotFoundError) else ""
    kind = StorageError if isinstance(error, RangeNotSatisfiableError) else type(error)
    num_attempts = error.attempts or attempts.count
    end = "the end" if request.end is None else f"{request.end:,}"
    counted = "" if error.attempts else f", attempt {num_attempts}, after {attempts.elapsed_s:.1f} s"
    return kind(
        f"{error}{about} (Bytes {request.start:,} to {end}, etag {etag}{counted}.)",
        url=error.url or redact(request.url),
        start_byte=request.start,
        end_byte=request.end,
        etag=etag,
        attempts=num_attempts,
        elapsed_s=attempts.elapsed_s,
    )
