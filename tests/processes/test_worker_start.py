"""What is sent to worker processes: functions that those cannot import, and what cannot be sent."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.support.paths import ROOT
from torchdata_remote.errors import WorkerStartError

SAMPLES = [{"__key__": f"cat/{number}", "txt": b"x"} for number in range(4)]
WORKERS: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "forkserver"}
LOCK = threading.Lock()


def unchanged(item: Any) -> Any:
    return item


def chain() -> Any:
    return IterableWrapper(SAMPLES).sharding_filter_rank()


def times(factor: int) -> Callable[[bytes], int]:
    def product(data: bytes) -> int:
        return factor * len(data)

    return product


LAMBDA = lambda item: item  # noqa: E731

# As the cells of a notebook: functions and classes of a main module that is no file
CELLS = """
import multiprocessing
import sys
from dataclasses import dataclass

import torchdata_remote as tdr

multiprocessing.set_forkserver_preload(["torch", "torchdata_remote.loaders"])
folder, method = sys.argv[1:]
workers = {"num_workers": 1, "multiprocessing_context": method}
offset = 10

@dataclass(frozen=True, slots=True)
class Item:
    key: str
    value: int

class OwnError(Exception):
    pass

def longer(number):
    return number + offset

def to_item(sample):
    if sample["__key__"] == "1":
        raise OwnError(sample["__key__"])
    return Item(sample["__key__"], longer(len(sample["txt"])))

with tdr.ShardWriter(folder + "/in/{shard}.tar", max_shard_samples=1) as writer:
    for number in range(2):
        writer.write({"__key__": str(number), "txt": "abc"})
chain = tdr.stream_shards(folder + "/in/", shuffle=False).map(to_item)
items = iter(tdr.stateful_loader(chain, worker_init_fn=lambda worker: None, **workers))
assert next(items) == Item("0", 13)
try:
    next(items)
except OwnError as error:
    assert "OwnError: 1" in str(error)
else:
    raise AssertionError("an error of a worker was lost")
files = tdr.RemoteFiles(folder + "/in/")
collated = tdr.PrefetchingLoader(files, collate_fn=lambda batch: Item("", longer(len(batch))), **workers)
assert list(collated)[-1] == Item("", 11)
length = lambda sample: {**sample, "n": str(longer(len(sample["txt"])))}
tdr.shard_dataset(folder + "/in/", folder + "/out/{shard}.tar", transform=length, num_workers=1)
assert [sample["n"] for sample in tdr.stream_shards(folder + "/out/")] == [b"13", b"13"]
print("done")
"""


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_functions_and_classes_of_a_notebook_work_in_all_worker_processes(method: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CELLS, str(tmp_path), method],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


FORKED = """\
import multiprocessing
import sys

import torchdata_remote as tdr


def loader():
    return tdr.stateful_loader(tdr.stream_shards(sys.argv[1]).to_tuple("__key__"), batch_size=4, num_workers=2)


def count(of_parent):
    print(sum(len(keys) for (keys,) in of_parent or loader()), flush=True)


if __name__ == "__main__":
    with tdr.ShardWriter(sys.argv[1] + "{shard}.tar", max_shard_samples=3) as writer:
        for number in range(6):
            writer.write({"__key__": str(number), "cls": number})
    built = loader()
    for of_parent in (None, built):
        child = multiprocessing.get_context("fork").Process(target=count, args=(of_parent,))
        child.start()
        child.join()
