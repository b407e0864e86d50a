"""Call a function a little later, in a thread that a process waits for when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ...core.threads.forks import ForkSafeThread

_POLL_S = 0.05


class Later:
    """A call that is made once, however often it is asked for before."""

    def __init__(self) -> None:
        self._is_waiting = False

    def call(self, function: Callable[[], None], wait_s: float) -> None:
        """Call a function later, unless a call waits already: at once if the process ends, or has no more threads.

        Args:
            function: kept until it was called. It must not raise.
            wait_s: seconds.
        """
        if self._is_waiting:
            return
        self._is_waiting = True
        try:
            if not is_ending():
                ForkSafeThread(
                    target=self._call, args=(function, wait_s), name="torchdata_remote", daemon=False
                ).start()
                return
        except RuntimeError:  # no thread can be started
            pass
        self._call(function, 0)

    def _call(self, function: Callable[[], None], wait_s: float) -> None:
        until = time.monotonic() + wait_s
        while time.monotonic() < until and not is_ending():
            time.sleep(min(_POLL_S, wait_s))
        self._is_waiting = False
        function()


def is_ending() -> bool:
    """Whether the main thread of this process has ended, and the others are waited for."""
    return not threading.main_thread().is_alive()
