"""Views of local files: the right bytes, for as long as the view is kept, and no descriptor longer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.open_files import num_open
from torchdata_remote.core import local_view as mapped
from torchdata_remote.core.local_view import map_file

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
    """Any range of any file is the file's bytes, and cannot be written to."""
    data = os.urandom(before + length + behind)
    with file_of(data) as (descriptor, _):
        view = map_file(descriptor, before, before + length)
        assert view == data[before : before + length]
        assert len(view) == view.nbytes == length
        assert view.format == "B"
        assert view.contiguous
        assert view.readonly


@given(length=LENGTHS, start=LENGTHS, beyond=st.integers(1, 5_000))
def test_map_file_refuses_a_file_that_is_too_short(length: int, start: int, beyond: int) -> None:
    """A range that ends behind the file's end is an error by any number of bytes, wherever it starts."""
    with file_of(bytes(length)) as (descriptor, path):
        before = num_open(path)
        with pytest.raises(EOFError, match="ends before byte"):
            map_file(descriptor, start, max(start, length) + beyond)
        assert num_open(path) == before


@pytest.mark.parametrize("length", [SMALL, BOUND - 1, BOUND, LARGE])
def test_outlives_the_descriptor_and_the_file(length: int) -> None:
    """The view stays what it was after the descriptor is closed, and the file unlinked or replaced."""
    data = os.urandom(length + 5)
    with tempfile.TemporaryDirectory() as folder:
        path, other = os.path.join(folder, "a"), os.path.join(folder, "b")
        for end in (os.unlink, lambda path: os.replace(other, path)):
            for name, content in ((path, data), (other, bytes(len(data)))):
                with open(name, "wb") as file:
                    file.write(content)
            descriptor = os.open(path, os.O_RDONLY)
            view = map_file(descriptor, 3, 3 + length)
            os.close(descriptor)
            end(path)
            assert view == data[3 : 3 + length]
            part = view[1:]
            del view
            assert part == data[4 : 3 + length]


@pytest.mark.parametrize("length", [BOUND - 1, BOUND])
def test_position_of_the_descriptor_does_not_matter(length: int) -> None:
    """The descriptor's position is neither used nor moved, so that threads may share it."""
    data = os.urandom(length)
    with file_of(data) as (descriptor, _):
        os.lseek(descriptor, 7, os.SEEK_SET)
        assert map_file(descriptor, 0, length) == data
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 7


def test_short_reads_are_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that returns fewer bytes than asked for, as it may, changes nothing."""
    data, whole = os.urandom(BOUND - 1), os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, buffers, offset: whole(file, [buffers[0][:100]], offset))
    with file_of(data) as (descriptor, _):
        assert map_file(descriptor, 1, BOUND - 1) == data[1:]


def test_no_descriptor_is_left() -> None:
    """Copies hold no descriptor, and a mapping's goes with the last view of it."""
    with file_of(bytes(LARGE)) as (descriptor, path):
        before = num_open(path)
        copies = [map_file(descriptor, number, number + SMALL) for number in range(50)]
        assert num_open(path) == before
        views = [map_file(descriptor, number, LARGE)[5:] for number in range(50)]
        assert all(len(view) == LARGE - number - 5 for number, view in enumerate(views))
        del views
        assert num_open(path) == before
        assert all(copy == bytes(SMALL) for copy in copies)
