"""DataLoader workers whose trainer was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchdata_remote.testing import write_small_shards

# Most are gone after 0.1 s; one that is still importing when the trainer is killed takes seconds on a busy machine.
GONE_WITHIN_S = 30.0
# Each loader's workers hold more batches than their queues take, wait for the next task, or have not had one.
TRAINER = r"""
import json, multiprocessing, sys

from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper
import torchdata_remote as tdr


class NoNumber:
    '''A sampler that never gives its first number.'''

    def __len__(self):
        return 1

    def __iter__(self):
        print(json.dumps([child.pid for child in multiprocessing.active_children()]), flush=True)
        sys.stdin.readline()
        return iter(())


def main():
    method, num_workers, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    multiprocessing.set_forkserver_preload(["torch"])
    options = {"num_workers": num_workers, "multiprocessing_context": method}
    pipe = IterableWrapper([folder + "/index.json"]).list_remote().sharding_filter_rank().shard_tar_reader()
    files = tdr.RemoteFiles(folder)
    loaders = {
        "pipe": DataLoader(pipe, batch_size=None, persistent_workers=True, **options),
        "resumable": DataLoader(tdr.Resumable(pipe, num_streams=num_workers), batch_size=None, **options),
        "stateful_loader": tdr.stateful_loader(pipe, **options),
        "map_style": DataLoader(files, batch_size=None, **options),
        "prefetching": tdr.PrefetchingLoader(files, batch_size=None, **options),
        "waiting": DataLoader(files, sampler=NoNumber(), **options),
    }
    iterators = []
    for name in sys.argv[4:]:
        iterators.append(iter(loaders[name]))
        next(iterators[-1])
        if name == "pipe":
            list(iterators[-1])  # these workers wait for the next epoch
    print(json.dumps([child.pid for child in multiprocessing.active_children()]), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
"""
LOADERS = ["pipe", "resumable", "stateful_loader", "map_style", "prefetching"]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are watched by /proc")
@pytest.mark.parametrize(
    ("method", "num_workers", "loaders"),
    [
        ("fork", 2, LOADERS),
        ("forkserver", 2, LOADERS),
        ("forkserver", 1, ["waiting"]),
        ("spawn", 1, ["pipe", "map_style"]),
    ],
)
def test_workers_end_with_a_killed_trainer(tmp_path: Path, method: str, num_workers: int, loaders: list[str]) -> None:
    """Whether they read, wait for room in a queue, wait for the next epoch, or have not been given anything."""
    write_small_shards(str(tmp_path / "shards"), num_shards=2, samples_per_shard=64)
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    trainer = subprocess.Popen(
        [sys.executable, str(script), method, str(num_workers), str(tmp_path / "shards"), *loaders],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    workers: list[int] = []
    try:
        assert trainer.stdout is not None
        workers = json.loads(trainer.stdout.readline())
        assert len(workers) == num_workers * len(loaders)
        assert all(map(is_alive, workers))
        trainer.kill()  # and not waited for: as a zombie it is gone as well
        deadline = time.monotonic() + GONE_WITHIN_S
        while (left := [pid for pid in workers if is_alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left
    finally:
        for pid in filter(is_alive, workers):
            os.kill(pid, signal.SIGKILL)
        trainer.kill()
        trainer.communicate()
