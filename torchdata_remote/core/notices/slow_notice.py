"""Say that requests take long: what a user would otherwise take for a hung program.

A notice is a line of the logger ``torchdata_remote`` at level WARNING, which Python prints to stderr where no logging
is configured, in workers too. It is not ``warnings.warn``: a thread sends it, where ``-W error`` could not raise it.

Requests register themselves by one assignment to a dict. One thread looks at them, and ends when none is left, and
before a fork.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections import defaultdict

from ..threads.forks import ForkSafeThread
from ..urls import redact

QUIET_S = 5.0
"""Seconds without progress after which a request is reported."""
REPEAT_S = 30.0
"""Seconds between two notices of the same kind about the same host."""
MIN_PROGRESS_BYTES = 2048
"""Fewer bytes in ``QUIET_S`` are no progress: a response that trickles is reported, too."""
_POLL_S = 1.0
_STOP_S = 1.0
_log = logging.getLogger("torchdata_remote")


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
        if _watcher is None:
            _start()
        if self.quiet_s < QUIET_S:
            _wake.put(True)

    def __exit__(self, *exception: object) -> None:
        _waits.pop(id(self), None)

    def silent_s(self, now_s: float) -> float:
        """Seconds without progress, as far as polling sees it."""
        if abs(self.position - self.marked) >= MIN_PROGRESS_BYTES:
            self.marked, self.since_s = self.position, now_s
        return now_s - self.since_s


_waits: dict[int, Wait] = {}
_watcher: threading.Thread | None = None  # noqa: TID251  # for the type
_wake: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: look at once; False: end
_said_at: dict[tuple[str, str], float] = {}  # kind and host: when, by time.monotonic
_withheld: dict[tuple[str, str], int] = defaultdict(int)
_speaking = threading.RLock()


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
    key = kind, host_of(url)
    with _speaking:
        now_s = time.monotonic()
        if now_s - _said_at.get(key, float("-inf")) < (REPEAT_S if repeat_s is None else repeat_s):
            _withheld[key] += 1
            return False
        _said_at[key] = now_s
        withheld = _withheld.pop(key, 0)
    more = f" ({withheld:,} more like this since the last message.)" if withheld else ""
    _log.warning("%s%s", message, more)
    return True


def look() -> float:
    """Report the requests that take long, one message for each host; return the seconds until the next look."""
    now_s, pause_s = time.monotonic(), _POLL_S
    late: dict[str, list[tuple[float, Wait]]] = defaultdict(list)
    for wait in list(_waits.values()):
        silent_s = wait.silent_s(now_s)
        if silent_s >= wait.quiet_s:
            late[host_of(wait.url)].append((silent_s, wait))
        else:
            pause_s = min(pause_s, wait.quiet_s - silent_s)
    for host, waits in late.items():
        if now_s - _said_at.get(("slow", host), float("-inf")) >= REPEAT_S:
            silent_s, wait = max(waits, key=lambda found: found[0])
            others = f" ({len(waits)} requests to {host} wait)" if len(waits) > 1 else ""
            received = abs(wait.position - wait.marked)
            what = f"slow: {received:,} byte{'' if received == 1 else 's'} in" if received else "no data for"
            say("slow", wait.url, f"{redact(wait.url)}: {what} {silent_s:.0f} s{others}. {wait.then()}")
    return pause_s


def _watch(wake: queue.SimpleQueue[bool]) -> None:
    pause_s = _POLL_S
    while True:
        goes_on = True
        with contextlib.suppress(queue.Empty):
            goes_on = wake.get(timeout=pause_s)
        if not _goes_on(goes_on):
            return
        with contextlib.suppress(RuntimeError):  # the dict has changed its size meanwhile
            pause_s = look()


def _goes_on(goes_on: bool) -> bool:
    """Whether the thread that watches is still needed; a request that starts later starts another one."""
    global _watcher
    if goes_on and _waits:
        return True
    _watcher = None
    if not (goes_on and _waits):
        return False
    with _speaking:  # a request has registered itself in between: it may have seen this thread, or started another
        if _is_watched():
            return False
        _watcher = threading.current_thread()
        return True


def _is_watched() -> bool:
    return _watcher is not None


def _start() -> None:
    global _watcher, _wake
    with _speaking:
        if _watcher is None:
            _wake = queue.SimpleQueue()
            thread = ForkSafeThread(target=_watch, args=(_wake,), name="torchdata_remote notices", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads, or the interpreter ends
                thread.start()
                _watcher = thread


def _before_fork() -> None:
    """End the thread: Python warns of forks of processes with several threads."""
    watcher = _watcher
    if watcher is not None:
        _wake.put(False)
        watcher.join(_STOP_S)


def _after_fork_in_parent() -> None:
    if _waits and _watcher is None:
        _start()


def _after_fork_in_child() -> None:
    global _waits, _watcher, _speaking
    _waits, _watcher, _speaking = {}, None, threading.RLock()


if hasattr(os, "register_at_fork"):
    # Called before the hooks of ``forks``, which wait for threads that end: hooks run in reverse order
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
