"""Passes within passes: repeat and mix, in each other."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import Resumable, mix
from torchdata_remote.testing import assert_resumes_everywhere


def shuffled(num_items: int = 20) -> Any:
    return IterableWrapper(range(num_items)).sharding_filter_rank().shuffle_samples(buffer_size=50, seed=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: shuffled().repeat_epochs(2).repeat_epochs(3),
        lambda: shuffled().repeat_epochs(2).repeat_epochs(2).repeat_epochs(2),
        lambda: mix({"a": (shuffled().repeat_epochs(2), 1)}, stop=120),
        lambda: mix({"a": (shuffled(), 1)}, stop=40).repeat_epochs(3),
        lambda: mix({"a": (mix({"b": (shuffled(), 1)}, stop=40), 1)}, stop=120),
    ],
)
def test_each_pass_has_an_order_of_its_own(make: Any) -> None:
    items = list(make())
    orders = [tuple(items[start : start + 20]) for start in range(0, len(items), 20)]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len(set(orders)) == len(orders)


def plain(num_items: int) -> Any:
    return IterableWrapper(range(num_items)).sharding_filter_rank()


@pytest.mark.parametrize(
    "make",
    [
        lambda: mix({"x": (plain(12), 2), "y": (plain(7), 1)}, seed=4, stop=11).repeat_epochs(2),
        lambda: mix({"x": (shuffled(12), 2), "y": (shuffled(7).repeat_epochs(2), 1)}, seed=4, stop=11).repeat_epochs(2),
        lambda: mix({"x": (plain(12).take(9), 1), "y": (plain(7).skip(1), 1)}, seed=4, stop=11).repeat_epochs(2),
        lambda: mix(
            {"x": plain(12), "y": plain(9)},
            schedule={0: {"x": 1}, 4: {"x": 1, "y": 3}, 9: {"y": 1}},
            seed=4,
            stop="all_exhausted",
        ).repeat_epochs(2),
    ],
)
def test_a_source_that_is_not_drawn_any_more_begins_the_next_pass_anew(make: Any) -> None:
    assert_resumes_everywhere(make, num_streams=1)


def test_a_mixture_that_stops_at_a_number_has_an_end() -> None:
    def make() -> Any:
        return mix({"a": (plain(5).repeat_epochs(), 1), "b": (plain(5).repeat_epochs(), 1)}, stop=10).take(100)

    assert len(make()) == len(list(make())) == 10
    assert len(Resumable(make(), num_streams=2)) == len(list(Resumable(make(), num_streams=2))) == 10
