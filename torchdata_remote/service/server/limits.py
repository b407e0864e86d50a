"""Limits of what clients may send."""

from __future__ import annotations

from dataclasses import dataclass

from .problems import CLOSE, Problem

_GIB = 1 << 30


@dataclass(frozen=True)
class ServiceLimits:
    """Limits of sizes, time, disk space and connections.

    Args:
        max_file_bytes: of one file, and of all files in an archive together.
        idle_timeout_s: seconds without a byte of the body after which a request fails.
        min_free_bytes: on the disk of a local root; a request that would leave less is refused.
        head_timeout_s: seconds within which a request's head arrives: after the connection was made, or after the
            request before it, so that idle connections end then.
        max_connections: at once; more wait.
    """

    max_file_bytes: int = 1024 * _GIB
    idle_timeout_s: float = 60.0
    min_free_bytes: int = _GIB
    head_timeout_s: float = 30.0
    max_connections: int = 8192

    def require_space(self, free_bytes: int | None, num_bytes: int) -> None:
        """Require room on the disk.

        Args:
            free_bytes: on the disk; ``None`` where that is not known.
            num_bytes: to be written.

        Raises:
            Problem: 507, if less than ``min_free_bytes`` would be left.
        """
        if free_bytes is not None and free_bytes - num_bytes < self.min_free_bytes:
            raise Problem(
                507,
                f"The service's disk has {free_bytes:,} bytes left, and keeps {self.min_free_bytes:,} of them. Delete "
                "something, or give it a larger one.",
                CLOSE,
            )
