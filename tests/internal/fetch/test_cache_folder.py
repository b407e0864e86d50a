"""Which file systems a cache may lie on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchdata_remote.fetch.cache.disk_cache import network_file_system


@pytest.mark.parametrize(("kind", "is_refused"), [("nfs4", True), ("fuse.sshfs", True), ("xfs", False)])
def test_a_folder_that_hosts_may_share_is_refused(tmp_path: Path, kind: str, is_refused: bool) -> None:
    mounts, device = tmp_path / "mounts", os.stat(tmp_path).st_dev
    mounts.write_text(
        "22 1 0:9999 / / rw - nfs4 server:/root rw\n"
        f"23 22 {os.major(device)}:{os.minor(device)} / /net\\040work rw,relatime shared:1 - {kind} server:/export rw\n"
    )
    assert network_file_system(str(tmp_path), str(mounts)) == (kind if is_refused else None)
    assert network_file_system(str(tmp_path), str(tmp_path / "none")) is None
