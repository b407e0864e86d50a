"""torchdata's ``DataLoader2`` over shards in S3."""

from __future__ import annotations

import collections
from typing import Any

import pytest
from torch.utils.data import IterDataPipe

from tests.servers.s3 import S3Server
from tests.support.ranks import run_ranks
from torchdata_remote import stream_shards
from torchdata_remote.errors import EmptyShareError, ObjectNotFoundError
from torchdata_remote.testing import write_small_shards

dataloader2 = pytest.importorskip("torchdata.dataloader2", reason="DataLoader2 left torchdata in 0.10")

NUM_SHARDS, SAMPLES_PER_SHARD = 8, 6
KEYS = [f"{number % 10}/{number:06d}" for number in range(NUM_SHARDS * SAMPLES_PER_SHARD)]


@pytest.fixture(scope="module")
def folder(moto: S3Server) -> str:
    url = f"s3://{moto.new_bucket()}/train/"
    write_small_shards(
        url, num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD, storage_options=moto.storage_options
    )
    return url


def keys_of(url: str, server: S3Server) -> IterDataPipe[Any]:
    pipe: IterDataPipe[Any] = stream_shards(url, storage_options=server.storage_options).to_tuple("__key__")
    return pipe


def epochs_of(pipe: IterDataPipe[Any], service: Any, num_epochs: int = 3) -> list[list[str]]:
    loader = dataloader2.DataLoader2(pipe, reading_service=service)
    try:
        return [[key for (key,) in loader] for _ in range(num_epochs)]
    finally:
        loader.shutdown()


def check(epochs: list[list[str]]) -> None:
    for epoch in epochs:
        assert collections.Counter(epoch) == collections.Counter(KEYS)
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_each_sample_once_per_epoch_without_workers(moto: S3Server, folder: str) -> None:
    """Each epoch has another order."""
    check(epochs_of(keys_of(folder, moto), dataloader2.InProcessReadingService()))
    check(epochs_of(keys_of(folder, moto), None))


def test_epochs_without_workers_have_the_order_of_direct_iteration(moto: S3Server, folder: str) -> None:
    """The order of an epoch does not depend on the loader."""
    pipe = keys_of(folder, moto)
    expected = [[key for (key,) in pipe] for _ in range(3)]
    assert epochs_of(keys_of(folder, moto), dataloader2.InProcessReadingService()) == expected


@pytest.mark.filterwarnings("ignore:This process was forked:RuntimeWarning")
@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_each_sample_once_per_epoch_with_workers(moto: S3Server, folder: str, start_method: str) -> None:
    """Each epoch has another order."""
    service = dataloader2.MultiProcessingReadingService(num_workers=2, multiprocessing_context=start_method)
    check(epochs_of(keys_of(folder, moto), service))


def test_epochs_of_one_worker_have_the_order_of_direct_iteration(moto: S3Server, folder: str) -> None:
    """Epochs are counted in the worker as in the main process."""
    pipe = keys_of(folder, moto)
    expected = [[key for (key,) in pipe] for _ in range(3)]
    service = dataloader2.MultiProcessingReadingService(num_workers=1, multiprocessing_context="forkserver")
    assert epochs_of(keys_of(folder, moto), service) == expected


def test_error_in_a_worker_keeps_its_type(moto: S3Server, folder: str) -> None:
    """It names the URL too."""
    service = dataloader2.MultiProcessingReadingService(num_workers=2, multiprocessing_context="forkserver")
    with pytest.raises(ObjectNotFoundError, match=folder + r"00000[89]\.tar"):
        epochs_of(keys_of(folder + "{000006..000009}.tar", moto), service)


def test_fewer_shards_than_workers_is_an_error(moto: S3Server, folder: str) -> None:
    """It says what to do."""
    service = dataloader2.MultiProcessingReadingService(num_workers=2, multiprocessing_context="forkserver")
    with pytest.raises(EmptyShareError, match=r"1 shard for 2 readers .* more and smaller shards"):
        epochs_of(keys_of(folder + "000000.tar", moto), service)


RANK_SCRIPT = """
import json, sys
import torch.distributed
from torchdata.dataloader2 import (
    DataLoader2, DistributedReadingService, MultiProcessingReadingService, SequentialReadingService,
)
import torchdata_remote as tdr

config = json.loads(sys.argv[1])
torch.distributed.init_process_group("gloo")
pipe = tdr.stream_shards(config["folder"], storage_options=config["storage_options"]).to_tuple("__key__")
workers = MultiProcessingReadingService(num_workers=2, multiprocessing_context="forkserver")
service = SequentialReadingService(DistributedReadingService(), workers)
loader = DataLoader2(pipe, reading_service=service)
epochs = [[key for (key,) in loader] for epoch in range(2)]
loader.shutdown()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
print(json.dumps(epochs))
import os
import sys
sys.stdout.flush()
os._exit(0)  # gloo's threads may still hold tensors, see pytorch#190489
"""


def test_each_sample_once_per_epoch_over_two_ranks_with_workers(moto: S3Server, folder: str) -> None:
    """Each epoch has another order."""
    per_rank = run_ranks(RANK_SCRIPT, folder=folder, storage_options=moto.storage_options)
    check([[key for keys in epochs for key in keys] for epochs in zip(*per_rank, strict=True)])
