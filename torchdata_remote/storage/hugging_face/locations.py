"""Remember where the Hub has sent us for a file, so that its further parts cost no request to the Hub."""

from __future__ import annotations

import contextlib
import email.utils
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from time import monotonic
from typing import NamedTuple
from urllib.parse import parse_qsl

MAX_LOCATIONS = 10_000  # about a kilobyte each
_NUM_LOCKS = 1024
_USED_SHARE = 0.9  # of the time that a signature is valid: a request takes time, and clocks differ
_AMAZON_DATE = re.compile(r"\d{8}T\d{6}Z")


class Location(NamedTuple):
    """Where a file is, and what the Hub said of it.

    Args:
        url: perhaps signed.
        etag: of the file; ``None`` if the Hub has not said it.
        size: of the file, likewise.
        until: on the clock of ``time.monotonic``, when the URL is not used any more.
    """

    url: str
    etag: str | None
    size: int | None
    until: float

    def __repr__(self) -> str:
        return f"Location({self.etag}, {self.size})"


def seconds_valid(url: str, headers: Mapping[str, str]) -> float:
    """Return how long a signed URL is valid: infinity if it does not say so.

    Args:
        url: with ``Expires`` (CloudFront), or ``X-Amz-Date`` and ``X-Amz-Expires`` (S3).
        headers: of the response that contained it; its ``Date`` is the signer's clock.

    >>> seconds_valid("https://cdn/a?Expires=100&Signature=0", {"Date": "Thu, 01 Jan 1970 00:01:00 GMT"})
    40.0
    """
    query = {name.lower(): value for name, value in parse_qsl(url.partition("?")[2])}
    try:
        now = email.utils.parsedate_to_datetime(headers["Date"]).timestamp()
    except (KeyError, ValueError, TypeError, OverflowError):
        now = time.time()
    try:
        if "expires" in query:
            return max(0.0, int(query["expires"]) - now)
        if "x-amz-expires" in query and _AMAZON_DATE.fullmatch(query.get("x-amz-date", "")):
            signed = datetime.strptime(query["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
            return max(0.0, signed.timestamp() + int(query["x-amz-expires"]) - now)
    except (ValueError, OverflowError):
        return 0.0
    return float("inf")


class Locations:
    """The locations of files, by a key; the oldest ones are forgotten. Thread-safe."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Location] = OrderedDict()
        self._lock = threading.RLock()
        self._finding = [threading.RLock() for _ in range(_NUM_LOCKS)]

    def get(self, key: str) -> Location | None:
        """Return the location of a file that is still valid."""
        found = self._found.get(key)
        return found if found is not None and monotonic() < found.until else None

    def put(self, key: str, url: str, etag: str | None, size: int | None, headers: Mapping[str, str]) -> None:
        """Remember a location."""
        valid_s = seconds_valid(url, headers) * _USED_SHARE
        with self._lock:
            self._found[key] = Location(url, etag, size, monotonic() + valid_s)
            self._found.move_to_end(key)
            if len(self._found) > MAX_LOCATIONS:
                self._found.popitem(last=False)

    def drop(self, key: str, location: Location) -> None:
        """Forget a location that was refused, unless another thread has found a new one."""
        with self._lock:
            if self._found.get(key) is location:
                del self._found[key]

    @contextlib.contextmanager
    def finding(self, key: str, wait_s: float) -> Iterator[None]:
        """Let one thread at a time ask for the location of a file, while those of its other parts wait."""
        lock = self._finding[hash(key) % _NUM_LOCKS]
        is_locked = lock.acquire(timeout=wait_s)
        try:
            yield
        finally:
            if is_locked:
                lock.release()
