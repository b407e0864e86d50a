"""SIGTERM and Ctrl-C of a process that serves, at any moment from its start to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

SIGINT_STATUS = 130  # as shells report it


class StopSignals:
    """The signals that end a process.

    They end it at once while no event loop runs, by ``SystemExit(0)`` and ``KeyboardInterrupt``. In an event loop they
    are noted, and call what :meth:`calling` was given. Ctrl-C once more ends the process without waiting.

    Attributes:
        interrupted: whether Ctrl-C was among them.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._call: Callable[[], object] | None = None

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle them while the block runs, which must be in the main thread."""
        before: dict[int, Any] = {each: signal.signal(each, self._handle) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def calling(self, stop: Callable[[], object]) -> None:
        """Call ``stop`` in the running event loop from now on, when a signal comes."""
        loop = asyncio.get_running_loop()

        def call() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: all is done already
                loop.call_soon_threadsafe(stop)

        self._call = call

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self.interrupted:
                os._exit(SIGINT_STATUS)
            self.interrupted = True
        if self._call is not None:
            self._call()
        elif self.interrupted:
            raise KeyboardInterrupt
        else:
            raise SystemExit(0)
