"""Read one byte range of an object over several attempts: only missing bytes are requested again.

Every response is validated, so that two versions of an object are never mixed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing

from ..core.checksums import BlockCheck, Checksums
from ..core.options import PROGRESS_BYTES, RetryPolicy, StorageOptions
from ..core.retry import Attempts, ConcurrencyLimit
from ..core.stats import FETCH
from ..core.threads import ordered_map
from ..core.urls import RemoteUrl, redact, same_etag
from ..errors import (
    ObjectChangedError,
    ObjectNotFoundError,
    RemoteDataError,
    ShardCorruptError,
    StorageError,
    TransientStorageError,
)
from ..storage import Answer, Connection, RangeNotSatisfiableError, Store, WithoutObstore, open_store
from .listing.whereabouts import about_missing

_POLL_S = 0.5
_MOST_OTHERS = 4  # responses of another version in a row, with which an object counts as replaced


class ObjectReader:
    """Reads ranges of one object, all of one version, with retries; in several threads at once.

    Attributes:
        url: of the object, without what is known of it.
        store: of the object.
        path: in the store.
        send: sends one request, as :meth:`Store.read` does.
        listed_size: in bytes; ``None`` if it is not known.
        size: as it was listed, or as the first response reported it; ``None`` before that, and for a store that may
            ignore ranges: then all bytes that it sends are taken.
        etag: as it was listed, or as the first response reported it.
        checksums: of its blocks, if they are verified: ranges are whole blocks then.
        closed: whether no more bytes are wanted: requests end after the next piece.
        on_damage: called when a block fails its checksum: a cache drops it, before it is requested again.
        sleep: waits for a number of seconds; raises to stop waiting.

    Args:
        url: of the object; a ``RemoteUrl`` brings size and etag.
        store: of the object.
        path: in the store.
        retry: limits of the retries. An attempt fails when it receives fewer than ``PROGRESS_BYTES`` in
            ``progress_timeout_s``.
        in_flight: delays requests when the store asks for fewer.
        sleep: as above.
    """

    size: int | None = None
    etag: str | None = None
    checksums: Checksums | None = None
    closed = False

    def __init__(
        self,
        url: str,
        store: Store,
        path: str,
        retry: RetryPolicy,
        in_flight: ConcurrencyLimit,
        *,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        listed = url if isinstance(url, RemoteUrl) else RemoteUrl(url)
        self.url, self.listed_size = str(url), listed.size
        self.store, self.path = store, path
        self.send: Callable[[str, int, int | None, str | None], Answer] = store.read
        self._retry, self._in_flight, self.sleep = retry, in_flight, sleep
        self.on_damage: Callable[[], object] = lambda: None
        if listed.size is not None and not store.may_ignore_ranges:
            self.size = listed.size
        if listed.etag is not None:
            self.etag = listed.etag

    @property
    def version(self) -> RemoteUrl:
        """The URL with size and etag, as far as they are known."""
        return RemoteUrl(self.url, self.listed_size if self.size is None else self.size, self.etag)

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop`` (exclusive); fewer at the object's end. Raises as :meth:`pieces`."""
        data = b"".join(self.pieces(start, stop))
        if self.closed:  # which ends the pieces early
            raise StorageError(f"{redact(self.url)} was closed while it was read.", url=redact(self.url))
        return data

    def pieces(
        self,
        start: int,
        end: int | None,
        *,
        on_found: Callable[[int, int], object] = lambda size, end: None,
    ) -> Generator[memoryview, None, None]:
        """Read a byte range, and retry transient faults.

        Args:
            start: the first byte.
            end: the byte after the last one; may exceed the object's end. ``None`` for the rest.
            on_found: called once, with the size of the object and the byte after the last one of the range.

        Yields:
            memoryview: the bytes, in consecutive pieces, as they arrive. Closing the iterator ends the request.

        Raises:
            TransientStorageError: when the limits of the policy are reached.
            ObjectChangedError: if size or etag changed.
            StorageError: for permanent faults; all these with url, range, etag, attempts and seconds.
            ShardCorruptError: if a block does not match its checksum twice.
        """
        url = self.url
        attempts = Attempts(self._retry, url, sleep=self._pause)
        attempts.position = at = start
        stop, size, etag = end, self.size, self.etag
        is_found, damaged_at, num_others = False, -1, 0  # responses of another version, in a row
        check: BlockCheck | None = None
        while not (self.closed or (is_found and at == stop)):
            began_s, began_at, is_sent = time.perf_counter(), at, True
            try:
                with self._in_flight.permit(), attempts:
                    try:
                        with self._send(at, stop, size, etag) as answer:
                            num_others, is_sent = num_others + 1, not answer.is_cached
                            etag = self._learn(answer.total_bytes, answer.etag, is_final=num_others == _MOST_OTHERS)
                            num_others = 0
                            stop = _end_of(answer, at, stop, size, url)
                            if not is_found:
                                is_found, size = True, answer.total_bytes
                                check = None if self.checksums is None else BlockCheck(self.checksums, size, at)
                                on_found(size, stop)
                            for piece in self._missing(answer, at, stop):
                                if check is None:
                                    attempts.position = at = at + len(piece)
                                    yield piece
                                else:
                                    attempts.position = at = yield from _verified(check, piece, at)
                                if check is not None and check.damaged_at is not None:
                                    is_again = damaged_at == check.damaged_at
                                    at, damaged_at, check.damaged_at = check.damaged_at, check.damaged_at, None
                                    self.on_damage()
                                    raise _damaged(url, at, etag, is_again=is_again)
                    finally:
                        FETCH.worked(began_s, max(0, at - began_at), requests=int(is_sent))
            except StorageError as error:  # a request costs a thousand times more
                try:
                    self._wait(error, attempts, num_bytes=at - began_at)
                except StorageError as final:
                    raise self._with_context(final, start, end, etag, attempts) from error

    def _send(self, at: int, stop: int | None, size: int | None, etag: str | None) -> Answer:
        try:
            return self.send(self.path, at, stop, etag)
        except RangeNotSatisfiableError as error:
            if at == 0 and size is None:
                return self.send(self.path, 0, None, etag)  # an empty object has no ranges
            raise _changed(self.url, f"is shorter than the {size or at:,} bytes it had") from error

    def _missing(self, answer: Answer, at: int, end: int) -> Iterable[memoryview]:
        """Return the missing bytes in consecutive pieces."""
        pieces = answer.pieces()
        if isinstance(pieces, tuple) and answer.start == at and 0 < len(pieces[0]) == end - at:
            return pieces
        return self._arriving(pieces, answer.start, at, end)

    def _arriving(self, pieces: Iterable[memoryview], start: int, at: int, end: int) -> Iterator[memoryview]:
        """Yield the missing bytes; fail when fewer than ``PROGRESS_BYTES`` are received in ``progress_timeout_s``."""
        skip, began_s, num_bytes = at - start, time.monotonic(), 0
        for chunk in pieces:
            length = len(chunk)
            piece = chunk[skip : skip + end - at] if skip or length > end - at else chunk
            skip = max(0, skip - length)
            at += len(piece)
            if piece:
                yield piece
            if at == end or self.closed:
                return
            num_bytes += length
            elapsed_s = time.monotonic() - began_s
            if num_bytes >= PROGRESS_BYTES:
                began_s, num_bytes = time.monotonic(), 0
            elif elapsed_s > self._retry.progress_timeout_s:
                raise _broken(self.url, f"{num_bytes:,} bytes in {elapsed_s:.1f} s")
        if at < end:
            raise _broken(self.url, f"the body ended at byte {at:,} of {end:,}")

    def _pause(self, seconds: float) -> None:
        while seconds > 0 and not self.closed:
            self.sleep(min(seconds, _POLL_S))
            seconds -= _POLL_S

    def _wait(self, error: StorageError, attempts: Attempts, *, num_bytes: int) -> None:
        """Wait for the next attempt after one that received some bytes, or raise the final error."""
        if not isinstance(error, TransientStorageError):
            raise error
        if error.overloaded:
            self._in_flight.slow_down()
        if num_bytes >= PROGRESS_BYTES:
            attempts.start_anew()
        FETCH.add(retries=1)
        attempts.wait(error)

    def _learn(self, size: int, etag: str | None, *, is_final: bool) -> str | None:
        """Record size and etag from a response, by calls that no other thread interrupts; return the etag.

        One or two responses may belong to other requests, through a proxy that mixes them up. Stores that support
        If-Match return 412 at once.

        Raises:
            ObjectChangedError: if another response, or the listing, had others, and this is the last one of several.
            TransientStorageError: if it is not.
        """
        known = vars(self)
        first_size, first_etag = known.setdefault("size", size), self.etag
        if etag is not None:
            first_etag = known.setdefault("etag", etag)
        listed = first_size if self.listed_size is None else self.listed_size
        if not (size == first_size == listed and same_etag(first_etag, etag)):
            kind = _changed if is_final else _broken
            raise kind(self.url, f"has {_shown(size, etag)}, where it had {_shown(listed, first_etag)}")
        return first_etag

    def _with_context(
        self, error: StorageError, start: int, end: int | None, etag: str | None, attempts: Attempts
    ) -> StorageError:
        """Copy an error, with range, etag, attempts and seconds added."""
        about = about_missing(self.store, self.url) if isinstance(error, ObjectNotFoundError) else ""
        kind = StorageError if isinstance(error, RangeNotSatisfiableError) else type(error)
        num_attempts = error.attempts or attempts.count
        shown_end = "the end" if end is None else f"{end:,}"
        counted = "" if error.attempts else f", attempt {num_attempts}, after {attempts.elapsed_s:.1f} s"
        return kind(
            f"{error}{about} (Bytes {start:,} to {shown_end}, etag {etag}{counted}.)",
            url=error.url or redact(self.url),
            start_byte=start,
            end_byte=end,
            etag=etag,
            attempts=num_attempts,
            elapsed_s=attempts.elapsed_s,
        )


