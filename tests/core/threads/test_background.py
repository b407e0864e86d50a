"""A stage in a thread of its own: order, room, errors, and that the thread always ends."""

from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Generator, Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.threads.background import run_in_background

PATIENCE_S = 2.0


class _Repeat:
    """Makes ``copies`` of each item, and notes what was done, and where."""

    def __init__(self, copies: int = 1) -> None:
        self._copies, self.made = copies, threading.Semaphore(0)
        self.thread: threading.Thread | None = None  # that worked on it
        self.num_made = self.num_finished = 0

    def feed(self, item: int) -> Iterator[int]:
        self.thread = threading.current_thread()
        for _ in range(self._copies):
            self.num_made += 1
            self.made.release()
            yield item

    def finish(self) -> None:
        self.num_finished += 1

    def has_ended(self) -> bool:
        assert self.thread is not None
        self.thread.join(PATIENCE_S)
        return not self.thread.is_alive()


def _results(num_items: int, stage: _Repeat) -> Generator[int, None, None]:
    return cast(Generator[int, None, None], run_in_background(range(num_items), stage))


@given(num_items=st.integers(0, 30), copies=st.integers(0, 9))
def test_results_come_in_order_and_the_stage_is_finished_once(num_items: int, copies: int) -> None:
    """However many results an item has; items are pulled in the consumer's thread, the work is done in another one."""
    stage, pulled_in = _Repeat(copies), {threading.current_thread()}

    def items() -> Iterator[int]:
        for item in range(num_items):
            pulled_in.add(threading.current_thread())
            yield item

    assert list(run_in_background(items(), stage)) == [item for item in range(num_items) for _ in range(copies)]
    assert stage.num_finished == 1
    assert pulled_in == {threading.current_thread()}
    assert stage.thread not in pulled_in


def test_at_most_four_results_are_made_ahead() -> None:
    """Of results that were not asked for the stage makes four, neither more nor fewer, and none before the first."""
    stage = _Repeat(copies=100)
    results = _results(100, stage)
    assert stage.num_made == 0
    for asked in range(1, 200):
        next(results)
        assert stage.num_made <= asked + 4
        while stage.num_made < asked + 4:
            assert stage.made.acquire(timeout=PATIENCE_S), f"{stage.num_made} made where {asked + 4} may be"
    results.close()
    assert stage.has_ended()
    assert stage.num_made <= 199 + 4


@pytest.mark.parametrize("error", [ValueError("bad"), MemoryError(), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("at", [0, 5, None], ids=["first", "middle", "finish"])
def test_an_error_of_the_stage_comes_after_the_results_before_it(at: int | None, error: BaseException) -> None:
    """Itself, with the stage's lines in its traceback, whatever kind it is; the thread ends."""

    class Broken(_Repeat):
        def feed(self, item: int) -> Iterator[int]:
            yield from super().feed(item)
            if item == at:
                raise error

        def finish(self) -> None:
            raise error

    stage = Broken()
    results = _results(8, stage)
    for item in range(8 if at is None else at + 1):
        assert next(results) == item
    with pytest.raises(type(error)) as caught:
        next(results)
    assert caught.value is error
    assert ("finish" if at is None else "feed") in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert stage.has_ended()


@pytest.mark.parametrize("num_good", [0, 1, 2, 7])
def test_an_error_of_the_source_comes_at_once(num_good: int) -> None:
    """Itself, with the source's lines in its traceback; the thread ends, although the error is still held."""

    def items() -> Iterator[int]:
        yield from range(num_good)
        raise OSError("reset")

    before = set(threading.enumerate())
    with pytest.raises(OSError, match="reset") as caught:
        list(run_in_background(items(), _Repeat()))
    assert "items" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("way", ["close", "forget", "cycle", "other thread"])
@pytest.mark.parametrize("copies", [1, 100])
def test_closed_early_the_thread_ends(way: str, copies: int) -> None:
    """Within two seconds, if it waits for room or for an item, for all ways to close it."""
    stage = _Repeat(copies)
    results = _results(1000, stage)
    assert next(results) == 0
    if way == "close":
        results.close()
    elif way == "cycle":
        cycle: list[object] = [results]
        cycle.append(cycle)
        del cycle
    elif way == "other thread":
        closer = threading.Thread(target=results.close)
        closer.start()
        closer.join()
    del results
    gc.collect()
    assert stage.has_ended()


def test_closed_early_the_stage_is_not_finished() -> None:
    """``finish`` is only called after the last item."""
    stages = [_Repeat() for _ in range(50)]
    for stage in stages:
        results = _results(1000, stage)
        next(results)
        results.close()
        assert stage.has_ended()
    assert [stage.num_finished for stage in stages] == [0] * 50


def test_a_thousand_uses_leave_no_thread() -> None:
    """Read to the end, closed at some place, or never begun."""
    before, stages = threading.active_count(), [_Repeat() for _ in range(1000)]
    for use, stage in enumerate(stages):
        results = _results(5, stage)
        for _ in zip(range(use % 8), results, strict=False):
            pass
        del results
    assert all(stage.has_ended() for stage in stages if stage.thread is not None)
    assert threading.active_count() <= before  # threads of earlier tests may have ended meanwhile
