"""One range of an object, through every fault that may pass: only what is missing is asked for again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator

from ..core.concurrency_limit import ConcurrencyLimit
from ..core.options import RetryPolicy
from ..core.retry import Attempts
from ..core.stats.counters import FETCH
from ..core.urls import redact
from ..errors import StorageError, TransientStorageError
from ..storage.registry import RangeNotSatisfiableError
from .range_download import ObjectVersion, RangeDownload, RangeRequest, RangeSource


def read_range(
    source: RangeSource,
    wanted: RangeRequest,
    policy: RetryPolicy,
    *,
    in_flight: ConcurrencyLimit,
    on_found: Callable[[ObjectVersion], None],
    sleep: Callable[[float], object],
    clock: Callable[[], float] = time.monotonic,
    on_damage: Callable[[], bool] = lambda: False,
) -> Generator[memoryview, None, None]:
    """Read a range.

    Args:
        source: sends one request a call, and repeats nothing.
        wanted: the range.
        policy: how long faults are repeated.
        in_flight: holds back requests when the store asks for fewer.
        on_found: called once, with the headers of the first answer.
        sleep: waits for so many seconds; raises to end the waiting.
        clock: seconds that only grow.
        on_damage: as :class:`RangeDownload` calls it.

    Yields:
        memoryview: the bytes, in consecutive pieces, as they arrive. Closing the iterator ends the request.

    Raises:
        TransientStorageError: when the policy's limits are reached.
        ObjectChangedError: if size or etag are not what they were.
        StorageError: for what no repetition mends; all these with url, range, etag, attempts and seconds.
        ShardCorruptError: if a block does not fit its checksum, twice.
    """
    attempts = Attempts(policy, sleep=sleep, clock=clock)
    reading = RangeDownload(source, wanted, policy.progress_timeout_s, on_found, clock, on_damage)
    while not reading.complete():
        try:
            with in_flight.permit(), _counted(reading):
                yield from reading.attempt()
        except TransientStorageError as error:  # noqa: PERF203  # a request costs a thousand times more
            if error.overloaded:
                in_flight.slow_down()
            if reading.take_progress():
                attempts.start_anew()
            FETCH.add(retries=1)
            try:
                attempts.wait(error)
            except StorageError as final:
                raise _with_context(final, reading, attempts) from error
        except StorageError as error:
            raise _with_context(error, reading, attempts) from error


@contextlib.contextmanager
def _counted(reading: RangeDownload) -> Iterator[None]:
    """A request, which ends with this block."""
    began_s, began_at = time.perf_counter(), reading.position
    try:
        yield
    finally:
        FETCH.worked(began_s, max(0, reading.position - began_at), requests=1)


def _with_context(error: StorageError, reading: RangeDownload, attempts: Attempts) -> StorageError:
    """The same error, which also tells range, etag, attempts and seconds."""
    wanted, etag = reading.wanted, reading.etag
    kind = StorageError if isinstance(error, RangeNotSatisfiableError) else type(error)
    num_attempts = error.attempts or attempts.count
    end = "the end" if wanted.end is None else f"{wanted.end:,}"
    counted = "" if error.attempts else f", attempt {num_attempts}, after {attempts.elapsed_s:.1f} s"
    return kind(
        f"{error} (Bytes {wanted.start:,} to {end}, etag {etag}{counted}.)",
        url=error.url or redact(wanted.url),
        start_byte=wanted.start,
        end_byte=wanted.end,
        etag=etag,
        attempts=num_attempts,
        elapsed_s=attempts.elapsed_s,
    )
