"""File systems of a few blocks and inodes, which a test can fill."""

from __future__ import annotations

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, kind: str) -> Iterator[Path]:
    """Mount a file system of 1 or 2 MiB, ``"tmpfs"`` or ``"ext4"``; skip the test where that is not allowed."""
    mounted, image = folder / "disk", folder / "disk.img"
    mounted.mkdir()
    try:
        if kind == "tmpfs":
            _run("mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=100", "tmpfs", mounted)
        else:
            image.write_bytes(bytes(2 << 20))
            _run("mkfs.ext4", "-q", "-N", "100", "-m", "0", image)
            _run("mount", "-o", "loop", image, mounted)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"no {kind} can be mounted here")
    try:
        yield mounted
    finally:
        _run("umount", "--lazy", mounted)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)


def fill_blocks(folder: Path) -> None:
    """Write a file until the disk has no block left."""
    with contextlib.suppress(OSError), open(folder / "filling", "ab", buffering=0) as file:
        while True:
            file.write(b"x" * 512)


def fill_inodes(folder: Path) -> None:
    """Create empty files in a folder of their own until the disk has no inode left."""
    (folder / "fillings").mkdir(exist_ok=True)
    number = 0
    while True:
        try:
            (folder / "fillings" / f"{number}").touch()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return
        number += 1
