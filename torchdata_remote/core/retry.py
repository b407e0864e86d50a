"""Retries with exponential backoff. Transports below this layer never repeat a request by themselves.

Only one layer retries because nested ones multiply: a stalled read through three of them sent 5 x 5 x 5 requests.
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
# Reached after 3 s on average, with the default waits of RetryPolicy
MAX_LIKELY_PERMANENT = 8
# Not the global random state, which belongs to the training, nor one that forked workers share
_jitter = random.SystemRandom()


class Attempts:
    """Counts the attempts of one operation, and waits before the next.

    Args:
        policy: the limits.
        sleep: waits for a number of seconds. May raise, to end the waiting.
        clock: monotonic, in seconds.
        uniform: returns a random number from 0 to 1.
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
        """Number of attempts, the current one included."""
        return self._failed + 1

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first attempt started."""
        return self._clock() - self._start

    def start_anew(self) -> None:
        """Apply the limits from here on, because there was progress."""
        self._counted_from = self._clock()
        self._failed_in_a_row = self._likely_permanent_in_a_row = 0

    def wait(self, error: TransientStorageError) -> None:
        """Wait before the next attempt, after a failed one.

        Raises:
            TransientStorageError: if a limit is reached, with attempts and seconds. The fault is its ``__cause__``.
            StorageError: likewise, after ``MAX_LIKELY_PERMANENT`` faults in a row that are likely to be permanent.
        """
        self._failed += 1
        self._failed_in_a_row += 1
        self._likely_permanent_in_a_row = self._likely_permanent_in_a_row + 1 if error.likely_permanent else 0
        policy = self._policy
        if self._likely_permanent_in_a_row == MAX_LIKELY_PERMANENT:
            raise StorageError(
                f"{error} Gave up after {self._failed} attempts in {self.elapsed_s:.1f} s: the last "
                f"{MAX_LIKELY_PERMANENT} failed like this, so repeating the request does not help.",
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
    """Call ``operation`` until it succeeds, fails permanently, or reaches a limit of the policy.

    Args:
        operation: raises ``TransientStorageError`` for a transient fault; other errors are not retried.
        policy: the limits.
        sleep: waits for a number of seconds. May raise, to end the waiting.
        clock: monotonic, in seconds.
        uniform: returns a random number from 0 to 1.

    Raises:
        TransientStorageError: with the number of attempts and the seconds they took; the last fault is
            its ``__cause__``.
        StorageError: for a permanent fault.
    """
    attempts = Attempts(policy, sleep=sleep, clock=clock, uniform=uniform)
    while True:
        try:
            return operation()
        except TransientStorageError as error:  # noqa: PERF203  # a request takes a thousand times longer
            attempts.wait(error)