class OneObject(ObjectReader):
    """Reads ranges of an object that no lane has opened, in the calling thread.

    Args:
        url: of the object; a ``RemoteUrl`` brings size and etag.
        options: for the store.
        retry: policy for transient faults.
        in_flight: limit shared with concurrent readers.
        connection: how to connect to the store.
        sleep: waits for a number of seconds; raises to stop waiting.
        by_obstore: whether obstore may be used, after which a process cannot be forked.
    """

    def __init__(
        self,
        url: str,
        options: StorageOptions,
        retry: RetryPolicy | None = None,
        *,
        in_flight: ConcurrencyLimit | None = None,
        connection: Connection | None = None,
        sleep: Callable[[float], object] = time.sleep,
        by_obstore: bool = True,
    ) -> None:
        retry, in_flight = retry or RetryPolicy(), in_flight or ConcurrencyLimit(1, check=lambda: None)
        store, path = open_store(url, options, connection or Connection(read_timeout_s=retry.progress_timeout_s))
        super().__init__(url, store, path, retry, in_flight, sleep=sleep)
        if not by_obstore:
            self.send = WithoutObstore(store).read

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop`` (exclusive), as of the base class; Ctrl-C ends the wait for them."""
        read = super().read
        if threading.current_thread() is not threading.main_thread():
            return read(start, stop)
        with closing(ordered_map([lambda _: read(start, stop)], max_threads=1)) as results:
            return next(results)


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
