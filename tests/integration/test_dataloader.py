"""torch's ``DataLoader`` over shards in S3, under each way to start workers."""

from __future__ import annotations

import collections
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.s3 import S3Server
from torchdata_remote import FileReader, stream_files, stream_shards
from torchdata_remote.errors import EmptyShareError, ObjectNotFoundError, ShardReadError
from torchdata_remote.testing import write_small_shards

NUM_SHARDS, SAMPLES_PER_SHARD = 8, 9
Pair = tuple[str, bytes]


@pytest.fixture(scope="module")
def folder(moto: S3Server) -> str:
    """Shards in a bucket."""
    url = f"s3://{moto.new_bucket()}/train/"
    write_small_shards(
        url, num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD, storage_options=moto.storage_options
    )
    return url


@pytest.fixture(scope="module")
def written(moto: S3Server, folder: str) -> list[Pair]:
    """The pairs in the shards, read in this process without shuffling."""
    pairs = list(stream_shards(folder, seed=None, storage_options=moto.storage_options).to_tuple("__key__", "txt"))
    assert len(set(pairs)) == NUM_SHARDS * SAMPLES_PER_SHARD
    return pairs


def pairs_of(url: str, server: S3Server, **more: Any) -> IterDataPipe[Pair]:
    pipe = stream_shards(url, storage_options=server.storage_options, **more)
    pairs: IterDataPipe[Pair] = pipe.to_tuple("__key__", "txt")
    return pairs


def loader_of(pipe: Any, num_workers: int, start_method: str, **more: Any) -> DataLoader[Any]:
    context = start_method if num_workers else None
    return DataLoader(
        pipe,
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context=context,
        timeout=60 * bool(context),
        **more,
    )


def epoch_of(loader: DataLoader[Any]) -> list[Any]:
    """Read one pass; ``DataLoader`` turns the tuples into lists."""
    return [tuple(item) for item in loader]


@contextlib.contextmanager
def failing(pipe: Any, num_workers: int, start_method: str) -> Iterator[Iterator[Any]]:
    """Iterate a pass that fails. Its workers are told to end here: once it is collected, torch waits 5 s for each."""
    iterator: Any = iter(loader_of(pipe, num_workers, start_method))
    try:
        yield iterator
    finally:
        assert len(iterator._workers) == num_workers
        iterator._shutdown_workers()


def check_two_epochs(loader: DataLoader[Any], written: list[Pair]) -> list[Pair]:
    first, second = epoch_of(loader), epoch_of(loader)
    assert collections.Counter(first) == collections.Counter(written)
    assert collections.Counter(second) == collections.Counter(written)
    assert first != second
    assert first != written
    return first


def test_each_sample_once_per_epoch_without_workers(moto: S3Server, folder: str, written: list[Pair]) -> None:
    """The next epoch has another order."""
    check_two_epochs(loader_of(pairs_of(folder, moto), 0, "fork"), written)


@pytest.mark.filterwarnings("ignore:This process was forked:RuntimeWarning")
@pytest.mark.parametrize(
    ("start_method", "persistent_workers", "num_workers"),
    [
        # each pair of values that two of the three have, but spawn, which imports torch in each worker, only once
        ("fork", False, 4),
        ("fork", True, 1),
        ("forkserver", True, 4),
        ("forkserver", False, 1),
        ("spawn", True, 1),
    ],
)
def test_each_sample_once_per_epoch_with_workers(
    moto: S3Server, folder: str, written: list[Pair], start_method: str, num_workers: int, persistent_workers: bool
) -> None:
    """Workers hand out every sample exactly once per epoch, and each epoch in another order."""
    loader = loader_of(pairs_of(folder, moto), num_workers, start_method, persistent_workers=persistent_workers)
    first = check_two_epochs(loader, written)
    third = epoch_of(loader)
    assert collections.Counter(third) == collections.Counter(written)
    assert third != first
    del loader  # ends persistent workers


