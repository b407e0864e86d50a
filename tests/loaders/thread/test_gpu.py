"""``thread_loader`` copies batches to a GPU while it computes; needs one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchdata_remote as tdr

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

NUM_SAMPLES = 48


def loader_of(folder: Path, device: str | None, **options: Any) -> Any:
    pipe = tdr.stream_shards(f"{folder}/", seed=0).decode_sample().to_tuple("npy", "__key__")
    return tdr.thread_loader(pipe, batch_size=4, num_threads=4, prefetch_batches=3, device=device, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gpu")
    random = np.random.default_rng(0)
    with tdr.ShardWriter(f"{place}/{{shard}}.tar", max_shard_samples=8) as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"__key__": str(number), "npy": random.integers(0, 256, 1 << 20, np.uint8)})
    return place


def busy(matrix: torch.Tensor) -> None:
    """Let the stream of the consumer work for a while."""
    for _ in range(20):
        torch.mm(matrix, matrix)


@pytest.mark.parametrize("pin_memory", [True, False])
def test_batches_on_the_gpu_are_those_in_memory_while_it_computes(folder: Path, pin_memory: bool) -> None:
    """Memory of a batch is used again only when the consumer's stream has used it, and a batch is waited for."""
    expected = [(values.long().sum(1), keys) for values, keys in loader_of(folder, None)]
    matrix = torch.randn(2_048, 2_048, device="cuda")
    found = []
    for values, keys in loader_of(folder, "cuda", pin_memory=pin_memory):
        busy(matrix)
        assert values.device.type == "cuda"
        found.append((values.long().sum(1), keys))  # computed behind the products, when later batches are copied
        del values
    assert [keys for _, keys in found] == [keys for _, keys in expected]
    assert all(torch.equal(sums.cpu(), others) for (sums, _), (others, _) in zip(found, expected, strict=True))


def test_a_pass_on_the_gpu_resumes_in_memory(folder: Path) -> None:
    """The state is that after the last batch handed out, whatever was copied ahead."""
    on_gpu, in_memory = loader_of(folder, "cuda"), loader_of(folder, None)
    batches = iter(on_gpu)
    head = [keys for _, keys in (next(batches) for _ in range(5))]
    in_memory.load_state_dict(on_gpu.state_dict())
    rest = [keys for _, keys in in_memory]
    assert sorted(int(key) for keys in [*head, *rest] for key in keys) == list(range(NUM_SAMPLES))
