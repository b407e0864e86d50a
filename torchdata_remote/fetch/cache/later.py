"""Call a function a little later, in a thread that a process waits for when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...core.threads.forks import ForkSafeThread

_POLL_S = 0.05
_NAME = "torchdata_remote"


class Later:
    """A call that is made once, however often it is asked for before."""

    def __init__(self) -> None:
        self._is_waiting = False

    def call(self, function: Callable[[], None], wait_s: float, *, at_end: bool = True) -> None:
        """Call a function later, unless a call waits already: at once if the process ends, or has no more threads.

        Args:
            function: kept until it was called. It must not raise.
            wait_s: seconds.
            at_end: ``False`` to make no call if the process ends already.
        """
        if self._is_waiting:
            return
        self._is_waiting = True
        is_last = is_ending()
        try:
            if not is_last:
                ForkSafeThread(target=self._call, args=(function, wait_s), name=_NAME, daemon=False).start()
                return
        except RuntimeError:  # no thread can be started
            pass
        self._is_waiting = False
        if at_end or not is_last:
            function()

    def _call(self, function: Callable[[], None], wait_s: float) -> None:
        until = time.monotonic() + wait_s
        while time.monotonic() < until and not is_ending():
            time.sleep(min(_POLL_S, wait_s))
        self._is_waiting = False
        function()


def is_ending() -> bool:
    """Whether all threads of the program have ended that Python waits for: the main one, and others of its own."""
    main = threading.main_thread()
    return not main.is_alive() and all(
        thread.daemon or thread is main or thread.name == _NAME for thread in threading.enumerate()
    )
