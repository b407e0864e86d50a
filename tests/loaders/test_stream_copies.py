"""Chains of pipes: which can be resumed, their copies for streams, and their listings."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import FileLister, IterableWrapper, Sampler
from torch.utils.data.datapipes.iter.callable import MapperIterDataPipe

from torchdata_remote import RemoteUrl, Resumable, World, mix
from torchdata_remote.core.partition import EqualizeMode
from torchdata_remote.errors import StateError
from torchdata_remote.loaders.stream_copies import ChainTemplate, check_resumable, is_sharded
from torchdata_remote.pipes.base.chain import all_pipes, describe, load_state
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

Pipe = IterDataPipe[Any]


def urls(count: int = 6) -> Pipe:
    return IterableWrapper([f"u{number}" for number in range(count)])


def is_even(url: str) -> bool:
    return int(url[1:]) % 2 == 0


REFUSED: dict[str, tuple[Callable[[], Pipe], str]] = {
    "Shuffler": (lambda: urls().shuffle(), r"shuffle_samples\(\), or shuffle_shards\(\)"),
    "ShardingFilter": (lambda: urls().sharding_filter(), r"sharding_filter_rank\(\)"),
    "UnBatcher": (lambda: urls().batch(2).unbatch(), r"flat_map"),
    "Concater": (lambda: urls().concat(urls()), r"list_remote\(\) with several sources, or mix\(\)"),
    "Multiplexer": (lambda: urls().mux(urls()), r"mix\(\)"),
    "Zipper": (lambda: urls().zip(urls()), "one chain whose samples have all members"),
    "WriteShards": (lambda: urls().write_shards("memory://no/{shard}.tar"), "a plain DataLoader"),
    "Grouper": (lambda: urls().groupby(len), "map, filter, batch or collate"),
    "Forker": (lambda: urls().fork(2)[0], "map, filter, batch or collate"),
    "Demultiplexer": (lambda: urls().demux(2, is_even)[0], "map, filter, batch or collate"),
    "FileOpener": (lambda: urls().open_files(), "map, filter, batch or collate"),
    "FileLister": (lambda: FileLister(["."]), "map, filter, batch or collate"),
    "Sampler": (lambda: Sampler(IterableWrapper([1])), "map, filter, batch or collate"),
    "StreamReader": (lambda: urls().read_from_stream(), "map, filter, batch or collate"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_pipes_that_cannot_be_resumed_are_refused_by_name(name: str) -> None:
    """Anywhere in the chain; the error says what to use instead."""
    make, instead = REFUSED[name]
    for chain in (make(), make().sharding_filter_rank().map(str), mix({"a": (make(), 1)})):
        with pytest.raises(StateError, match=rf"^{name} cannot be resumed where it was\. Use instead: .*{instead}"):
            Resumable(chain)


def test_pipes_of_older_torch_releases_are_refused_by_name() -> None:
    """By the name of their class."""
    for name, instead in (
        ("PrefetcherIterDataPipe", "async_prefetch"),
        ("FlatMapperIterDataPipe", "flat_map"),
        ("CyclerIterDataPipe", "repeat"),
        ("RepeaterIterDataPipe", "flat_map"),
        ("HeaderIterDataPipe", "take"),
        ("BucketBatcherIterDataPipe", "bucket"),
        ("MaxTokenBucketizerIterDataPipe", "max_tokens"),
    ):
        pipe = type(name, (Own,), {})(urls())
        with pytest.raises(StateError, match=rf"^{name[:-12]} cannot be resumed .*{instead}"):
            check_resumable(pipe)


def test_an_unordered_prefetch_is_refused() -> None:
    """``in_order=False`` hands out the first complete object, in an order that cannot be resumed."""
    with pytest.raises(StateError, match=r"in_order=False.* cannot be repeated"):
        Resumable(urls().async_prefetch(in_order=False).shard_tar_reader())


def test_pipes_that_can_be_resumed_are_accepted() -> None:
    """torch's map, filter, batch and collate, and every pipe of this package that yields samples."""
    pipe = urls().filter(is_even).map(str).list_remote().shuffle_shards().sharding_filter_rank().async_prefetch()
    chain = pipe.shard_tar_reader().shuffle_samples(buffer_size=2).label_from_path().decode_sample().to_tuple("cls")
    check_resumable(chain.map(str).filter(is_even).batch(2).collate(list))
    check_resumable(mix({"zips": (urls().shard_zip_reader(), 1), "files": (urls().file_reader(), 1)}))


