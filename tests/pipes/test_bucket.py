"""Batches of like length: each item once, within bounds, wherever it is stopped."""

from __future__ import annotations

from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.counted_items import Counted
from tests.support.resumed_loaders import assert_loader_continues
from torchdata_remote import Bucket, Resumable, World, stateful_loader, thread_loader
from torchdata_remote.errors import MissingMemberError, SampleError
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

LENGTHS = st.lists(st.integers(0, 20), max_size=40)
LIMITS = [
    {"batch_size": 3},
    {"batch_size": 3, "boundaries": [4, 9]},
    {"max_tokens": 20, "boundaries": [4, 9]},
    {"batch_size": 2, "max_tokens": 20, "boundaries": [9]},
    {"max_tokens": 20},
]


@pytest.fixture(scope="module", autouse=True)
def _shards() -> None:
    write_small_shards("memory://bucketed/", num_shards=4, samples_per_shard=5)


def length_of(item: tuple[int, int]) -> int:
    return item[1]


def key_and_length(sample: dict[str, Any]) -> tuple[str, int]:
    return sample["__key__"], len(sample["txt"])


def as_list(batch: Any) -> Any:
    return batch


def shards(world: World | None = None, interleave: int = 1, folder: str = "memory://bucketed/") -> Any:
    urls = IterableWrapper([folder]).list_remote(pattern="*.tar").shuffle_shards(seed=2)
    return urls.sharding_filter_rank(world=world).shard_tar_reader(interleave=interleave).map(key_and_length)


def numbered(lengths: list[int]) -> Any:
    return IterableWrapper(list(enumerate(lengths)))


@given(lengths=LENGTHS, limits=st.sampled_from(LIMITS), max_wait=st.integers(1, 50))
def test_each_item_is_in_one_batch_within_the_bounds(lengths: list[int], limits: Any, max_wait: int) -> None:
    batches = list(Bucket(numbered(lengths), length=length_of, max_wait=max_wait, **limits))
    assert sorted(chain.from_iterable(batches)) == list(enumerate(lengths))
    edges = limits.get("boundaries")
    for batch in batches:
        assert batch == sorted(batch)
        assert 1 <= len(batch) <= limits.get("batch_size", 100)
        longest = max(length for _, length in batch)
        assert len(batch) == 1 or longest * len(batch) <= limits.get("max_tokens", 10_000)
        buckets = {length if edges is None else sum(length > edge for edge in edges) for _, length in batch}
        assert len(buckets) == 1


@given(lengths=LENGTHS, max_wait=st.integers(1, 20))
def test_no_item_waits_longer_and_no_more_are_held(lengths: list[int], max_wait: int) -> None:
    counted, num_left = Counted(), 0
    for batch in Bucket(numbered(lengths).map(counted), 5, length=length_of, max_wait=max_wait):
        num_left += len(batch)
        assert len(counted.taken) - (num_left - len(batch)) <= max_wait
        if len(counted.taken) < len(lengths):
            assert len(counted.taken) - batch[0][0] <= max_wait


def test_the_oldest_are_handed_out_first_at_the_end() -> None:
    words = IterableWrapper(["ccc", "a", "bb", "dd", "e", "f"])
    assert list(Bucket(words, 3)) == [["a", "e", "f"], ["ccc"], ["bb", "dd"]]


def test_sizes_that_are_no_numbers() -> None:
    images = IterableWrapper([(32, 32), (64, 32), (32, 32), (64, 32)])
    assert list(images.bucket(2, length=tuple)) == [[(32, 32), (32, 32)], [(64, 32), (64, 32)]]


def test_an_item_beyond_max_tokens_is_a_batch_of_its_own() -> None:
    assert list(numbered([3, 50, 3]).bucket(max_tokens=10, length=length_of, boundaries=[100])) == [
        [(0, 3)], [(1, 50)], [(2, 3)],
    ]  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=14),
    limits=st.sampled_from(LIMITS),
    max_wait=st.integers(1, 10),
)
def test_resumes_after_each_batch(lengths: list[int], limits: Any, max_wait: int) -> None:
    assert_resumes_everywhere(
        lambda: numbered(lengths).sharding_filter_rank().bucket(length=length_of, max_wait=max_wait, **limits)
    )


@pytest.mark.parametrize("limits", LIMITS)
def test_resumes_in_chains(limits: Any) -> None:
    def bucketed(source: Any) -> Any:
        return source.bucket(length=length_of, max_wait=6, **limits)

    for make in (
        lambda: bucketed(shards(interleave=2)),
        lambda: bucketed(shards().shuffle_samples(buffer_size=4, seed=1)),
        lambda: bucketed(shards()).batch(2),
        lambda: bucketed(shards().repeat_epochs()).take(8),
        lambda: bucketed(shards()).flat_map(as_list).parallel_map(as_list, num_threads=2),
    ):
        assert_resumes_everywhere(make, num_streams=2)


