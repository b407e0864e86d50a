"""How many requests an address may send: a bucket of tokens for each, of which the memory is bounded."""

from __future__ import annotations

import time
from collections.abc import Callable

_MAX_ADDRESSES = 10_000


class RequestRates:
    """Counts requests by address.

    Args:
        max_per_s: of an address; as many may come at once.
        clock: monotonic seconds.
    """

    def __init__(self, max_per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_per_s, self._clock = max_per_s, clock
        self._left: dict[str, tuple[float, float]] = {}  # tokens, and when they were counted

    def accept(self, address: str) -> bool:
        """Whether an address may send one more request at this moment."""
        now = self._clock()
        tokens, since_s = self._left.pop(address, (self._max_per_s, now))
        tokens = min(self._max_per_s, tokens + (now - since_s) * self._max_per_s)
        accepted = tokens >= 1
        self._left[address] = (tokens - accepted, now)
        if len(self._left) > _MAX_ADDRESSES:  # that of the address whose last request is the longest ago
            del self._left[next(iter(self._left))]
        return accepted
