"""Epochs that count by themselves, in all processes alike."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote import World
from torchdata_remote.pipes.base.epochs import EpochPipe, Epochs, SeededPipe


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
    epochs = Epochs()
    with pytest.raises(ValueError, match="at least 0, got -1"):
        epochs.set_next(-1)
    assert epochs.next_epoch() == 0


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
