"""``Resumable``: a chain that is stopped after any item and resumed in any world."""

from __future__ import annotations

import json
import pickle
import statistics
import time
import warnings
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import Resumable, ShardWriter, World, merge_states
from torchdata_remote.errors import EmptyShareError, StateError
from torchdata_remote.testing import all_worlds, assert_resumes_everywhere, write_small_shards

SECRETS = {"key": "AKIDEXAMPLE", "secret": "wJalrXUtnFEMI", "token": "FQoGZXIvYXdzE"}


def chain_of(num_items: int = 40, world: World | None = None, seed: int = 1, buffer_size: int = 4) -> Any:
    """Names that are split and shuffled: a chain without I/O."""
    names = IterableWrapper([f"{number:05d}" for number in range(num_items)])
    pipe = names.shuffle_shards(seed=seed).sharding_filter_rank(world=world)
    return pipe.shuffle_samples(buffer_size=buffer_size, seed=2).map(str)


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


@given(num_items=st.integers(8, 50), num_streams=st.integers(1, 8), data=st.data())
def test_items_are_of_the_stream_that_has_handed_out_least(
    num_items: int, num_streams: int, data: st.DataObject
) -> None:
    """Among several of these, of the one with the smallest number."""
    num_slots = data.draw(st.integers(1, num_streams))
    slot = data.draw(st.integers(0, num_slots - 1))
    streams = {
        v: list(Resumable(chain_of(num_items, World(v, num_streams)), num_streams=num_streams))
        for v in range(slot, num_streams, num_slots)
    }
    passed = dict.fromkeys(streams, 0)
    for item in Resumable(chain_of(num_items, World(slot, num_slots)), num_streams=num_streams):
        left = [(count, v) for v, count in passed.items() if count < len(streams[v])]
        count, v = min(left)
        assert item == streams[v][count]
        passed[v] += 1
    assert passed == {v: len(items) for v, items in streams.items()}


def test_every_world_hands_out_each_sample_once() -> None:
    """In each epoch, however the streams are assigned to ranks and workers."""
    for world_size, num_workers in ((1, 1), (2, 1), (1, 3), (2, 3), (6, 1)):
        slots = [
            Resumable(chain_of(world=world), num_streams=6 * num_workers)
            for world in all_worlds(world_size, num_workers)
        ]
        for _ in range(2):
            assert sorted(item for slot in slots for item in slot) == [f"{number:05d}" for number in range(40)]


@pytest.mark.parametrize("num_streams", [1, 3])
def test_a_chain_resumes_after_any_item(num_streams: int) -> None:
    assert_resumes_everywhere(lambda: chain_of(20), num_streams=num_streams)


def test_resumable_is_a_plain_dataset() -> None:
    """torch's loaders do not wrap it."""
    data = Resumable(chain_of())
    assert isinstance(data, IterableDataset)
    assert not isinstance(data, IterDataPipe)
    assert list(DataLoader(data, batch_size=None)) == list(Resumable(chain_of()))


def test_by_default_there_are_as_many_streams_as_slots() -> None:
    """A slot then has one stream, with the items of the chain itself."""
    for world in all_worlds(2, 2):
        assert list(Resumable(chain_of(world=world))) == list(chain_of(world=world))


def test_each_pass_is_a_new_epoch() -> None:
    """``set_epoch`` sets the next one, also in the middle of a pass."""
    data = Resumable(chain_of(), num_streams=2)
    epochs = [list(data) for _ in range(4)]
    assert len(set(map(tuple, epochs))) == 4
    data.set_epoch(1)
    assert data.next_epoch == 1
    assert [list(data), list(data)] == epochs[1:3]
    next(iter(data))
    data.set_epoch(0)
    assert data.state_dict()["epoch"] == 0
    assert data.state_dict()["streams"] == [[0, None], [1, None]]
    assert list(data) == epochs[0]
    with pytest.raises(ValueError, match="at least 0, got -1"):
        data.set_epoch(-1)
    assert list(data) == epochs[1]


def test_set_epoch_drops_a_loaded_state_of_another_epoch() -> None:
    """``set_epoch`` with the epoch of the state keeps it."""
    data, whole = Resumable(chain_of()), Resumable(chain_of())
    epochs = [list(whole) for _ in range(4)]
    data.set_epoch(2)
    list(islice(data, 7))
    state = data.state_dict()
    again = Resumable(chain_of())
    again.load_state_dict(state)
    again.set_epoch(2)
    assert again.next_epoch == 2
    assert [list(again), list(again)] == [epochs[2][7:], epochs[3]]
    again.load_state_dict(state)
    again.set_epoch(1)
    assert list(again) == epochs[1]


