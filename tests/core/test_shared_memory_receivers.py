"""Shared memory in the processes that get it."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import context, reduction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.map import SequenceWrapper

from tests.core.test_shared_memory import Starting, created, starting  # noqa: F401  # a fixture
from torchdata_remote import RemoteFiles
from torchdata_remote.core import shared_columns, shared_memory
from torchdata_remote.core.shared_columns import SharedColumns
from torchdata_remote.core.shared_memory import SharedMemory

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="looks for files in memory, which Linux has")
METHODS = pytest.mark.parametrize("method", ["forkserver", "spawn"])
ROWS = 10_000  # more than are sent as content


class Nested:
    """Sends its part through a pickler of its own, and the same bytes to all processes."""

    def __init__(self, part: Any) -> None:
        self.part, self._data = part, b""

    def __reduce__(self) -> Any:
        self._data = self._data or bytes(reduction.ForkingPickler.dumps(self.part))
        return _loaded, (self._data,)


def _loaded(data: bytes) -> Nested:
    return Nested(pickle.loads(data))


def _report(columns: Any, other: Any, connection: Any) -> None:
    found = [nested.part.columns["a"].sum() for nested in (columns, other)]
    del columns
    connection.send([*map(int, found), int(other.part.columns["a"][-1])])
    connection.close()


@METHODS
def test_columns_that_went_through_several_picklers_arrive(method: str) -> None:
    """Two for one process; a wrapper keeps their bytes for the next. One receiver closes, the other reads on."""
    columns = SharedColumns({"a": np.arange(ROWS)})
    sent, other = Nested(columns), Nested(columns)
    processes: Any = multiprocessing.get_context(method)
    for _ in range(2):
        ours, theirs = processes.Pipe()
        process = processes.Process(target=_report, args=(sent, other, theirs))
        process.start()
        theirs.close()
        assert ours.recv() == [ROWS * (ROWS - 1) // 2] * 2 + [ROWS - 1]
        process.join()
        assert process.exitcode == 0


def _sum_of_made(columns: SharedColumns, connection: Any) -> None:
    connection.send(int(columns.columns["a"].sum()))


def test_columns_arrive_that_their_maker_has_dropped() -> None:
    """The process that starts another one has no other reference to them."""
    processes: Any = multiprocessing.get_context("forkserver")
    ours, theirs = processes.Pipe()
    process = processes.Process(target=_sum_of_made, args=(SharedColumns({"a": np.ones(ROWS, np.int64)}), theirs))
    process.start()
    theirs.close()
    assert ours.recv() == ROWS
    process.join()


def test_memory_that_is_sent_twice_is_one_object(starting: Starting) -> None:  # noqa: F811
    """A process registers a descriptor once, so that it can be started, and the receiver closes it once."""
    memory = created(4)
    memory.write(b"abcd", 0)
    sent = [bytes(reduction.ForkingPickler.dumps(memory)) for _ in range(2)]
    assert len(starting._fds) == 1
    inherited = os.dup(memory._descriptor)
    first, second = map(pickle.loads, sent)
    assert first is second
    assert bytes(first.view()) == b"abcd"
    os.close(inherited)


def test_bytes_that_outlive_their_memory_are_an_error(starting: Starting) -> None:  # noqa: F811
    """It says what to do; a file that has the number now is left alone."""
    memory = created(4)
    sent = bytes(reduction.ForkingPickler.dumps(memory))
    number = memory._descriptor
    context.set_spawning_popen(None)
    starting._fds.clear()
    del memory
    _forget(starting)
    other = os.memfd_create("other")
    try:
        assert other == number
        with pytest.raises(RuntimeError, match=r"has been closed by process .*Pickle it for each process"):
            pickle.loads(sent)
        assert os.fstat(other).st_size == 0
    finally:
        os.close(other)


def _forget(starting: Any) -> None:  # noqa: F811
    """As when a process has ended and was joined."""
    shared_memory._sent.pop(starting, None)


# --- datasets where users send them


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteFiles:
    """Its table is sent as shared memory, whatever its size."""
    monkeypatch.setattr(shared_columns, "_MIN_SHARED_BYTES", 0)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(6):
        (source / f"{number}.txt").write_bytes(b"x")
    return RemoteFiles(str(source))


def _length(dataset: Any, items: Any) -> tuple[int, int]:
    return len(dataset), len(items)


def test_a_loader_gets_a_dataset_twice(dataset: RemoteFiles) -> None:
    """As the source of torch's pipe, which has a pickler of its own, and in ``collate_fn``."""
    loader: DataLoader[Any] = DataLoader(
        SequenceWrapper(dataset),  # type: ignore[arg-type]
        batch_size=3,
        num_workers=1,
        multiprocessing_context="spawn",
        collate_fn=functools.partial(_length, dataset),
    )
    assert list(loader) == [(6, 3), (6, 3)]


