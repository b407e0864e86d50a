"""Views of local files: the right bytes, for as long as the view is kept, and no descriptor longer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core import files as mapped
from torchdata_remote.core.files import map_file

SMALL, LARGE = 10, 20_000  # below and above the bound under test
BOUND = 9_000  # neither a power of two nor a multiple of a page
LENGTHS = st.one_of(st.integers(0, 40), st.integers(BOUND - 3, BOUND + 3), st.integers(0, 3 * BOUND))


@pytest.fixture(autouse=True)
def _maps_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "MAP_FROM_BYTES", BOUND)


@contextmanager
def file_of(data: bytes) -> Iterator[tuple[int, str]]:
    """Descriptor and path of a file that holds the data."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.fileno(), file.name


@given(before=LENGTHS, length=LENGTHS, behind=LENGTHS)
def test_map_file_returns_any_range(before: int, length: int, behind: int) -> None:
    data = os.urandom(before + length + behind)
    with file_of(data) as (descriptor, _):
        view = map_file(descriptor, before, before + length)
        assert view == data[before : before + length]
        assert len(view) == view.nbytes == length
        assert view.format == "B"
        assert view.contiguous
        assert view.readonly


def test_short_reads_are_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    data, whole = os.urandom(BOUND - 1), os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, buffers, offset: whole(file, [buffers[0][:100]], offset))
    with file_of(data) as (descriptor, _):
        assert map_file(descriptor, 1, BOUND - 1) == data[1:]
