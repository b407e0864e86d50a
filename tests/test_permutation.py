"""Orders that depend on names and numbers only."""

from __future__ import annotations

import collections
import random
from itertools import islice

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.permutation import permutation, uniforms

PARTS = st.lists(st.integers() | st.text("abc", min_size=1), max_size=3)


@given(length=st.integers(0, 60), parts=PARTS)
def test_each_number_comes_once(length: int, parts: list[int | str]) -> None:
    """It is a permutation, and the same one each time."""
    order = permutation(length, *parts)
    assert sorted(order) == list(range(length))
    assert permutation(length, *parts) == order


def test_every_part_matters() -> None:
    """Another seed, epoch or block, or the same ones in another order, give another permutation."""
    parts = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0), (0, 0, 0, 0), (-1, 0, 0), (12, 3, 0), (1, 23, 0)]
    assert len({tuple(permutation(20, *some)) for some in parts}) == len(parts)


def test_uniform() -> None:
    """Over many seeds each of the orders comes about equally often."""
    num_draws = 6000
    counts = collections.Counter(tuple(permutation(3, seed)) for seed in range(num_draws))
    expected = num_draws / 6
    assert len(counts) == 6
    assert all(abs(count - expected) < 6 * expected**0.5 for count in counts.values())


@given(start=st.integers(0, 5000), count=st.integers(0, 1100), parts=PARTS)
def test_draws_go_on_anywhere(start: int, count: int, parts: list[int | str]) -> None:
    """The sequence that begins later is the rest of the one that begins at 0."""
    whole = list(islice(uniforms(0, *parts), start, start + count))
    assert list(islice(uniforms(start, *parts), count)) == whole


def test_draws_are_uniform() -> None:
    """They lie in [0, 1), about as many in each tenth, also over the seams between blocks."""
    num_draws = 20_000
    draws = list(islice(uniforms(0, "seed", 1), num_draws))
    assert all(0 <= draw < 1 for draw in draws)
    assert len(set(draws)) == num_draws
    counts = collections.Counter(int(draw * 10) for draw in draws)
    assert all(abs(counts[tenth] - num_draws / 10) < 6 * (num_draws / 10) ** 0.5 for tenth in range(10))


def test_draws_far_away_cost_the_same() -> None:
    """A start of any size is reached at once."""
    assert len(list(islice(uniforms(10**15 + 5, 0), 3))) == 3


def test_same_in_later_versions() -> None:
    """An order that a run was recorded with can be had again."""
    assert permutation(8, 3, 0) == [3, 1, 0, 5, 4, 7, 2, 6]
    assert [round(draw, 6) for draw in islice(uniforms(1023, 7, "mix"), 3)] == [0.185683, 0.366767, 0.749295]


def test_global_random_state_is_left_alone() -> None:
    """Neither read nor changed."""
    random.seed(1)
    before = [repr(random.getstate()), repr(np.random.get_state()), repr(torch.get_rng_state().tolist())]
    order, draws = permutation(9, 1), list(islice(uniforms(0, 1), 9))
    after = [repr(random.getstate()), repr(np.random.get_state()), repr(torch.get_rng_state().tolist())]
    assert before == after
    random.seed(2)
    assert (permutation(9, 1), list(islice(uniforms(0, 1), 9))) == (order, draws)
