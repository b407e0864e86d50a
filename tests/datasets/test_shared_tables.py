"""Workers of a host share one copy of what a map-style dataset knows of its files and shards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import torchdata_remote as tdr
from tests.datasets.stores import Measured, as_they_are, timed_store
from tests.support.paths import ROOT
from tests.support.shard_places import memory_place
from torchdata_remote.testing import write_small_shards

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def own_bytes(num_files: int) -> int:
    """What a worker has for itself, of a dataset of so many files."""
    names = [f"s3://files/n{n % 1000:08d}/{'long' * 20}_{n:07d}.jpg" for n in range(num_files)]
    dataset = Measured("s3://files/", index=names)
    loader: Any = DataLoader(
        dataset, sampler=[num_files - 1], num_workers=1, multiprocessing_context="forkserver", collate_fn=as_they_are
    )
    [[((url, label), line)]] = list(loader)
    assert (url, label) == (names[-1], (num_files - 1) % 1000)
    return int(line.split()[1]) << 10


def test_a_worker_has_no_copy_of_the_table_of_files() -> None:
    """200,000 names of 103 characters."""
    assert own_bytes(200_000) - own_bytes(1000) < 200_000 * 103 // 2


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_each_index_of_a_shard_is_read_once_for_all_workers_and_epochs(method: str) -> None:
    place = memory_place()
    samples = write_small_shards(place.url, num_shards=3, samples_per_shard=2)
    with timed_store(place.files()) as store:
        dataset: Any = tdr.ShardedDataset(store.url, storage_options=store.options)
        for num_workers in (1, 2):
            loader: Any = DataLoader(
                dataset,
                batch_size=2,
                num_workers=num_workers,
                multiprocessing_context=method,
                collate_fn=as_they_are,
            )
            assert [sample["__key__"] for batch in loader for sample in batch] == [one["__key__"] for one in samples]
        assert dataset[0]["__key__"] == samples[0]["__key__"]
        assert sorted(key for key in store.asked if key.endswith(".idx")) == [f"00000{n}.tar.idx" for n in range(3)]


KILLED = """
import os, signal, sys
from torch.utils.data import DataLoader
import torchdata_remote as tdr

if __name__ == "__main__":
    dataset = tdr.ShardedDataset(sys.argv[1])
    batches = iter(DataLoader(dataset, batch_size=1, num_workers=1, multiprocessing_context="spawn", collate_fn=list))
    next(batches)
    print(os.getpid(), flush=True)
    signal.pause()
"""


def test_a_killed_trainer_leaves_nothing_in_dev_shm_and_the_temporary_folder(tmp_path: Path) -> None:
    source, temporary = tmp_path / "source", tmp_path / "temporary"
    temporary.mkdir()
    write_small_shards(str(source), num_shards=3, samples_per_shard=3)
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
