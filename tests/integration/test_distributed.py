"""Several ranks in processes of their own, as torchrun starts them."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.servers.s3 import S3Server, free_port
from torchdata_remote.testing import write_small_shards

NUM_SHARDS, SAMPLES_PER_SHARD = 10, 7
WORLD_SIZE = 2

RANK_SCRIPT = """
import json, sys
import torch.distributed
from torch.utils.data import DataLoader
import torchdata_remote as tdr

given = json.loads(sys.argv[1])
if given["init"]:
    torch.distributed.init_process_group("gloo")
pipe = tdr.stream_shards(given["folder"], storage_options=given["storage_options"]).to_tuple("__key__")
workers = given["num_workers"]
loader = DataLoader(
    pipe,
    batch_size=None,
    num_workers=workers,
    multiprocessing_context=given["start_method"] if workers else None,
    persistent_workers=given["persistent_workers"] and workers > 0,
)
try:
    print(json.dumps([[key for (key,) in loader] for epoch in range(2)]))
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
if given["init"]:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    import os
    import sys
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may still hold tensors, see pytorch#190489
"""


@pytest.fixture(scope="module")
def folder(moto: S3Server) -> str:
    url = f"s3://{moto.new_bucket()}/train/"
    write_small_shards(
        url, num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD, storage_options=moto.storage_options
    )
    return url


def run_ranks(script: str, world_size: int = WORLD_SIZE, **given: Any) -> list[Any]:
    """What each rank printed."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
    ranks = []
    for rank in range(world_size):
        environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", script, json.dumps(given)]
        pipe = subprocess.PIPE
        environment["PYTHONFAULTHANDLER"] = "1"
        ranks.append(
            subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        )
    try:
        told = [rank.communicate(timeout=120) for rank in ranks]
    except subprocess.TimeoutExpired:
        for rank_process in ranks:
            os.killpg(rank_process.pid, signal.SIGABRT)  # each thread, of workers too, says where it is
        raise AssertionError("\n".join(rank.communicate()[1] for rank in ranks)) from None
    finally:
        for rank_process in ranks:
            rank_process.kill()
            rank_process.wait()
    for process, (_, complaints) in zip(ranks, told, strict=True):
        assert process.returncode == 0, complaints
    return [json.loads(answer.splitlines()[-1]) for answer, _ in told]


def check(per_rank: list[list[list[str]]]) -> None:
    """Each epoch is whole over the ranks, and the second has another order."""
    expected = {f"{number % 10}/{number:06d}": 1 for number in range(NUM_SHARDS * SAMPLES_PER_SHARD)}
    for epochs in zip(*per_rank, strict=True):
        assert collections.Counter(key for keys in epochs for key in keys) == expected
        assert all(epochs)
    for first, second in per_rank:
        assert first != second
        assert sorted(first) != sorted(second)  # a rank reads other shards, not only in another order


@pytest.mark.parametrize("init", [True, False], ids=["gloo", "environment"])
@pytest.mark.parametrize(
    ("num_workers", "start_method", "persistent_workers"),
    [(0, "fork", False), (2, "fork", False), (2, "fork", True), (2, "forkserver", False), (2, "spawn", True)],
)
def test_two_ranks(
    moto: S3Server, folder: str, init: bool, num_workers: int, start_method: str, persistent_workers: bool
) -> None:
    """Every sample arrives exactly once per epoch over ranks and workers; the next epoch has another order."""
    if start_method == "spawn" and not init:
        pytest.skip("the start method matters no more without a process group: forkserver stands for both")
    check(
        run_ranks(
            RANK_SCRIPT,
            folder=folder,
            storage_options=moto.storage_options,
            init=init,
            num_workers=num_workers,
            start_method=start_method,
            persistent_workers=persistent_workers,
        )
    )


@pytest.mark.parametrize("init", [True, False], ids=["gloo", "environment"])
def test_too_few_shards(moto: S3Server, folder: str, init: bool) -> None:
    """Fewer shards than ranks x workers is an error in every rank, so that none waits for the others."""
    told = run_ranks(
        RANK_SCRIPT,
        folder=folder + "00000[0-2].tar",
        storage_options=moto.storage_options,
        init=init,
        num_workers=2,
        start_method="fork",
        persistent_workers=False,
    )
    assert [name for name, _ in told] == ["EmptyShareError"] * 2
    assert all("3 shards for 4 readers (2 ranks x 2 workers)" in message for _, message in told)


PEEK_SCRIPT = """
import json, os, sys
import torch.distributed
from torch.utils.data import DataLoader
import torchdata_remote as tdr

given = json.loads(sys.argv[1])
torch.distributed.init_process_group("gloo")
pipe = tdr.stream_shards(given["folder"], storage_options=given["storage_options"]).to_tuple("__key__")
loader = DataLoader(pipe, batch_size=None, num_workers=0)
if os.environ["RANK"] == "0":
    next(iter(pipe))
print(json.dumps([[key for (key,) in loader] for epoch in range(2)]))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
import os
import sys
sys.stdout.flush()
os._exit(0)  # gloo's threads may still hold tensors, see pytorch#190489
"""


def test_one_rank_looks_at_a_sample(moto: S3Server, folder: str) -> None:
    """A look at the first sample in rank 0 alone does not bring the ranks into different epochs."""
    check(run_ranks(PEEK_SCRIPT, folder=folder, storage_options=moto.storage_options))
