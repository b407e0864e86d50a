"""Retries with exponential backoff, and fewer requests at once where a store asks for it.

Transports below this layer never repeat a request by themselves. Only one layer retries because
nested ones multiply: a stalled read through three of them sent 5 x 5 x 5 requests.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

from ..errors import StorageError, TransientStorageError
from .notices import QUIET_S, Wait, say
from .options import RetryPolicy
from .urls import AZURE, DATASETS, GS, HTTP, HUGGING_FACE, S3

T = TypeVar("T")
_log = logging.getLogger("torchdata_remote")
# Reached after 3 s on average, with the default waits of RetryPolicy
MAX_LIKELY_PERMANENT = 8
# A name server may take ten seconds to say that it does not answer
LIKELY_PERMANENT_S = 8.0
_NOTICED_FAILURES = 3  # in a row: one or two are usual under load
# Schemes whose requests end after ``progress_timeout_s``
_WITH_TIMEOUT = S3 | GS | AZURE | HTTP | {DATASETS, HUGGING_FACE, "ftp"}
# Not the global random state, which belongs to the training, nor one that forked workers share
_jitter = random.SystemRandom()
# A store that is overloaded refuses many requests at once
_MIN_HALVING_INTERVAL_S = 0.5
_CHECK_INTERVAL_S = 0.5


class Attempts(Wait):
    """Counts the attempts of one operation, and waits before the next. Each is a ``with`` block.

    Args:
        policy: the limits.
        url: of the object.
        expected_s: seconds that an attempt may take without progress before it is reported, beside the usual ones.
        sleep: waits for a number of seconds. May raise, to end the waiting.
        clock: monotonic, in seconds.
        uniform: returns a random number from 0 to 1.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        url: str = "",
        *,
        expected_s: float = 0.0,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[], float] = _jitter.random,
    ) -> None:
        super().__init__(url, quiet_s=min(QUIET_S, policy.progress_timeout_s / 2) + expected_s)
        self._policy, self._sleep, self._clock, self._uniform = policy, sleep, clock, uniform
        self._start = self._counted_from = self._began = self._row_began = clock()
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
        self._counted_from = self._began = self._clock()
        self._failed_in_a_row = self._likely_permanent_in_a_row = 0

    def then(self) -> str:
        scheme, policy = self.url.partition("://")[0], self._policy
        ends = f"given up after {policy.progress_timeout_s:g} s without data"
        if scheme not in _WITH_TIMEOUT:
            ends = f"ended by what reads {scheme}://"
        if self._failed_in_a_row + 1 == policy.max_attempts:
            return f"Attempt {self.count}, the last one, is {ends}."
        return f"Attempt {self.count} is {ends}, and repeated until {self._until()}."

    def _until(self) -> str:
        """Until when attempts are started, by the clock on the wall."""
        left_s = self._policy.deadline_s - (self._clock() - self._counted_from)
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + max(0.0, left_s)))
        most = "" if self._policy.max_attempts is None else f", max_attempts={self._policy.max_attempts}"
        return f"{until} (deadline_s={self._policy.deadline_s:g}{most})"

    def wait(self, error: TransientStorageError) -> None:
        """Wait before the next attempt, after a failed one.

        Raises:
            TransientStorageError: if a limit is reached, with attempts and seconds. The fault is its ``__cause__``.
            StorageError: likewise, after ``MAX_LIKELY_PERMANENT`` faults in a row, or ``LIKELY_PERMANENT_S``, that are
                likely to be permanent.
        """
        now = self._clock()
        self._failed += 1
        self._failed_in_a_row += 1
        if self._likely_permanent_in_a_row == 0:
            self._row_began = self._began
        self._likely_permanent_in_a_row = self._likely_permanent_in_a_row + 1 if error.likely_permanent else 0
        policy = self._policy
        wait_s = min(policy.max_wait_s, policy.first_wait_s * 2 ** min(self._failed_in_a_row - 1, 60)) * self._uniform()
        wait_s = max(wait_s, error.retry_after_s or 0.0)
        if self._likely_permanent_in_a_row == MAX_LIKELY_PERMANENT or (
            error.likely_permanent and now - self._row_began + wait_s > LIKELY_PERMANENT_S
        ):
            why = ": they fail in the same way, so repeating the request does not help."
            raise StorageError(f"{error}{self._gave_up()}{why}", **self._context(error)) from error
        if now - self._counted_from + wait_s > policy.deadline_s or self._failed_in_a_row == policy.max_attempts:
            asked = "" if error.retry_after_s is None else f" The store asked to wait for {error.retry_after_s:g} s."
            limits = f" (deadline_s={policy.deadline_s:g}, max_attempts={policy.max_attempts})."
            raise TransientStorageError(f"{error}{asked}{self._gave_up()}{limits}", **self._context(error)) from error
        self._report(error, wait_s)
        self._sleep(wait_s)
        self._began = self._clock()

    def _gave_up(self) -> str:
        return f" Gave up after {self._failed} attempts in {self.elapsed_s:.1f} s"

    def _context(self, error: TransientStorageError) -> dict[str, Any]:
        return {"url": error.url, "attempts": self._failed, "elapsed_s": self.elapsed_s}

    def _report(self, error: TransientStorageError, wait_s: float) -> None:
        """Say that the attempt failed and is repeated: at once if no server was reached, else if it happens again."""
        is_long = self._clock() - self._counted_from + wait_s >= QUIET_S
        if error.unreachable or is_long or self._failed_in_a_row >= _NOTICED_FAILURES:
            kind = f"unreachable {error.unreachable}" if error.unreachable else "failed"
            until = "for a few seconds" if error.likely_permanent else f"until {self._until()}"
            again = f"Attempt {self._failed_in_a_row} failed; it is repeated {until}."
            if say(kind, error.url or "", f"{error} {again}"):
                return
        _log.debug("attempt %d failed, next in %.2f s: %s", self._failed_in_a_row, wait_s, error)


