"""Several readers of one chain: each sample once, or as often as declared; otherwise an error before the first one."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.graph_settings import apply_sharding

import torchdata_remote as tdr
from tests.support.loaders import read_all
from torchdata_remote.errors import StateError, UnsplitError
from torchdata_remote.testing import write_small_shards

NUM_SAMPLES = 6
Make = Callable[[Any], IterDataPipe[str]]
TWO_WORKERS = "2 readers (1 rank x 2 workers)"
TWO_RANKS = "2 readers (2 ranks x 1 worker)"

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six samples: as three tar shards, as three zip shards, and as six loose files."""
    folder = tmp_path_factory.mktemp("split")
    for name in ("loose", "zip"):
        (folder / name).mkdir()
    for sample in write_small_shards(f"{folder}/tar", num_shards=3, samples_per_shard=2):
        number = int(sample["__key__"][2:])
        (folder / "loose" / f"{number}.txt").write_bytes(sample["txt"])
        with ZipFile(folder / "zip" / f"{number // 2}.zip", "a") as archive:
            archive.writestr(f"{number}.txt", sample["txt"])
    return folder


def key_of(sample: Any) -> str:
    return str(sample["__key__"])


def url_of(pair: Any) -> str:
    return str(pair[0])


READERS: dict[str, tuple[str, Make]] = {
    "tar": ("tar/*.tar", lambda urls: urls.shard_tar_reader().map(key_of)),
    "tar ahead": ("tar/*.tar", lambda urls: urls.async_prefetch().shard_tar_reader().map(key_of)),
    "zip": ("zip/*.zip", lambda urls: urls.shard_zip_reader().map(key_of)),
    "files": ("loose/*.txt", lambda urls: urls.file_reader().map(key_of)),
    "streams": ("loose/*.txt", lambda urls: urls.async_prefetch().map(url_of)),
}


def listed(folder: Path, reader: str = "tar") -> Any:
    return IterableWrapper([f"{folder}/{READERS[reader][0]}"]).list_remote()


def read(urls: Any, reader: str = "tar") -> Any:
    return READERS[reader][1](urls)


def unsplit(folder: Path, reader: str = "tar") -> Any:
    return read(listed(folder, reader), reader)


def split(folder: Path, reader: str = "tar") -> Any:
    return read(listed(folder, reader).sharding_filter_rank(), reader)


def repeated(folder: Path, reader: str = "tar") -> Any:
    return read(listed(folder, reader).sharding_filter_rank(split=False), reader)


def items_of(data: Any, num_workers: int = 2, method: str = "fork") -> list[Any]:
    """One pass of a ``DataLoader``."""
    context = method if num_workers else None
    return read_all(DataLoader(data, batch_size=None, num_workers=num_workers, multiprocessing_context=context))


def check_exactly_once(items: list[Any], times: int = 1) -> None:
    assert len(items) == times * NUM_SAMPLES
    assert set(Counter(items).values()) == {times}


@contextlib.contextmanager
def refused(readers: str) -> Iterator[None]:
    """What is in the block is an error that says what would happen, and both remedies."""
    with pytest.raises(UnsplitError) as caught:
        yield
    message = str(caught.value)
    assert f"{readers} would yield the same samples" in message
    assert ".sharding_filter_rank() after the listing" in message
    assert ".sharding_filter_rank(split=False)" in message


@contextlib.contextmanager
def ranks_of(world_size: int) -> Iterator[None]:
    """As rank 0 of several, by the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", "0")
        patch.setenv("WORLD_SIZE", str(world_size))
        yield


@pytest.mark.parametrize("reader", ["tar", "streams"])
def test_two_workers_read_each_sample_once_or_as_often_as_they_were_told(folder: Path, reader: str) -> None:
    with refused(TWO_WORKERS):
        items_of(unsplit(folder, reader))
    check_exactly_once(items_of(split(folder, reader)))
    check_exactly_once(items_of(repeated(folder, reader)), times=2)


@pytest.mark.parametrize("reader", READERS)
def test_ranks_of_the_environment_count_as_workers_do(folder: Path, reader: str) -> None:
    """A listing by itself reads nothing, and is the same everywhere."""
    urls = list(listed(folder, reader))
    with ranks_of(2):
        for pipe in (unsplit(folder, reader), read(IterableWrapper(urls), reader)):
            with refused(TWO_RANKS):
                next(iter(pipe))
        assert list(listed(folder, reader)) == urls
        assert 0 < len(list(split(folder, reader))) < NUM_SAMPLES
        check_exactly_once(list(repeated(folder, reader)))


class Both(IterDataPipe[str]):
    """The keys of a split chain, and why one that is not split is refused."""

    def __init__(self, folder: Path) -> None:
        self.split, self.unsplit = split(folder), unsplit(folder)

    def __iter__(self) -> Iterator[str]:
        yield from self.split
        try:
            yield from self.unsplit
        except UnsplitError as error:
            yield str(error)


def read_as_rank(rank: int, folder: Path, store: str) -> list[list[str]]:
    """Of a group of two, which the environment does not tell: here, in a worker without the group, and repeated."""
    torch.distributed.init_process_group("gloo", store, timedelta(seconds=300), 2, rank)
    found = [list(Both(folder)), items_of(Both(folder), 1, "spawn"), list(repeated(folder))]
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return found


def test_ranks_of_a_process_group_count_also_in_a_worker_that_has_no_group(folder: Path, tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as ranks:
        results = list(ranks.map(read_as_rank, range(2), [folder] * 2, [f"file://{tmp_path}/store"] * 2))
    for place in (0, 1):
        assert all(TWO_RANKS in rank[place].pop() for rank in results)
        check_exactly_once([key for rank in results for key in rank[place]])
    check_exactly_once([key for rank in results for key in rank[2]], times=2)


def test_workers_of_dataloader2_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although ``get_worker_info`` tells nothing there."""
    dataloader2 = pytest.importorskip("torchdata.dataloader2", reason="DataLoader2 left torchdata in 0.10")
    # torchdata waits 20 s for a worker that may poll without a pause; it is killed below
    monkeypatch.setattr("torchdata.dataloader2.reading_service.default_dl2_worker_join_timeout_in_s", 0.1)

    def items(pipe: Any, num_workers: int = 2) -> list[Any]:
        others = set(multiprocessing.active_children())
        service = dataloader2.MultiProcessingReadingService(num_workers, multiprocessing_context="fork")
        loader = dataloader2.DataLoader2(pipe, reading_service=service)
        try:
            return list(loader)
        finally:
            loader.shutdown()
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
                process.join()

    with refused(TWO_WORKERS):
        items(unsplit(folder))
    check_exactly_once(items(split(folder)))
    check_exactly_once(items(unsplit(folder), num_workers=1))
    check_exactly_once(items(read(listed(folder).sharding_round_robin_dispatch(3))))  # 3: MULTIPROCESSING


