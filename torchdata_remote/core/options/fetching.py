"""How objects are fetched: backend, retries, requests in flight, bytes in memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum

MIB = 1 << 20
PROGRESS_BYTES = 16 << 10
_MIN_PART_BYTES = 256 << 10  # below it requests cost more than they bring
_MAPPED_PART_BYTES = 64 * MIB


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


class Backend(str, Enum):
    """The library that carries an object's bytes. Each compares equal to its name as a ``str``."""

    AUTOMATIC = "automatic"
    """The fastest that works here for these options; which one is logged at level INFO."""
    OBSTORE = "obstore"
    """s3, http and https."""
    BOTOCORE = "botocore"
    """s3."""
    FSSPEC = "fsspec"
    """Whatever fsspec has a package for; s3 by s3fs."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long a request that fails for a passing reason is repeated.

    Each attempt asks only for the bytes that are missing. One that brought ``PROGRESS_BYTES`` or more begins the
    counting anew, of attempts, of waits and of seconds. Waits grow from ``first_wait_s`` by doubling up to
    ``max_wait_s``, each multiplied by a random number from 0 to 1 ("full jitter"; M. Brooker, "Exponential Backoff And
    Jitter", AWS Architecture Blog, 2015).

    Args:
        deadline_s: seconds from the first attempt after which no further one is made.
        max_attempts: attempts at most; ``None`` leaves it to the deadline.
        first_wait_s: upper limit of the first wait.
        max_wait_s: upper limit of every wait, except of one that the store asks for (Retry-After).
        progress_timeout_s: an attempt that brings fewer than ``PROGRESS_BYTES`` in so many seconds is given up.
    """

    deadline_s: float = 300.0
    max_attempts: int | None = None
    first_wait_s: float = 0.05
    max_wait_s: float = 5.0
    progress_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        _require(self.progress_timeout_s > 0, f"progress_timeout_s must be positive, got {self.progress_timeout_s}")
        _require(self.deadline_s > 0, f"deadline_s must be positive, got {self.deadline_s}")
        _require(
            self.max_attempts is None or (isinstance(self.max_attempts, int) and self.max_attempts >= 1),
            f"max_attempts must be at least 1 or None, got {self.max_attempts}",
        )
        _require(
            0 <= self.first_wait_s <= self.max_wait_s,
            f"need 0 <= first_wait_s <= max_wait_s, got {self.first_wait_s} and {self.max_wait_s}",
        )


@dataclass(frozen=True)
class FetchOptions:
    """How objects are fetched.

    Args:
        max_in_flight: requests under way at once, each in a thread of its own.
        part_bytes: objects larger than this are fetched in ranged parts of this size, in parallel. ``None`` takes
            8 MiB, or less where ``max_in_flight`` parts would fill more than three quarters of ``max_buffer_bytes``:
            the rest holds what has come and waits for its turn, so that no request has to.
        max_buffer_bytes: bound on all bytes that are fetched or being fetched and not yet consumed. One
            part is always allowed, so an object larger than the bound still streams through.
        in_order: whether objects are handed on in the order of their URLs, or as they are complete.
        retry: what is done about faults that may pass.
        backend: what carries the bytes.
        cache_dir: local folder in which whole objects are kept; ``None`` keeps none.
        cache_bytes: bound on the bytes that are kept there; needed with ``cache_dir``.
        interleave: objects that are read at once by turns, each of which gets that share of ``max_buffer_bytes``.
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
            value = getattr(self, name)
            if not (name == "part_bytes" and value is None):
                _require(isinstance(value, int) and value >= 1, f"{name} must be an int of at least 1, got {value!r}")
        object.__setattr__(self, "backend", Backend(self.backend))
        _require(
            (self.cache_dir is None) == (self.cache_bytes is None),
            f"cache_dir and cache_bytes belong together, got {self.cache_dir!r} and {self.cache_bytes!r}",
        )
        _require(
            self.cache_bytes is None or self.cache_bytes >= 1, f"cache_bytes must be positive, got {self.cache_bytes}"
        )

    def share_bytes(self, lane_bytes: int) -> int:
        """How much of one object is fetched ahead; with one at a time there is no limit but that of all of them."""
        return lane_bytes // self.interleave if self.interleave > 1 else sys.maxsize

    def actual_part_bytes(self, *, mapped: bool = False, num_lanes: int = 1) -> int:
        """``part_bytes``, or what ``None`` stands for.

        Args:
            mapped: for files that are mapped, which costs no memory.
            num_lanes: iterations that share ``max_buffer_bytes``; each is to have two parts.
        """
        if self.part_bytes is not None:
            return self.part_bytes
        if mapped:
            return max(_MIN_PART_BYTES, min(_MAPPED_PART_BYTES, self.max_buffer_bytes // (2 * num_lanes)))
        num_parts = max(self.max_in_flight, 2 * num_lanes)
        return max(_MIN_PART_BYTES, min(8 * MIB, self.max_buffer_bytes * 3 // (4 * num_parts)))
