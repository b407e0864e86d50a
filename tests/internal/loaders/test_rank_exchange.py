"""Exchanges between ranks, of which one waits or sends a digest; ``tests/ranks`` runs them with process groups."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest

from torchdata_remote import World
from torchdata_remote.core import rank_exchange
from torchdata_remote.core.rank_exchange import all_alike, warning_of_missing_ranks


def test_an_exchange_that_takes_long_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that save in the main process only would wait without a word."""
    messages: list[str] = []
    warned = threading.Event()

    def warn(message: str, *_: Any, **__: Any) -> None:
        messages.append(message)
        warned.set()

    monkeypatch.setattr(warnings, "warn", warn)
    with warning_of_missing_ranks("save", after_s=0):
        assert warned.wait(timeout=60)
    assert messages[0].startswith("This rank is to save, and has waited 0 s")


def test_an_exchange_that_ends_in_time_does_not_warn() -> None:
    """The thread that would warn ends with it."""
    before = threading.active_count()
    with warning_of_missing_ranks("save", after_s=3600):
        timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
        assert timers
    for timer in timers:
        timer.join(timeout=60)
    assert threading.active_count() <= before


def test_of_equal_values_a_digest_is_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 4,096 ranks listings of 4 kB would be 16 MB in each rank, in every epoch."""
    sent = []

    class Group:
        def gather(self, rank: int, own: Any) -> list[Any]:
            sent.append(own[2])
            return [(0, own), (1, (own[0], 1, *own[2:]))]

    monkeypatch.setattr(rank_exchange, "in_group", lambda world: True)
    monkeypatch.setattr(rank_exchange, "_group_of", lambda world: Group())
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    assert all_alike(World(0, 2), "compare", ["s3://b/0.tar"] * 1000)
    assert [len(value) for value in sent] == [32]