def is_sharded_chain(chain: Pipe, expected: bool) -> None:
    assert is_sharded(chain) is expected
    if expected:
        Resumable(chain, num_streams=2)
    else:
        with pytest.raises(StateError, match=r"2 streams would read the same: put sharding_filter_rank\(\)"):
            iter(Resumable(chain, num_streams=2))


def test_several_streams_need_a_split_of_every_listing() -> None:
    """Several streams of a chain need ``sharding_filter_rank`` in each of its sources."""
    split = urls().sharding_filter_rank()
    is_sharded_chain(split.map(str), True)
    is_sharded_chain(urls().file_reader(), False)
    is_sharded_chain(mix({"a": (split, 1), "b": (urls().sharding_filter_rank(), 1)}), True)
    is_sharded_chain(mix({"a": (split, 1), "b": (urls().file_reader(), 1)}), False)


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
    data = Resumable(chain, num_streams=num_streams)
    for count in range(1, 4):
        assert sorted(data) == sorted(source.iterable)
        assert source.num_passes == count
    state = data.state_dict()
    assert source.num_passes == 3
    data.load_state_dict({**state, "epoch": 1, "streams": [[number, None] for number in range(num_streams)]})
    assert len(list(data)) == 10
    assert source.num_passes == 4


def calls_to_open(num_urls: int, num_streams: int, mode: str) -> int:
    """The number of function calls until each stream of a process has handed out its first URL."""
    source = IterableWrapper([RemoteUrl(f"u{number:04d}", num_samples=9) for number in range(num_urls)])
    split = (source if mode == "listed" else source.shuffle_shards(seed=1)).sharding_filter_rank()
    if mode == "equal":
        split.share_equally(EqualizeMode.DROP)
    num_calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    template = ChainTemplate(split, 3, num_streams)
    sys.setprofile(count)
    try:
        streams = [template.stream(World(number, num_streams)) for number in range(num_streams)]
        for stream in streams[1::2]:
            load_state(stream, {"next": 1})
        firsts = [next(iter(stream)) for stream in streams]
    finally:
        sys.setprofile(None)
    assert len(firsts) == num_streams
    return num_calls


@pytest.mark.parametrize("mode", ["listed", "shuffled", "equal"])
def test_streams_do_not_traverse_the_listing(mode: str) -> None:
    """Eight times the shards cost one stream as much more as forty: the listing is traversed once for all."""
    more_for_one = calls_to_open(1_600, 1, mode) - calls_to_open(200, 1, mode)
    more_for_many = calls_to_open(1_600, 40, mode) - calls_to_open(200, 40, mode)
    assert more_for_one > 1_400
    assert more_for_many == pytest.approx(more_for_one, rel=0.1)
    calls = {num_streams: calls_to_open(200, num_streams, mode) for num_streams in (20, 40, 80)}
    assert calls[80] - calls[40] == pytest.approx(2 * (calls[40] - calls[20]), rel=0.1)


def test_a_mixture_that_repeats_a_source_lists_once() -> None:
    """Passes within an epoch have different orders of the same listing."""
    sources = {name: Counted([f"{name}{number}" for number in range(6)]) for name in "ab"}
    chain = mix({name: (pipe.shuffle_shards().sharding_filter_rank(), 1) for name, pipe in sources.items()}, stop=40)
    data = Resumable(chain, num_streams=2)
    assert len(list(data)) == 40
    assert [pipe.num_passes for pipe in sources.values()] == [1, 1]


def state_of_pipes(pipe: Pipe) -> list[Any]:
    """The attributes of each pipe, without torch's count of its iterators."""
    of_torch = {"_valid_iterator_id", "_number_of_samples_yielded", "_snapshot_state", "_fast_forward_iterator"}
    pipes = all_pipes(pipe)
    return [(id(one), describe(one), {k: v for k, v in vars(one).items() if k not in of_torch}) for one in pipes]


def full_chain(folder: str) -> Pipe:
    source = IterableWrapper([folder]).list_remote(pattern="*.tar").shuffle_shards(seed=1).sharding_filter_rank()
    reader = source.async_prefetch(interleave=2).shard_tar_reader(interleave=2).shuffle_samples(buffer_size=3)
    return mix({"only": (reader.to_tuple("__key__"), 1)}).batch(2)


