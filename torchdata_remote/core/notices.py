"""Say that requests take long: what a user would otherwise take for a hung program.

A notice is a line of the logger ``torchdata_remote`` at level WARNING, which Python prints to stderr where no logging
is configured, in workers too. It is not ``warnings.warn``, which ``-W error`` would raise in any thread.

Requests register themselves by one assignment to a dict. Threads that wait for their results look at them.
"""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict

from .urls import redact

QUIET_S = 5.0
"""Seconds without progress after which a request is reported."""
REPEAT_S = 30.0
"""Seconds between two notices of the same kind about the same host."""
MIN_PROGRESS_BYTES = 2048
"""Fewer bytes in ``QUIET_S`` are no progress: a response that trickles is reported, too."""
_log = logging.getLogger("torchdata_remote")
_said_at: dict[tuple[str, str], float] = {}  # kind and host: when, by time.monotonic
_withheld: dict[tuple[str, str], int] = defaultdict(int)


class Wait:
    """A request under way, within a ``with`` block. It may be used again.

    Attributes:
        url: of the object.
        quiet_s: as below.
        position: number of bytes received so far.

    Args:
        url: of the object.
        then: what will happen next, as a sentence.
        quiet_s: seconds without progress after which it is reported.
    """

    position = 0

    def __init__(self, url: str, then: str = "", quiet_s: float = QUIET_S) -> None:
        self.url, self._what, self.quiet_s = url, then, quiet_s

    def then(self) -> str:
        """Return what will happen next, as a sentence."""
        return self._what

    def __enter__(self) -> None:
        self.since_s, self.marked = time.monotonic(), self.position  # of the last progress that was seen
        _waits[id(self)] = self

    def __exit__(self, *exception: object) -> None:
        _waits.pop(id(self), None)

    def silent_s(self, now_s: float) -> float:
        """Seconds without progress, as far as polling sees it."""
        if abs(self.position - self.marked) >= MIN_PROGRESS_BYTES:
            self.marked, self.since_s = self.position, now_s
        return now_s - self.since_s


_waits: dict[int, Wait] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_waits.clear)


def host_of(url: str) -> str:
    """Return scheme and bucket or host of a URL, without credentials.

    >>> host_of("https://me:secret@host:80/a/b?token=1")
    'https://host:80'
    """
    return "/".join(redact(url).split("/", 3)[:3])


def say(kind: str, url: str, message: str, *, repeat_s: float | None = None) -> bool:
    """Log a warning, unless one of this kind about the same host was logged shortly before.

    Args:
        kind: of the problem.
        url: of the object; its host counts.
        message: with the URL.
        repeat_s: seconds in which the next one is withheld; ``None`` means 30.

    Returns:
        Whether it was logged. The next one has the number of those that were not.
    """
    key, now_s = (kind, host_of(url)), time.monotonic()
    if now_s - _said_at.get(key, float("-inf")) < (REPEAT_S if repeat_s is None else repeat_s):
        _withheld[key] += 1
        return False
    _said_at[key] = now_s
    withheld = _withheld.pop(key, 0)
    _log.warning("%s%s", message, f" ({withheld:,} more like this since the last message.)" if withheld else "")
    return True


def look() -> None:
    """Report the requests that take long, one message for each host."""
    now_s = time.monotonic()
    late: dict[str, list[tuple[float, Wait]]] = defaultdict(list)
    for wait in _waits.copy().values():
        if (silent_s := wait.silent_s(now_s)) >= wait.quiet_s:
            late[host_of(wait.url)].append((silent_s, wait))
    for host, waits in late.items():
        if now_s - _said_at.get(("slow", host), float("-inf")) >= REPEAT_S:
            silent_s, wait = max(waits, key=lambda found: found[0])
            others = f" ({len(waits)} requests to {host} wait)" if len(waits) > 1 else ""
            received = abs(wait.position - wait.marked)
            what = f"slow: {received:,} bytes in" if received else "no data for"
            say("slow", wait.url, f"{redact(wait.url)}: {what} {silent_s:.0f} s{others}. {wait.then()}")
