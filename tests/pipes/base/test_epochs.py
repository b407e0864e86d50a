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
def test_passes_count_on(first: int, count: int) -> None:
    """From 0, or from where they were set, each pass is one epoch on."""
    epochs = Epochs()
    assert [epochs.next_epoch() for _ in range(count)] == list(range(count))
    epochs.set_next(first)
    assert [epochs.next_epoch() for _ in range(count)] == list(range(first, first + count))


@given(turns=st.lists(st.booleans(), max_size=20))
def test_passes_of_loaders_and_others_count_apart(turns: list[bool]) -> None:
    """In whatever order they come, each kind counts from 0 without a gap."""
    epochs = Epochs()
    seen: dict[bool, list[int]] = {True: [], False: []}
    for announced in turns:
        if announced:
            epochs.announce()
        seen[announced].append(epochs.next_epoch())
    assert seen[True] == list(range(len(seen[True])))
    assert seen[False] == list(range(len(seen[False])))


def test_an_epoch_that_is_set_holds_for_both() -> None:
    """``set_epoch`` names the next pass, whoever begins it, also one that was announced before."""
    for announced_before in (False, True):
        for announced_after in (False, True):
            epochs = Epochs()
            if announced_before:
                epochs.announce()
            epochs.set_next(7)
            if announced_after:
                epochs.announce()
            assert [epochs.next_epoch(), epochs.next_epoch()] == [7, 8 - announced_after]


def test_negative() -> None:
    """A negative epoch is an error with its value, and changes nothing."""
    epochs = Epochs()
    with pytest.raises(ValueError, match="at least 0, got -1"):
        epochs.set_next(-1)
    assert epochs.next_epoch() == 0


def test_a_pass_in_workers_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy in the main process, which is announced before and after the workers start, counts each pass once."""
    main = Epochs()
    for epoch in range(3):
        main.announce()
        worker: Epochs = pickle.loads(pickle.dumps(main))
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(os, "getpid", lambda: -1)
            worker.announce()
        main.announce()
        assert worker.next_epoch() == epoch


def test_announced_twice_by_nobody_else() -> None:
    """An announcement that is repeated before the pass begins is one."""
    epochs = Epochs()
    epochs.announce()
    epochs.announce()
    assert epochs.next_epoch() == 0
    epochs.announce()
    assert epochs.next_epoch() == 1


def test_a_pass_of_streams_begins_anew() -> None:
    """A copy for a pass knows of no earlier one, and its streams count apart from each other."""
    pipe = Told()
    assert [epoch_of(pipe), epoch_of(pipe)] == [0, 1]
    pipe.prepare_copy(2)
    pipe.set_epoch(5)
    streams: list[Told] = [pickle.loads(pickle.dumps(pipe)) for _ in range(2)]
    for number, stream in enumerate(streams):
        stream.bind_stream(World(number, 2))
    assert [epoch_of(stream) for stream in streams] == [5, 5]
    assert [epoch_of(streams[0]), epoch_of(streams[1]), epoch_of(pipe)] == [6, 6, 5]


def test_streams_share_no_count() -> None:
    """The epoch of one stream moves neither that of the pipe of which it is a shallow copy, nor the other way round."""
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
def test_seed_of_another_type(seed: object) -> None:
    """A seed that is no int is refused when the pipe is built, with its type."""
    with pytest.raises(TypeError, match=f"must be an int, got {type(seed).__name__}"):
        Seeded(seed)  # type: ignore[arg-type]


def test_seed_is_part_of_the_order() -> None:
    """A state tells the seed, which it must find again."""
    assert Seeded(2**70).order_options() == {"seed": 2**70}
    assert Told().order_options() == {}
