"""Orders that depend on names and numbers only."""

from __future__ import annotations

import collections
import math
import random
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.permutation import permutation, permutation_array, uniforms

PARTS = st.lists(st.integers() | st.text("abc", min_size=1), max_size=3)


@given(start=st.integers(0, 5000), count=st.integers(0, 1100), parts=PARTS)
def test_uniforms_start_at_any_item(start: int, count: int, parts: list[int | str]) -> None:
    """The sequence that begins later is the rest of the one that begins at 0."""
    whole = list(islice(uniforms(0, *parts), start, start + count))
    assert list(islice(uniforms(start, *parts), count)) == whole


def test_permutations_are_the_same_in_later_versions() -> None:
    """An order that a run was recorded with can be had again."""
    assert permutation(8, 3, 0) == [3, 1, 0, 5, 4, 7, 2, 6]
    assert [round(draw, 6) for draw in islice(uniforms(1023, 7, "mix"), 3)] == [0.185683, 0.366767, 0.749295]


@given(length=st.integers(0, 60), parts=PARTS)
def test_permutation_array_contains_each_number_once(length: int, parts: list[int | str]) -> None:
    """The quick one is a permutation too, of 64-bit numbers, and the same one each time."""
    order = permutation_array(length, *parts)
    assert (str(order.dtype), order.shape) == ("int64", (length,))
    assert sorted(order.tolist()) == list(range(length))
    assert permutation_array(length, *parts).tolist() == order.tolist()


def test_each_part_of_the_key_changes_the_permutation_array() -> None:
    """Another name or seed, or the same ones in another order, give another order."""
    parts: list[tuple[int | str, ...]] = [
        ("a", 0),
        ("b", 0),
        ("a", 1),
        (0, "a"),
        ("a",),
        ("a", 0, 0),
        ("a", -1),
        ("a", 12, 3),
        ("a", 1, 23),
    ]
    assert len({tuple(permutation_array(20, *some).tolist()) for some in parts}) == len(parts)


@pytest.mark.parametrize(("length", "limit"), [(2, 15.2), (3, 25.8), (4, 56.0)])
def test_permutation_arrays_are_uniform(length: int, limit: float) -> None:
    """Over many seeds each is about equally frequent: a chi-square that chance exceeds once in 10,000 times."""
    num_draws = 6000
    counts = collections.Counter(
        tuple(permutation_array(length, "shard_dataset", seed).tolist()) for seed in range(num_draws)
    )
    expected = num_draws / math.factorial(length)
    others = math.factorial(length) - len(counts)
    assert sum((count - expected) ** 2 for count in counts.values()) / expected + others * expected < limit


def test_permutation_arrays_are_the_same_in_later_versions() -> None:
    """Shards that were written with a seed can be written again; these never change."""
    assert permutation_array(8, "shard_dataset", 0).tolist() == [3, 4, 2, 7, 1, 6, 5, 0]
    assert permutation_array(5, 3, "mix").tolist() == [3, 0, 1, 4, 2]
    assert permutation_array(1_000_000, "shard_dataset", 1)[[0, 1, 500_000, 999_999]].tolist() == [
        681039,
        985600,
        60207,
        445706,
    ]


def test_global_random_state_is_left_alone() -> None:
    """Neither read nor changed."""
    random.seed(1)
    before = [repr(random.getstate()), repr(np.random.get_state()), repr(torch.get_rng_state().tolist())]
    order, draws = permutation(9, 1), list(islice(uniforms(0, 1), 9))
    after = [repr(random.getstate()), repr(np.random.get_state()), repr(torch.get_rng_state().tolist())]
    assert before == after
    random.seed(2)
    assert (permutation(9, 1), list(islice(uniforms(0, 1), 9))) == (order, draws)
