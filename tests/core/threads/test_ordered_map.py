"""Functions at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.threads.ordered_map import ordered_map
from torchdata_remote.core.threads.pool import PoolClosedError

Wait = Callable[[float], None]


@given(num_tasks=st.integers(0, 30), max_threads=st.integers(1, 5))
def test_ordered_map_returns_results_in_order(num_tasks: int, max_threads: int) -> None:
    """Whatever the number of tasks and threads."""
    tasks: list[Callable[[Wait], int]] = [lambda wait, n=n: n for n in range(num_tasks)]  # type: ignore[misc]
    assert list(ordered_map(tasks, max_threads=max_threads)) == list(range(num_tasks))


def test_ordered_map_runs_tasks_concurrently() -> None:
    """As many as there are threads."""
    barrier = threading.Barrier(4, timeout=60)
    assert len(list(ordered_map([lambda wait: barrier.wait()] * 4, max_threads=4))) == 4


def test_ordered_map_raises_an_error_after_the_results_before_it() -> None:
    """What was before it is handed on; of what is behind, a bounded number was begun, and a wait ends."""
    begun: list[int] = []
    ended: list[BaseException] = []
    wake = threading.Event()

    def waiting(wait: Wait) -> int:
        try:
            wait(3600)
        except PoolClosedError as error:
            ended.append(error)
            wake.set()
        return 0

    def tasks() -> Iterator[Callable[[Wait], int]]:
        yield lambda wait: 1
        yield lambda wait: 1 // 0
        for number in range(1000):
            begun.append(number)
            yield waiting

    results = ordered_map(tasks(), max_threads=2)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert wake.wait(60)
    assert ended
    assert len(begun) <= 4


def test_closing_ordered_map_ends_its_threads() -> None:
    """A consumer that stops early leaves no task that waits."""
    ended = threading.Event()

    def waiting(wait: Wait) -> int:
        try:
            wait(3600)
        finally:
            ended.set()
        return 0

    def soon(wait: Wait) -> int:
        return 1

    results = ordered_map([soon, waiting, waiting], max_threads=2)
    assert next(results) == 1
    results.close()
    assert ended.wait(60)