def test_the_users_chain_is_not_changed(memory_folder: str) -> None:
    """By passes, states, lengths and pickles of streams."""
    write_small_shards(memory_folder, num_shards=4, samples_per_shard=3)
    chain = full_chain(memory_folder)
    expected = [list(chain), list(chain)]
    chain = full_chain(memory_folder)
    before = state_of_pipes(chain)
    for num_streams in (1, 2):
        data = Resumable(chain, num_streams=num_streams)
        data.set_epoch(3)
        list(data)
        list(islice(data, 3))
        pickle.dumps(data)
        Resumable(chain).load_state_dict(Resumable(chain).state_dict())
    after = state_of_pipes(chain)
    assert [one[:2] for one in before] == [one[:2] for one in after]
    for (_, name, one), (_, _, other) in zip(before, after, strict=True):
        assert one.keys() == other.keys(), name
        assert all(one[key] is other[key] or one[key] == other[key] for key in one), name
    assert [list(chain), list(chain)] == expected


class Own(IterDataPipe[Any]):
    """A user's own pipe without a state: every item in brackets."""

    def __init__(self, source_datapipe: Pipe) -> None:
        self.source_datapipe = source_datapipe

    def __iter__(self) -> Iterator[Any]:
        for item in self.source_datapipe:
            yield f"[{item}]"


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


def test_a_users_own_pipe_needs_a_state_to_be_resumed() -> None:
    """The error names the missing methods; with a state it is resumed like pipes of this package."""
    with pytest.raises(StateError, match=r"Own cannot be resumed .* give it state_dict and load_state_dict"):
        Resumable(Own(urls()))
    assert_resumes_everywhere(lambda: OwnWithState(urls().shuffle_shards().sharding_filter_rank()), num_streams=2)
    chain = OwnWithState(urls(9).sharding_filter_rank()).shuffle_samples(buffer_size=2).batch(2)
    assert_resumes_everywhere(lambda: chain, num_streams=2)


class OwnOrder(Own):
    """A user's own pipe that yields URLs, in an order that depends on the epoch."""

    gives_urls = True
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        urls = list(self.source_datapipe)
        yield from urls[self.epoch :] + urls[: self.epoch]


class OwnSplit(OwnWithState):
    """A user's own pipe that splits, with the hooks of ``sharding_filter_rank``."""

    world: World | None = None
    stream = World()

    def current_world(self) -> World:
        return self.stream

    def bind_stream(self, world: World) -> None:
        self.stream = world

    def __iter__(self) -> Iterator[Any]:
        begin, self.begins_at = self.begins_at or 0, None
        share = list(self.source_datapipe)[self.stream.slot :: self.stream.num_slots]
        for self.num_passed, url in enumerate(share[begin:], begin + 1):
            yield url

    def state_dict(self) -> Any:
        return self.num_passed


def test_a_users_own_listing_is_read_once_a_pass_in_the_order_of_its_epoch() -> None:
    source = Counted(list("abcdef"))
    data = Resumable(OwnOrder(source).sharding_filter_rank(), num_streams=2)
    assert [list(data), list(data)] == [list("abcdef"), list("bcdefa")]
    assert source.num_passes == 2


def test_a_users_own_split_reads_each_url_in_one_stream_and_resumes() -> None:
    assert is_sharded(OwnSplit(urls()))
    assert sorted(Resumable(OwnSplit(urls()), num_streams=2)) == sorted(urls())
    assert_resumes_everywhere(lambda: OwnSplit(urls()), num_streams=2)


class OwnMap(MapperIterDataPipe[Any]):
    """A subclass of an accepted pipe."""


def test_a_subclass_of_a_torch_pipe_is_accepted() -> None:
    assert_resumes_everywhere(lambda: OwnMap(urls().sharding_filter_rank(), str.upper))


def test_streams_of_a_template_are_independent() -> None:
    """They share the listing, and no position."""
    chain = urls(4).sharding_filter_rank().shuffle_samples(buffer_size=2)
    template = ChainTemplate(chain, 0, 2)
    one, other = (template.stream(World(number, 2)) for number in range(2))
    by_turns = [item for pair in zip(one, other, strict=True) for item in pair]
    assert sorted(by_turns) == sorted(chain)
    assert len(template.listings) == 1
    alone = [list(ChainTemplate(chain, 0, 1).stream(World(number, 2))) for number in range(2)]
    assert [by_turns[::2], by_turns[1::2]] == alone
