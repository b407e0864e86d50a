"""Epochs that count by themselves, in all processes alike."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import torchdata_remote as tdr
from torchdata_remote import World
from torchdata_remote.pipes.base.epochs import EpochPipe, Epochs, SeededPipe, uncounted
from torchdata_remote.testing import write_small_shards


class Told(EpochPipe[int]):
    """Hands out the epoch of the pass."""

    def __iter__(self) -> Iterator[int]:
        yield self._epochs.next_epoch()


def epoch_of(pipe: Told) -> int:
    (epoch,) = pipe
    return epoch


@given(first=st.integers(0, 10**9), count=st.integers(1, 5))
def test_each_pass_is_the_next_epoch(first: int, count: int) -> None:
    """From 0, or from the epoch that was set."""
    epochs = Epochs()
    assert [epochs.next_epoch() for _ in range(count)] == list(range(count))
    epochs.set_next(first)
    assert [epochs.next_epoch() for _ in range(count)] == list(range(first, first + count))


@given(turns=st.lists(st.booleans(), max_size=20))
def test_passes_of_loaders_and_of_direct_iteration_are_counted_separately(turns: list[bool]) -> None:
    """In any order, each from 0 without a gap."""
    epochs = Epochs()
    seen: dict[bool, list[int]] = {True: [], False: []}
    for announced in turns:
        if announced:
            epochs.announce()
        seen[announced].append(epochs.next_epoch())
    assert seen[True] == list(range(len(seen[True])))
    assert seen[False] == list(range(len(seen[False])))


def test_set_epoch_applies_to_loaders_and_to_direct_iteration() -> None:
    """Also if a pass was announced before."""
    for announced_before in (False, True):
        for announced_after in (False, True):
            epochs = Epochs()
            if announced_before:
                epochs.announce()
            epochs.set_next(7)
            if announced_after:
                epochs.announce()
            assert [epochs.next_epoch(), epochs.next_epoch()] == [7, 8 - announced_after]


def test_negative_epoch_is_refused() -> None:
    """A negative epoch is an error with its value, and changes nothing."""
    pipe = Told()
    with pytest.raises(ValueError, match="at least 0, got -1"):
        pipe.set_epoch(-1)
    assert epoch_of(pipe) == 0


def test_pass_in_workers_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy in the main process is announced before and after the workers start."""
    main = Epochs()
    for epoch in range(3):
        main.announce()
        worker: Epochs = pickle.loads(pickle.dumps(main))
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(os, "getpid", lambda: -1)
            worker.announce()
        main.announce()
        assert worker.next_epoch() == epoch


def test_repeated_announcement_counts_once() -> None:
    """Before the pass starts."""
    epochs = Epochs()
    epochs.announce()
    epochs.announce()
    assert epochs.next_epoch() == 0
    epochs.announce()
    assert epochs.next_epoch() == 1


def test_prepare_copy_resets_the_counter() -> None:
    """Streams of a copy are counted separately."""
    pipe = Told()
    assert [epoch_of(pipe), epoch_of(pipe)] == [0, 1]
    pipe.prepare_copy(2)
    pipe.set_epoch(5)
    streams: list[Told] = [pickle.loads(pickle.dumps(pipe)) for _ in range(2)]
    for number, stream in enumerate(streams):
        stream.bind_stream(World(number, 2))
    assert [epoch_of(stream) for stream in streams] == [5, 5]
    assert [epoch_of(streams[0]), epoch_of(streams[1]), epoch_of(pipe)] == [6, 6, 5]


def test_bind_stream_separates_the_counters() -> None:
    """Of the stream and of the pipe that it is a shallow copy of."""
    pipe, stream = Told(), Told()
    stream._epochs = pipe._epochs
    stream.bind_stream(World())
    assert epoch_of(stream) == 0
    assert epoch_of(pipe) == 0


