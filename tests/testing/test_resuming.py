"""``assert_resumes_everywhere`` passes for a chain that resumes, and fails for one that does not, wherever that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from torchdata_remote.testing import assert_resumes_everywhere

NUM_ITEMS = 9
ORDERS = count(1)

# What a pass hands out that is resumed at a position
DEFECTS: dict[str, Callable[[int], Iterable[int]]] = {
    "loses its first item": lambda start: range(start + 1, NUM_ITEMS),
    "repeats an item": lambda start: range(start - 1, NUM_ITEMS),
    "changes its first item": lambda start: [-1, *range(start + 1, NUM_ITEMS)],
    "exchanges two items": lambda start: [start + 1, start, *range(start + 2, NUM_ITEMS)],
}


class Counting(tdr.IterDataPipe[int]):
    """Numbers from 0 on in the first epoch, and from 100 on in the second.

    Args:
        defect: what a pass hands out that is resumed after ``at`` items.
        at: number of items.
        behind: how far the position lags in such a pass.
        is_random: whether the order of later epochs is another in each copy.
    """

    def __init__(
        self,
        defect: Callable[[int], Iterable[int]] | None = None,
        *,
        at: int = 0,
        behind: int = 0,
        is_random: bool = False,
    ) -> None:
        self.defect, self.at, self.behind, self.is_random = defect, at, behind, is_random
        self.position, self.epoch, self.is_loaded, self.lag = 0, 0, False, 0

    def __iter__(self) -> Iterator[int]:
        start = self.position if self.is_loaded else 0
        is_wrong = self.is_loaded and start == self.at
        self.is_loaded, self.lag = False, self.behind if is_wrong else 0
        numbers = self.defect(start) if self.defect is not None and is_wrong else range(start, NUM_ITEMS)
        for self.position, number in enumerate(numbers, start + 1):
            yield number + 100 * self.epoch
        self.position = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch * next(ORDERS) if self.is_random else epoch

    def state_dict(self) -> dict[str, int]:
        return {"position": max(0, self.position - self.lag), "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position, self.epoch, self.is_loaded = state["position"], state["epoch"], True


def test_a_chain_that_resumes_passes() -> None:
    assert_resumes_everywhere(Counting)


@given(defect=st.sampled_from(sorted(DEFECTS)), at=st.integers(1, NUM_ITEMS - 2))
def test_a_chain_that_does_not_resume_at_one_position_fails(defect: str, at: int) -> None:
    """Items that are lost, repeated, changed or exchanged after a single stop."""
    with pytest.raises(AssertionError, match=rf"after {at} items|item \d+ is|\d+ items, expected"):
        assert_resumes_everywhere(lambda: Counting(DEFECTS[defect], at=at))


@given(at=st.integers(1, NUM_ITEMS - 2))
def test_a_second_stop_soon_after_the_first_is_compared(at: int) -> None:
    """A resumed pass whose states lag would repeat an item at the next stop."""
    with pytest.raises(AssertionError, match=f"stopped after {at} items"):
        assert_resumes_everywhere(lambda: Counting(at=at, behind=1))


def test_the_next_epoch_is_compared() -> None:
    """A chain fails whose later epochs are not a function of the state."""
    with pytest.raises(AssertionError, match="a pass ended after 0 items, epoch 1"):
        assert_resumes_everywhere(lambda: Counting(is_random=True))


def test_a_chain_without_items_fails() -> None:
    """Nothing would be compared."""
    with pytest.raises(AssertionError, match="yields nothing"):
        assert_resumes_everywhere(lambda: Counting().filter(lambda _: False))
