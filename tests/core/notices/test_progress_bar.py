"""A bar on terminals."""

from __future__ import annotations

import io
import sys

import pytest

from tests.support.terminals import shown_on, terminal
from torchdata_remote.core.notices.progress_bar import Progress

MIB = 1 << 20


def use(progress: Progress) -> None:
    with progress:
        progress.add_shards(1, 40, 3 * MIB)
        progress.add_shards(2, 60, 5 * MIB + MIB // 4)


def test_the_bar_shows_samples_shards_and_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done, how many samples, shards and MiB; it stays when it is done."""
    with terminal(monkeypatch) as ours:
        use(Progress("shard", 100, "samples", shown=True))
        last = shown_on(ours).rstrip().rpartition("\r")[2]
    assert last.startswith("shard: 100%")
    assert "100/100" in last
    assert "samples/s" in last
    assert "3 shards, 8 MiB" in last


def test_the_bar_of_bytes_has_no_end_without_a_total(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are shown in multiples of 1,000."""
    with terminal(monkeypatch) as ours:
        with Progress("index", None, "B", shown=True) as progress:
            progress.advance(1_500_000)
            progress.advance(1_000_000)
        last = shown_on(ours).rstrip().rpartition("\r")[2]
    assert last.startswith("index: 2.50MB")
    assert "%" not in last


def test_shown_false_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """``shown=False`` is silent there too."""
    with terminal(monkeypatch) as ours:
        use(Progress("shard", 100, "samples", shown=False))
        assert shown_on(ours) == ""


def test_there_is_no_bar_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs hold no bars."""
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    use(Progress("shard", 100, "samples", shown=True))
    assert stderr.getvalue() == ""
