"""A disk that takes no more, as a limit of the size of files, which the system keeps for this process."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(*, max_bytes: int) -> Iterator[None]:
    """Let each file of this process have at most so many bytes in this block; a write beyond raises ``OSError``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