def _initialised(dataset: RemoteFiles) -> None:
    globals()["received"] = dataset


def _read(number: int) -> bytes:
    return bytes(globals()["received"][number][1])


def _killed(dataset: RemoteFiles) -> None:
    assert len(dataset) == 6
    os.kill(os.getpid(), signal.SIGKILL)


def test_pools_get_a_dataset_also_after_a_worker_was_killed(dataset: RemoteFiles) -> None:
    """As an argument of the pool and of a task."""
    processes = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=processes) as pool, pytest.raises(BrokenProcessPool):
        pool.submit(_killed, dataset).result()
    with ProcessPoolExecutor(1, mp_context=processes, initializer=_initialised, initargs=(dataset,)) as pool:
        assert pool.submit(_read, 5).result() == b"x"
        assert pool.submit(len, dataset).result() == 6


def _ranked(rank: int, dataset: RemoteFiles, path: str) -> None:
    Path(path, f"{rank}.pickle").write_bytes(pickle.dumps(dataset))


def test_ranks_get_a_dataset_and_write_it_to_files(dataset: RemoteFiles, tmp_path: Path) -> None:
    """``torch.multiprocessing.spawn``; what a rank has mapped is written as content, and loads after its end."""
    start: Any = importlib.import_module("torch.multiprocessing").spawn
    start(_ranked, args=(dataset, str(tmp_path)), nprocs=1)
    again = pickle.loads((tmp_path / "0.pickle").read_bytes())
    assert [again[number] for number in range(6)] == [dataset[number] for number in range(6)]
    assert again._files._columns._memory is None


def test_joblib_gets_a_dataset(dataset: RemoteFiles) -> None:
    """It pickles tasks by a pickler of its own."""
    joblib: Any = pytest.importorskip("joblib")
    tasks: list[Callable[[], int]] = [joblib.delayed(_length)(dataset, "abc") for _ in range(2)]
    try:
        assert joblib.Parallel(n_jobs=2, backend="loky")(tasks) == [(6, 3)] * 2
    finally:
        joblib.externals.loky.get_reusable_executor().shutdown()  # or its processes stay for five minutes


def test_at_the_limit_of_open_files_workers_get_copies(monkeypatch: pytest.MonkeyPatch, starting: Starting) -> None:  # noqa: F811
    """Creating and mapping fail with EMFILE; the columns are sent, and nothing is raised."""

    def refused(*args: object, **options: object) -> Any:
        raise OSError(24, "Too many open files")

    for module, name in (("mmap", "mmap"), ("os", "memfd_create")):
        with monkeypatch.context() as patch:
            patch.setattr(f"torchdata_remote.core.shared_memory.{module}.{name}", refused)
            patch.setattr("tempfile.TemporaryFile", refused)
            again = pickle.loads(reduction.ForkingPickler.dumps(SharedColumns({"a": np.arange(ROWS)})))
        assert again.columns["a"][-1] == ROWS - 1
    assert starting._fds == []


def test_a_process_shares_a_limited_number_of_tables(starting: Starting) -> None:  # noqa: F811
    """The rest of its descriptors stays free; further tables are sent as content."""
    tables = [SharedMemory.create(1) for _ in range(40)]
    assert 0 < sum(table is not None for table in tables) <= 32
    del tables
    assert SharedMemory.create(1) is not None
