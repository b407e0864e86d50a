"""Exchanges between ranks; ``test_loader.py`` runs them with a process group."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest

from torchdata_remote import World
from torchdata_remote.errors import UnequalListingError
from torchdata_remote.resume import ranks
from torchdata_remote.resume.fingerprints import fingerprint
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


@pytest.mark.parametrize(("others", "num_exchanges"), [("as here", 1), ("nothing to read", 1), ("something else", 2)])
def test_equal_listings_are_compared_by_a_digest(
    others: str, num_exchanges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 4,096 ranks the fingerprints of 4 kB would be 16 MB in each rank, in every epoch."""
    here = [fingerprint([f"s3://b/{i}.tar" for i in range(5000)])]
    there = {"as here": here, "nothing to read": None, "something else": [fingerprint(["s3://b/0.tar"])]}[others]
    exchanged = []

    def gathered(_world: World, mine: Any) -> list[Any]:
        exchanged.append(mine)
        if isinstance(mine, tuple):
            return [mine, (1, there, None)]
        return [mine, ranks._digest(there) if there is not None else None]

    monkeypatch.setattr(ranks, "gathered", gathered)
    if num_exchanges == 1:
        ranks.require_same_listing(World(0, 2), here, None)
    else:
        with pytest.raises(UnequalListingError, match="5,000 objects and 1"):
            ranks.require_same_listing(World(0, 2), here, None)
    assert len(exchanged) == num_exchanges
    assert len(exchanged[0]) == 16
