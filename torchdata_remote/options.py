"""Option objects: frozen, checked when built, with units in their names and no secret in their ``repr``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class RetryPolicy:
    """How long a request that fails for a passing reason is repeated.

    Waits grow from ``first_wait_s`` by doubling up to ``max_wait_s``, each multiplied by a random number
    from 0 to 1 ("full jitter"; M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).

    Args:
        deadline_s: seconds from the first attempt after which no further one is made.
        max_attempts: attempts at most; ``None`` leaves it to the deadline.
        first_wait_s: upper limit of the first wait.
        max_wait_s: upper limit of every wait.
    """

    deadline_s: float = 300.0
    max_attempts: int | None = None
    first_wait_s: float = 0.1
    max_wait_s: float = 10.0

    def __post_init__(self) -> None:
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
        part_bytes: objects larger than this are fetched in ranged parts of this size, in parallel.
        max_buffer_bytes: bound on all bytes that are fetched or being fetched and not yet consumed. One
            part is always allowed, so an object larger than the bound still streams through.
        retry: what is done about faults that may pass.
    """

    max_in_flight: int = 16
    part_bytes: int = 8 * MIB
    max_buffer_bytes: int = 128 * MIB
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        for name in ("max_in_flight", "part_bytes", "max_buffer_bytes"):
            _require(isinstance(getattr(self, name), int), f"{name} must be an int, got {getattr(self, name)!r}")
        _require(self.max_in_flight >= 1, f"max_in_flight must be at least 1, got {self.max_in_flight}")
        _require(self.part_bytes >= 1, f"part_bytes must be at least 1, got {self.part_bytes}")
        _require(self.max_buffer_bytes >= 1, f"max_buffer_bytes must be at least 1, got {self.max_buffer_bytes}")


class StorageOptions(Mapping[str, Any]):
    """A user's ``storage_options``, in fsspec's vocabulary, unchanged, with a ``repr`` that shows only names.

    Args:
        options: for s3: ``key``, ``secret``, ``token``, ``endpoint_url``, ``anon``, ``profile``,
            ``client_kwargs={"region_name": ...}``; for anything else what its fsspec filesystem takes.
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(f"storage_options must be a dict, got {type(options).__name__}")
        self._options = dict(options or {})
        if not all(isinstance(name, str) for name in self._options):
            raise TypeError(f"storage_options must have names that are str, got {sorted(map(repr, self._options))}")

    def __getitem__(self, name: str) -> Any:
        return self._options[name]

    def __iter__(self) -> Any:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def identity(self) -> str:
        """Equal for equal options: a key for what is kept per process. Holds secrets; never shown."""
        return json.dumps(self._options, sort_keys=True, default=lambda value: f"object {id(value)}")

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(sorted(self._options))})"