class Around(IterableDataset[Any]):
    """A dataset of a user, around a chain."""

    def __init__(self, pipe: Any) -> None:
        self.chains = {"train": [pipe]}
        self.itself = self
        self.labels = dict.fromkeys(range(1_000), "a label")

    def __iter__(self) -> Iterator[Any]:
        yield from self.chains["train"][0]


class MadeLater(IterableDataset[Any]):
    """One that makes its chain when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[Any]:
        yield from unsplit(self.folder)


class EverySecond(IterDataPipe[Any]):
    """A split that a user wrote."""

    def __init__(self, source_datapipe: Any) -> None:
        self.source_datapipe = source_datapipe
        self.share = slice(None)

    def apply_sharding(self, num_of_instances: int, instance_id: int) -> None:
        self.share = slice(instance_id, None, num_of_instances)

    def __iter__(self) -> Iterator[Any]:
        yield from list(self.source_datapipe)[self.share]


@pytest.mark.filterwarnings("ignore:Some child DataPipes")
@pytest.mark.parametrize(
    "make",
    [
        lambda folder: read(listed(folder).sharding_filter()),
        lambda folder: unsplit(folder).sharding_filter(),
        lambda folder: repeated(folder).sharding_filter(),
        lambda folder: read(listed(folder).sharding_filter().fork(2)[0]),
        lambda folder: read(EverySecond(listed(folder))),
        lambda folder: EverySecond(unsplit(folder)),
        lambda folder: Around(split(folder)),
        lambda folder: tdr.mix({"all": (split(folder), 1)}),
        lambda folder: read(listed(folder).sharding_filter_rank(world=tdr.World())),
    ],
    ids=["before", "after", "twice", "fork", "own before", "own after", "around", "mix", "world"],
)
def test_splits_of_torch_and_of_users_count(folder: Path, make: Make) -> None:
    check_exactly_once(items_of(make(folder)))


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: Around(unsplit(folder)),
        lambda folder: Around(unsplit(folder).sharding_filter()),
        lambda folder: Around(read(listed(folder).sharding_filter())),
        lambda folder: MadeLater(folder),
        lambda folder: tdr.mix({"split": (split(folder), 1), "not": (unsplit(folder), 1)}, stop="all_exhausted"),
        lambda folder: read(listed(folder).sharding_filter_rank().concat(listed(folder))),
        lambda folder: unsplit(folder).sharding_filter().concat(unsplit(folder)),
        lambda folder: listed(folder),
        lambda folder: listed(folder).shuffle_shards().map(str),
    ],
    ids=["around", "not applied", "not applied before", "hidden", "mix", "concat", "concat after", "list", "shuffle"],
)
def test_a_split_that_is_not_applied_or_on_another_branch_does_not_count(folder: Path, make: Make) -> None:
    """Nor does a listing whose URLs the loader hands out."""
    with refused(TWO_WORKERS):
        items_of(make(folder))


def test_a_split_by_workers_does_not_split_ranks(folder: Path) -> None:
    with ranks_of(2), pytest.raises(UnsplitError, match=r"4 readers \(2 ranks x 2 workers\).* into 2 shares only"):
        items_of(read(listed(folder).sharding_filter()))


def test_a_split_behind_the_reader_is_not_seen_without_workers_and_declared_by_split_false(folder: Path) -> None:
    with ranks_of(2):
        pipe = unsplit(folder).sharding_filter()
        apply_sharding(pipe, 2, 0)
        with pytest.raises(UnsplitError, match=r"sharding_filter\(\), is not visible here.*split=False"):
            list(pipe)
        pipe = repeated(folder).sharding_filter()
        apply_sharding(pipe, 2, 0)
        assert len(list(pipe)) == NUM_SAMPLES // 2
    urls = list(listed(folder))
    with ranks_of(3):
        with refused("3 readers (3 ranks x 1 worker)"):
            list(read(IterableWrapper(urls[::3])))
        assert len(list(read(IterableWrapper(urls[::3]).sharding_filter_rank(split=False)))) == 2


def test_streams_are_split_or_refused(folder: Path) -> None:
    """``Resumable`` splits by streams, in workers too; with ``split=False`` each stream reads all."""
    check_exactly_once(items_of(tdr.Resumable(split(folder))))
    check_exactly_once(items_of(tdr.Resumable(repeated(folder))), times=2)
    with pytest.raises(StateError, match="2 streams would read the same"):
        items_of(tdr.Resumable(unsplit(folder)))