def test_the_state_before_and_after_a_pass() -> None:
    """The beginning before the first item, the end after the last one, and a loaded state until the next pass."""
    data = Resumable(chain_of(6), num_streams=2)
    whole = [list(Resumable(chain_of(6), num_streams=2)), []]
    before = data.state_dict()
    assert (before["epoch"], before["listing"], before["streams"]) == (0, None, [[0, None], [1, None]])
    assert list(data) == whole[0]
    after = through_json(data.state_dict())
    assert (after["epoch"], after["streams"]) == (0, [[0, "ended"], [1, "ended"]])
    again = Resumable(chain_of(6))
    again.load_state_dict(after)
    assert again.state_dict() == after
    next_epoch = list(data)
    assert [list(again), list(again)] == [[], next_epoch]
    again.load_state_dict(before)
    assert list(again) == whole[0]


def test_the_state_is_that_of_the_pass_being_read() -> None:
    """After ``break``, it is the position of the dropped pass."""
    data = Resumable(chain_of())
    for count, _ in enumerate(data, 1):
        if count == 9:
            break
    [[_, stream]] = data.state_dict()["streams"]
    assert stream["passed"] == 9


def fails(number: str) -> str:
    if number == "00017":
        raise ZeroDivisionError("on purpose")
    return number


def test_the_state_after_an_error_is_refused() -> None:
    """The refusal names the error; the next pass has a state again."""
    data = Resumable(chain_of().map(fails))
    with pytest.raises(ZeroDivisionError):
        list(data)
    with pytest.raises(StateError, match=r"ended by an error.*\(ZeroDivisionError: on purpose"):
        data.state_dict()
    next(iter(data))
    assert data.state_dict()["epoch"] == 1


def test_the_state_of_another_chain_is_refused() -> None:
    """Also of another seed, buffer, interleaving or order of pipes; the error names both values."""
    state = Resumable(chain_of(), num_streams=2).state_dict()
    for other in [chain_of().filter(bool), IterableWrapper(["x"]).file_reader()]:
        data = Resumable(other)
        with pytest.raises(StateError, match=r"The state has the chain \[.*\], here it is \[.*\]\. Build the chain as"):
            data.load_state_dict(state)
    with pytest.raises(
        StateError, match=r"other options\. ShuffleShards: seed was 1, is 3.*\. Build the chain as it was"
    ):
        Resumable(chain_of(seed=3)).load_state_dict(state)
    with pytest.raises(StateError, match=r"ShuffleSamples: buffer_size .* was \d+, is 5\. Build the chain as it was"):
        Resumable(chain_of(buffer_size=5)).load_state_dict(state)


def test_the_state_of_another_number_of_streams_is_refused() -> None:
    """Unless no number was passed: then that of the state is used."""
    state = Resumable(chain_of(), num_streams=4).state_dict()
    with pytest.raises(StateError, match="the number of streams 4, here it is 6"):
        Resumable(chain_of(), num_streams=6).load_state_dict(state)
    data = Resumable(chain_of())
    data.load_state_dict(state)
    whole = Resumable(chain_of(), num_streams=4)
    assert [list(data), list(data)] == [list(whole), list(whole)]


def test_a_state_of_another_version_is_refused() -> None:
    """The error names both versions."""
    with pytest.raises(StateError, match="version 1, this package reads version 2"):
        Resumable(chain_of()).load_state_dict({**Resumable(chain_of()).state_dict(), "version": 1})


@pytest.mark.parametrize("num_items", [39, 41, 0])
def test_the_state_of_another_listing_is_refused(num_items: int) -> None:
    """Added and removed objects are detected when the pass starts; the error names both numbers."""
    stopped = Resumable(chain_of())
    next(iter(stopped))
    state = stopped.state_dict()
    data = Resumable(chain_of(num_items))
    data.load_state_dict(state)
    with pytest.raises(StateError, match=rf"40 objects and {num_items}.*added, removed or replaced"):
        list(data)
    other = Resumable(
        IterableWrapper(["x"] * 40)
        .shuffle_shards(1)
        .sharding_filter_rank()
        .shuffle_samples(buffer_size=4, seed=2)
        .map(str)
    )
    other.load_state_dict(state)
    with pytest.raises(StateError, match=r"differs? in (its|their) URL.*added, removed or replaced"):
        list(other)


