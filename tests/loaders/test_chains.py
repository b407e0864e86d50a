"""Which chains loaders with a state take, and that they leave the chain itself as it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.datapipes.iter import FileLister, IterableWrapper, Sampler
from torch.utils.data.datapipes.iter.callable import MapperIterDataPipe

import torchdata_remote as tdr
from tests.support.loaders import edited
from torchdata_remote.errors import StateError
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

Pipe = IterDataPipe[Any]


def urls(count: int = 6) -> Pipe:
    return IterableWrapper([f"u{number}" for number in range(count)])


def is_even(url: str) -> bool:
    return int(url[1:]) % 2 == 0


class Own(IterDataPipe[Any]):
    """A user's own pipe without a state: every item in brackets."""

    def __init__(self, source_datapipe: Pipe) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Iterator[Any]:
        for item in self.source_datapipe:
            yield f"[{item}]"


OTHERS = "map, filter, batch or collate"
REFUSED: dict[str, tuple[Callable[[], Pipe], str]] = {
    "Shuffler": (lambda: urls().shuffle(), r"shuffle_samples\(\), or shuffle_shards\(\)"),
    "ShardingFilter": (lambda: urls().sharding_filter(), r"sharding_filter_rank\(\)"),
    "UnBatcher": (lambda: urls().batch(2).unbatch(), r"flat_map"),
    "Concater": (lambda: urls().concat(urls()), r"list_remote\(\) with several sources, or mix\(\)"),
    "Multiplexer": (lambda: urls().mux(urls()), r"mix\(\)"),
    "Zipper": (lambda: urls().zip(urls()), "one chain whose samples have all members"),
    "WriteShards": (lambda: urls().write_shards("memory://no/{shard}.tar"), "a plain DataLoader"),
    "Grouper": (lambda: urls().groupby(len), OTHERS),
    "Forker": (lambda: urls().fork(2)[0], OTHERS),
    "Demultiplexer": (lambda: urls().demux(2, is_even)[0], OTHERS),
    "FileOpener": (lambda: urls().open_files(), OTHERS),
    "FileLister": (lambda: FileLister(["."]), OTHERS),
    "Sampler": (lambda: Sampler(IterableWrapper([1])), OTHERS),
    "StreamReader": (lambda: urls().read_from_stream(), OTHERS),
    "Own": (lambda: Own(urls()), f"{OTHERS}, or give it state_dict and load_state_dict"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_pipe_that_cannot_be_resumed_is_refused_by_name_with_what_to_use_instead(name: str) -> None:
    """Anywhere in the chain."""
    make, instead = REFUSED[name]
    for chain in (make(), make().sharding_filter_rank().map(str), tdr.mix({"a": (make(), 1)})):
        with pytest.raises(StateError, match=rf"^{name} cannot be resumed where it was\. Use instead: .*{instead}"):
            tdr.Resumable(chain)
    with pytest.raises(StateError, match=f"^{name} cannot be resumed"):
        tdr.stateful_loader(make())


def test_an_unordered_prefetch_is_refused() -> None:
    """``in_order=False`` hands out the first complete object, in an order that cannot be resumed."""
    with pytest.raises(StateError, match=r"in_order=False.* cannot be repeated"):
        tdr.thread_loader(urls().async_prefetch(in_order=False).shard_tar_reader())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (tdr.Resumable(urls().sharding_filter_rank()), "got a Resumable. Pass it on as it is"),
        (["u0"], r"Write IterableWrapper\(items\)"),
        (lambda: urls(), "Pass what it returns: call it"),
        (DataLoader(urls()), "Pass the chain itself, not a loader of it"),
        (torch.utils.data.TensorDataset(torch.zeros(2)), "A map-style dataset is read by torch's DataLoader"),
        ("memory://d/", r"Begin a chain by tdr\.stream_shards\(url\)"),
    ],
)
def test_what_is_no_chain_is_refused_with_what_to_write(given: Any, says: str) -> None:
    with pytest.raises(TypeError, match=f"pipe must be a chain of pipes.*{says}"):
        tdr.Resumable(given)
    if not isinstance(given, tdr.Resumable):
        with pytest.raises(TypeError, match=says):
            tdr.thread_loader(given)


