"""Where the state of a chain lies, and what a chain consists of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import mix, stateful_loader, thread_loader
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


class Live(IterDataPipe[int]):
    """A pipe of a user, whose state is the object that it changes."""

    def __init__(self, num_items: int) -> None:
        self.num_items, self.state = num_items, {"next": 0}

    def __iter__(self) -> Iterator[int]:
        while self.state["next"] < self.num_items:
            self.state["next"] += 1
            yield self.state["next"] - 1

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = state


def test_a_state_does_not_change_while_its_pipe_goes_on() -> None:
    """Also that of a pipe which hands out the state that it changes."""
    pipe = Live(5)
    items = iter(pipe.map(abs))
    assert [next(items), next(items)] == [0, 1]
    state = state_of(pipe)
    assert list(items) == [2, 3, 4]
    assert state == {"next": 2}


@pytest.mark.parametrize("make", [thread_loader, stateful_loader])
def test_loaders_resume_where_such_a_pipe_was(make: Callable[..., Any]) -> None:
    """A thread that makes batches ahead has changed the pipe's state by then."""
    loader = make(Live(20), batch_size=2)
    batches = iter(loader)
    taken = [next(batches).tolist() for _ in range(3)]
    state = loader.state_dict()
    rest = [batch.tolist() for batch in batches]
    resumed = make(Live(20), batch_size=2)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest
    assert [number for batch in taken + rest for number in batch] == list(range(20))


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
        "Mixed(weights={'one': 2.0}, seed=5, stop='all_exhausted', pipes={'one': 7})",
        "Batcher()",
    ]
