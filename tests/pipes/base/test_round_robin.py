from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.pipes.base.round_robin import InterleavedSource, round_robin

Item = tuple[int, int]


def _source(number: int, length: int, closed: list[int] | None = None) -> Generator[Item, None, None]:
    try:
        for i in range(length):
            yield number, i
    finally:
        if closed is not None:
            closed.append(number)


@given(lengths=st.lists(st.integers(0, 5), max_size=8), num_open=st.integers(1, 4))
def test_each_item_is_yielded_once_in_the_order_of_its_source(lengths: list[int], num_open: int) -> None:
    """Whatever lengths the sources have; no more than ``num_open`` are begun and not ended at any time."""
    sources = (_source(number, length) for number, length in enumerate(lengths))
    got = list(round_robin(sources, num_open))
    assert sorted(got) == [(number, i) for number, length in enumerate(lengths) for i in range(length)]
    for number, length in enumerate(lengths):
        assert [i for n, i in got if n == number] == list(range(length))
    for place in range(len(got)):
        started = {n for n, _ in got[: place + 1]}
        resumed = {n for n in started if any(m == n for m, _ in got[place + 1 :])}
        assert len(resumed | {got[place][0]}) <= num_open


def test_sources_take_turns() -> None:
    """The next source replaces one that is exhausted."""
    sources = (_source(number, length) for number, length in enumerate([3, 1, 2, 2]))
    got = list(round_robin(sources, 2))
    assert got == [(0, 0), (1, 0), (0, 1), (2, 0), (0, 2), (2, 1), (3, 0), (3, 1)]


def test_one_open_source_at_a_time_is_sequential() -> None:
    """Nothing is interleaved."""
    assert list(round_robin((_source(n, 2) for n in range(2)), 1)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("num_open", [1, 3])
def test_open_sources_are_closed_with_the_generator(num_open: int) -> None:
    """After an early stop and after an error."""
    closed: list[int] = []
    items = round_robin((_source(n, 5, closed) for n in range(9)), num_open)
    for _ in range(num_open):
        next(items)
    assert isinstance(items, Generator)
    items.close()
    assert sorted(closed) == list(range(num_open))

    closed = []

    def broken() -> Iterator[Generator[Item, None, None]]:
        yield _source(0, 5, closed)
        raise OSError("listing")

    with pytest.raises(OSError, match="listing"):
        list(round_robin(broken(), 2))
    assert closed == [0]


@given(lengths=st.lists(st.integers(0, 5), max_size=8), num_open=st.integers(1, 4), stop=st.integers(0, 40))
def test_round_robin_resumes_from_open_sources(lengths: list[int], num_open: int, stop: int) -> None:
    """Stopped after any item: new sources where the open ones were, in the order of their turns, and the same follows.

    Those that had nothing left keep their turns.
    """
    whole = list(round_robin((_source(number, length) for number, length in enumerate(lengths)), num_open))
    made = {number: _source(number, length) for number, length in enumerate(lengths)}
    taken: list[int] = []

    def upcoming() -> Iterator[Generator[Item, None, None]]:
        for number, source in made.items():
            taken.append(number)
            yield source

    waiting: deque[InterleavedSource[Item]] = deque()
    head = list(islice(round_robin(upcoming(), num_open, waiting), stop))
    open_now = [number for source in waiting for number, other in made.items() if other is source]
    assert len(open_now) == len(waiting) <= num_open
    again: deque[InterleavedSource[Item]] = deque()
    for number in open_now:
        source = _source(number, lengths[number])
        for _ in range(sum(n == number for n, _ in head)):
            next(source)
        again.append(source)
    following = (_source(number, lengths[number]) for number in range(len(taken), len(lengths)))
    assert head + list(round_robin(following, num_open, again)) == whole


@pytest.mark.parametrize("num_open", [1, 2])
def test_sources_that_were_open_before_are_closed_with_the_generator(num_open: int) -> None:
    """Even if no further source was taken."""
    closed: list[int] = []
    waiting: deque[InterleavedSource[Item]] = deque(_source(number, 5, closed) for number in range(num_open))
    items = round_robin((_source(number, 5, closed) for number in range(2, 9)), num_open, waiting)
    assert [next(items) for _ in range(num_open)] == [(number, 0) for number in range(num_open)]
    assert isinstance(items, Generator)
    items.close()
    assert sorted(closed) == list(range(num_open))


def test_exhausted_source_is_in_the_queue_until_its_turn() -> None:
    """So a state contains all open sources, and no other."""
    waiting: deque[InterleavedSource[Item]] = deque()
    sources = [_source(number, length) for number, length in enumerate([1, 2, 1])]
    items = round_robin(iter(sources), 2, waiting)
    seen = []
    for item in items:
        seen.append((item[0], [sources.index(source) for source in waiting]))  # type: ignore[arg-type]
    assert seen == [(0, [0]), (1, [0, 1]), (2, [1, 2]), (1, [2, 1])]
    assert not waiting
