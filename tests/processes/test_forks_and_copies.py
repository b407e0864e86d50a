"""Forks, umasks, and what processes are sent: nothing of one process disturbs another."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import select
import signal
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.map import SequenceWrapper

import torchdata_remote as tdr
from tests.support.scripted_store import numbered, store_of

END_S = 60


def use_tls() -> None:
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def child_ends(work: Callable[[], object]) -> bool:
    """Fork a child that does the work in a thread."""
    done, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        thread = threading.Thread(target=lambda: (work(), os.write(write_end, b"x")), daemon=True)
        thread.start()
        thread.join()
        os._exit(0)
    ended = bool(select.select([done], [], [], END_S)[0])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(done)
    os.close(write_end)
    return ended


def test_a_fork_while_threads_that_used_tls_end_leaves_tls_usable() -> None:
    with store_of(numbered(16, 10)) as store:
        together = threading.Barrier(16)

        def before_read(name: str, start: int) -> None:
            together.wait(END_S)
            use_tls()

        store.before_read = before_read
        for number in range(20):  # of 1,000 children 12 would hang
            assert len(store.read_all(max_in_flight=16)) == 16
            assert child_ends(use_tls), f"child {number} hangs"


@pytest.mark.parametrize("umask", [0, 0o022, 0o027, 0o077])
def test_files_have_the_permissions_of_the_umask_and_it_stays(tmp_path: Path, umask: int) -> None:
    def write(number: int) -> None:
        with tdr.ShardWriter(f"{tmp_path}/{number}/{{shard}}.tar", max_shard_samples=1) as writer:
            for sample in range(5):
                writer.write({"__key__": f"{sample}", "cls": 1})

    before = os.umask(umask)
    try:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        assert os.umask(before) == umask
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.tar")} == {0o666 & ~umask}


# --- datasets that are sent to other processes, which share one copy of their table

NUM = 20_000
FORKSERVER: Any = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tdr.RemoteFiles:
    """Files of which only a few are there: their table is large."""
    folder = tmp_path_factory.mktemp("source")
    for number in (0, 5, NUM - 1):
        (folder / f"{number:06d}.txt").write_bytes(b"%d" % number)
    return tdr.RemoteFiles(str(folder), index=[f"{number:06d}.txt" for number in range(NUM)])


def _summary(dataset: Any) -> tuple[int, str, list[bytes]]:
    return len(dataset), dataset.names_digest, [dataset[number][1] for number in (0, 5, NUM - 1)]


def _collated(dataset: Any, items: Any) -> tuple[int, int]:
    return len(dataset), len(items)


def test_a_loader_gets_a_dataset_twice(dataset: tdr.RemoteFiles) -> None:
    # As the source of torch's pipe, which has a pickler of its own, and in ``collate_fn``
    loader: DataLoader[Any] = DataLoader(
        SequenceWrapper(dataset),  # type: ignore[arg-type]
        batch_sampler=[[0, 5], [NUM - 1]],
        num_workers=1,
        multiprocessing_context="forkserver",
        collate_fn=functools.partial(_collated, dataset),
    )
    assert list(loader) == [(NUM, 2), (NUM, 1)]


def _initialised(dataset: tdr.RemoteFiles) -> None:
    globals()["received"] = dataset


def _received() -> tuple[int, str, list[bytes]]:
    return _summary(globals()["received"])


def _killed(dataset: tdr.RemoteFiles) -> None:
    assert len(dataset) == NUM
    os.kill(os.getpid(), signal.SIGKILL)


def test_pools_get_a_dataset_also_after_a_worker_was_killed(dataset: tdr.RemoteFiles) -> None:
    expected = _summary(dataset)
    with ProcessPoolExecutor(1, mp_context=FORKSERVER) as pool, pytest.raises(BrokenProcessPool):
        pool.submit(_killed, dataset).result()
    with ProcessPoolExecutor(1, mp_context=FORKSERVER, initializer=_initialised, initargs=(dataset,)) as pool:
        assert pool.submit(_received).result() == expected
        assert pool.submit(_summary, dataset).result() == expected
    assert _summary(dataset) == expected


def _sent(dataset: tdr.RemoteFiles, connection: Any) -> None:
    connection.send(_summary(dataset))


@pytest.mark.parametrize("method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_several_processes_get_a_dataset_one_after_the_other(dataset: tdr.RemoteFiles, method: str) -> None:
    processes: Any = multiprocessing.get_context(method)
    for _ in range(2):
        ours, theirs = processes.Pipe()
        process = processes.Process(target=_sent, args=(dataset, theirs))
        process.start()
        theirs.close()
        assert ours.recv() == _summary(dataset)
        process.join()
        assert process.exitcode == 0


@pytest.mark.parametrize("refused", ["memfd_create", "ftruncate", "pwrite"])
def test_where_no_memory_can_be_shared_processes_get_copies(
    dataset: tdr.RemoteFiles, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, refused, full)
    again = pickle.loads(pickle.dumps(dataset))
    ours, theirs = FORKSERVER.Pipe()
    process = FORKSERVER.Process(target=_sent, args=(again, theirs))
    process.start()
    theirs.close()
    assert ours.recv() == _summary(dataset)
    process.join()
