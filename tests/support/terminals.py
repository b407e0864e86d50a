"""A terminal as standard error."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard error is a terminal; what it shows can be read from the descriptor."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))  # a bar of no columns shows nothing
    with os.fdopen(ours, "rb", buffering=0), os.fdopen(theirs, "w") as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        yield ours


def shown_on(ours: int) -> str:
    sys.stderr.flush()
    os.set_blocking(ours, False)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 1 << 16)
        except BlockingIOError:
            return seen.decode()
