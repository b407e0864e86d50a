"""A stage in a thread of its own: order, room, errors, and that the thread always ends."""

from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.one_thread import in_thread

PATIENCE_S = 2.0


class _Repeat:
    """Makes ``copies`` of each item, and notes what was done, and where."""

    def __init__(self, copies: int = 1) -> None:
        self._copies = copies
        self.thread: threading.Thread | None = None
        self.num_made = self.num_finished = 0
        self.made = threading.Semaphore(0)

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


class _Broken(_Repeat):
    def __init__(self, at: int | None, error: BaseException) -> None:
        super().__init__()
        self._at, self._error = at, error

    def feed(self, item: int) -> Iterator[int]:
        yield from super().feed(item)
        if item == self._at:
            raise self._error

    def finish(self) -> None:
        raise self._error


@given(items=st.lists(st.integers(), max_size=30), copies=st.integers(0, 9))
def test_results_come_in_order_and_the_stage_is_finished_once(items: list[int], copies: int) -> None:
    """However many results an item has, none of them included; ``finish`` comes once, after the last item."""
    stage = _Repeat(copies)
    assert list(in_thread(items, stage)) == [item for item in items for _ in range(copies)]
    assert stage.num_finished == 1


@pytest.mark.parametrize("copies", [1, 100])
def test_at_most_four_results_are_made_ahead(copies: int) -> None:
    """Of one item or of many: the stage is at most four results further than whoever takes them, and gets there."""
    stage, num_pulled = _Repeat(copies), 0

    def items() -> Iterator[int]:
        nonlocal num_pulled
        for num_pulled in range(1, 101):  # noqa: B007  # counted for the test
            yield num_pulled

    results = in_thread(items(), stage)
    assert (stage.num_made, num_pulled) == (0, 0), "nothing happens before the first is asked for"
    for asked in range(1, 31):
        next(results)
        if copies == 100:  # with one each, the next item has to be asked for as well
            while stage.num_made < asked + 4:
                assert stage.made.acquire(timeout=PATIENCE_S), f"{stage.num_made} made where {asked + 4} may be"
        assert asked <= stage.num_made <= asked + 4
        assert num_pulled <= stage.num_made + 2
    results.close()  # type: ignore[attr-defined]
    assert stage.has_ended()
    assert stage.num_made <= 30 + 4 + 1
    assert stage.num_finished == 0, "it was not read to its end"


def test_items_are_pulled_here_and_worked_on_there() -> None:
    """The source sees the consumer's thread only, the stage never does."""
    pulled_in, stage = set(), _Repeat()

    def items() -> Iterator[int]:
        for item in range(10):
            pulled_in.add(threading.current_thread())
            yield item

    assert list(in_thread(items(), stage)) == list(range(10))
    assert pulled_in == {threading.current_thread()}
    assert stage.thread not in pulled_in


@pytest.mark.parametrize("error", [ValueError("bad"), MemoryError(), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("at", [0, 5, None], ids=["first", "middle", "finish"])
def test_an_error_of_the_stage_comes_after_the_results_before_it(at: int | None, error: BaseException) -> None:
    """Itself, with the stage's lines in its traceback, whatever kind it is; the thread ends."""
    stage, got = _Broken(at, error), list[int]()
    with pytest.raises(type(error)) as caught:
        got.extend(in_thread(range(8), stage))
    assert got == list(range(8 if at is None else at + 1))
    assert caught.value is error
    assert ("finish" if at is None else "feed") in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert stage.has_ended()


@pytest.mark.parametrize("num_good", [0, 1, 2, 7])
def test_an_error_of_the_source_comes_at_once(num_good: int) -> None:
    """Itself, with the source's lines in its traceback; the thread ends, although the error is still held."""

    def items() -> Iterator[int]:
        yield from range(num_good)
        raise OSError("reset")

    stage, got = _Repeat(), list[int]()
    with pytest.raises(OSError, match="reset") as caught:
        got.extend(in_thread(items(), stage))
    assert got == list(range(len(got)))
    assert "items" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert stage.num_finished == 0
    assert stage.thread is None or stage.has_ended()


@pytest.mark.parametrize("way", ["close", "forget", "cycle", "close in another thread"])
@pytest.mark.parametrize("copies", [1, 100])
def test_closed_early_the_thread_ends(way: str, copies: int) -> None:
    """Within two seconds, whether it waits for room or for an item, and whoever closes it."""
    stage = _Repeat(copies)
    results = in_thread(range(1000), stage)
    assert [next(results) for _ in range(3)] == [item for item in range(3) for _ in range(copies)][:3]
    if way == "close":
        results.close()  # type: ignore[attr-defined]
    elif way == "cycle":
        cycle: list[object] = [results]
        cycle.append(cycle)
        del cycle
    elif way == "close in another thread":
        closer = threading.Thread(target=results.close)  # type: ignore[attr-defined]
        closer.start()
        closer.join()
    del results
    gc.collect()
    assert stage.has_ended()
    assert stage.num_finished == 0


def test_a_thousand_uses_leave_no_thread() -> None:
    """Read to the end, broken, closed or never begun."""
    before, stages = threading.active_count(), list[_Repeat]()
    for use in range(1000):
        stages.append(_Broken(3, ValueError("bad")) if use % 4 == 0 else _Repeat())
        results = in_thread(range(9), stages[-1])
        try:
            for _ in range((use % 4 > 0) * 2 or 99):
                next(results) if use % 4 < 3 else list(results)
        except ValueError:
            assert use % 4 == 0
        del results
    assert all(stage.has_ended() for stage in stages if stage.thread is not None)
    assert threading.active_count() == before
