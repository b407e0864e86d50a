"""Addresses of the CDN, and how long they are used."""

from __future__ import annotations

import pytest

from torchdata_remote.storage.hugging_face import locations
from torchdata_remote.storage.hugging_face.locations import MAX_LOCATIONS, Locations, seconds_valid

DATE = {"Date": "Tue, 24 Nov 2026 05:00:00 GMT"}


@pytest.mark.parametrize(
    ("query", "valid_s"),
    [
        ("Expires=1795496460&Signature=0", 60),
        ("X-Amz-Date=20261124T045900Z&X-Amz-Expires=180&X-Amz-Signature=0", 120),
        ("Expires=1&Signature=0", 0),
        ("Expires=soon", 0),
        ("X-Amz-Date=yesterday&X-Amz-Expires=180", float("inf")),
        ("", float("inf")),
    ],
)
def test_a_signed_url_says_how_long_it_is_valid(query: str, valid_s: float) -> None:
    """By the clock of its signer."""
    assert seconds_valid(f"https://cdn/a.tar?{query}", DATE) == valid_s


def test_a_location_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the time before it expires, when it is refused, and when there are too many."""
    now = 0.0
    monkeypatch.setattr(locations, "monotonic", lambda: now)
    found = Locations()
    found.put("a", "https://cdn/a?Expires=1795496460", "1", 5, DATE)
    now = 53.9
    location = found.get("a")
    assert location is not None
    assert location.url == "https://cdn/a?Expires=1795496460"
    now = 54.1
    assert found.get("a") is None
    found.put("a", "https://cdn/a", "1", 5, DATE)
    found.drop("a", location)
    newer = found.get("a")
    assert newer is not None, "another thread has found it meanwhile"
    found.drop("a", newer)
    assert found.get("a") is None
    for number in range(MAX_LOCATIONS + 1):
        found.put(f"{number}", "https://cdn/a", "1", 5, {})
    assert (found.get("0"), found.get("1") is None) == (None, False)