"""


def test_a_process_that_was_forked_after_a_loader_was_built_starts_workers_of_its_own(tmp_path: Path) -> None:
    """As launchers for notebooks fork their ranks."""
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    done = subprocess.run(
        [sys.executable, str(script), f"{tmp_path}/data/"], cwd=ROOT, capture_output=True, text=True, timeout=240,
        check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "6\n6\n"), done.stderr


@pytest.mark.parametrize("loader", ["DataLoader", "Resumable", "stateful_loader"])
def test_lambdas_and_closures_work_in_workers(loader: str) -> None:
    labelled = chain().map(LAMBDA).label_from_path(classes=lambda key: len(key))
    pipe = labelled.decode_sample({"txt": partial(times(3))}).to_tuple("txt", "cls")
    loaders: dict[str, Callable[[], Any]] = {
        "DataLoader": lambda: DataLoader(pipe, batch_size=None, **WORKERS),
        "Resumable": lambda: DataLoader(tdr.Resumable(pipe.map(LAMBDA), num_streams=1), batch_size=None, **WORKERS),
        "stateful_loader": lambda: tdr.stateful_loader(
            pipe.map(LAMBDA), batch_size=2, collate_fn=lambda batch: tuple(batch[0]), worker_init_fn=LAMBDA, **WORKERS
        ),
    }
    assert set(map(tuple, loaders[loader]())) == {(3, 5)}


def locked(lock: Any) -> Callable[[Any], Any]:
    return lambda item: (lock, item)


@pytest.mark.parametrize(
    ("what", "start"),
    [
        (
            "Resumable",
            lambda: tdr.stateful_loader(chain().decode_sample({"txt": locked(LOCK)}).to_tuple("txt"), **WORKERS),
        ),
        ("ToTuple", lambda: DataLoader(chain().map(locked(LOCK)).to_tuple("txt"), **WORKERS)),
        ("LoaderCollate", lambda: tdr.stateful_loader(chain(), collate_fn=locked(LOCK), **WORKERS)),
        ("LoaderCollate", lambda: tdr.PrefetchingLoader(files(), collate_fn=partial(unchanged, LOCK), **WORKERS)),
    ],
)
def test_what_does_not_pickle_is_an_error_before_it_is_sent(what: str, start: Callable[[], Any]) -> None:
    with pytest.raises(WorkerStartError, match=rf"^A {what} cannot be sent .* process: cannot pickle '_thread.lock'"):
        next(iter(start()))


def test_chains_with_what_does_not_pickle_run_without_processes_and_when_forked() -> None:
    pipe = chain().decode_sample({"txt": lambda data: len(data) * (not LOCK.locked())}).to_tuple("txt")
    assert list(DataLoader(pipe, batch_size=None)) == [[1]] * 4
    assert list(tdr.stateful_loader(pipe)) == [[1]] * 4
    forked = DataLoader(pipe, batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert list(forked) == [[1]] * 4


def files() -> tdr.RemoteFiles:
    return tdr.RemoteFiles(str(Path(__file__).parent))


def in_memory() -> str:
    fsspec.filesystem("memory").rm("/here", recursive=True) if fsspec.filesystem("memory").exists("/here") else None
    with tdr.ShardWriter("memory://here/{shard}.tar") as writer:
        writer.write({"__key__": "0", "txt": "abc"})
    return "memory://here/"


READERS: dict[str, Callable[[str], Iterator[Any]]] = {
    "stateful_loader": lambda url: iter(tdr.stateful_loader(tdr.stream_shards(url), **WORKERS)),
    "named shards": lambda url: iter(
        tdr.stateful_loader(IterableWrapper([f"{url}0.tar"]).sharding_filter_rank().shard_tar_reader(), **WORKERS)
    ),
    "DataLoader": lambda url: iter(DataLoader(tdr.stream_shards(url).map(unchanged), **WORKERS)),
    "Resumable": lambda url: iter(DataLoader(tdr.Resumable(tdr.stream_shards(url), num_streams=1), **WORKERS)),
    "RemoteFiles": lambda url: next(iter(tdr.PrefetchingLoader(tdr.RemoteFiles(url), **WORKERS))),
    "ShardedDataset": lambda url: next(iter(tdr.PrefetchingLoader(tdr.ShardedDataset(url), **WORKERS))),
}


@pytest.mark.parametrize("spelling", ["memory://", "Memory:///"])
@pytest.mark.parametrize("reader", READERS)
def test_workers_do_not_start_to_read_the_memory_of_this_process(reader: str, spelling: str) -> None:
    with pytest.raises(
        WorkerStartError, match=r"(?i)^memory:///?here is in the memory of this process.*thread_loader.*files"
    ):
        READERS[reader](in_memory().replace("memory://", spelling))


def test_forked_workers_read_the_memory_of_their_parent() -> None:
    loader = DataLoader(tdr.stream_shards(in_memory()), batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert [sample["txt"] for sample in loader] == [b"abc"]
