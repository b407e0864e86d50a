"""Sorted listings of local folders, page by page."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.errors import AccessDeniedError
from torchdata_remote.storage import PARTIAL_SUFFIX, LocalStore
from torchdata_remote.storage.local import names

SEGMENTS = st.sampled_from(["a", "b", "a.b", "a0", "a-", "é", "\U0001f600", "ab", "\n", "~", "!"])
PATHS = st.lists(st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join), max_size=12)


@pytest.fixture(params=["changing", "unchanged"])
def _folders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders that have changed just now, and those that have been unchanged for long."""
    if request.param == "unchanged":
        monkeypatch.setattr(names, "_CLOCK_STEP_NS", -(1 << 62))


def make(root: pathlib.Path, paths: list[str]) -> set[str]:
    """Create files; those whose path is taken by a folder, or below a file, are left out."""
    made = set()
    for path in paths:
        try:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(b"")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue
        made.add(path)
    return made


def model(paths: set[str], prefix: str, after: str, *, recursive: bool) -> list[str]:
    """What a listing contains, made from the paths of all files. Empty folders are no part of it."""
    depth = prefix.count("/")
    found = {
        path if recursive or path.count("/") == depth else "/".join(path.split("/")[: depth + 1]) + "/"
        for path in paths
        if path.startswith(prefix)
    }
    return sorted(path for path in found if path > after)


def listed(root: str, prefix: str, after: str, *, recursive: bool = True, limit: int = 100) -> list[str]:
    """All pages."""
    found: list[str] = []
    token: str | None = root + after if after else ""
    while token is not None:
        page = LocalStore().list_after(root + prefix, recursive=recursive, after=token, limit=limit)
        found += sorted([*(entry.path for entry in page.entries), *page.folders])
        token = page.next_token
    return [path[len(root) :] for path in found]


@pytest.mark.usefixtures("_folders")
@given(paths=PATHS, prefix=st.sampled_from(["", "a", "a/", "a/b", "a/b/", "é"]), after=st.text("ab./-é!", max_size=5))
def test_a_listing_is_that_of_all_paths(paths: list[str], prefix: str, after: str) -> None:
    """Whether folders are unchanged, or change; for any prefix and path to start after."""
    with tempfile.TemporaryDirectory() as root:
        made = make(pathlib.Path(root), paths)
        for recursive in (True, False, True):
            wanted = model(made, prefix, after, recursive=recursive)
            for limit in (1, 3, 100):
                assert listed(root + "/", prefix, after, recursive=recursive, limit=limit) == wanted


@pytest.mark.usefixtures("_folders")
@pytest.mark.parametrize("_folders", ["changing"], indirect=True)
@given(
    changes=st.lists(st.tuples(st.booleans(), PATHS.map(lambda paths: paths[:2])), max_size=8), limit=st.integers(1, 4)
)
def test_files_that_are_not_changed_are_listed_once_while_others_change(
    changes: list[tuple[bool, list[str]]], limit: int
) -> None:
    """A page is right at its time, also right after a change, with the clock as it is."""
    with tempfile.TemporaryDirectory() as root:
        above = pathlib.Path(root)
        present = make(above, ["a", "b/c", "b/d", "c", "d/e/f", "é"])
        kept, found, after = set(present), list[str](), ""
        pending = iter(changes)
        while True:
            remaining = listed(root + "/", "", after)
            assert remaining == model(present, "", after, recursive=True)
            page = remaining[:limit]
            found += page
            if len(remaining) <= limit:
                break
            after = page[-1]
            adds, paths = next(pending, (True, []))
            if adds:
                present |= make(above, paths)
            for path in [] if adds else paths:
                shutil.rmtree(above / path, ignore_errors=True)
                (above / path).unlink(missing_ok=True) if (above / path).is_file() else None
                gone = {one for one in present if one == path or one.startswith(path + "/")}
                present, kept = present - gone, kept - gone
        assert found == sorted(set(found))
        assert kept <= set(found)


@pytest.mark.usefixtures("_folders")
@pytest.mark.parametrize("after", ["../", "../b", "./a", "/a", "link/x", f"c{PARTIAL_SUFFIX}/x", "\0", "a/../../b"])
def test_no_path_to_start_after_leads_elsewhere(tmp_path: pathlib.Path, after: str) -> None:
    """A listing consists of names that are in the folder, whatever a client sends."""
    make(tmp_path, ["outside/secret", f"root/c{PARTIAL_SUFFIX}/x.jpg", "root/z"])
    os.symlink(tmp_path / "outside", tmp_path / "root" / "link")
    found: list[str] = []
    with contextlib.suppress(AccessDeniedError):  # for the link
        found.extend(listed(f"{tmp_path}/root/", "", after))
    assert set(found) <= {"z"}
