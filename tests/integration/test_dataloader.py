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
from torch._C import _remove_worker_pids
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
    """What the shards hold, as an in-process reader that does not shuffle tells it."""
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
    """One pass; the loader makes lists of the tuples."""
    return [tuple(item) for item in loader]


@contextlib.contextmanager
def failing(pipe: Any, num_workers: int, start_method: str) -> Iterator[Iterator[Any]]:
    """A pass that fails. Its workers are ended here, since torch waits up to 5 s for each of them after an error."""
    iterator = iter(loader_of(pipe, num_workers, start_method))
    try:
        yield iterator
    finally:
        private: Any = iterator  # torch's
        assert len(private._workers) == num_workers
        _remove_worker_pids(id(iterator))  # or it would report that they were terminated
        private._worker_pids_set = False
        for worker in private._workers:
            worker.terminate()


def check_two_epochs(loader: DataLoader[Any], written: list[Pair]) -> list[Pair]:
    first, second = epoch_of(loader), epoch_of(loader)
    assert collections.Counter(first) == collections.Counter(written)
    assert collections.Counter(second) == collections.Counter(written)
    assert first != second
    assert first != written
    return first


def test_in_the_main_process(moto: S3Server, folder: str, written: list[Pair]) -> None:
    """Without workers every sample comes exactly once per epoch, and the next epoch has another order."""
    check_two_epochs(loader_of(pairs_of(folder, moto), 0, "fork"), written)


@pytest.mark.filterwarnings("ignore:This process was forked:RuntimeWarning")
@pytest.mark.parametrize("num_workers", [1, 4])
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_with_workers(
    moto: S3Server, folder: str, written: list[Pair], start_method: str, num_workers: int, persistent_workers: bool
) -> None:
    """With workers every sample comes exactly once per epoch, and the next epoch has another order."""
    if num_workers == 4 and not persistent_workers and start_method == "spawn":
        num_workers = 2  # 8 starts of a Python with torch take long
    loader = loader_of(pairs_of(folder, moto), num_workers, start_method, persistent_workers=persistent_workers)
    first = check_two_epochs(loader, written)
    third = epoch_of(loader)
    assert collections.Counter(third) == collections.Counter(written)
    assert third != first
    del loader  # ends persistent workers


def test_order_is_the_same_however_it_is_read(moto: S3Server, folder: str) -> None:
    """One worker reads in the order of the main process, epoch by epoch, persistent or not."""
    direct = pairs_of(folder, moto, seed=3)
    expected = [list(direct) for _ in range(3)]
    in_process = loader_of(pairs_of(folder, moto, seed=3), 0, "fork")
    assert [epoch_of(in_process) for _ in range(3)] == expected
    persistent = loader_of(pairs_of(folder, moto, seed=3), 1, "forkserver", persistent_workers=True)
    assert [epoch_of(persistent) for _ in range(3)] == expected
    anew = loader_of(pairs_of(folder, moto, seed=3), 1, "forkserver")
    assert [epoch_of(anew) for _ in range(3)] == expected


def test_epoch_given_up_halfway(moto: S3Server, folder: str, written: list[Pair]) -> None:
    """After an early ``break`` the next epoch is whole."""
    loader = loader_of(pairs_of(folder, moto), 2, "forkserver", persistent_workers=True)
    for _ in loader:
        break
    check_two_epochs(loader, written)


def test_batches(moto: S3Server, folder: str, written: list[Pair]) -> None:
    """torch's own collation works on the tuples."""
    pipe = stream_shards(folder, storage_options=moto.storage_options).decode_sample().to_tuple("__key__", "cls")
    loader: DataLoader[Any] = DataLoader(pipe, batch_size=10, num_workers=2, multiprocessing_context="forkserver")
    keys = [key for names, numbers in loader for key in names if len(numbers) == len(names)]
    assert sorted(keys) == sorted(key for key, _ in written)


def test_loose_files(moto: S3Server, start_method: str) -> None:
    """Loose objects too arrive exactly once per epoch."""
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
def test_error_in_a_worker(moto: S3Server, folder: str, start_method: str) -> None:
    """An error inside a worker arrives with its own type and names the URL."""
    beyond = folder + "{000006..000009}.tar"
    with (
        failing(pairs_of(beyond, moto), 2, start_method) as samples,
        pytest.raises(ObjectNotFoundError, match=folder + r"00000[89]\.tar"),
    ):
        list(samples)


