"""Hand an open file to the HTTP server, which opens it once more by its descriptor, at an unknown moment.

A descriptor that was closed before, and used again for another file, would be the wrong file. So the handed ones have
numbers of their own, the upper half of all, which are used in turn, and are closed much later than the server needs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

if sys.platform != "win32":
    import fcntl
    import resource

_FOLDER = "/proc/self/fd"
_MIN_NUMBERS, _MAX_NUMBER = 4096, 1 << 17
_OPEN_S: Final = 60.0
_MAX_OPEN = 1024


class SendableFiles:
    """Descriptors of a process that its HTTP server opens once more."""

    def __init__(self) -> None:
        self._next = self._num_open = 0

    def path_of(self, descriptor: int) -> str | None:
        """Return a path by which the server can open the same file within the next seconds.

        ``None`` if there is none: on other systems than Linux, without /proc, below a small limit of open files, for a
        file that may not be opened any more, and when hundreds have been handed over in the last seconds.
        """
        if sys.platform != "linux" or self._num_open >= _MAX_OPEN:
            return None
        first = own_descriptors()
        if first < _MIN_NUMBERS:
            return None
        try:
            number = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, first + self._next)
        except OSError:  # the last numbers are in use
            self._next = 0
            return None
        self._next = (number - first + 1) % (first - 1)
        self._num_open += 1
        asyncio.get_running_loop().call_later(_OPEN_S, self._close, number)
        path = f"{_FOLDER}/{number}"
        return path if os.access(path, os.R_OK) else None

    def _close(self, number: int) -> None:
        os.close(number)
        self._num_open -= 1


def own_descriptors() -> int:
    """Return how many descriptors are left for all other files and connections: the lower half, all of a few."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    half = _MAX_NUMBER if limit == resource.RLIM_INFINITY else min(_MAX_NUMBER, limit // 2)
    return half if half >= _MIN_NUMBERS else limit