class OwnWithState(Own):
    """Numbers its items, and has a state."""

    def __init__(self, source_datapipe: Pipe) -> None:
        super().__init__(source_datapipe)
        self.num_passed = 0
        self.begins_at: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.num_passed = 0
        if self.begins_at is not None:
            self.num_passed, at = self.begins_at
            self.source_datapipe.load_state_dict(at)
            self.begins_at = None
        for item in self.source_datapipe:
            self.num_passed += 1
            yield f"{self.num_passed}: {item}"

    def state_dict(self) -> Any:
        return [self.num_passed, self.source_datapipe.state_dict()]

    def load_state_dict(self, state: Any) -> None:
        self.begins_at = state


class OwnMap(MapperIterDataPipe[Any]):
    """A subclass of an accepted pipe."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: OwnWithState(urls().shuffle_shards().sharding_filter_rank()),
        lambda: OwnWithState(urls(9).sharding_filter_rank()).shuffle_samples(buffer_size=2).batch(2),
        lambda: OwnMap(urls().sharding_filter_rank(), str.upper),
    ],
    ids=["own", "before a shuffle", "subclass"],
)
def test_a_users_own_pipe_with_a_state_is_resumed_like_others(make: Callable[[], Pipe]) -> None:
    assert_resumes_everywhere(make, num_streams=2)


class Counted(IterableWrapper[Any]):
    """Counts how often it and its copies were iterated."""

    def __init__(self, iterable: list[str]) -> None:
        super().__init__(iterable)
        self._passes: list[None] = []

    @property
    def num_passes(self) -> int:
        return len(self._passes)

    def __iter__(self) -> Iterator[Any]:
        self._passes.append(None)
        return iter(list(self.iterable))


@pytest.mark.parametrize("num_streams", [1, 5])
@pytest.mark.parametrize("shuffled", [False, True])
def test_all_streams_of_a_pass_share_one_listing(num_streams: int, shuffled: bool) -> None:
    """Whatever their number and start positions."""
    source = Counted([f"u{number}" for number in range(10)])
    listing = source.map(str)
    chain = (listing.shuffle_shards() if shuffled else listing).sharding_filter_rank()
    data = tdr.Resumable(chain, num_streams=num_streams)
    for count in range(1, 4):
        assert sorted(data) == sorted(source.iterable)
        assert source.num_passes == count
    state = data.state_dict()
    assert source.num_passes == 3
    data.load_state_dict(edited(state, epoch=1, streams=[[number, None] for number in range(num_streams)]))
    assert len(list(data)) == 10
    assert source.num_passes == 4


def test_a_mixture_that_repeats_a_source_lists_once() -> None:
    """Passes within an epoch have different orders of the same listing."""
    sources = {name: Counted([f"{name}{number}" for number in range(6)]) for name in "ab"}
    chain = {name: (pipe.shuffle_shards().sharding_filter_rank(), 1) for name, pipe in sources.items()}
    assert len(list(tdr.Resumable(tdr.mix(chain, stop=40), num_streams=2))) == 40
    assert [pipe.num_passes for pipe in sources.values()] == [1, 1]


def test_each_stream_has_asked_for_its_first_object_before_one_is_read(memory_folder: str) -> None:
    write_small_shards(memory_folder, num_shards=4, samples_per_shard=2)
    opened: list[str] = []
    seen: list[int] = []

    def note(url: str) -> str:
        opened.append(url)
        return url

    def look(sample: Any) -> Any:
        seen.append(len(opened))
        return sample

    listed = tdr.IterableWrapper([memory_folder]).list_remote(pattern="*.tar").sharding_filter_rank().map(note)
    next(iter(tdr.Resumable(listed.async_prefetch().shard_tar_reader().map(look), num_streams=4)))
    assert seen == [4]


def test_requests_of_all_streams_end_where_the_first_one_fails(memory_folder: str) -> None:
    """Also while the error, whose traceback has them, is kept."""
    write_small_shards(memory_folder, num_shards=4, samples_per_shard=2)

    def fail(sample: Any) -> Any:
        raise LookupError(sample["__key__"])

    listed = tdr.IterableWrapper([memory_folder]).list_remote(pattern="*.tar").sharding_filter_rank()
    before = set(threading.enumerate())
    with pytest.raises(LookupError) as caught:
        list(tdr.Resumable(listed.async_prefetch().shard_tar_reader().map(fail), num_streams=4))
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive(), thread.name
    assert caught.value.args
