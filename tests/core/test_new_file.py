"""New files, and that nothing in the package sets the umask."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
from pathlib import Path

import pytest

import torchdata_remote
from torchdata_remote.cli._show import _save
from torchdata_remote.core.new_file import make_new_file, replaced
from torchdata_remote.storage.local.store import LocalStore


@pytest.mark.parametrize("umask", [0, 0o022, 0o027, 0o077])
def test_permissions_are_those_of_open(tmp_path: Path, umask: int) -> None:
    """As the umask says."""
    before = os.umask(umask)
    try:
        descriptor, path = make_new_file(str(tmp_path), "a-", ".bin")
    finally:
        os.umask(before)
    assert os.fstat(descriptor).st_mode & 0o777 == 0o666 & ~umask
    assert re.fullmatch(r"a-\w{16}\.bin", os.path.basename(path))
    os.write(descriptor, b"abc")
    os.close(descriptor)
    assert Path(path).read_bytes() == b"abc"


def test_names_that_are_taken_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a file nor what a link points to is opened; when all are taken it is an error."""
    (tmp_path / "x0").write_bytes(b"there")
    (tmp_path / "x1").symlink_to(tmp_path / "elsewhere")
    numbers = iter(range(3))
    monkeypatch.setattr(secrets, "token_hex", lambda num_bytes: str(next(numbers, 0)))
    descriptor, path = make_new_file(str(tmp_path), "x", "")
    os.close(descriptor)
    assert path == str(tmp_path / "x2")
    assert (tmp_path / "x0").read_bytes() == b"there"
    with pytest.raises(FileExistsError, match="random names with the prefix 'x'"):
        make_new_file(str(tmp_path), "x", "")


def test_the_umask_is_not_set_while_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the whole process's: two threads that read it by setting it leave it as neither wants it."""
    from PIL import Image

    def refuse(mask: int) -> int:
        raise AssertionError(f"os.umask({mask:#o})")

    monkeypatch.setattr(os, "umask", refuse)
    pending = LocalStore().create(str(tmp_path / "a"), overwrite=True)
    pending.write(b"abc")
    pending.commit()
    _save(Image.new("RGB", (1, 1)), str(tmp_path / "a.png"), "PNG")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "a.png"}


def test_the_umask_is_the_same_after_many_threads_wrote(tmp_path: Path) -> None:
    """Files have the permissions that it says, all of them."""

    def write(number: int) -> None:
        for name in range(40):
            pending = LocalStore().create(str(tmp_path / f"{number}-{name}"), overwrite=True, durable=False)
            pending.commit()

    before = os.umask(0o022)
    try:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        assert os.umask(before) == 0o022
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o644}


def test_a_file_is_replaced_when_the_new_one_is_complete(tmp_path: Path) -> None:
    """Until then, and if that fails, it stays as it is; a link still points to it."""
    (tmp_path / "a.txt").write_bytes(b"old")
    (tmp_path / "link.txt").symlink_to("a.txt")
    for path in (tmp_path / "a.txt", tmp_path / "link.txt"):
        with contextlib.suppress(KeyError), replaced(str(path)) as partial:
            Path(partial).write_bytes(b"half")
            raise KeyError
        assert path.read_bytes() == b"old"
    with replaced(str(tmp_path / "link.txt")) as partial:
        Path(partial).write_bytes(b"new")
        assert (tmp_path / "a.txt").read_bytes() == b"old"
    assert (tmp_path / "a.txt").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "link.txt"]
    with replaced(os.devnull) as partial:
        assert partial == os.devnull


def test_no_module_sets_the_umask() -> None:
    """It cannot be read otherwise before Python 3.14 or without procfs, and is not needed."""
    modules = Path(torchdata_remote.__file__).parent.rglob("*.py")
    assert [path.name for path in modules if "os.umask" in path.read_text()] == []