def test_one_worker_reads_in_the_order_of_the_main_process(moto: S3Server, folder: str) -> None:
    """In every epoch, with persistent workers or without."""
    direct = pairs_of(folder, moto, seed=3)
    expected = [list(direct) for _ in range(3)]
    in_process = loader_of(pairs_of(folder, moto, seed=3), 0, "fork")
    assert [epoch_of(in_process) for _ in range(3)] == expected
    persistent = loader_of(pairs_of(folder, moto, seed=3), 1, "forkserver", persistent_workers=True)
    assert [epoch_of(persistent) for _ in range(3)] == expected
    anew = loader_of(pairs_of(folder, moto, seed=3), 1, "forkserver")
    assert [epoch_of(anew) for _ in range(3)] == expected


def test_epoch_after_an_early_break_is_complete(moto: S3Server, folder: str, written: list[Pair]) -> None:
    """The iterator that was dropped leaves nothing behind in persistent workers."""
    loader = loader_of(pairs_of(folder, moto), 2, "forkserver", persistent_workers=True)
    for _ in loader:
        break
    check_two_epochs(loader, written)


def test_collation_of_tuples(moto: S3Server, folder: str, written: list[Pair]) -> None:
    """torch's own ``collate_fn`` makes batches of what ``to_tuple`` yields."""
    pipe = stream_shards(folder, storage_options=moto.storage_options).decode_sample().to_tuple("__key__", "cls")
    loader: DataLoader[Any] = DataLoader(pipe, batch_size=10, num_workers=2, multiprocessing_context="forkserver")
    keys = [key for names, numbers in loader for key in names if len(numbers) == len(names)]
    assert sorted(keys) == sorted(key for key, _ in written)


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_each_loose_file_once_per_epoch_with_workers(moto: S3Server, start_method: str) -> None:
    """Persistent workers hand out every object exactly once per epoch."""
    bucket, client = moto.new_bucket(), moto.client()
    for number in range(30):
        client.put_object(Bucket=bucket, Key=f"loose/{number % 3}/{number}.txt", Body=b"%d" % number)
    pipe = stream_files(f"s3://{bucket}/loose/", storage_options=moto.storage_options)
    loader = loader_of(pipe.label_from_path().to_tuple("txt", "cls"), 2, start_method, persistent_workers=True)
    expected = sorted((b"%d" % number, number % 3) for number in range(30))
    first, second = epoch_of(loader), epoch_of(loader)
    assert sorted(first) == sorted(second) == expected
    assert first != second


@pytest.mark.filterwarnings("ignore:This process was forked:RuntimeWarning")
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_error_in_a_worker_keeps_its_type(moto: S3Server, folder: str, start_method: str) -> None:
    """It names the URL too, whichever transport the worker reads by: a forked one does not use obstore."""
    beyond = folder + "{000006..000009}.tar"
    with (
        failing(pairs_of(beyond, moto), 2, start_method) as samples,
        pytest.raises(ObjectNotFoundError, match=folder + r"00000[89]\.tar"),
    ):
        list(samples)


