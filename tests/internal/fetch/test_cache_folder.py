"""Which file systems a cache may lie on."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchdata_remote.fetch.cache.folder import network_file_system


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "lustre", "9p"])
def test_a_folder_that_hosts_may_share_is_refused(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda rw\n"
        f"23 22 0:40 / {tmp_path}/net\\040work rw,relatime shared:1 - {kind} server:/export rw\n"
        f"24 23 0:41 / {tmp_path}/net\\040work/disk rw - xfs /dev/sdb rw\n"
    )
    (tmp_path / "net work" / "disk").mkdir(parents=True)
    found = [network_file_system(f"{tmp_path}{end}", str(mounts)) for end in ("", "/net work", "/net work/disk")]
    assert found == [None, kind, None]
    assert network_file_system(str(tmp_path), str(tmp_path / "none")) is None