@pytest.mark.parametrize("num_slots", [1, 2, 4])
def test_all_ranks_together_have_each_item_once(num_slots: int) -> None:
    got = [shards(World(slot, num_slots)).bucket(3, length=length_of, boundaries=[40]) for slot in range(num_slots)]
    assert sorted(chain.from_iterable(chain.from_iterable(got))) == sorted(shards(World()))


def test_a_resumed_pass_reads_at_most_max_wait_items_again() -> None:
    lengths = [9] + [1, 2] * 30

    def chain_of(counted: Any) -> Any:
        return Resumable(numbered(lengths).sharding_filter_rank().map(counted).bucket(4, length=length_of, max_wait=10))

    first, counted = chain_of(Counted()), Counted()
    batches, num_read = iter(first), 0
    for _ in range(6):
        num_read += len(next(batches))
    again = chain_of(counted)
    again.load_state_dict(first.state_dict())
    next(iter(again))
    assert len(counted.taken) <= 10 + 4


def test_state_is_small() -> None:
    data = Resumable(numbered(list(range(2_000))).sharding_filter_rank().bucket(2, length=length_of, max_wait=1_000))
    next(iter(data))
    assert len(str(data.state_dict()["streams"])) < 500


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        (
            {"length": "idss"},
            MissingMemberError,
            r"sample 'k' .* has no 'idss'. It has \['ids', 'num'\]; did you mean 'ids'",
        ),
        ({}, SampleError, r"Name the member: length= one of \['ids', 'num'\]"),
        ({"length": lambda sample: "x", "boundaries": [3]}, SampleError, "sample 'k' .* must be a number .*, got 'x'"),
        (
            {"length": lambda sample: 10**400, "max_tokens": 8},
            SampleError,
            "sample 'k' .* must be a number .*, got an int",
        ),
        ({"length": lambda sample: 1 / 0}, ZeroDivisionError, "division by zero"),
        ({"length": "num"}, TypeError, r"no len\(\)"),
    ],
)
def test_what_has_no_length_is_named(options: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        list(IterableWrapper([{"__key__": "k", "ids": [1], "num": 3}]).bucket(2, **options))


def test_members_have_lengths() -> None:
    samples = IterableWrapper([{"__key__": str(i), "ids": [1] * (i % 2)} for i in range(4)])
    assert [[sample["__key__"] for sample in batch] for batch in samples.bucket(2, length="ids")] == [
        ["0", "2"],
        ["1", "3"],
    ]


def test_nothing_gives_no_batch() -> None:
    assert list(Bucket(IterableWrapper([]), 3)) == []


def test_batches_by_workers(tmp_path: Path) -> None:
    write_small_shards(str(tmp_path), num_shards=4, samples_per_shard=5)
    data = Resumable(shards(folder=str(tmp_path)).bucket(3, length=length_of, boundaries=[40]), num_streams=2)
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    assert sorted(tuple(item) for batch in loader for item in batch) == sorted(shards(World()))


@pytest.mark.parametrize("make_loader", [stateful_loader, thread_loader])
def test_loaders_continue(make_loader: Any) -> None:
    def loader() -> Any:
        pipe = shards().bucket(3, length=length_of, boundaries=[40], max_wait=4)
        return make_loader(pipe, batch_size=None, num_streams=2)

    assert_loader_continues(loader, 3)


def test_ranks_get_equal_numbers_of_batches_from_an_endless_source() -> None:
    for slot in range(2):
        pipe = shards(World(slot, 2)).repeat_epochs().bucket(3, length=length_of, boundaries=[40]).take(20)
        assert len(pipe) == len(list(pipe)) == 10


def test_equal_tensors_are_equal_lengths() -> None:
    for make in (torch.tensor, np.array):
        batches = IterableWrapper(range(6)).bucket(3, length=lambda number, make=make: make(number % 2))
        assert list(batches) == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize("length", [[1], None, float("nan"), torch.tensor([1, 2]), (1, [2]), Decimal("sNaN"), pd.NA])
def test_a_length_that_is_no_key_is_an_error(length: Any) -> None:
    with pytest.raises(SampleError, match="bucket: the length of a sample must be a number, or another key"):
        list(IterableWrapper(range(3)).bucket(2, length=lambda _: length))


def test_a_boundary_that_is_no_number_is_an_error() -> None:
    with pytest.raises(TypeError, match="boundaries must be a list of lengths"):
        IterableWrapper(range(3)).bucket(2, boundaries=[float("nan")])
