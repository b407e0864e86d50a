"""One pass over the streams of a process, round-robin."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import World, mix
from torchdata_remote.errors import StateError
from torchdata_remote.loaders.state.state_format import ENDED
from torchdata_remote.loaders.stream_copies import ChainTemplate
from torchdata_remote.loaders.stream_pass import EpochRun, Stream
from torchdata_remote.pipes.base.chain import load_state, state_of
from torchdata_remote.testing import write_small_shards


def fails_at_50(number: int) -> int:
    if number == 50:
        raise ZeroDivisionError("fifty")
    return number


def interrupted_at_50(number: int) -> int:
    if number == 50:
        raise KeyboardInterrupt
    return number


def chain_of(numbers: range) -> Any:
    return IterableWrapper(numbers).sharding_filter_rank()


def pass_of(numbers: int, num_streams: int, places: dict[int, Any] | None = None, chain: Any = None) -> EpochRun:
    """All streams of a world in one process."""
    chosen = dict.fromkeys(range(num_streams)) if places is None else places
    template = ChainTemplate(chain_of(range(numbers)) if chain is None else chain, 0, len(chosen))
    return EpochRun(template, 0, num_streams, [Stream(number, at) for number, at in chosen.items()])


def stream_items(numbers: int, number: int, num_streams: int) -> list[int]:
    return list(range(number, numbers, num_streams))


@given(num_streams=st.integers(1, 8), numbers=st.integers(8, 60), chosen=st.sets(st.integers(0, 7), min_size=1))
def test_the_next_item_is_of_the_stream_that_has_handed_out_least(
    num_streams: int, numbers: int, chosen: set[int]
) -> None:
    """Among several of these, of the one with the smallest number; streams that end are left out."""
    mine = sorted(chosen & set(range(num_streams))) or [0]
    waiting = [(0, v) for v in mine]
    expected = []
    while waiting:
        passed, v = heapq.heappop(waiting)
        items = stream_items(numbers, v, num_streams)
        if passed < len(items):
            expected.append(items[passed])
            heapq.heappush(waiting, (passed + 1, v))
    assert list(pass_of(numbers, num_streams, dict.fromkeys(mine)).items(None)) == expected


@given(num_streams=st.integers(1, 6), numbers=st.integers(6, 40), stop=st.integers(0, 41))
def test_states_count_the_items_that_were_handed_out(num_streams: int, numbers: int, stop: int) -> None:
    """A stream that has not started is ``None``, one that has ended is ``"ended"``, the others have a count."""
    stopped = pass_of(numbers, num_streams)
    head = list(islice(stopped.items(None), stop))
    states = stopped.state()
    for v in range(num_streams):
        num_passed = len(set(head) & set(stream_items(numbers, v, num_streams)))
        if states[v] == ENDED:
            assert num_passed == len(stream_items(numbers, v, num_streams))
        elif states[v] is None:
            assert num_passed == 0
        else:
            assert states[v]["passed"] == num_passed
    assert head + list(pass_of(numbers, num_streams, states).items(None)) == list(
        pass_of(numbers, num_streams).items(None)
    )


@given(passed=st.lists(st.integers(0, 10), min_size=2, max_size=6))
def test_streams_that_are_ahead_wait(passed: list[int]) -> None:
    """Streams of other slots may have handed out more; the others catch up first."""
    num_streams, numbers = len(passed), 10 * len(passed)
    places = {v: {"passed": count, "at": {"next": count}} for v, count in enumerate(passed)}
    counts = dict(enumerate(passed))
    for item in pass_of(numbers, num_streams, places).items(None):
        v = item % num_streams
        assert counts[v] == min(count for other, count in counts.items() if count < 10)
        assert item == stream_items(numbers, v, num_streams)[counts[v]]
        counts[v] += 1
    assert set(counts.values()) == {10}


def test_ended_streams_are_not_opened() -> None:
    """A pass over ended streams has no items; a stream that has not started keeps its position."""
    ended = pass_of(10, 2, {0: ENDED, 1: ENDED})
    assert list(ended.items(None)) == []
    assert ended.state() == {0: ENDED, 1: ENDED}
    places = {0: {"passed": 2, "at": {"next": 2}}, 1: None}
    begun = pass_of(10, 2, places)
    assert begun.state() == places
    next(begun.items(None))
    assert begun.state() == {0: places[0], 1: {"passed": 1, "at": {"next": 1}}}


def test_the_listing_is_known_when_the_pass_has_started() -> None:
    """It is compared before the first item is read."""
    begun = pass_of(10, 2)
    assert not begun.listing
    next(begun.items(None))
    [listing] = begun.listing or [{}]
    assert listing["num_urls"] == 10
    assert list(pass_of(10, 2).items([listing]))
    with pytest.raises(StateError, match=r"10 objects and 11; .* was added.*begin anew"):
        next(pass_of(11, 2).items([listing]))


@pytest.mark.parametrize(("num_streams", "first"), [(1, range(50)), (3, range(50))])
@pytest.mark.parametrize(("fails", "error"), [(fails_at_50, ZeroDivisionError), (interrupted_at_50, KeyboardInterrupt)])
def test_a_failed_pass_has_no_state(num_streams: int, first: range, fails: Any, error: type[BaseException]) -> None:
    """Items inside the chain are lost; the state before the error can be resumed."""
    broken = pass_of(0, num_streams, chain=chain_of(range(60)).map(fails))
    items = broken.items(None)
    assert list(islice(items, 50)) == list(first)
    before = broken.state()
    with pytest.raises(error):
        list(items)
    with pytest.raises(StateError, match=rf"ended by an error.* saved before it\. \({error.__name__}"):
        broken.state()
    rest = pass_of(0, num_streams, before, chain_of(range(60)))
    assert list(rest.items(None)) == list(range(50, 60))


def test_a_dropped_pass_keeps_its_state_and_closes_its_streams() -> None:
    """As after ``break``."""
    closed: list[int] = []

    class Closing(IterDataPipe[int]):
        def __init__(self, source_datapipe: IterDataPipe[int]) -> None:
            self.source_datapipe = source_datapipe

        def __iter__(self) -> Any:
            try:
                yield from self.source_datapipe
            finally:
                closed.append(1)

        def state_dict(self) -> Any:
            return self.source_datapipe.state_dict()

        def load_state_dict(self, state: Any) -> None:
            raise NotImplementedError

    begun = pass_of(0, 3, chain=Closing(chain_of(range(30))))
    items = begun.items(None)
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    before = begun.state()
    del items
    assert len(closed) == 3
    assert begun.state() == before


def test_a_stream_reads_its_own_share_of_the_world() -> None:
    """Stream v of V reads the share of slot v of V slots."""
    alone = IterableWrapper(range(10)).sharding_filter_rank(world=World(2, 4))
    assert list(pass_of(10, 4, {2: None}).items(None)) == list(alone) == [2, 6]


class Recorded(IterDataPipe[Any]):
    """Records the items of its copies in one list."""

    def __init__(self, source_datapipe: IterDataPipe[Any]) -> None:
        self.source_datapipe = source_datapipe
        self.taken: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        for item in self.source_datapipe:
            self.taken.append(item)
            yield item

    def state_dict(self) -> Any:
        return state_of(self.source_datapipe)

    def load_state_dict(self, state: Any) -> None:
        load_state(self.source_datapipe, state)


def test_first_blocks_of_streams_are_read_concurrently() -> None:
    """No stream waits until the block of another one is full."""
    recorded = Recorded(chain_of(range(100)))
    items = pass_of(100, 4, chain=recorded.shuffle_samples(buffer_size=3)).items(None)
    next(items)
    assert recorded.taken == [*range(12), 12], "three of each stream by turns, and one that takes the first one's place"


def test_first_blocks_of_streams_are_read_concurrently_in_mixtures() -> None:
    """Those of each source."""
    sources = {name: Recorded(chain_of(range(40))) for name in "ab"}
    mixed = mix({name: (pipe.shuffle_samples(buffer_size=3), 1) for name, pipe in sources.items()})
    next(pass_of(40, 2, chain=mixed).items(None))
    assert [sorted(pipe.taken[:6]) for pipe in sources.values()] == [list(range(6))] * 2
    assert sum(len(pipe.taken) for pipe in sources.values()) == 13


def test_a_readers_first_objects_are_requested_before_it_is_read(memory_folder: str) -> None:
    """Each stream has opened its first object when the first one waits for bytes."""
    write_small_shards(memory_folder, num_shards=4, samples_per_shard=2)
    opened: list[str] = []

    def note(url: str) -> str:
        opened.append(url)
        return url

    urls = IterableWrapper([memory_folder]).list_remote(pattern="*.tar").sharding_filter_rank().map(note)
    seen: list[int] = []

    def look(sample: Any) -> Any:
        seen.append(len(opened))
        return sample

    next(pass_of(0, 4, chain=urls.async_prefetch().shard_tar_reader().map(look)).items(None))
    assert seen == [4]
