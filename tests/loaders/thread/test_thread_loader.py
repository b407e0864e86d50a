"""``thread_loader``: its options, what it tells the pipes of its chain, and its copies."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

import torchdata_remote as tdr
from torchdata_remote import Resumable, stateful_loader, thread_loader
from torchdata_remote.core.frameworks import batch_rows, plain_tensors
from torchdata_remote.core.frameworks.batch_rows import BatchRows
from torchdata_remote.core.iter_datapipe import IterableWrapper
from torchdata_remote.core.processes.processors import num_processors_of_rank
from torchdata_remote.pipes.base.datapipe import OneForOne
from torchdata_remote.testing import write_small_shards


class Rowed(OneForOne[Any]):
    """Puts numbers into rows, and notes what the loader tells it."""

    def __init__(self, source_datapipe: Any, told: list[Any]) -> None:
        self.source_datapipe, self._told = source_datapipe, told
        self._rows: BatchRows | None = None

    def use_threads(self, num_threads: int) -> None:
        self._told.append(num_threads)

    def use_rows(self, rows: BatchRows) -> None:
        self._rows = rows
        self._told.append((rows.batch_size, rows.memory))

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number, _ in enumerate(self.source_datapipe):
            row = torch.empty(3) if self._rows is None else self._rows.take((3,), torch.float32)
            yield row.fill_(number)


@pytest.fixture
def pipe(memory_folder: str) -> Any:
    write_small_shards(memory_folder, num_shards=4, samples_per_shard=4)
    return IterableWrapper([f"{memory_folder}/index.json"]).list_remote().sharding_filter_rank().shard_tar_reader()


def test_pipes_get_the_threads_and_the_rows_of_batches(pipe: Any) -> None:
    """Each pass anew, because the chain is copied for it; the memory of freed batches is used again."""
    told: list[Any] = []
    loader = thread_loader(Rowed(pipe, told), batch_size=4, num_threads=3)
    for _ in range(2):
        batches = list(loader)
        assert [batch[:, 0].tolist() for batch in batches] == [
            [4.0 * n, 4.0 * n + 1, 4.0 * n + 2, 4.0 * n + 3] for n in range(4)
        ]
    assert told == [3, (4, "process")] * 2


def test_rows_are_handed_out_as_batches_without_a_copy(pipe: Any) -> None:
    """Each batch stays as it is while it is held."""
    loader = thread_loader(Rowed(pipe, []), batch_size=3)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [3, 3, 3, 3, 3, 1]
    assert torch.cat(batches)[:, 0].tolist() == list(range(16))
    assert len({batch.untyped_storage().data_ptr() for batch in batches}) == 6


@pytest.mark.parametrize("make", [thread_loader, stateful_loader])
def test_no_row_of_a_usual_chain_is_held(pipe: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each full batch is the memory of its rows; checks of the first sample keep none."""
    only: list[bool] = []
    is_only_user = plain_tensors.is_only_user

    def noted(tensor: torch.Tensor) -> bool:
        only.append(is_only_user(tensor))
        return only[-1]

    monkeypatch.setattr(batch_rows, "is_only_user", noted)
    images = Rowed(pipe, []).map(as_sample).decode_sample().to_tuple("row")
    assert [len(batch) for (batch,) in make(images, batch_size=4)] == [4] * 4
    assert only == [True] * 4


def as_sample(row: Any) -> Any:
    return {"__key__": "a", "row": row}


class Mixed:
    """Keeps the sample before, as a function that mixes two does, and the first one."""

    def __init__(self) -> None:
        self._before = self._first = torch.zeros(3)

    def __call__(self, row: torch.Tensor) -> Any:
        before, self._before = self._before, row
        if not before.any():
            self._first = row
        return row, before + row, self._first.clone()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (thread_loader, {}),
        (stateful_loader, {}),
        (stateful_loader, {"num_workers": 1, "multiprocessing_context": "fork", "prefetch_factor": 1}),
    ],
    ids=["threads", "no workers", "a worker"],
)
def test_a_change_of_a_batch_does_not_change_samples_that_the_chain_keeps(pipe: Any, make: Any, options: Any) -> None:
    """Also not in a worker, whose batches are in memory that both processes share."""
    expected = [tensors for batch in make(Rowed(pipe, []).map(Mixed()), batch_size=4, **options) for tensors in batch]
    expected = [tensor.clone() for tensor in expected]
    found = []
    for batch in make(Rowed(pipe, []).map(Mixed()), batch_size=4, **options):
        found += [tensor.clone() for tensor in batch]
        for tensor in batch:
            tensor.fill_(1000)
    assert all(map(torch.equal, found, expected))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (thread_loader, {}),
        (stateful_loader, {}),
        (stateful_loader, {"num_workers": 1, "multiprocessing_context": "fork"}),
    ],
    ids=["threads", "no workers", "a worker"],
)
def test_a_stop_iteration_of_collate_fn_is_an_error(pipe: Any, make: Any, options: Any, batch_size: Any) -> None:
    """It would end the pass as if there were no more samples."""
    keys = pipe.to_tuple("__key__")
    batches = iter(make(keys, batch_size=batch_size, collate_fn=Stopping(2), **options))
    next(batches)
    with pytest.raises(RuntimeError, match="collate_fn raised StopIteration"):
        list(batches)


