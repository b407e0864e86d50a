"""Content-Range and Content-Length of responses."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.errors import TransientStorageError
from torchdata_remote.storage.http.content_range import Span, parse_content_length, parse_content_range


@given(start=st.integers(0, 50), length=st.integers(0, 50), total=st.none() | st.integers(0, 100), status=st.just(206))
def test_contradictory_ranges_are_refused(start: int, length: int, total: int | None, status: int) -> None:
    """A span is within its object and as long as its body."""
    header = f"bytes {start}-{start + length - 1}/{'*' if total is None else total}"
    with contextlib.suppress(TransientStorageError):
        span = parse_content_range(status, header, length, "http://host/a")
        assert span.end - span.start == length
        assert span in (Span(start, start + length, total), Span(0, 0, 0))
        assert total is None or span.end <= total


@given(numbers=st.lists(st.integers(-3, 3), min_size=1, max_size=4))
def test_different_content_lengths_are_no_length(numbers: list[int]) -> None:
    found = parse_content_length(", ".join(map(str, numbers)))
    assert found == (numbers[0] if len(set(numbers)) == 1 and numbers[0] >= 0 else None)


def test_numbers_of_thousands_of_digits_are_no_sizes() -> None:
    """Python refuses to convert them."""
    digits = "9" * 5000
    assert parse_content_length(digits) is None
    with pytest.raises(TransientStorageError, match="Content-Range"):
        parse_content_range(206, f"bytes 0-4/{digits}", 5, "http://host/a")
