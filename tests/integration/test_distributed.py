"""Several ranks in processes of their own, as torchrun starts them."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import pytest

from tests.servers.s3 import S3Server
from tests.support.ranks import run_ranks
from torchdata_remote.testing import write_small_shards

NUM_SHARDS, SAMPLES_PER_SHARD = 10, 7

RANK_SCRIPT = """
import json, os, sys
import torch.distributed
from torch.utils.data import DataLoader
import torchdata_remote as tdr

arguments = json.loads(sys.argv[1])
if arguments["init"]:
    torch.distributed.init_process_group("gloo")

def run(name, url, start_method, persistent_workers=False):
    pipe = tdr.stream_shards(url, storage_options=arguments["storage_options"]).to_tuple("__key__")
    loader = DataLoader(
        pipe,
        batch_size=None,
        num_workers=2 if start_method else 0,
        multiprocessing_context=start_method,
        persistent_workers=persistent_workers,
    )
    if name == "one rank reads a sample" and os.environ["RANK"] == "0":
        next(iter(pipe))
    try:
        return [[key for (key,) in loader] for epoch in range(2)]
    except Exception as error:
        return [type(error).__name__, str(error)]

print(json.dumps({case[0]: run(*case) for case in arguments["cases"]}))
if arguments["init"]:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may still hold tensors, see pytorch#190489
"""
FEW_SHARDS = "fewer shards than readers"
GLOO = {"fork, persistent workers": ("fork", True), "forkserver": ("forkserver", False), "no workers": (None, False),
        "one rank reads a sample": (None, False)}  # fmt: skip
ENVIRONMENT = {"fork": ("fork", False), "spawn, persistent workers": ("spawn", True)}
"""Name of a case -> start method of its workers, and whether they are persistent."""


@pytest.fixture(scope="module")
def folder(moto: S3Server) -> str:
    url = f"s3://{moto.new_bucket()}/train/"
    write_small_shards(
        url, num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD, storage_options=moto.storage_options
    )
    return url


def run_cases(moto: S3Server, folder: str, cases: Mapping[str, tuple[str | None, bool]], *, init: bool) -> list[Any]:
    """Of each rank: name of a case -> the keys of two epochs, or class and message of the error."""
    rows = [
        (FEW_SHARDS, f"{folder}00000[0-2].tar", "fork", False),
        *((name, folder, *how) for name, how in cases.items()),
    ]
    return run_ranks(RANK_SCRIPT, cases=rows, init=init, storage_options=moto.storage_options)


@pytest.fixture(scope="module")
def with_gloo(moto: S3Server, folder: str) -> list[Any]:
    """What two ranks of a process group have read."""
    return run_cases(moto, folder, GLOO, init=True)


@pytest.fixture(scope="module")
def with_environment(moto: S3Server, folder: str) -> list[Any]:
    """What two ranks have read that know their numbers from the environment only."""
    return run_cases(moto, folder, ENVIRONMENT, init=False)


def check(per_rank: list[list[list[str]]]) -> None:
    """Each epoch is whole over the ranks, and the second has another order."""
    expected = {f"{number % 10}/{number:06d}": 1 for number in range(NUM_SHARDS * SAMPLES_PER_SHARD)}
    for epochs in zip(*per_rank, strict=True):
        assert collections.Counter(key for keys in epochs for key in keys) == expected
        assert all(epochs)
    for first, second in per_rank:
        assert first != second
        assert sorted(first) != sorted(second)  # a rank reads other shards, not only in another order


@pytest.mark.parametrize("case", GLOO)
def test_two_ranks_of_a_process_group_read_each_sample_once_an_epoch(with_gloo: list[Any], case: str) -> None:
    """Over ranks and workers; also if rank 0 alone has read a sample before, which counts no epoch."""
    check([rank[case] for rank in with_gloo])


@pytest.mark.parametrize("case", ENVIRONMENT)
def test_two_ranks_of_the_environment_read_each_sample_once_an_epoch(with_environment: list[Any], case: str) -> None:
    check([rank[case] for rank in with_environment])


@pytest.mark.parametrize("ranks", ["with_gloo", "with_environment"])
def test_fewer_shards_than_readers_is_an_error_in_every_rank(ranks: str, request: pytest.FixtureRequest) -> None:
    """So that no rank waits for the others."""
    found = [rank[FEW_SHARDS] for rank in request.getfixturevalue(ranks)]
    assert [name for name, _ in found] == ["EmptyShareError"] * 2
    assert all("3 shards for 4 readers (2 ranks x 2 workers)" in message for _, message in found)
