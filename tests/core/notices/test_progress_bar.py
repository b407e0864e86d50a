"""A bar on terminals."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.support.terminals import shown_on, terminal
from torchdata_remote.core.notices import progress_bar
from torchdata_remote.core.notices.progress_bar import (
    Progress,
    above_bars,
    counts_listing,
    first_awaited,
    hidden_unless,
    waiting,
)

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


@pytest.mark.parametrize(("name", "value"), [("TORCHDATA_REMOTE_PROGRESS", "0"), ("TQDM_DISABLE", "1"), ("RANK", "1")])
def test_the_environment_hides_bars(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """By our variable, by tqdm's, and in all ranks but the first."""
    with terminal(monkeypatch) as ours:
        monkeypatch.setenv(name, value)
        use(Progress("shard", 100, "samples"))
        assert shown_on(ours) == ""


def test_bars_are_hidden_within_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of everything that is called there."""
    with terminal(monkeypatch) as ours:
        with hidden_unless(False), hidden_unless(True):
            use(Progress("shard", 100, "samples"))
        assert shown_on(ours) == ""
        with hidden_unless(True):
            use(Progress("shard", 100, "samples"))
        assert "shard: 100%" in shown_on(ours)


def listing(url: str, number: int) -> Iterator[int]:
    yield from range(number)


def test_a_long_listing_counts_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL is shown without credentials, and the line is cleared at the end. Short listings show nothing."""
    url = "http://user:secret@host/train/"
    with terminal(monkeypatch) as ours:
        assert len(list(counts_listing(listing)(url, 1_000))) == 1_000
        assert shown_on(ours) == ""
        monkeypatch.setattr(progress_bar, "_LISTING_AFTER_S", -1.0)
        monkeypatch.setattr(progress_bar, "_REDRAWN_WITHIN_S", 0.0)
        found = counts_listing(listing)(url, 1_000)
        assert [next(found) for _ in range(600)] == list(range(600))
        seen = shown_on(ours)
        assert "512 objects" in seen
        assert "host/train/" in seen
        assert "secret" not in seen
        assert len(list(found)) == 400
        assert shown_on(ours).endswith("\r")


def test_waiting_is_shown_with_the_seconds_and_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a second; a block that is shorter shows nothing."""
    with terminal(monkeypatch) as ours:
        with waiting("starting 2 workers"):
            pass
        assert shown_on(ours) == ""
        monkeypatch.setattr(progress_bar, "_WAITING_AFTER_S", 0.001)
        os.set_blocking(ours, True)
        with waiting("starting 2 workers"):
            seen = os.read(ours, 1 << 16)  # blocks until it is there
        assert b"starting 2 workers (00:00" in seen
        assert shown_on(ours).endswith("\r")


def test_an_error_ends_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that draws has ended."""
    with terminal(monkeypatch), pytest.raises(ValueError, match=r"^failed$"), waiting("starting 2 workers"):
        raise ValueError("failed")
    assert not [thread for thread in threading.enumerate() if thread.name == "torchdata_remote-waiting"]


def test_lines_are_printed_above_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is cleared before the line, and drawn again below it."""
    with terminal(monkeypatch) as ours:
        with Progress("shard", 100, "samples") as progress, monkeypatch.context() as patch:
            progress.advance(50)
            shown_on(ours)
            patch.setattr(sys, "stdout", sys.stderr)  # the same terminal
            with above_bars():
                sys.stdout.write("a line\n")
            seen = shown_on(ours)
        before, _, after = seen.partition("a line\r\n")
    assert before.endswith("\r")
    assert "shard:  50%" in after


def test_first_batch_is_waited_for_and_all_are_yielded() -> None:
    """In order, and lazily."""
    source = iter(range(5))
    batches = first_awaited(source)
    assert next(source) == 0
    assert list(batches) == [1, 2, 3, 4]
    assert list(first_awaited(iter([]))) == []
