"""Read one byte range with retries: only missing bytes are requested again."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator

from ..core.concurrency_limit import ConcurrencyLimit
from ..core.options import RetryPolicy
from ..core.retry import Attempts
from ..core.stats.counters import FETCH
from ..core.urls import redact
from ..errors import ObjectChangedError, ObjectNotFoundError, StorageError, TransientStorageError
from ..storage import RangeNotSatisfiableError
from .listing.whereabouts import about_missing, is_as_listed
from .range_download import ObjectVersion, RangeDownload, RangeRequest, RangeSource


def read_range(
    source: RangeSource,
    request: RangeRequest,
    policy: RetryPolicy,
    *,
    in_flight: ConcurrencyLimit,
    on_found: Callable[[ObjectVersion], None],
    sleep: Callable[[float], object],
    clock: Callable[[], float] = time.monotonic,
    on_damage: Callable[[], bool] = lambda: False,
) -> Generator[memoryview, None, None]:
    """Read a byte range, and retry transient faults.

    Args:
        source: sends one request per call, without retries.
        request: the range.
        policy: limits of the retries.
        in_flight: delays requests when the store asks for fewer.
        on_found: called once, with the headers of the first response.
        sleep: waits for a number of seconds; raises to stop waiting.
        clock: monotonic seconds.
        on_damage: as in :class:`RangeDownload`.

    Yields:
        memoryview: the bytes, in consecutive pieces, as they arrive. Closing the iterator ends the request.

    Raises:
        TransientStorageError: when the limits of the policy are reached.
        ObjectChangedError: if size or etag changed.
        StorageError: for permanent faults; all these with url, range, etag, attempts and seconds.
        ShardCorruptError: if a block does not match its checksum twice.
    """
    attempts = Attempts(policy, sleep=sleep, clock=clock)
    download = RangeDownload(source, request, policy.progress_timeout_s, on_found, clock, on_damage)
    while not download.complete():
        try:
            with in_flight.permit(), attempts.watch(request.url, download.at), _Counted(download):
                yield from download.attempt()
        except TransientStorageError as error:  # noqa: PERF203  # a request costs a thousand times more
            if error.overloaded:
                in_flight.slow_down()
            if download.take_progress():
                attempts.start_anew()
            FETCH.add(retries=1)
            try:
                attempts.wait(error)
            except StorageError as final:
                raise _with_context(final, download, attempts) from error
        except StorageError as error:
            if isinstance(error, ObjectNotFoundError):
                error.args = (f"{error}{about_missing(source, request.url)}",)
            if isinstance(error, ObjectChangedError) and is_as_listed(source, request.path, request.size, request.etag):
                what = f"is still listed with the etag {request.etag}, and not read with it"
                advice = "Its server has two for one object: pass on URLs without etags, list_remote(...).map(str)."
                error.args = (f"{redact(request.url)} {what}. {advice}",)
            raise _with_context(error, download, attempts) from error


def at_most(pieces: Iterable[memoryview], num_bytes: int) -> Iterator[memoryview]:
    """Yield so many bytes: a server that ignores ranges sends the rest of the object."""
    for piece in pieces:
        yield piece[:num_bytes]
        num_bytes -= len(piece)
        if num_bytes <= 0:
            return


class _Counted:
    """Counts the block as one request."""

    __slots__ = ("_began_at", "_began_s", "_download")

    def __init__(self, download: RangeDownload) -> None:
        self._download, self._began_at, self._began_s = download, download.at(), time.perf_counter()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        FETCH.worked(self._began_s, max(0, self._download.at() - self._began_at), requests=1)


def _with_context(error: StorageError, download: RangeDownload, attempts: Attempts) -> StorageError:
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
