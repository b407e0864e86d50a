"""What the clock, a disk or an address decides in the service: summaries, private paths, limits of connections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

from torchdata_remote.service.server.datasets.summary_cache import LIFETIME_S, MAX_ENTRIES, SummaryCache
from torchdata_remote.service.server.http.private_paths import without_root


def test_a_summary_is_kept_for_a_minute_or_until_a_change_and_not_without_a_value() -> None:
    now = [0.0]
    summaries, seen = SummaryCache(clock=lambda: now[0]), iter(range(99))
    assert [summaries.get("pets", "sheet", lambda: next(seen)) for _ in range(3)] == [0, 0, 0]
    assert summaries.get("pets", "summary", lambda: next(seen)) == 1
    summaries.invalidate("others")
    assert summaries.get("pets", "sheet", lambda: next(seen)) == 0
    summaries.invalidate("pets")
    assert summaries.get("pets", "sheet", lambda: next(seen)) == 2
    now[0] = LIFETIME_S - 1
    assert summaries.get("pets", "sheet", lambda: next(seen)) == 2
    now[0] = LIFETIME_S
    assert summaries.get("pets", "sheet", lambda: next(seen)) == 3

    def look() -> str:
        summaries.invalidate("cats")
        return "old"

    assert [summaries.get("cats", "sheet", look), summaries.get("cats", "sheet", lambda: "new")] == ["old", "new"]
    for number in range(2 * MAX_ENTRIES):
        summaries.get(f"d{number}", "sheet", lambda: b"")
    assert len(summaries) == MAX_ENTRIES


SEGMENTS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="/'\"\\"), min_size=1)
PATHS = st.lists(SEGMENTS.filter(lambda one: one not in (".", "..")), min_size=1, max_size=4).map("/".join)


@given(path=PATHS, before=st.sampled_from(["", "[Errno 13] denied: '", "No such file ", "("]))
@pytest.mark.parametrize("root", ["/srv/data/", "/srv/data", "file:///srv/data/", "local:///srv/data", "s3://b/d"])
def test_a_path_in_a_message_begins_below_the_root(root: str, before: str, path: str) -> None:
    for spelled in ("s3://b/d/",) if root.startswith("s3") else ("/srv/data/", "file:///srv/data/"):
        assert without_root(f"{before}{spelled}{path}: no", root) == f"{before}{path}: no"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("/srv/data is full.", "the service's root is full."),
        ("It is at /srv/data.", "It is at the service's root."),
        ("/srv/database/a", "/srv/database/a"),
        ("/mnt/srv/data/a", "/mnt/srv/data/a"),
    ],
)
def test_nothing_but_the_root_is_replaced_in_a_message(message: str, expected: str) -> None:
    assert without_root(message, "/srv/data") == expected
