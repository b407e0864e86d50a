"""Aligned columns and bars."""

from __future__ import annotations

import io

import pytest

from torchdata_remote.cli._text_table import aligned, bar


def test_a_longer_text_after_the_first_rows_widens_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are taken from a stream, no more than needed are kept."""
    monkeypatch.setattr("torchdata_remote.cli._text_table._MEASURED_ROWS", 2)
    rows = iter([("a", "1"), ("bb", "22"), ("cccc", "3"), ("d", "4")])
    lines = aligned(rows, "<>")
    assert next(lines) == "a    1"
    assert next(rows) == ("cccc", "3")
    assert list(lines) == ["bb  22", "d    4"]


def test_bars_are_as_long_as_their_numbers_and_none_is_lost() -> None:
    """Up to 40 characters, by eighths; a small number is visible, zero is not."""
    assert [bar(number, 1_000) for number in (1_000, 500, 13, 1, 0)] == ["█" * 40, "█" * 20, "▌", "▏", ""]


def test_bars_are_plain_where_the_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """ASCII for ASCII."""
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert [bar(number, 40) for number in (40, 3, 0)] == ["#" * 40, "###", ""]
