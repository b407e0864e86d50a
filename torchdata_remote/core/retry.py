"""The one retry layer. Transports below it never repeat a request by themselves.

(A stalled read through three nested retry layers was seen to send 5 x 5 x 5 requests.)
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import StorageError, TransientStorageError
from .options.fetching import RetryPolicy

T = TypeVar("T")
_log = logging.getLogger("torchdata_remote")
MAX_LIKELY_PERMANENT = 8  # after 3 s on average, with waits as RetryPolicy has them
_jitter = random.SystemRandom()  # not the global state, which is the training's, nor one that forked workers share


class Attempts:
    """The attempts at one thing: how many there were, and how long to wait for the next.

    Args:
        policy: the limits.
        sleep: waits for so many seconds. May raise, to end the waiting.
        clock: seconds that only grow.
        uniform: a number from 0 to 1.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[], float] = _jitter.random,
    ) -> None:
        self._policy, self._sleep, self._clock, self._uniform = policy, sleep, clock, uniform
        self._start = self._counted_from = clock()
        self._failed = self._failed_in_a_row = self._likely_permanent_in_a_row = 0

    @property
    def count(self) -> int:
        """Attempts so far, with the one that is under way."""
        return self._failed + 1

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first attempt began."""
        return self._clock() - self._start

    def start_anew(self) -> None:
        """There was progress: the limits count from here."""
        self._counted_from = self._clock()
        self._failed_in_a_row = self._likely_permanent_in_a_row = 0

    def wait(self, error: TransientStorageError) -> None:
        """After a failed attempt: wait for the next one.

        Raises:
            TransientStorageError: if a limit is reached, with attempts and seconds. The fault is its ``__cause__``.
            StorageError: likewise, if a fault that is likely to be permanent came ``MAX_LIKELY_PERMANENT`` times in a
                row.
        """
        self._failed += 1
        self._failed_in_a_row += 1
        self._likely_permanent_in_a_row = self._likely_permanent_in_a_row + 1 if error.likely_permanent else 0
        policy = self._policy
        if self._likely_permanent_in_a_row == MAX_LIKELY_PERMANENT:
            raise StorageError(
                f"{error} Gave up after {self._failed} attempts in {self.elapsed_s:.1f} s: the last "
                f"{MAX_LIKELY_PERMANENT} failed like this, so that repeating the request does not help.",
                url=error.url,
                attempts=self._failed,
                elapsed_s=self.elapsed_s,
            ) from error
        wait_s = min(policy.max_wait_s, policy.first_wait_s * 2 ** min(self._failed_in_a_row - 1, 60)) * self._uniform()
        wait_s = max(wait_s, error.retry_after_s or 0.0)
        if (
            self._clock() - self._counted_from + wait_s > policy.deadline_s
            or self._failed_in_a_row == policy.max_attempts
        ):
            asked = "" if error.retry_after_s is None else f" The store asked to wait for {error.retry_after_s:g} s."
            raise TransientStorageError(
                f"{error}{asked} Gave up after {self._failed} attempts in {self.elapsed_s:.1f} s "
                f"(deadline_s={policy.deadline_s:g}, max_attempts={policy.max_attempts}).",
                url=error.url,
                attempts=self._failed,
                elapsed_s=self.elapsed_s,
            ) from error
        _log.log(
            logging.WARNING if self._failed_in_a_row >= 3 else logging.DEBUG,
            "attempt %d failed, next in %.2f s: %s",
            self._failed_in_a_row,
            wait_s,
            error,
        )
        self._sleep(wait_s)


def call_with_retries(
    operation: Callable[[], T],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    uniform: Callable[[], float] = _jitter.random,
) -> T:
    """Call ``operation`` until it works, fails for good, or the policy's limits are reached.

    Args:
        operation: raises ``TransientStorageError`` for a fault that may pass; all else goes through at once.
        policy: the limits.
        sleep: waits for so many seconds. May raise, to end the waiting.
        clock: seconds that only grow.
        uniform: a number from 0 to 1.

    Raises:
        TransientStorageError: with the number of attempts and the seconds they took; the last fault is
            its ``__cause__``.
        StorageError: for what no repetition mends.
    """
    attempts = Attempts(policy, sleep=sleep, clock=clock, uniform=uniform)
    while True:
        try:
            return operation()
        except TransientStorageError as error:  # noqa: PERF203  # a request costs a thousand times more
            attempts.wait(error)
