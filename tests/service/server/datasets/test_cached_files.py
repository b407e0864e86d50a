"""Files that the kernel has in memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.service.server.datasets.cached_files import open_cached, read_cached

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux")
DATA = bytes(range(256)) * 100


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "d" / "deep"
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(DATA)
    (tmp_path / "secret").write_bytes(b"secret")
    return tmp_path


def test_a_file_in_memory_is_opened(root: Path) -> None:
    """Also where the dataset's folder is a link, which its owner made."""
    (root / "link").symlink_to(root / "d")
    os.utime(root / "link", (2e9, 1e9), follow_symlinks=False)  # or the kernel notes that it was read, on the disk
    for name in ("d", "link"):
        descriptor = open_cached(str(root), name, "deep/a")
        if descriptor is None:
            pytest.skip("this kernel or file system cannot")
        assert bytes(read_cached(descriptor, 0, len(DATA)) or b"") == DATA
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)


def test_nothing_else_is_opened(root: Path) -> None:
    """A missing file, links at each place, paths that lead out: left to the slower way, which names the reason."""
    (root / "d" / "link").symlink_to(root / "secret")
    (root / "d" / "folder").symlink_to(root)
    for path in ("none", "link", "folder/secret", "../secret", "deep/../../secret", "/etc/passwd", "deep/a/b"):
        assert open_cached(str(root), "d", path) is None, path
    assert open_cached(str(root), "none", "a") is None


def test_a_folder_that_takes_the_place_of_the_root_is_read(root: Path) -> None:
    """And not the one that was there when the service started."""
    for content in (b"first", b"second"):
        new = root.with_name(f"new-{content.decode()}")
        (new / "d").mkdir(parents=True)
        (new / "d" / "a").write_bytes(content)
        if root.exists():
            root.rename(root.with_name(f"old-{content.decode()}"))
        new.rename(root)
        descriptor = open_cached(str(root), "d", "a")
        if descriptor is None:
            pytest.skip("this kernel or file system cannot")
        assert os.read(descriptor, 100) == content
        os.close(descriptor)


@given(st.integers(0, len(DATA)), st.integers(0, 2 * len(DATA)))
def test_a_range_is_read_whole_or_not_at_all(start: int, length: int) -> None:
    descriptor = os.memfd_create("test")
    try:
        os.write(descriptor, DATA)
        found = read_cached(descriptor, start, start + length)
        assert found is None or bytes(found) == DATA[start : start + length]
        assert found is None or len(found) == length
    finally:
        os.close(descriptor)
