"""torch's ``DataLoader`` and torchdata's ``DataLoader2`` over a chain, under each way to start workers."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterDataPipe

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from tests.support.loaders import read_all
from torchdata_remote.errors import EmptyShareError, ObjectNotFoundError, ShardReadError
from torchdata_remote.testing import write_small_shards

from .conftest import ALL_KEYS


@pytest.fixture(scope="module")
def bucket_folder(moto: S3Server) -> str:
    """Shards in a bucket."""
    url = f"s3://{moto.new_bucket()}/train/"
    write_small_shards(url, num_shards=6, samples_per_shard=4, storage_options=moto.storage_options)
    return url


def pairs_of(url: str, server: S3Server | None = None, **more: Any) -> IterDataPipe[Any]:
    options = None if server is None else server.storage_options
    pipe: IterDataPipe[Any] = tdr.stream_shards(url, storage_options=options, **more).to_tuple("__key__", "txt")
    return pipe


def loader_of(pipe: Any, num_workers: int, start_method: str = "forkserver", **more: Any) -> DataLoader[Any]:
    context = start_method if num_workers else None
    timeout = 120 * bool(context)
    return DataLoader(pipe, None, num_workers=num_workers, multiprocessing_context=context, timeout=timeout, **more)


def epoch_of(loader: Any) -> list[Any]:
    """Read one pass; ``DataLoader`` turns the tuples into lists."""
    return [tuple(item) for item in loader]


@pytest.mark.filterwarnings("ignore:This process was forked:RuntimeWarning")
@pytest.mark.parametrize(
    ("start_method", "num_workers", "persistent_workers"),
    [("fork", 0, False), ("fork", 3, False), ("forkserver", 2, True), ("spawn", 1, True)],
)
def test_each_sample_once_an_epoch_in_another_order(
    moto: S3Server, bucket_folder: str, start_method: str, num_workers: int, persistent_workers: bool
) -> None:
    loader = loader_of(pairs_of(bucket_folder, moto), num_workers, start_method, persistent_workers=persistent_workers)
    written = list(pairs_of(bucket_folder, moto, seed=None))
    epochs = [epoch_of(loader) for _ in range(3)]
    assert all(collections.Counter(epoch) == collections.Counter(written) for epoch in epochs)
    assert sorted(key for key, _ in written) == ALL_KEYS
    assert written != epochs[0] != epochs[1] != epochs[2]
    del loader  # ends persistent workers


class FailingUrls(IterDataPipe[str]):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[str]:
        yield f"{self.folder}/000000.tar"
        raise ZeroDivisionError("the source of URLs fails")


@pytest.mark.filterwarnings("ignore:This process was forked:RuntimeWarning")
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_errors_in_workers_keep_their_type_and_name_the_url(
    moto: S3Server, bucket_folder: str, tmp_path: Path, start_method: str
) -> None:
    """Whichever transport the worker reads by; an epoch is not silently shorter. Errors of users' pipes stay."""
    folder = str(tmp_path)
    write_small_shards(folder, num_shards=2, samples_per_shard=50)
    whole = (tmp_path / "000001.tar").read_bytes()
    (tmp_path / "000001.tar").write_bytes(whole[: len(whole) // 1024 * 512])
    failing: list[tuple[Any, type[Exception], str]] = [
        (
            pairs_of(bucket_folder + "{000004..000007}.tar", moto),
            ObjectNotFoundError,
            bucket_folder + r"00000[67]\.tar",
        ),
        (pairs_of(f"{folder}/*.tar"), ShardReadError, f"{folder}/000001.tar"),
        (pairs_of(f"{folder}/000000.tar"), EmptyShareError, r"1 shard for 2 readers .*more and smaller shards"),
        (FailingUrls(folder).shard_tar_reader(), ZeroDivisionError, "the source of URLs fails"),
    ]
    for pipe, error, message in failing:
        with pytest.raises(error, match=message) as caught:
            read_all(loader_of(pipe, 1 if error is ZeroDivisionError else 2, start_method))
        assert moto.secret not in str(caught.value)


# DataLoader2, which left torchdata in 0.10


def keys_of(url: str) -> Any:
    return tdr.stream_shards(url).to_tuple("__key__")


def epochs_of(pipe: Any, service: Any) -> list[list[str]]:
    loader2 = pytest.importorskip("torchdata.dataloader2").DataLoader2(pipe, reading_service=service)
    try:
        return [[key for (key,) in loader2] for _ in range(3)]
    finally:
        loader2.shutdown()


def test_dataloader2_reads_each_epoch_in_the_order_of_direct_iteration(folder: str) -> None:
    """Without a reading service, and with one worker."""
    dataloader2 = pytest.importorskip("torchdata.dataloader2", reason="DataLoader2 left torchdata in 0.10")
    in_worker = dataloader2.MultiProcessingReadingService(num_workers=1, multiprocessing_context="fork")
    pipe = keys_of(folder)
    expected = [[key for (key,) in pipe] for _ in range(3)]
    assert [epochs_of(keys_of(folder), service) for service in (None, in_worker)] == [expected] * 2
    assert len({tuple(epoch) for epoch in expected}) == 3


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_errors_in_workers_of_dataloader2_keep_their_type(folder: str, start_method: str) -> None:
    dataloader2 = pytest.importorskip("torchdata.dataloader2", reason="DataLoader2 left torchdata in 0.10")

    def service() -> Any:
        return dataloader2.MultiProcessingReadingService(num_workers=2, multiprocessing_context=start_method)

    with pytest.raises(ObjectNotFoundError, match=folder + r"/00000[67]\.tar"):
        epochs_of(keys_of(folder + "/{000004..000007}.tar"), service())
    with pytest.raises(EmptyShareError, match=r"1 shard for 2 readers .* more and smaller shards"):
        epochs_of(keys_of(folder + "/000000.tar"), service())
