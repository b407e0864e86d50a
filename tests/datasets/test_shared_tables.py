"""Workers of a map-style dataset have one copy of its tables."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.support.paths import ROOT
from torchdata_remote import RemoteFiles, ShardedDataset, labels
from torchdata_remote.core import shared_columns
from torchdata_remote.datasets.remote_image_folder import RemoteImageFolder
from torchdata_remote.testing import write_small_shards

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="looks for files in memory, which Linux has")


@pytest.fixture(autouse=True)
def _share_small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_columns, "_MIN_SHARED_BYTES", 0)


def mapped_bytes() -> int:
    """Of the files in memory of this package that this process maps."""
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:torchdata_remote" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in (line.split()[0].split("-") for line in lines))


class Files(RemoteFiles):
    """Items say whether the table of the process owns its memory, too."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        owns = any(column.flags.owndata for column in self._files._columns.columns.values())
        return [(*item, owns, mapped_bytes()) for item in super().__getitems__(indices)]


class Images(RemoteImageFolder):
    """Items are labels, and what the process maps."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [(self.samples[index], mapped_bytes()) for index in indices]


class Shards(ShardedDataset):
    """Items say which shards' offsets were known to the process before, too."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        known = sorted(shard for shard in range(len(self._shards)) if shard in self._offsets)
        return [(sample["__key__"], known) for sample in super().__getitems__(indices)]


def read(dataset: Any, method: str, *, num_workers: int = 2) -> list[Any]:
    loader = DataLoader(dataset, batch_size=2, num_workers=num_workers, multiprocessing_context=method, collate_fn=list)
    return [item for batch in loader for item in batch]


def test_forkserver_workers_map_the_table_of_files(tmp_path: Path) -> None:
    """They have no copy of it, and give what the dataset gives."""
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text(f"text {number}")
    items = read(Files(str(tmp_path)), "forkserver")
    assert [item[:2] for item in items] == [(f"file://{tmp_path}/{n}.txt", b"text %d" % n) for n in range(6)]
    assert all(not owns and num_bytes > 0 for _, _, owns, num_bytes in items)


def test_spawned_workers_map_labels(tmp_path: Path) -> None:
    """With the rest of the table."""
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(b"")
    dataset = Images(str(tmp_path), classes=labels.from_pattern(r"^(\d)"))
    items = read(dataset, "spawn", num_workers=1)
    assert [sample for sample, _ in items] == [(f"file://{tmp_path}/{number}.jpg", number) for number in range(4)]
    assert all(num_bytes > 0 for _, num_bytes in items)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_finds_the_offsets_that_an_earlier_one_has_read(tmp_path: Path, method: str) -> None:
    """Each index is read once on a host, also by workers of the next epoch, which are other processes."""
    samples = write_small_shards(f"{tmp_path}/", num_shards=3, samples_per_shard=2)
    dataset = Shards(f"{tmp_path}/")
    first = read(dataset, method, num_workers=1)
    assert [key for key, _ in first] == [sample["__key__"] for sample in samples]
    assert [known for _, known in first] == [[], [], [0], [0], [0, 1], [0, 1]]
    for path in tmp_path.glob("*.idx"):
        path.unlink()
    assert read(dataset, method, num_workers=1) == [(key, [0, 1, 2]) for key, _ in first]


KILLED = """
import os, signal, sys
from torch.utils.data import DataLoader
import torchdata_remote as tdr

if __name__ == "__main__":
    dataset = tdr.RemoteFiles(sys.argv[1])
    batches = iter(DataLoader(dataset, batch_size=1, num_workers=1, multiprocessing_context="spawn", collate_fn=list))
    next(batches)
    print(os.getpid(), flush=True)
    signal.pause()
"""


def test_a_killed_trainer_leaves_nothing(tmp_path: Path) -> None:
    """No file of this package, neither in the temporary folder nor in ``/dev/shm``."""
    source, temporary = tmp_path / "source", tmp_path / "temporary"
    for folder in (source, temporary):
        folder.mkdir()
    for number in range(9):
        (source / f"{number}").write_bytes(b"x")
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    before = set(os.listdir("/dev/shm"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, str(script), str(source)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(process.pid)
        process.send_signal(signal.SIGKILL)
    names = [*os.listdir(temporary), *(set(os.listdir("/dev/shm")) - before)]
    assert [name for name in names if "torchdata_remote" in name] == []
