"""Folders of the local disk and of the memory: any names, and links. Other stores: ``tests/conformance``."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.test_folders import expected, listed
from tests.support.shard_places import Place, memory_place
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import AccessDeniedError
from torchdata_remote.storage import FolderStore, open_store


def opened(place: Place) -> tuple[FolderStore, str]:
    store, path = open_store(place.url, StorageOptions(place.options))
    assert isinstance(store, FolderStore)
    return store, path


names = st.text(st.sampled_from("ab.-0/\u00e9\U0001f600\uffff"), min_size=1, max_size=5).filter(
    lambda path: all(segment not in ("", ".", "..") for segment in path.split("/"))
)


@pytest.mark.parametrize("kind", ["local", "memory"])
@settings(max_examples=30)
@given(
    paths=st.sets(names, max_size=12), prefix=st.just("") | names, after=st.just("") | names, limit=st.integers(1, 5)
)
def test_any_files_are_listed_from_any_path(
    tmp_path: Path, kind: str, paths: set[str], prefix: str, after: str, limit: int
) -> None:
    """For any prefix and limit."""
    place = memory_place() if kind == "memory" else Place(f"{tmp_path}/{time.monotonic_ns()}/")
    files = sorted(path for path in paths if not any(other.startswith(path + "/") for other in paths))
    store, above = opened(place)
    place.put(dict.fromkeys(files, b"1"))
    for recursive in (True, False):
        wanted = [above + path for path in expected(files, prefix, recursive=recursive) if path > after]
        begin = above + after if after else ""
        assert listed(store, above + prefix, recursive=recursive, limit=limit, after=begin) == wanted


def test_links_are_refused_in_folders_that_are_served(tmp_path: Path) -> None:
    """The error names the link."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(b"1")
    os.symlink("/", tmp_path / "d" / "link")
    store, above = opened(Place(f"{tmp_path}/d/"))
    with pytest.raises(AccessDeniedError, match="link"):
        store.list_after(above, recursive=True, after="", limit=10)
    assert [entry.path for entry in store.list_after(above + "a", recursive=True, after="", limit=10).entries] == [
        above + "a"
    ]


def test_removing_a_linked_folder_removes_the_link_only(tmp_path: Path) -> None:
    """Not its target."""
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a").write_bytes(b"1")
    os.symlink(tmp_path / "far", tmp_path / "near")
    store, above = opened(Place(f"{tmp_path}/"))
    store.remove_folder(above + "near/")
    assert not (tmp_path / "near").is_symlink()
    assert (tmp_path / "far" / "a").exists()
