"""Local files: paths, links, permissions, what is listed, and what a full disk leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import objects
from tests.support.small_disk import small_disk
from torchdata_remote.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UrlError,
)

PARTIAL_SUFFIX = ".torchdata_remote-partial"  # of unfinished files, as docs/stores/fsspec.md names it


def test_what_is_missing_or_no_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    """A FIFO without a writer is not waited for, and a device without an end is not read."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"1")
    for name in ("none", "folder", "none/none", "file/below"):
        with pytest.raises(ObjectNotFoundError, match=f"file://{tmp_path}/{name}") as caught:
            objects.read(f"{tmp_path}/{name}")
        assert isinstance(caught.value, FileNotFoundError)
    os.mkfifo(tmp_path / "fifo")
    for path, kind in ((f"{tmp_path}/fifo", "FIFO"), ("/dev/zero", "device")):
        with pytest.raises(UrlError, match=f"is a {kind}. Pass the path of a file"):
            objects.read(path)
    with pytest.raises(StorageError):
        objects.write(f"{tmp_path}/file/below/")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_or_folder_is_an_error_and_never_left_out(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0)
    (tmp_path / "file").touch(mode=0)
    for attempt in (lambda: objects.read(f"{tmp_path}/file"), lambda: objects.listed(f"{tmp_path}/")):
        with pytest.raises(AccessDeniedError):
            attempt()


def test_links_are_followed_and_a_circle_once_and_one_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    """A listing without it would be incomplete without notice."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a").write_bytes(b"123")
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    (tmp_path / "real/self").symlink_to(tmp_path)
    urls = objects.listed(f"{tmp_path}/")
    assert [url.removeprefix(f"file://{tmp_path}/") for url in urls] == ["linked/a", "real/a"]
    assert [url.size for url in urls] == [3, 3]
    for number, link_target in enumerate(("gone", "a", "b/below")):
        folder = tmp_path / f"nowhere-{number}"
        folder.mkdir()
        (folder / "a").symlink_to(folder / link_target)
        (folder / "b").write_bytes(b"")
        with pytest.raises((StorageError, FileNotFoundError)):
            assert [objects.read(url) for url in objects.listed(f"{folder}/")] == []


def test_files_of_this_package_are_never_listed(tmp_path: Path) -> None:
    kept = [".hidden", "a/1.jpg", "torchdata_remote-notes.txt"]
    ours = [".torchdata_remote-pull.json", ".torchdata_remote/uploads/x/part", f"a/.1{PARTIAL_SUFFIX}"]
    for name in [*kept, *ours]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    assert objects.listed(f"{tmp_path}/") == [f"file://{tmp_path}/{name}" for name in kept]


def test_a_shard_has_permissions_that_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        objects.write(f"{tmp_path}/new/folder/")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new/folder").iterdir()} == {0o640}


def test_a_full_disk_is_an_error_at_once_and_leaves_no_part_of_a_shard(tmp_path: Path) -> None:
    with small_disk(tmp_path, "tmpfs") as folder:
        with pytest.raises(StorageError, match="No space left") as caught:
            objects.write(f"{folder}/", num_bytes=4 << 20)
        assert not isinstance(caught.value, TransientStorageError)
        assert [path for path in Path(folder).rglob("*") if path.suffix in (".tar", ".json")] == []
