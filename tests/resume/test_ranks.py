"""Exchanges between ranks; ``test_loader.py`` runs them with a process group."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest

from torchdata_remote.resume.ranks import warning_of_missing_ranks


def test_an_exchange_that_takes_long_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that save in the main process only would wait without a word."""
    told: list[str] = []
    warned = threading.Event()

    def warn(message: str, *_: Any, **__: Any) -> None:
        told.append(message)
        warned.set()

    monkeypatch.setattr(warnings, "warn", warn)
    with warning_of_missing_ranks(after_s=0):
        assert warned.wait(timeout=60)
    assert "Save in every process" in told[0]


def test_an_exchange_that_ends_in_time_does_not_warn() -> None:
    """The thread that would warn ends with it."""
    before = threading.active_count()
    with warning_of_missing_ranks(after_s=3600):
        timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
        assert timers
    for timer in timers:
        timer.join(timeout=60)
    assert threading.active_count() <= before
