"""Columns of which a host has one copy."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from multiprocessing import context, reduction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.core.test_shared_memory import Starting, pytestmark, starting  # noqa: F401  # a fixture
from torchdata_remote.core.shared_columns import SharedColumns
from torchdata_remote.core.shared_memory import SharedMemory

KINDS = st.sampled_from([np.uint8, np.int32, np.int64])
COLUMN = KINDS.flatmap(lambda kind: arrays.arrays(kind, st.integers(0, 9)))
COLUMNS = st.dictionaries(st.sampled_from(["a", "b.data", "b.ends", "c"]), COLUMN)


def values(columns: SharedColumns) -> dict[str, tuple[str, list[int]]]:
    return {name: (column.dtype.str, column.tolist()) for name, column in columns.columns.items()}


def is_mapped(columns: SharedColumns) -> bool:
    """Whether the process maps the file of these columns, and has no copy of them."""
    maps = Path("/proc/self/maps").read_text()
    return columns._memory is not None and "memfd:torchdata_remote" in maps


def report(columns: SharedColumns, connection: Any) -> None:
    connection.send((values(columns), is_mapped(columns), all(not c.flags.owndata for c in columns.columns.values())))


@given(COLUMNS)
def test_a_pickle_to_a_file_holds_the_columns(given: dict[str, Any]) -> None:
    """It loads on any host, and so does that of a copy."""
    columns = SharedColumns(given)
    expected = values(columns)
    again = pickle.loads(pickle.dumps(columns))
    assert values(again) == values(copy.deepcopy(again)) == expected
    assert again._memory is None


@given(COLUMNS)
def test_columns_are_the_same_after_they_were_moved_to_shared_memory(given: dict[str, Any]) -> None:
    """Of any types and lengths, also empty ones; then a pickle to a file still holds them."""
    columns = SharedColumns(given)
    expected = values(columns)
    context.set_spawning_popen(Starting())
    try:
        assert columns.share() == any(column.nbytes for column in given.values())
    finally:
        context.set_spawning_popen(None)
    assert values(columns) == expected
    assert values(pickle.loads(pickle.dumps(columns))) == expected


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_new_process_maps_the_memory_of_its_parent(method: str) -> None:
    """Two processes, one after the other; forked ones have the memory of their parent anyway."""
    given: dict[str, Any] = {"a": np.arange(100_000), "b": np.arange(7, dtype=np.uint8)}
    columns = SharedColumns(given)
    processes: Any = multiprocessing.get_context(method)
    for _ in range(2):
        ours, theirs = processes.Pipe()
        process = processes.Process(target=report, args=(columns, theirs))
        process.start()
        theirs.close()
        assert ours.recv() == (values(SharedColumns(given)), method != "fork", method != "fork")
        process.join()
        assert process.exitcode == 0
    assert is_mapped(columns) == (method != "fork")


def test_a_new_process_gets_a_descriptor_instead_of_the_columns(starting: Starting) -> None:  # noqa: F811
    """The pickle has the same length for any number of rows."""
    lengths = [len(reduction.ForkingPickler.dumps(SharedColumns({"a": np.zeros(n)}))) for n in (1_000, 1_001_000)]
    assert lengths[1] - lengths[0] < 4
    assert lengths[0] < 400
    assert len(starting._fds) == 2


def test_without_shared_memory_a_new_process_gets_the_columns(
    monkeypatch: pytest.MonkeyPatch,
    starting: Starting,  # noqa: F811
) -> None:
    """Where it cannot be created, and where it is full; the columns stay what they were."""
    for replaced, result in (("create", None), ("write", False)):
        with monkeypatch.context() as patch:
            patch.setattr(SharedMemory, replaced, lambda *args, result=result: result)
            columns = SharedColumns({"a": np.arange(3)})
            again = pickle.loads(reduction.ForkingPickler.dumps(columns))
            assert values(again) == values(columns) == {"a": ("<i8", [0, 1, 2])}
    assert starting._fds == []
