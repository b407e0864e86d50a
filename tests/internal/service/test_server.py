"""What the clock, a disk or an address decides in the service: summaries, private paths, limits of connections."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

from torchdata_remote.service.server.datasets.cached_files import open_cached, read_cached
from torchdata_remote.service.server.datasets.lifetimes import Life, Lifetimes
from torchdata_remote.service.server.datasets.summary_cache import LIFETIME_S, MAX_ENTRIES, SummaryCache
from torchdata_remote.service.server.http.connections import within_descriptors
from torchdata_remote.service.server.http.private_paths import without_root
from torchdata_remote.service.server.limits import ServiceLimits
from torchdata_remote.service.server.problems import Problem


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


def test_concurrent_requests_compute_a_summary_once() -> None:
    summaries, calls, begun = SummaryCache(), [0], threading.Barrier(8)

    def look() -> str:
        calls[0] += 1
        return "sheet"

    def ask(_: int) -> str:
        begun.wait()
        return summaries.get("pets", "sheet", look)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == ["sheet"] * 8
    assert calls == [1]


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


@pytest.mark.parametrize("number", [16, 64, 256, 1024, 4096, 8191, 8192, 1 << 20])
def test_a_small_limit_of_open_files_leaves_some_connections(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (number, number))
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    limits = within_descriptors(ServiceLimits())
    assert number // 8 <= limits.max_connections or limits.max_connections == ServiceLimits().max_connections
    assert 2 * limits.max_connections < number or number == 1 << 20


def test_a_removal_waits_until_files_are_published_and_lets_no_other_one_begin() -> None:
    life, order, began = Life(), list[str](), threading.Event()

    def remove() -> None:
        began.set()
        with life.ended():
            order.append("removed")

    with life.used():
        thread = threading.Thread(target=remove)
        thread.start()
        began.wait()
        while not life.is_over:
            pass
        for attempt in (life.used, life.ended):
            with pytest.raises(Problem, match="removed"), attempt():
                pass
        order.append("published")
    thread.join()
    assert order == ["published", "removed"]
    lives = Lifetimes()
    assert lives.current("5/") is not lives.current("6/")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="Linux")
def test_a_file_in_memory_is_opened_and_nothing_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "d" / "deep").mkdir(parents=True)
    (tmp_path / "d" / "deep" / "a").write_bytes(b"12345")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "d" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "d" / "folder").symlink_to(tmp_path)
    for path in ("none", "link", "folder/secret", "../secret", "deep/../../secret", "/etc/passwd", "deep/a/b"):
        assert open_cached(str(tmp_path), "d", path) is None, path
    descriptor = open_cached(str(tmp_path), "d", "deep/a")
    if descriptor is None:
        pytest.skip("this kernel or file system cannot")
    for start in range(6):
        assert bytes(read_cached(descriptor, start, 5) or b"12345"[start:]) == b"12345"[start:]
    assert read_cached(descriptor, 0, 6) is None
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
