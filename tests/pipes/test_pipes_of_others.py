"""Pipes of torchdata and of users work anywhere in a chain: share and epoch reach what is above them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.datapipe import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

NUM_FILES, NUM_LINES = 6, 4


@pytest.fixture(scope="module")
def dataloader2() -> Any:
    """torchdata's module, and with it its pipes, which torchdata 0.10 does not have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchdata.datapipes.iter")
        return pytest.importorskip("torchdata.dataloader2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("others")
    write_small_shards(str(path), num_shards=8, samples_per_shard=5)
    for number in range(NUM_FILES):
        (path / f"{number}.csv").write_text("".join(f"{number},{line}\n" for line in range(NUM_LINES)))
    return path


def urls(folder: Path, pattern: str = "*.tar", world: tdr.World | None = None) -> Any:
    listed = IterableWrapper([str(folder)]).list_remote(pattern=pattern)
    return listed.shuffle_shards(seed=1).sharding_filter_rank(world=world)


def key_of(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def first_of(pair: tuple[Any, Any]) -> str:
    return str(pair[0])


CHAINS: dict[str, tuple[int, Callable[..., Any]]] = {
    "load_from_tar": (
        80,
        lambda folder, world=None: urls(folder, world=world).async_prefetch().load_from_tar().map(first_of),
    ),
    "parse_csv": (24, lambda folder, world=None: urls(folder, "*.csv", world).async_prefetch().parse_csv().map(str)),
    "readlines": (24, lambda folder, world=None: urls(folder, "*.csv", world).async_prefetch().readlines().map(str)),
    "open_files_by_fsspec": (
        40,
        lambda folder, world=None: (
            urls(folder, world=world)
            .open_files_by_fsspec(mode="rb")
            .shard_tar_reader()
            .shuffle_samples(buffer_size=4)
            .map(key_of)
        ),
    ),
}


@pytest.mark.usefixtures("dataloader2")
@pytest.mark.parametrize("name", CHAINS)
def test_torchdatas_pipes_are_read_whole_in_another_order_each_epoch_also_at_once(name: str, folder: Path) -> None:
    number, make = CHAINS[name]
    pipe = make(folder)
    epochs = [list(pipe), list(pipe)]
    assert len(set(epochs[0])) == number
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]
    if name == "open_files_by_fsspec":  # others end in a pipe of torchdata, which is read once at a time
        again = make(folder).take(number)
        columns = zip(*zip_longest(again, again), strict=True)
        assert list(map(list, columns)) == epochs
    shares = [item for rank in range(2) for item in make(folder, tdr.World(rank, 2))]
    assert sorted(shares) == sorted(epochs[0])


@pytest.mark.system
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("name", CHAINS)
def test_loaders_read_them_exactly_once_in_another_order_each_epoch(
    name: str, folder: Path, num_workers: int, dataloader2: Any
) -> None:
    number, make = CHAINS[name]
    service = dataloader2.MultiProcessingReadingService(num_workers=num_workers) if num_workers else None
    loader = dataloader2.DataLoader2(make(folder), reading_service=service)
    epochs = [list(loader), list(loader)]
    loader.shutdown()
    torchs = DataLoader(make(folder), batch_size=None, num_workers=num_workers)
    for found in (epochs, [list(torchs), list(torchs)]):
        assert [sorted(epoch) for epoch in found] == [sorted(make(folder))] * 2
        assert len(set(found[0])) == number
        assert found[0] != found[1]


class Numbered(IterDataPipe[Any]):
    """A user's pipe with a state, which includes that of its source."""

    def __init__(self, source: Any) -> None:
        self.source, self.number, self.epoch = source, 0, 0

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            self.number += 1
            yield self.epoch, self.number, item

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> Any:
        return {"number": self.number, "source": self.source.state_dict()}

    def load_state_dict(self, state: Any) -> None:
        self.number = state["number"]
        self.source.load_state_dict(state["source"])


def shuffled(number: int = 12) -> Any:
    return IterableWrapper(range(number)).shuffle_shards(seed=2).sharding_filter_rank()


class Paired(IterDataPipe[Any]):
    """A user's pipe with two sources, in a list."""

    def __init__(self, *sources: Any) -> None:
        self.sources = list(sources)

    def __iter__(self) -> Iterator[Any]:
        yield from zip(*self.sources, strict=True)


def test_passes_at_once_over_what_torch_shares_among_pipes_are_an_error() -> None:
    """The branches of a ``fork`` take from one buffer, which is not copied."""
    one, other = IterableWrapper(range(6)).sharding_filter_rank().fork(2)
    pipe = tdr.pipes.Take(one, 6)
    assert list(zip(pipe, tdr.pipes.Take(other, 6), strict=True)) == [(number, number) for number in range(6)]
    assert list(pipe) == list(range(6))
    with pytest.raises(RuntimeError, match="invalidated"):
        list(zip(pipe, pipe, strict=True))


def test_requests_above_a_users_pipe_end_with_its_pass(folder: Path) -> None:
    """Also while an error is kept, whose traceback has the pass."""

    def fail(pair: Any) -> Any:
        raise LookupError(str(pair))

    before = set(threading.enumerate())
    chain = urls(folder).async_prefetch(max_in_flight=2)
    with pytest.raises(LookupError) as caught:
        list(tdr.pipes.ParallelMap(Paired(chain), fail, num_threads=0))
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive(), thread.name
    assert caught.value.args


def test_a_users_pipe_with_a_state_resumes_and_is_told_the_epoch() -> None:
    def chain() -> Any:
        return tdr.pipes.ShuffleSamples(Numbered(shuffled()), buffer_size=4)

    assert_resumes_everywhere(chain)
    data = tdr.Resumable(chain())
    assert [{epoch for epoch, _, _ in data} for _ in range(3)] == [{0}, {1}, {2}]
    pipe = chain()
    assert [{epoch for epoch, _, _ in pipe} for _ in range(2)] == [{0}, {1}]
