"""What was seen of a dataset is kept while it is true."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from torchdata_remote.service.server.datasets.summary_cache import LIFETIME_S, MAX_ENTRIES, SummaryCache


def test_a_summary_is_computed_again_after_a_change() -> None:
    """Until then the cached one is returned."""
    summaries, seen = SummaryCache(), iter(range(9))
    assert [summaries.get("pets", "sheet", lambda: next(seen)) for _ in range(3)] == [0, 0, 0]
    assert summaries.get("pets", "summary", lambda: next(seen)) == 1
    summaries.invalidate("others")
    assert summaries.get("pets", "sheet", lambda: next(seen)) == 0
    summaries.invalidate("pets")
    assert summaries.get("pets", "sheet", lambda: next(seen)) == 2


def test_a_summary_expires_after_a_minute() -> None:
    """Since files may be added without the service."""
    now = [0.0]
    summaries, seen = SummaryCache(clock=lambda: now[0]), iter(range(9))
    summaries.get("pets", "sheet", lambda: next(seen))
    now[0] = LIFETIME_S - 1
    assert summaries.get("pets", "sheet", lambda: next(seen)) == 0
    now[0] = LIFETIME_S
    assert summaries.get("pets", "sheet", lambda: next(seen)) == 1


def test_a_summary_of_a_dataset_that_changed_meanwhile_is_not_cached() -> None:
    """It may lack the change."""
    summaries = SummaryCache()

    def look() -> str:
        summaries.invalidate("pets")
        return "old"

    assert summaries.get("pets", "sheet", look) == "old"
    assert summaries.get("pets", "sheet", lambda: "new") == "new"


def test_concurrent_requests_compute_a_summary_once() -> None:
    """The others wait for it."""
    summaries, calls, begun = SummaryCache(), [0], threading.Barrier(8)

    def ask(number: int) -> str:
        begun.wait()
        return summaries.get("pets", "sheet", look)

    def look() -> str:
        calls[0] += 1
        return "sheet"

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == ["sheet"] * 8
    assert calls == [1]


def test_names_are_not_remembered_without_a_value() -> None:
    """Whatever clients send; nor after the computation failed, or the value expired."""
    now = [0.0]
    summaries = SummaryCache(clock=lambda: now[0])

    def fail() -> str:
        summaries.invalidate("pets")
        raise KeyError

    for number in range(100):
        summaries.invalidate(f"no-such-dataset-{number}")
        with pytest.raises(KeyError):
            summaries.get("pets", "sheet", fail)
    assert len(summaries) == 0
    for number in range(2 * MAX_ENTRIES):
        summaries.get(f"d{number}", "sheet", lambda: b"")
    assert len(summaries) == MAX_ENTRIES
    assert summaries.get(f"d{2 * MAX_ENTRIES - 1}", "sheet", lambda: b"new") == b""  # the latest ones are kept
    now[0] = LIFETIME_S
    summaries.get("pets", "sheet", lambda: b"")
    assert len(summaries) == 1