def test_damage_seen_in_a_worker(moto: S3Server) -> None:
    """A shard cut short is a ShardReadError that names it, not a shorter epoch."""
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


@pytest.mark.filterwarnings("ignore:This process was forked:RuntimeWarning")
def test_too_few_shards(moto: S3Server, folder: str, start_method: str) -> None:
    """Fewer shards than workers is an error that gives both numbers and says what to do, in every worker."""
    with (
        failing(pairs_of(folder + "00000[01].tar", moto), 4, start_method) as samples,
        pytest.raises(EmptyShareError, match=r"2 shards for 4 readers .*Use fewer readers, or more and smaller shards"),
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


def test_error_of_the_source(moto: S3Server, folder: str) -> None:
    """What the pipes before ours raise arrives unchanged."""
    pipe = FailingUrls(folder).async_prefetch(storage_options=moto.storage_options).shard_tar_reader()
    with (
        failing(pipe, 1, "forkserver") as samples,
        pytest.raises(ZeroDivisionError, match="the source of URLs fails"),
    ):
        list(samples)


def test_reader_of_bare_urls(moto: S3Server, folder: str, written: list[Pair]) -> None:
    """A reader that gets URLs opens them in the worker by itself."""
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
given = json.loads(sys.argv[1])
pipe = tdr.stream_shards(given["folder"], storage_options=given["storage_options"]).to_tuple("__key__")
if given["parent"] == "reads":
    assert len(list(pipe)) == given["num_samples"]
if given["parent"] == "begins to read":
    kept = iter(pipe)
    next(kept)
if given["parent"] == "lists":
    assert list(tdr.ListRemote([given["folder"]], storage_options=given["storage_options"]))
loader = DataLoader(pipe, batch_size=None, num_workers=1, multiprocessing_context="fork", timeout=60)
for epoch in range(2):
    print(json.dumps([key for (key,) in loader]))
"""


def run_fork_script(server: S3Server, folder: str, **given: Any) -> tuple[list[list[str]], str]:
    """Epochs that the worker of a new process read, and what was said on stderr."""
    given |= {"folder": folder, "storage_options": {**server.storage_options, **given.get("more", {})}}
    given["num_samples"] = NUM_SHARDS * SAMPLES_PER_SHARD
    command = [sys.executable, "-c", FORK_SCRIPT, json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.parametrize("parent", ["reads", "begins to read"])
def test_fork_after_the_parent_has_read(moto: S3Server, folder: str, written: list[Pair], parent: str) -> None:
    """A worker forked from a parent that used obstore reads all the same, and says once per worker what to change."""
    epochs, said = run_fork_script(moto, folder, parent=parent)
    assert [sorted(epoch) for epoch in epochs] == [sorted(key for key, _ in written)] * 2
    assert epochs[0] != epochs[1]
    warned = [line for line in said.splitlines() if "RuntimeWarning:" in line]
    assert len(warned) == len(epochs)
    assert all("multiprocessing_context='forkserver'" in line for line in warned)


@pytest.mark.parametrize("parent", ["does nothing", "lists"])
def test_fork_before_anything_was_read(moto: S3Server, folder: str, written: list[Pair], parent: str) -> None:
    """A parent that read nothing, or only listed, may fork: workers use obstore and nothing is complained about."""
    epochs, said = run_fork_script(moto, folder, parent=parent)
    assert [sorted(epoch) for epoch in epochs] == [sorted(key for key, _ in written)] * 2
    assert "RuntimeWarning" not in said
    assert "is read by obstore" in said


@pytest.mark.parametrize("parent", ["does nothing", "reads"])
def test_fork_with_s3fs(moto: S3Server, folder: str, written: list[Pair], parent: str) -> None:
    """An option that selects s3fs works in forked workers, also after the parent has used s3fs."""
    epochs, _ = run_fork_script(moto, folder, parent=parent, more={"default_fill_cache": False})
    assert [sorted(epoch) for epoch in epochs] == [sorted(key for key, _ in written)] * 2
