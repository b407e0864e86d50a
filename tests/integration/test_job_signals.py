"""Signals to all processes of a job leave its workers alive; a loader whose workers are stuck can be closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torchdata_remote.testing import write_small_shards

SCRIPT = """
import multiprocessing, os, signal, sys, threading, time
import torchdata_remote as tdr

KIND, METHOD, FOLDER = sys.argv[1:]
STUCK = FOLDER + "/stuck"

def step(sample):
    if os.path.exists(STUCK):
        os.rename(STUCK, STUCK + "-here")
        while True:
            signal.pause()
    return sample["__key__"]

def interrupt_the_start():
    while not multiprocessing.active_children():
        pass
    os.killpg(0, signal.SIGTERM)

def main():
    received = []
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), lambda number, frame: received.append(number))
    options = {"batch_size": 2, "num_workers": 2, "multiprocessing_context": METHOD, "collate_fn": list}
    if KIND == "PrefetchingLoader":
        loader = tdr.PrefetchingLoader(tdr.ShardedDataset(FOLDER, transform=step), **options)
    else:
        loader = tdr.stateful_loader(tdr.stream_shards(FOLDER + "/*.tar").map(step), **options)
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
    print(set(received) == {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}, len(keys))
    open(STUCK, "w").close()
    batches = iter(loader)
    while not os.path.exists(STUCK + "-here"):
        time.sleep(0.01)
    del batches
    if KIND == "stateful_loader":
        loader.end_workers()
    print("closed", flush=True)
    open(STUCK, "w").close()
    os.remove(STUCK + "-here")
    batches = iter(loader)  # one is stuck when the interpreter ends
    while not os.path.exists(STUCK + "-here"):
        time.sleep(0.01)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("stateful_loader", "forkserver"),
        ("stateful_loader", "fork"),
        ("PrefetchingLoader", "forkserver"),
        ("PrefetchingLoader", "fork"),
    ],
)
def test_workers_outlive_the_signals_of_a_job_and_are_killed_where_they_are_stuck(
    tmp_path: Path, kind: str, method: str
) -> None:
    """The training process handles the signals; its end does not wait for a worker."""
    write_small_shards(f"{tmp_path}/data/", num_shards=4, samples_per_shard=5)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), kind, method, f"{tmp_path}/data"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=110, start_new_session=True)
    assert (done.stdout, done.stderr, done.returncode) == ("True 40\nclosed\n", "", 0)