def test_rewritten_shards_are_detected(memory_folder: str) -> None:
    """By their sizes, where their names are equal."""

    def chain() -> Any:
        return IterableWrapper([memory_folder]).list_remote(pattern="*.tar").sharding_filter_rank().shard_tar_reader()

    write_small_shards(memory_folder, num_shards=3, samples_per_shard=4)
    stopped = Resumable(chain())
    next(iter(stopped))
    write_small_shards(memory_folder, num_shards=3, samples_per_shard=9)
    data = Resumable(chain())
    data.load_state_dict(stopped.state_dict())
    with pytest.raises(StateError, match=rf"{memory_folder}/000000.tar has [0-9,]+ bytes and [0-9,]+; "):
        next(iter(data))


def test_more_slots_than_streams_are_refused() -> None:
    """The error names slots, ranks, workers and streams, with a new state and with a loaded one."""
    world = World(1, 2, 1, 3)
    message = r"6 slots \(2 ranks x 3 workers\) for 4 streams: use at most 4 slots, .* num_streams=6"
    with pytest.raises(StateError, match=message):
        iter(Resumable(chain_of(world=world), num_streams=4))
    with pytest.raises(StateError, match=message):
        Resumable(chain_of(world=world), num_streams=4).state_dict()
    data = Resumable(chain_of(world=world))
    data.load_state_dict(merge_states([Resumable(chain_of(), num_streams=4).state_dict()]))
    with pytest.raises(StateError, match=message):
        iter(data)


def test_fewer_shards_than_streams_are_refused_without_sample_counts() -> None:
    """In every slot, before the first item."""
    for slot in range(2):
        with pytest.raises(EmptyShareError, match="3 shards for 4 streams: "):
            list(Resumable(chain_of(3, World(slot, 2)), num_streams=4))


@pytest.mark.parametrize("num_streams", [0, -1])
def test_a_number_of_streams_below_one_is_refused(num_streams: int) -> None:
    """When the object is built."""
    with pytest.raises(ValueError, match=f"at least 1 or None, got {num_streams}"):
        Resumable(chain_of(), num_streams=num_streams)


def test_several_streams_of_an_unsplit_chain_are_refused() -> None:
    """They would read the same samples; the error names the missing pipe."""
    data = Resumable(IterableWrapper(["memory://a/0.tar"]).shard_tar_reader(), num_streams=2)
    with pytest.raises(StateError, match=r"2 streams would read the same: put sharding_filter_rank\(\)"):
        iter(data)


def test_the_state_of_one_of_several_slots_is_refused() -> None:
    """The error names the first missing stream, and how to merge states."""
    slots = [Resumable(chain_of(world=World(slot, 2)), num_streams=4) for slot in range(2)]
    states = [slot.state_dict() for slot in slots]
    data = Resumable(chain_of())
    data.load_state_dict(states[0])
    with pytest.raises(StateError, match=r"no stream 1: it is of one slot\. Merge .* merge_states\(\)"):
        iter(data)
    data.load_state_dict(merge_states(states))
    assert len(list(data)) == 40


