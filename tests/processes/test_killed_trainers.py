"""Workers end with a trainer that was killed, outlive the signals of its job, and are killed where they are stuck."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.waiting import wait_for
from torchdata_remote.testing import write_small_shards

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
    method, folder = sys.argv[1:3]
    multiprocessing.set_forkserver_preload(["torch", "torchdata_remote.loaders", "torchdata_remote.datasets"])
    options = {"num_workers": 1, "multiprocessing_context": method}
    pipe = IterableWrapper([folder + "/index.json"]).list_remote().sharding_filter_rank().shard_tar_reader()
    files = tdr.RemoteFiles(folder)
    loaders = {
        "pipe": DataLoader(pipe, batch_size=None, persistent_workers=True, **options),
        "resumable": DataLoader(tdr.Resumable(pipe, num_streams=1), batch_size=None, **options),
        "stateful_loader": tdr.stateful_loader(pipe, **options),
        "map_style": DataLoader(files, batch_size=None, **options),
        "prefetching": tdr.PrefetchingLoader(files, batch_size=None, **options),
        "waiting": DataLoader(files, sampler=NoNumber(), **options),
    }
    iterators = []
    for name in loaders:
        if name == "pipe":
            iterators.append(iter(loaders[name]))
            list(iterators[-1])  # these workers wait for the next epoch
        elif name != "waiting":
            iterators.append(iter(loaders[name]))
            next(iterators[-1])
    if method == "fork":  # nothing of this package runs in a forked worker before its first task
        print(json.dumps([child.pid for child in multiprocessing.active_children()]), flush=True)
        sys.stdin.readline()
    iter(loaders["waiting"])


if __name__ == "__main__":
    main()
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are watched by /proc")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_of_every_loader_end_with_a_killed_trainer(tmp_path: Path, method: str) -> None:
    write_small_shards(str(tmp_path / "shards"), num_shards=2, samples_per_shard=64)
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    trainer = subprocess.Popen(
        [sys.executable, str(script), method, str(tmp_path / "shards")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    workers: list[int] = []
    try:
        assert trainer.stdout is not None
        workers = json.loads(trainer.stdout.readline())
        assert len(workers) == (5 if method == "fork" else 6)
        assert all(map(is_alive, workers))
        trainer.kill()  # and not waited for: as a zombie it is gone as well
        # Most are gone after 0.1 s; one that is still importing takes seconds on a busy machine
        wait_for(lambda: not any(map(is_alive, workers)))
    finally:
        for pid in filter(is_alive, workers):
            os.kill(pid, signal.SIGKILL)
        trainer.kill()
        trainer.communicate()


JOB = """
import multiprocessing, os, signal, sys, threading, time
from torch.utils.data import get_worker_info
import torchdata_remote as tdr

WHEN, KIND, METHOD, FOLDER = sys.argv[1:]
STUCK = FOLDER + "/stuck"
LOCK = threading.Lock()  # cannot be sent, and need not, as a worker imports the script

class Key(str):
    pass

def step(sample):
    with LOCK:
        if os.path.exists(STUCK) and get_worker_info().id == 1:
            os.rename(STUCK, STUCK + "-here")
            while True:
                signal.pause()
        return Key(sample["__key__"])

def interrupt_the_start():
    while not multiprocessing.active_children():
        pass
    os.killpg(0, signal.SIGTERM)

def built():
    multiprocessing.set_forkserver_preload(["torch", "torchdata_remote.loaders", "torchdata_remote.datasets"])
    options = {"batch_size": 2, "num_workers": 2, "multiprocessing_context": METHOD, "collate_fn": list}
    if KIND == "PrefetchingLoader":
        return tdr.PrefetchingLoader(tdr.ShardedDataset(FOLDER, transform=step), **options)
    return tdr.stateful_loader(tdr.stream_shards(FOLDER + "/*.tar").map(step).map(lambda key: key), **options)

def signalled():
    received = []
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), lambda number, frame: received.append(number))
    loader = built()
    thread = threading.Thread(target=interrupt_the_start)
    thread.start()
    batches = iter(loader)
    keys = list(next(batches))
    thread.join()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        os.killpg(0, number)
    for batch in batches:
        keys += batch
    keys += [key for batch in loader for key in batch]  # workers are asked, or started, again
    print(set(received) == {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
    print(len(keys), {type(key) is Key for key in keys})

def stuck():
    loader = built()
    open(STUCK, "w").close()
    batches = iter(loader)
    next(batches)  # of the first worker
    while not os.path.exists(STUCK + "-here"):
        time.sleep(0.01)
    if WHEN == "ended":
        return loader, batches  # one is stuck when the interpreter ends
    del batches
    if KIND == "stateful_loader":
        loader.end_workers()
    print("closed", flush=True)

if __name__ == "__main__":
    kept = signalled() if WHEN == "signalled" else stuck()
"""


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("stateful_loader", "forkserver"),
        ("PrefetchingLoader", "fork"),
        pytest.param("stateful_loader", "fork", marks=pytest.mark.slow),
        pytest.param("PrefetchingLoader", "forkserver", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("when", "printed"), [("signalled", "True\n40 {True}\n"), ("closed", "closed\n"), ("ended", "")]
)
def test_workers_outlive_the_signals_of_a_job_and_are_killed_where_they_are_stuck(
    tmp_path: Path, when: str, printed: str, kind: str, method: str
) -> None:
    """When their loader is closed, and when the program ends. What a script defines is the same in its workers."""
    write_small_shards(f"{tmp_path}/data/", num_shards=4, samples_per_shard=5)
    script = tmp_path / "train.py"
    script.write_text(JOB)
    command = [sys.executable, str(script), when, kind, method, f"{tmp_path}/data"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=200, start_new_session=True, env=environment
    )
    assert (done.stdout, done.stderr, done.returncode) == (printed, "", 0)


PROGRAM = """
import os, signal, threading, zlib
from torchdata_remote import IterableWrapper

waiting = threading.Event()

def function(number):
    if number % 3 == 1:
        return len(zlib.compress(bytes(20_000_000), 9)) and number  # outside of Python
    if number == 3:
        waiting.set()
        threading.Event().wait()
    return number

items = iter(IterableWrapper(range(100)).parallel_map(function, num_threads=3))
print(next(items), next(items), next(items), flush=True)
waiting.wait()
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    next(items)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_the_wait_for_a_function_that_hangs_and_the_program_ends_while_items_are_handled() -> None:
    command, environment = [sys.executable, "-c", PROGRAM], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1 2\ninterrupted\n", "")