class Seeded(SeededPipe[int]):
    """Hands out nothing."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize("seed", ["0", None, 1.0])
def test_seed_of_another_type_is_refused(seed: object) -> None:
    """When the pipe is built, with its value."""
    with pytest.raises(TypeError, match=f"seed must be an int, got {seed!r}"):
        Seeded(seed)  # type: ignore[arg-type]


def test_seed_is_an_order_option() -> None:
    """A state is compared with it."""
    assert Seeded(2**70).order_options() == {"seed": 2**70}
    assert Told().order_options() == {}


def rank(folder: str, number: int, build: Callable[[Any], Any], **options: Any) -> Any:
    return build(tdr.stream_shards(folder, world=World(number, 2), **options))


def keys(pipe: Iterable[Any]) -> list[Any]:
    """What identifies the samples, whatever the chain made of them."""
    return [item["__key__"] if isinstance(item, dict) else item for item in pipe]


def key_of(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


CHAINS: dict[str, Callable[[Any], Any]] = {
    "stream_shards": lambda pipe: pipe,
    "decoded tuples": lambda pipe: pipe.decode_sample().to_tuple("__key__"),
    "torch's map": lambda pipe: pipe.map(key_of),
    "torch's batch": lambda pipe: pipe.map(key_of).batch(1).unbatch(),
    "torch's zip": lambda pipe: pipe.zip(tdr.IterableWrapper(range(99))).map(itemgetter(0)),
    "torch's concat": lambda pipe: tdr.IterableWrapper[Any]([]).concat(pipe),
    "torch's fork": lambda pipe: pipe.fork(2, buffer_size=99)[1],
    "a mixture": lambda pipe: tdr.mix({"a": (pipe, 1)}),
    "a second shuffle": lambda pipe: pipe.map(key_of).shuffle_samples(buffer_size=4, seed=5),
}


@pytest.mark.filterwarnings("ignore:Some child DataPipes")
@pytest.mark.parametrize("shuffle", [True, False, "shards"])
@pytest.mark.parametrize("name", CHAINS)
def test_set_epoch_of_the_last_pipe_sets_the_whole_chain(name: str, shuffle: Any, memory_folder: str) -> None:
    """The order of epoch 2 is that of the third pass, as often as it is set, through pipes of torch as well."""
    write_small_shards(memory_folder, num_shards=6, samples_per_shard=4)
    build = CHAINS[name]
    walked = build(tdr.stream_shards(memory_folder, shuffle=shuffle, interleave=2, shuffle_buffer_size=6))
    passes = [keys(walked) for _ in range(4)]
    assert (len(set(map(str, passes))) == 1) is (shuffle is False and "shuffle" not in name)
    jumped = build(tdr.stream_shards(memory_folder, shuffle=shuffle, interleave=2, shuffle_buffer_size=6))
    found = []
    for epoch in (2, 2, 0):
        jumped.set_epoch(epoch)
        found.append(keys(jumped))
    assert [*found, keys(jumped)] == [passes[2], passes[2], passes[0], passes[1]]


@pytest.mark.filterwarnings("ignore:Some child DataPipes")
@pytest.mark.parametrize("name", CHAINS)
def test_ranks_that_set_the_same_epoch_read_each_sample_once(name: str, memory_folder: str) -> None:
    """Also if only one of them has read before."""
    written = {sample["__key__"] for sample in write_small_shards(memory_folder, num_shards=6, samples_per_shard=4)}
    fresh, used = (rank(memory_folder, number, CHAINS[name]) for number in range(2))
    keys(used)
    for pipe in (fresh, used):
        pipe.set_epoch(1)
    found = [str(key).strip("(',)") for key in keys(fresh) + keys(used)]
    assert (len(found), set(found)) == (len(written), written)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_set_epoch_of_a_chain_reaches_a_data_loader(num_workers: int, tmp_path: Path) -> None:
    """Workers that are started for a pass read the epoch that was set before."""
    write_small_shards(str(tmp_path), num_shards=4, samples_per_shard=3)
    walked, pipe = (tdr.stream_shards(str(tmp_path)).map(key_of) for _ in range(2))
    passes = [list(walked) for _ in range(4)]
    loader: DataLoader[str] = DataLoader(pipe, batch_size=None, num_workers=num_workers)
    for epoch in (3, 1, 1):
        pipe.set_epoch(epoch)
        assert list(loader) == passes[epoch]


def test_loose_files_have_set_epoch(memory_folder: str) -> None:
    """``stream_files``, and a chain that was built pipe by pipe."""
    fsspec.filesystem("memory").pipe({f"{memory_folder[8:]}/{n}.txt": b"" for n in range(9)})
    urls = tdr.IterableWrapper([memory_folder]).list_remote().shuffle_shards()
    builds: list[Callable[[], Any]] = [
        lambda: tdr.stream_files(memory_folder),
        lambda: urls.sharding_filter_rank().file_reader(),
    ]
    for build in builds:
        walked, jumped = build(), build()
        passes = [keys(walked) for _ in range(2)]
        jumped.set_epoch(1)
        assert keys(jumped) == passes[1] != passes[0]


@pytest.mark.parametrize("epoch", [-1, "1", 1.0, None])
def test_set_epoch_refuses_what_is_no_epoch(epoch: Any) -> None:
    """By every pipe alike, before any pipe has changed."""
    pipe = tdr.IterableWrapper(["a", "b", "c", "d", "e"]).shuffle_shards()
    with pytest.raises((TypeError, ValueError), match="set_epoch: epoch must be an int of at least 0, got "):
        pipe.map(str).set_epoch(epoch)


def test_length_of_concatenated_shuffles_is_no_pass() -> None:
    """A look at the length of a share does not advance the shuffles above torch's ``concat``."""
    parts = [tdr.IterableWrapper([f"{part}{n}" for n in range(5)]).shuffle_shards() for part in "ab"]
    both = parts[0].concat(parts[1])
    with uncounted(both):
        counted = list(both)
    assert list(both) == counted
