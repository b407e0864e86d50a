"""Options for fetching: backend, retries, concurrent requests, memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..arguments import check
from ..arguments.amounts import seconds, whole, whole_or_none
from ..arguments.calls import explained

MIB = 1 << 20
PROGRESS_BYTES = 16 << 10
# The overhead of smaller requests exceeds their gain
_MIN_PART_BYTES = 256 << 10
_MAPPED_PART_BYTES = 64 * MIB


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise check.marked(ValueError(message))


class Backend(str, Enum):
    """The library that transfers objects. Each member equals its name as a ``str``."""

    AUTOMATIC = "automatic"
    """The fastest one that supports these options on this machine; it is logged at level INFO."""
    OBSTORE = "obstore"
    """s3, gs, az, http and https."""
    FSSPEC = "fsspec"
    """All schemes for which fsspec has a package; s3 by s3fs."""


@explained
@dataclass(frozen=True)
class RetryPolicy:
    """Limits for retrying requests that fail with a transient fault.

    Each attempt requests only the bytes that are missing. One that received ``PROGRESS_BYTES`` or more resets the count
    of attempts, the waits and the deadline. Waits grow from ``first_wait_s`` by doubling up to ``max_wait_s``, each
    multiplied by a random number from 0 to 1 ("full jitter"; M. Brooker, "Exponential Backoff And Jitter", AWS
    Architecture Blog, 2015).

    Args:
        deadline_s: seconds from the first attempt after which no further one is started.
        max_attempts: at most; ``None`` for no limit but the deadline.
        first_wait_s: upper limit of the first wait.
        max_wait_s: upper limit of every wait, except of one that the store requests (Retry-After).
        progress_timeout_s: seconds after which an attempt that received fewer than ``PROGRESS_BYTES`` is given up.
    """

    deadline_s: float = 300.0
    max_attempts: int | None = None
    first_wait_s: float = 0.05
    max_wait_s: float = 5.0
    progress_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("deadline_s", "first_wait_s", "max_wait_s", "progress_timeout_s"):
            limit_s = seconds(name, getattr(self, name), positive=name in ("deadline_s", "progress_timeout_s"))
            object.__setattr__(self, name, limit_s)
        object.__setattr__(self, "max_attempts", whole_or_none("max_attempts", self.max_attempts))
        _require(self.first_wait_s <= self.max_wait_s, self._exchanged_waits())

    def _exchanged_waits(self) -> str:
        waits = {"max_wait_s": self.max_wait_s, "first_wait_s": self.first_wait_s}
        defaults = [name for name, wait in waits.items() if wait == getattr(RetryPolicy, name)]
        got = [f"{name}={wait:g}{' (its default)' * (name in defaults)}" for name, wait in waits.items()]
        advice = "" if len(defaults) != 1 else (
            f" Pass {defaults[0]}={next(wait for name, wait in waits.items() if name not in defaults):g} too."
        )  # fmt: skip
        return f"max_wait_s must be at least first_wait_s, got {' and '.join(got)}.{advice}"


def policy_of(retry: Any) -> RetryPolicy:
    """Return the policy of a ``retry`` argument; ``None`` is the default one.

    Raises:
        TypeError: if it is neither.
    """
    attempts = retry if isinstance(retry, int) else 5
    example = f"RetryPolicy(max_attempts={attempts})"
    found: RetryPolicy | None = check.instance_or_none("retry", retry, RetryPolicy, example=example)
    return found or RetryPolicy()


@dataclass(frozen=True)
class FetchOptions:
    """Options for fetching objects.

    Args:
        max_in_flight: concurrent requests, each in a thread of its own.
        part_bytes: objects larger than this are fetched in ranged parts of this size, in parallel. ``None`` is
            8 MiB, or less if ``max_in_flight`` parts would fill more than three quarters of ``max_buffer_bytes``: the
            rest holds downloaded parts until the consumer asks for them, so that no request has to wait. Streams that
            are read in turn have room for two parts each, up to ``2 * max_in_flight`` parts, and for one at least.
        max_buffer_bytes: bound on all bytes that are fetched or being fetched and not yet consumed. One part is always
            allowed, so an object larger than the bound still streams through.
        in_order: whether objects are returned in the order of their URLs, or as they are complete.
        retry: limits for retrying transient faults.
        backend: the library that transfers the objects.
        cache_dir: local folder in which whole objects are cached; ``None`` disables the cache.
        cache_bytes: bound on the size of the cache; required with ``cache_dir``.
        interleave: objects that are read round robin, each of which gets an equal share of ``max_buffer_bytes``.
    """

    max_in_flight: int = 16
    part_bytes: int | None = None
    max_buffer_bytes: int = 128 * MIB
    in_order: bool = True
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    backend: Backend = Backend.AUTOMATIC
    cache_dir: str | None = None
    cache_bytes: int | None = None
    interleave: int = 1

    def __post_init__(self) -> None:
        for name in ("max_in_flight", "part_bytes", "max_buffer_bytes", "interleave"):
            count = whole_or_none if name == "part_bytes" else whole
            object.__setattr__(self, name, count(name, getattr(self, name)))
        object.__setattr__(self, "in_order", check.flag("in_order", self.in_order))
        object.__setattr__(self, "backend", check.choice("backend", self.backend, Backend))
        if self.cache_dir:
            object.__setattr__(self, "cache_dir", check.local_path("cache_dir", self.cache_dir, example="/data/cache"))
        _require(
            (self.cache_dir is None) == (self.cache_bytes is None),
            f"cache_dir and cache_bytes belong together, got {self.cache_dir!r} and {self.cache_bytes!r}. "
            "Pass both, such as cache_bytes=10_000_000_000, or none.",
        )
        object.__setattr__(self, "cache_bytes", whole_or_none("cache_bytes", self.cache_bytes))

    def actual_part_bytes(self, *, mapped: bool = False, num_lanes: int = 1) -> int:
        """Return ``part_bytes``, or the default for this use.

        Args:
            mapped: for files that are mapped into memory, which need no buffer.
            num_lanes: iterations that share ``max_buffer_bytes``; each gets room for two parts at least.
        """
        if self.part_bytes is not None:
            return self.part_bytes
        if mapped:
            return max(_MIN_PART_BYTES, min(_MAPPED_PART_BYTES, self.max_buffer_bytes // (2 * num_lanes)))
        num_parts = max(self.max_in_flight, 2 * num_lanes)
        part_bytes = min(8 * MIB, self.max_buffer_bytes * 3 // (4 * num_parts))
        if self.interleave > 1:
            # Of each stream one part is consumed while the next one is fetched, as far as requests are allowed
            num_streams = num_lanes * self.interleave
            num_parts = max(min(2 * num_streams, 2 * self.max_in_flight), num_streams)
            part_bytes = min(part_bytes, self.max_buffer_bytes // num_parts)
        return max(_MIN_PART_BYTES, part_bytes)
