"""A loader with workers has the right length, so that frameworks that stop after it drop no batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import torchdata_remote as tdr
from torchdata_remote.core.frameworks.loader_length import num_batches
from torchdata_remote.core.iter_datapipe import IterableWrapper, IterDataPipe


def chain() -> IterDataPipe[str]:
    """30 samples in 6 shards, split equally over the slots."""
    with tdr.ShardWriter("memory://lengths/{shard}.tar", max_shard_samples=5, overwrite=True) as writer:
        for number in range(30):
            writer.write({"__key__": str(number), "cls": number})
    pipe = IterableWrapper(["memory://lengths/index.json"]).list_remote().sharding_filter_rank()
    equal: IterDataPipe[str] = pipe.shard_tar_reader().equalize_ranks(mode="drop").to_tuple("__key__")
    return equal


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_len_is_the_number_of_batches(num_workers: int, drop_last: bool) -> None:
    """Of a pipe, and of ``Resumable``; each worker has a last batch of its own."""
    pipe = chain()
    for dataset in (pipe, tdr.Resumable(pipe, num_streams=6)):
        context = "fork" if num_workers else None  # memory:// is in this process
        loader = DataLoader(dataset, 4, num_workers=num_workers, drop_last=drop_last, multiprocessing_context=context)
        assert len(loader) == len(list(loader)), dataset
        assert len(dataset) == 30


def test_a_loader_that_does_not_batch_counts_samples() -> None:
    """Those of all workers."""
    assert len(DataLoader(chain(), None, num_workers=2)) == 30


@given(lengths=st.lists(st.integers(0, 30), max_size=4), batch_size=st.integers(1, 7), drop_last=st.booleans())
def test_each_worker_has_a_last_batch_of_its_own(lengths: list[int], batch_size: int, drop_last: bool) -> None:
    """Each worker makes batches of its own samples."""
    batches = [length // batch_size + (0 if drop_last else length % batch_size > 0) for length in lengths]
    assert num_batches(lengths, batch_size, drop_last=drop_last) == sum(batches)
