"""Where the state of a chain lies, and what a chain consists of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import mix
from torchdata_remote.errors import StateError
from torchdata_remote.pipes.base.chain import all_pipes, describe, load_state, sources_of, state_of, state_owner


def is_even(number: int) -> bool:
    return number % 2 == 0


def counted(numbers: int = 10) -> Any:
    """A pipe that counts what it hands out."""
    return IterableWrapper(range(numbers)).sharding_filter_rank()


def first_items(pipe: IterDataPipe[Any], count: int) -> list[Any]:
    return [item for item, _ in zip(pipe, range(count), strict=False)]


def test_pipes_that_pass_items_on_have_the_state_of_their_source() -> None:
    """What torch's map, filter, batch and collate hand out is where the pipe is that they take from."""
    source = counted()
    chain = source.map(str).map(int).filter(is_even).batch(2).collate(list)
    assert state_owner(chain) is state_owner(source) is source
    first = next(iter(chain))
    assert first == [0, 2]
    assert state_of(chain) == state_of(source) == {"next": 3}


def test_own_pipes_of_one_for_one_have_the_state_of_their_source() -> None:
    """``decode_sample``, ``to_tuple`` and ``label_from_path`` count nothing themselves."""
    samples = [{"__key__": f"cat/{number}", "__url__": "u", "txt": b"miaow"} for number in range(4)]
    source = IterableWrapper(samples).sharding_filter_rank()
    chain = source.label_from_path(classes=["cat"]).decode_sample().to_tuple("txt", "cls")
    assert first_items(chain, 2) == [("miaow", 0)] * 2
    assert state_of(chain) == state_of(source)
    load_state(chain, {"next": 3})
    assert len(list(chain)) == 1


def test_loaded_state_reaches_the_state_owner() -> None:
    """The next pass of the chain resumes; the one after it is complete."""
    chain = counted().map(str)
    load_state(chain, {"next": 7})
    assert list(chain) == ["7", "8", "9"]
    assert list(chain) == list(map(str, range(10)))


def test_chain_without_a_state_owner_is_an_error() -> None:
    """It names the pipe, and the pipe that would count."""
    chain = IterableWrapper(range(3)).map(str)
    with pytest.raises(StateError, match=r"IterableWrapper.* does not count .*sharding_filter_rank\(\)"):
        state_of(chain)
    with pytest.raises(StateError, match="does not count"):
        load_state(chain, {"next": 1})


class Both(IterDataPipe[int]):
    """A pipe of another one's making, with two sources."""

    def __init__(self, first: IterDataPipe[int], second: IterDataPipe[int]) -> None:
        self.first, self.second, self.number = first, second, 3

    def __iter__(self) -> Iterator[int]:
        yield from self.first
        yield from self.second


def test_sources_are_found_in_attributes_and_dicts() -> None:
    """Also those of other packages' pipes."""
    first, second = counted(), counted()
    both = Both(first, second)
    assert list(sources_of(both)) == [("first", None, first), ("second", None, second)]
    mixed = mix({"one": (first, 1), "two": (second, 1)})
    assert list(sources_of(mixed)) == [("sources", "one", first), ("sources", "two", second)]
    assert list(sources_of(first.source_datapipe)) == []


def test_all_pipes_lists_each_pipe_once_after_its_sources() -> None:
    """A shared source too."""
    shared: IterableWrapper[int] = IterableWrapper(range(4))
    left, right = shared.filter(is_even), shared.map(str)
    both = Both(left, right)
    found = all_pipes(both)
    assert [id(pipe) for pipe in found] == [id(shared), id(left), id(right), id(both)]


def test_description_has_the_name_and_the_order_options() -> None:
    """And no other options."""
    urls = IterableWrapper(["s3://secret-bucket/0.tar"])
    options = {"key": "my-key", "secret": "my-secret"}
    chain = urls.list_remote(storage_options=options).shuffle_shards(seed=3).sharding_filter_rank()
    chain = chain.async_prefetch(max_in_flight=3, storage_options=options)
    chain = chain.shard_tar_reader(interleave=2, storage_options=options)
    mixed = mix({"one": (chain.shuffle_samples(buffer_size=8, seed=-1), 2)}, seed=5, stop="all_exhausted")
    assert [describe(pipe) for pipe in all_pipes(mixed.batch(4))] == [
        "IterableWrapper()",
        "ListRemote()",
        "ShuffleShards(seed=3)",
        "ShardingFilterRank()",
        "AsyncPrefetch()",
        "ShardTarReader(interleave=2)",
        "ShuffleSamples(buffer_size=8, seed=-1)",
        "Mixed(weights={'one': 2.0}, seed=5, stop='all_exhausted')",
        "Batcher()",
    ]
