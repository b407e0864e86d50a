"""A cache in a folder where other users can write: nothing of theirs is taken, followed or overwritten."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import torchdata_remote as tdr
from tests.support.cache_folder import ETAG, LARGE, URL, child_of, keep, kept, objects_in, path_of
from torchdata_remote.errors import StorageError
from torchdata_remote.fetch.cache import disk_cache
from torchdata_remote.fetch.cache.disk_cache import DiskCache
from torchdata_remote.fetch.cache.folder import network_file_system, open_own_file, private_folder

OTHER = 12_345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.mark.parametrize("instead", ["link", "dangling link", "hard link", "fifo", "writable by others"])
def test_the_index_is_this_users_own(tmp_path: Path, instead: str) -> None:
    """Anything else in its place is removed, not followed and not overwritten; a FIFO does not block."""
    target, index = tmp_path / "target", tmp_path / "cache" / "v2" / "index.sqlite"
    index.parent.mkdir(0o700, parents=True)
    target.write_bytes(b"precious")
    if instead == "fifo":
        os.mkfifo(index)
    elif instead == "hard link":
        os.link(target, index)
    elif instead == "writable by others":
        index.touch()
        index.chmod(0o666)
    else:
        index.symlink_to(target if instead == "link" else tmp_path / "nowhere")
    disk = DiskCache(str(tmp_path / "cache"), 100)
    keep(disk, b"abc")
    assert kept(disk, 3) == b"abc"
    assert target.read_bytes() == b"precious"
    assert not (tmp_path / "nowhere").exists()
    assert index.lstat().st_mode == 0o100600


def test_a_folder_in_place_of_the_index_is_an_error(tmp_path: Path) -> None:
    """Without an index the cache would grow without a bound."""
    (tmp_path / "v2" / "index.sqlite").mkdir(0o700, parents=True)
    with pytest.raises(OSError, match="index"):
        DiskCache(str(tmp_path), 100)


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "lustre"])
def test_a_folder_that_hosts_may_share_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index relies on locks and memory that only one host has."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda rw\n"
        f"23 22 0:40 / {tmp_path}/net\\040work rw,relatime shared:1 - {kind} server:/export rw\n"
        f"24 23 0:41 / {tmp_path}/net\\040work/disk rw - xfs /dev/sdb rw\n"
    )
    (tmp_path / "net work" / "disk").mkdir(parents=True)
    assert network_file_system(str(tmp_path), str(mounts)) is None
    assert network_file_system(str(tmp_path / "net work"), str(mounts)) == kind
    assert network_file_system(str(tmp_path / "net work" / "disk"), str(mounts)) is None
    assert network_file_system(str(tmp_path), str(tmp_path / "missing")) is None
    monkeypatch.setattr(disk_cache, "network_file_system", lambda folder: kind)
    with pytest.raises(
        StorageError, match=f"cannot be used as a cache: .* of type {kind}, which hosts may share. Pass a"
    ):
        list(tdr.IterableWrapper(["x"]).async_prefetch(cache_dir=str(tmp_path / "cache"), cache_bytes=9))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_object_that_others_can_write_is_not_used(tmp_path: Path, mode: int) -> None:
    """It is fetched again, and then belongs to this user."""
    disk = DiskCache(str(tmp_path), LARGE)
    path_of(disk, tmp_path, b"abc").chmod(mode)
    del disk
    disk = DiskCache(str(tmp_path), LARGE)
    assert kept(disk, 3) is None
    keep(disk, b"abc")
    assert kept(disk, 3) == b"abc"


@pytest.mark.parametrize("name", ["partial/torchdata_remote-x", "ab/" + "ab" * 32])
def test_a_fifo_in_the_folder_does_not_block(tmp_path: Path, name: str) -> None:
    """Neither when leftovers are removed, nor when objects are."""
    DiskCache(str(tmp_path), LARGE)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    disk = DiskCache(str(tmp_path), 5)
    for number in range(3):
        keep(disk, b"abc", f"{number}")


@pytest.mark.parametrize("what", ["v2", "packs"])
def test_a_folder_that_is_a_link_is_not_written_to(tmp_path: Path, what: str) -> None:
    """Neither the index nor objects."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if what == "v2":
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "v2").symlink_to(elsewhere)
    else:
        DiskCache(str(tmp_path / "cache"), LARGE)
        [packs] = (tmp_path / "cache" / "v2").glob("packs-*")
        packs.rmdir()
        packs.symlink_to(elsewhere)
    with pytest.raises(PermissionError, match="choose another cache_dir"):
        DiskCache(str(tmp_path / "cache"), LARGE)
    assert not list(elsewhere.iterdir())


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    """They could replace the index."""
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2").chmod(0o770)
    with pytest.raises(PermissionError, match="writable by other users"):
        DiskCache(str(tmp_path), LARGE)


def test_only_this_user_can_read_cached_files(tmp_path: Path) -> None:
    """Whatever the umask is."""
    before = os.umask(0)
    try:
        disk = DiskCache(str(tmp_path / "cache"), LARGE)
        path = path_of(disk, tmp_path / "cache", b"abc")
    finally:
        os.umask(before)
    modes = {path.lstat().st_mode & 0o777 for path in (tmp_path / "cache").rglob("*") if path.is_dir()}
    assert modes == {0o700}
    assert path.lstat().st_mode & 0o777 == 0o600


@as_root
def test_an_object_of_another_user_is_not_used(tmp_path: Path) -> None:
    """Not even one with the right checksums."""
    disk = DiskCache(str(tmp_path), LARGE)
    os.chown(path_of(disk, tmp_path, b"abc"), OTHER, OTHER)
    del disk
    disk = DiskCache(str(tmp_path), LARGE)
    assert kept(disk, 3) is None
    keep(disk, b"abc")
    assert kept(disk, 3) == b"abc"


def keep_as_another_user(pipe: object, folder: str) -> None:
    """In another process, as another user: cache an object; send what was found before and after."""
    os.setgid(OTHER)
    os.setuid(OTHER)
    disk = DiskCache(folder, LARGE)
    before = kept(disk, 3)
    keep(disk, b"xyz")
    pipe.send((before, kept(disk, 3)))  # type: ignore[attr-defined]


@as_root
def test_users_who_share_a_folder_have_their_own_objects(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The owner's are in the folder, another user's in a subfolder; neither sees the other's."""
    folder = Path("/tmp", f"torchdata_remote-{os.getpid()}-shared")  # others cannot enter pytest's
    folder.mkdir()
    try:
        folder.chmod(0o1777)
        disk = DiskCache(str(folder), LARGE)
        keep(disk, b"abc")
        with child_of(keep_as_another_user, str(folder)) as (_, pipe):
            assert pipe.poll(60)
            assert pipe.recv() == (None, b"xyz")
        assert kept(disk, 3) == b"abc"
        assert private_folder(str(folder)) == (str(folder), 0)
        assert len(objects_in(folder / f"user-{OTHER}")) == 1
    finally:
        import shutil

        shutil.rmtree(folder)


def test_an_own_file_is_opened_as_it_is(tmp_path: Path) -> None:
    """Its bytes stay."""
    (tmp_path / "own").write_bytes(b"abc")
    (tmp_path / "own").chmod(0o600)
    descriptor = open_own_file(str(tmp_path / "own"), os.stat(tmp_path).st_uid)
    assert os.read(descriptor, 9) == b"abc"
    os.close(descriptor)
    assert kept(DiskCache(str(tmp_path / "cache"), LARGE), 3, URL, ETAG) is None
