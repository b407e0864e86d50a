"""The one retry layer. Transports below it never repeat a request by themselves.

(A stalled read through three nested retry layers was seen to send 5 x 5 x 5 requests.)
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from .errors import TransientStorageError
from .options import RetryPolicy

T = TypeVar("T")
_log = logging.getLogger("torchdata_remote")
_jitter = random.SystemRandom()  # not the global state, which is the training's, nor one that forked workers share


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
    """
    start = clock()
    attempt = 0
    while True:
        attempt += 1
        try:
            return operation()
        except TransientStorageError as error:
            wait = min(policy.max_wait_s, policy.first_wait_s * 2 ** min(attempt - 1, 60)) * uniform()
            elapsed = clock() - start
            if elapsed + wait > policy.deadline_s or attempt == policy.max_attempts:
                raise TransientStorageError(
                    f"{error} Gave up after {attempt} attempts in {elapsed:.1f} s "
                    f"(deadline_s={policy.deadline_s:g}, max_attempts={policy.max_attempts}).",
                    url=error.url,
                ) from error
            _log.log(
                logging.WARNING if attempt >= 3 else logging.DEBUG,
                "attempt %d failed, next in %.2f s: %s",
                attempt,
                wait,
                error,
            )
        sleep(wait)