def call_with_retries(
    operation: Callable[[], T],
    policy: RetryPolicy,
    *,
    url: str | None = None,
    expected_s: float = 0.0,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    uniform: Callable[[], float] = _jitter.random,
) -> T:
    """Call ``operation`` until it succeeds, fails permanently, or reaches a limit of the policy.

    Args:
        operation: raises ``TransientStorageError`` for a transient fault; other errors are not retried.
        policy: the limits.
        url: of the object or prefix, to report an attempt that takes long; ``None`` reports none.
        expected_s: seconds that an attempt may take before it is reported, beside the usual ones.
        sleep: waits for a number of seconds. May raise, to end the waiting.
        clock: monotonic, in seconds.
        uniform: returns a random number from 0 to 1.

    Raises:
        TransientStorageError: with the number of attempts and the seconds they took; the last fault is
            its ``__cause__``.
        StorageError: for a permanent fault.
    """
    attempts = Attempts(policy, url or "", expected_s=expected_s, sleep=sleep, clock=clock, uniform=uniform)
    while True:
        try:
            with nullcontext() if url is None else attempts:
                return operation()
        except TransientStorageError as error:  # noqa: PERF203  # a request takes a thousand times longer
            attempts.wait(error)


class Permit:
    """A permit that is held in a ``with`` block.

    Args:
        limit: gives it.
    """

    __slots__ = ("_counted", "_limit")

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self._limit, self._counted = limit, False

    def __enter__(self) -> None:
        limit = self._limit
        self._counted = limit._limit < limit._most and limit._enter()

    def __exit__(self, kind: object, *exception: object) -> None:
        limit = self._limit
        if self._counted or limit._limit < limit._most:
            limit._leave(self._counted, kind is None)


class ConcurrencyLimit:
    """Limits concurrent requests: additive increase, multiplicative decrease, as in TCP.

    (V. Jacobson, "Congestion Avoidance and Control", SIGCOMM 1988.) At full limit permits are not counted: the caller
    never runs more than ``most`` threads, and this keeps a lock off the hot path.

    Args:
        most: the full limit.
        check: called while waiting; may raise, to end the waiting.
        clock: monotonic, in seconds.
    """

    def __init__(self, most: int, *, check: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._check, self._clock = most, check, clock
        self._limit = most
        # Permits that are held, of those that were counted
        self._running = 0
        self._halved_at = float("-inf")
        # Reentrant because finalizers return permits, too
        self._changed = threading.Condition(threading.RLock())

    @property
    def limit(self) -> int:
        """Requests that may run at once now."""
        return self._limit

    def permit(self) -> Permit:
        """Return a context manager that waits for a permit. A block without an error raises the limit by one."""
        return Permit(self)

    def _enter(self) -> bool:
        with self._changed:
            while self._running >= self._limit:
                self._changed.wait(_CHECK_INTERVAL_S)
                self._check()
            self._running += 1
            return True

    def _leave(self, counted: bool, succeeded: bool) -> None:
        with self._changed:
            self._running -= counted
            self._limit = min(self._most, self._limit + succeeded)
            self._changed.notify(2)

    def slow_down(self) -> None:
        """Halve the limit, because the store asked for fewer requests."""
        with self._changed:
            if self._clock() - self._halved_at >= _MIN_HALVING_INTERVAL_S:
                self._halved_at = self._clock()
                self._limit = max(1, self._limit // 2)