def test_large_shuffle_buffers_are_warned_of_before_they_fill() -> None:
    """If a process has several streams; the warning has the figures."""
    with pytest.warns(RuntimeWarning, match=r"6 streams in this process x buffer_size=10,000: 60,000 samples"):
        next(iter(Resumable(chain_of(buffer_size=10_000), num_streams=6)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(Resumable(chain_of(buffer_size=100_000), num_streams=1)))
        next(iter(Resumable(chain_of(buffer_size=8_000), num_streams=6)))
        next(iter(Resumable(chain_of(buffer_size=10_000, world=World(0, 2)), num_streams=6)))


def test_large_shuffle_buffers_that_are_bounded_in_bytes_are_warned_of() -> None:
    """Only the bytes count; the warning has the figures."""
    urls = chain_of(buffer_size=2)

    def data(max_buffer_bytes: int, num_streams: int) -> Resumable:
        pipe = urls.shuffle_samples(buffer_size=100_000, max_buffer_bytes=max_buffer_bytes)
        return Resumable(pipe, num_streams=num_streams)

    with pytest.warns(RuntimeWarning, match=r"5 streams in this process x 1,073,741,824 bytes .* up to 5 GiB"):
        next(iter(data(1 << 30, 5)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(data(1 << 30, 4)))
        next(iter(data(64 << 20, 5)))


def test_a_copy_in_another_process_continues() -> None:
    """The pickle has the loaded state, and not the pass of this process."""
    data = Resumable(chain_of(), num_streams=2)
    list(islice(data, 5))
    state = data.state_dict()
    copy: Resumable = pickle.loads(pickle.dumps(data))
    assert copy.state_dict()["streams"] == [[0, None], [1, None]]
    assert copy.next_epoch == 1
    assert list(copy) == list(data)
    data.load_state_dict(state)
    copy = pickle.loads(pickle.dumps(data))
    assert copy.state_dict() == state
    assert list(copy) == list(Resumable(chain_of(), num_streams=2))[5:]


def test_the_length_is_that_of_the_chain() -> None:
    """Or the chain's error, if it has none."""
    with pytest.raises(TypeError):
        len(Resumable(chain_of()))


def long_chain(num_shards: int, buffer_size: int) -> Any:
    urls = IterableWrapper([f"s3://my-bucket/train/{number:06d}.tar" for number in range(num_shards)], deepcopy=False)
    pipe = urls.map(str).shuffle_shards(seed=3).sharding_filter_rank()
    return pipe.shuffle_samples(buffer_size=buffer_size, seed=1).batch(64)


def test_a_state_is_small_however_large_the_data() -> None:
    """100,000 shards and blocks of 10,000 samples in 8 streams of a worker: below 100 kB, without samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        data = Resumable(long_chain(100_000, 10_000), num_streams=8)
        list(islice(data, 400))
    state = json.dumps(data.state_dict())
    assert len(state) < 4_000
    assert "my-bucket" not in state
    assert data.state_dict()["listing"][0]["num_urls"] == 100_000


def test_a_state_contains_no_credentials(memory_folder: str) -> None:
    """Neither storage options nor secrets of URLs, in a chain of all kinds of pipes."""
    write_small_shards(memory_folder, num_shards=4, samples_per_shard=4)
    folder = IterableWrapper([f"{memory_folder}/{{000000..000003}}.tar"])
    pipe = folder.list_remote().shuffle_shards().sharding_filter_rank().async_prefetch(storage_options=SECRETS)
    chain = pipe.shard_tar_reader(interleave=2, storage_options=SECRETS).shuffle_samples(buffer_size=3)
    data = Resumable(chain, num_streams=2)
    for _ in islice(data, 5):
        state = data.state_dict()
        assert through_json(state) == state
        shown = json.dumps(state)
        assert not any(secret in shown for secret in SECRETS.values())
        assert memory_folder.removeprefix("memory://") not in shown
    signed = IterableWrapper([f"https://host/{number}?X-Amz-Signature=abc" for number in range(4)])
    one = Resumable(signed.sharding_filter_rank().map(str))
    next(iter(one))
    assert "abc" not in json.dumps(one.state_dict())


def test_a_state_costs_less_than_a_millisecond(memory_folder: str) -> None:
    """The median over a pass of four streams that interleave shards and shuffle."""
    write_small_shards(memory_folder, num_shards=8, samples_per_shard=25)
    urls = IterableWrapper([memory_folder]).list_remote(pattern="*.tar").shuffle_shards().sharding_filter_rank()
    reader = urls.async_prefetch(interleave=2).shard_tar_reader(interleave=2)
    data = Resumable(reader.shuffle_samples(buffer_size=10).decode_sample().to_tuple("cls"), num_streams=4)
    seconds = []
    for _ in data:
        began = time.thread_time()
        data.state_dict()
        seconds.append(time.thread_time() - began)
    assert len(seconds) == 200
    assert statistics.median(seconds) < 0.001


@settings(max_examples=40)
@given(
    stops=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    worlds=st.lists(st.integers(1, 6), min_size=5, max_size=5),
)
def test_any_number_of_resumes_loses_nothing(stops: list[int], worlds: list[int]) -> None:
    """Each into another number of slots; nothing is repeated."""
    state, seen = None, []
    for stop, num_slots in zip([*stops, 100], worlds, strict=False):
        states = []
        for slot in range(num_slots):
            data = Resumable(chain_of(world=World(slot, num_slots)), num_streams=6)
            if state is not None:
                data.load_state_dict(state)
            seen += list(islice(data, stop))
            states.append(through_json(data.state_dict()))
        state = merge_states(states)
    assert sorted(seen) == [f"{number:05d}" for number in range(40)]


def test_set_epoch_of_the_pass_that_has_begun_keeps_its_state() -> None:
    """Accelerate (use_stateful_dataloader=True) asks its StatefulDataLoader for a state first, which begins a pass.

    Then it calls ``set_epoch(0)`` and reads on: the state saved after some batches is that of the beginning.
    """
    with ShardWriter("memory://set-epoch/{shard}.tar", overwrite=True) as writer:
        for number in range(6):
            writer.write({"__key__": str(number), "cls": number})

    def make() -> Resumable:
        return Resumable(IterableWrapper(["memory://set-epoch/0.tar"]).shard_tar_reader().to_tuple("__key__"))

    data = make()
    items = iter(data)
    data.set_epoch(0)
    first = [next(items), next(items)]
    again = make()
    again.load_state_dict(data.state_dict())
    assert [*first, *again] == [(str(number),) for number in range(6)]
