"""See, or hold up, what this process does to files: Python's audit events."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Listener = Callable[[str, tuple[Any, ...]], object]
_listeners: list[Listener] = []
_is_added: list[bool] = []


def _hook(event: str, args: tuple[Any, ...]) -> None:
    for listener in tuple(_listeners):
        listener(event, args)


@contextmanager
def audited(listener: Listener) -> Iterator[None]:
    """Call a function for each event, in its thread, while the block runs. A hook cannot be removed."""
    if not _is_added:
        _is_added.append(True)
        sys.addaudithook(_hook)
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class Gate:
    """Holds up each file of the local disk that is about to get a name with this ending, until it is opened."""

    def __init__(self, ending: str) -> None:
        self._ending = ending
        self.waiting, self._open = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event in ("os.link", "os.rename") and str(args[1]).endswith(self._ending):
            self.waiting.release()
            assert self._open.acquire(timeout=60)

    def open(self, times: int = 1) -> None:
        self._open.release(times)