class Stopping:
    """A ``collate_fn`` that raises ``StopIteration`` at a call."""

    def __init__(self, at: int) -> None:
        self._at, self._calls = at, 0

    def __call__(self, batch: Any) -> Any:
        self._calls += 1
        return batch if self._calls < self._at else next(iter(()))


def test_any_number_of_batches_is_made_ahead(pipe: Any) -> None:
    """Nothing is allocated for those that there are not."""
    loader = thread_loader(pipe.to_tuple("__key__"), batch_size=2, prefetch_batches=sys.maxsize)
    assert len(list(loader)) == 8


def test_other_collate_functions_get_no_rows(pipe: Any) -> None:
    """They may keep samples, each of which would keep the memory of a batch."""
    told: list[Any] = []
    list(thread_loader(Rowed(pipe, told), batch_size=4, num_threads=0, collate_fn=default_collate))
    list(thread_loader(Rowed(pipe, told), batch_size=None, num_threads=0))
    assert told == [0, 0]


def test_stateful_loader_gives_rows_and_no_threads(pipe: Any) -> None:
    """Its workers are processes."""
    told: list[Any] = []
    list(stateful_loader(Rowed(pipe, told), batch_size=4))
    assert told == [(4, "process")]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_rows_of_workers_are_in_shared_memory(pipe: Any) -> None:
    """So that the way to the loop is no copy."""
    loader = stateful_loader(Rowed(pipe, []), batch_size=4, num_workers=2, multiprocessing_context="fork")
    batches = list(loader)
    assert all(batch.is_shared() for batch in batches)
    assert sorted(torch.cat(batches)[:, 0].tolist()) == sorted([*range(8), *range(8)])


def test_threads_are_as_many_as_the_processors_of_the_rank(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``torchrun`` tells how many ranks share the machine."""
    assert thread_loader(pipe).num_threads == num_processors_of_rank() >= 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert thread_loader(pipe).num_threads == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_continues_with_the_options_of_the_loader(pipe: Any, copied: Any) -> None:
    """Also those that ``stateful_loader`` does not have."""
    loader = thread_loader(
        pipe.to_tuple("__key__"), batch_size=2, num_threads=3, prefetch_batches=4, device="cpu", list_once=True
    )
    batches = iter(loader)
    assert len(list(islice(batches, 3))) == 3
    twin = copied(loader)
    assert (twin.num_threads, twin.prefetch_batches, twin.device) == (3, 4, torch.device("cpu"))
    assert twin.dataset.listings.once is True
    assert list(twin) == list(batches)


def test_a_resumable_can_be_passed_instead_of_a_chain(pipe: Any) -> None:
    """It then has the number of streams."""
    data = Resumable(pipe.to_tuple("__key__"), num_streams=2)
    assert len(list(thread_loader(data, batch_size=4))) == 4
    with pytest.raises(ValueError, match="num_streams belongs to the Resumable"):
        thread_loader(data, num_streams=3)


def test_the_default_collate_names_what_it_does_not_take(pipe: Any) -> None:
    """As with every loader: checks of pipes find the loader that calls them."""
    with pytest.warns(RuntimeWarning, match="'cls' is b'0', bytes that were not decoded"):
        next(iter(thread_loader(pipe.to_tuple("cls"), batch_size=2)))
    with pytest.raises(tdr.errors.CollateError, match="of which torch's default collate_fn makes no batch"):
        next(iter(thread_loader(pipe.map(object_of), batch_size=2)))


def object_of(sample: Any) -> object:
    return object()
