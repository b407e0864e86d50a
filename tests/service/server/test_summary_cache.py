"""What was seen of a dataset is kept while it is true."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from torchdata_remote.service.server.summary_cache import KEPT_S, SummaryCache


def test_seen_once_until_it_changes() -> None:
    """The second one who asks gets what the first one saw; after a change it is looked at again."""
    looks, seen = SummaryCache(), iter(range(9))
    assert [looks.of("pets", "sheet", lambda: next(seen)) for _ in range(3)] == [0, 0, 0]
    assert looks.of("pets", "summary", lambda: next(seen)) == 1
    looks.forget("others")
    assert looks.of("pets", "sheet", lambda: next(seen)) == 0
    looks.forget("pets")
    assert looks.of("pets", "sheet", lambda: next(seen)) == 2


def test_kept_for_a_minute() -> None:
    """Files that came without the service are seen a minute later."""
    now = [0.0]
    looks, seen = SummaryCache(clock=lambda: now[0]), iter(range(9))
    looks.of("pets", "sheet", lambda: next(seen))
    now[0] = KEPT_S - 1
    assert looks.of("pets", "sheet", lambda: next(seen)) == 0
    now[0] = KEPT_S
    assert looks.of("pets", "sheet", lambda: next(seen)) == 1


def test_what_changed_meanwhile_is_not_kept() -> None:
    """A look during which something came may not show it."""
    looks = SummaryCache()

    def look() -> str:
        looks.forget("pets")
        return "old"

    assert looks.of("pets", "sheet", look) == "old"
    assert looks.of("pets", "sheet", lambda: "new") == "new"


def test_many_ask_and_one_looks() -> None:
    """Whoever asks meanwhile waits for what is being seen."""
    looks, calls, begun = SummaryCache(), [0], threading.Barrier(8)

    def ask(number: int) -> str:
        begun.wait()
        return looks.of("pets", "sheet", look)

    def look() -> str:
        calls[0] += 1
        return "sheet"

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == ["sheet"] * 8
    assert calls == [1]
