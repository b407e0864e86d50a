"""Limits of what clients may send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.arguments import seconds, whole
from .problems import Problem

_GIB = 1 << 30


@dataclass(frozen=True)
class ServiceLimits:
    """Limits of sizes, numbers, time, disk space and connections.

    Args:
        max_file_bytes: of one file, and of all files in an archive together.
        max_parts: of an upload.
        max_unpacked_files: in an archive.
        idle_timeout_s: seconds without a byte of the body after which a request fails.
        min_free_bytes: on the disk of a local root; a request that would leave less is refused.
        upload_lifetime_s: seconds after its last part at which an incomplete upload is removed.
        max_head_bytes: of a request's line and headers; 8 KiB at least. The connection of a longer one is ended. It is
            also what is received of a body at once.
        head_timeout_s: seconds within which a request's head arrives: after the connection was made, or after the
            request before it, so that idle connections end then.
        max_connections: at once; more wait.
    """

    max_file_bytes: int = 1024 * _GIB
    max_parts: int = 10_000
    max_unpacked_files: int = 10_000_000
    idle_timeout_s: float = 60.0
    min_free_bytes: int = _GIB
    upload_lifetime_s: float = 7 * 86_400.0
    max_head_bytes: int = 256 << 10
    head_timeout_s: float = 30.0
    max_connections: int = 8192

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            number = seconds(name, value, positive=False) if name.endswith("_s") else whole(name, value, at_least=0)
            object.__setattr__(self, name, number)

    def require_file_bytes(self, num_bytes: int, headers: Mapping[str, str] | None = None) -> None:
        """Require that a file may have so many bytes.

        Args:
            num_bytes: of the file.
            headers: of the response that refuses it.

        Raises:
            Problem: 413, if they are more than ``max_file_bytes``.
        """
        if num_bytes > self.max_file_bytes:
            raise Problem(413, f"A file may have {self.max_file_bytes:,} bytes at most.", headers)

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
                {"Connection": "close"},
            )