def test_truncated_shard_is_an_error_of_the_worker(moto: S3Server) -> None:
    """``ShardReadError`` names the shard; the epoch is not silently shorter."""
    bucket, client = moto.new_bucket(), moto.client()
    write_small_shards(f"s3://{bucket}/", num_shards=2, samples_per_shard=50, storage_options=moto.storage_options)
    whole = client.get_object(Bucket=bucket, Key="000001.tar")["Body"].read()
    client.put_object(Bucket=bucket, Key="000001.tar", Body=whole[: len(whole) // 1024 * 512])
    with (
        failing(pairs_of(f"s3://{bucket}/", moto), 1, "forkserver") as samples,
        pytest.raises(ShardReadError, match=f"s3://{bucket}/000001.tar") as caught,
    ):
        list(samples)
    assert moto.secret not in str(caught.value)


def test_fewer_shards_than_workers_is_an_error(moto: S3Server, folder: str) -> None:
    """It states both numbers and what to do."""
    with (
        failing(pairs_of(folder + "00000[01].tar", moto), 3, "forkserver") as samples,
        pytest.raises(EmptyShareError, match=r"2 shards for 3 readers .*Use fewer readers, or more and smaller shards"),
    ):
        list(samples)


def failing_urls(folder: str) -> Iterator[str]:
    yield folder + "000000.tar"
    raise ZeroDivisionError("the source of URLs fails")


class FailingUrls(IterDataPipe[str]):
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[str]:
        return failing_urls(self.folder)


def test_errors_of_source_pipes_are_unchanged(moto: S3Server, folder: str) -> None:
    """An exception of a pipe before ours reaches the training process as it is."""
    pipe = FailingUrls(folder).async_prefetch(storage_options=moto.storage_options).shard_tar_reader()
    with (
        failing(pipe, 1, "forkserver") as samples,
        pytest.raises(ZeroDivisionError, match="the source of URLs fails"),
    ):
        list(samples)


def test_readers_open_bare_urls_in_the_worker(moto: S3Server, folder: str, written: list[Pair]) -> None:
    """``shard_tar_reader`` and ``file_reader`` without ``async_prefetch`` before them."""
    urls = IterableWrapper([f"{folder}{shard:06d}.tar" for shard in range(NUM_SHARDS)])
    share = urls.sharding_filter_rank()
    pipe = share.shard_tar_reader(storage_options=moto.storage_options).to_tuple("__key__", "txt")
    assert sorted(epoch_of(loader_of(pipe, 2, "forkserver"))) == sorted(written)
    whole = FileReader(share, storage_options=moto.storage_options).to_tuple("__key__")
    keys = [key for (key,) in loader_of(whole, 2, "forkserver")]
    assert sorted(keys) == [f"train/{shard:06d}" for shard in range(NUM_SHARDS)]


FORK_SCRIPT = """
import json, logging, sys
from torch.utils.data import DataLoader
import torchdata_remote as tdr

logging.basicConfig(level=logging.INFO)
config = json.loads(sys.argv[1])
pipe = tdr.stream_shards(config["folder"], storage_options=config["storage_options"]).to_tuple("__key__")
if config["parent"] == "reads":
    assert len(list(pipe)) == config["num_samples"]
if config["parent"] == "begins to read":
    kept = iter(pipe)
    next(kept)
if config["parent"] == "lists":
    assert list(tdr.ListRemote([config["folder"]], storage_options=config["storage_options"]))
loader = DataLoader(pipe, batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=60)
for epoch in range(2):
    print(json.dumps([key for (key,) in loader]))
"""


def run_fork_script(server: S3Server, folder: str, **config: Any) -> tuple[list[list[str]], str]:
    """Read two epochs in a forked worker of a new process; return them and its stderr."""
    config |= {"folder": folder, "storage_options": {**server.storage_options, **config.get("more", {})}}
    config["num_samples"] = NUM_SHARDS * SAMPLES_PER_SHARD
    command = [sys.executable, "-c", FORK_SCRIPT, json.dumps(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.parametrize("parent", ["reads", "begins to read"])
def test_fork_after_the_parent_has_read(moto: S3Server, folder: str, written: list[Pair], parent: str) -> None:
    """A forked worker cannot use obstore then: it reads everything by another transport and warns once."""
    epochs, stderr = run_fork_script(moto, folder, parent=parent)
    assert [sorted(epoch) for epoch in epochs] == [sorted(key for key, _ in written)] * 2
    assert epochs[0] != epochs[1]
    warned = [line for line in stderr.splitlines() if "RuntimeWarning:" in line]
    assert len(warned) == len(epochs)
    assert all("multiprocessing_context='forkserver'" in line for line in warned)


def test_fork_after_the_parent_has_only_listed(moto: S3Server, folder: str, written: list[Pair]) -> None:
    """Workers use obstore, without a warning."""
    epochs, stderr = run_fork_script(moto, folder, parent="lists")
    assert [sorted(epoch) for epoch in epochs] == [sorted(key for key, _ in written)] * 2
    assert "RuntimeWarning" not in stderr
    assert "is read by obstore" in stderr


def test_fork_after_the_parent_has_used_s3fs(moto: S3Server, folder: str, written: list[Pair]) -> None:
    """Workers read by s3fs too, where an option selects it."""
    epochs, _ = run_fork_script(moto, folder, parent="reads", more={"default_fill_cache": False})
    assert [sorted(epoch) for epoch in epochs] == [sorted(key for key, _ in written)] * 2
