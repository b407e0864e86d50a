"""What a pipe of this package gets from the base of those that use threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from torchdata_remote import DecodeSample, IterableWrapper, IterDataPipe, ShardTarReader
from torchdata_remote.pipes.base.calls import works_ahead
from torchdata_remote.pipes.base.chain import snapshots_of
from torchdata_remote.pipes.base.threaded import ThreadedMap, use_threads


class _Numbered(ThreadedMap[tuple[int, Any, bool]]):
    """Numbers each item in order, and says whether a thread has handled it."""

    def __init__(self, source: IterDataPipe[Any], num_threads: int | None = None) -> None:
        super().__init__(num_threads)
        self.source_datapipe = source
        self.num_passes = 0
        self._next = 0

    def function_of_pass(self) -> Callable[[Any], tuple[int, Any, bool]]:
        self.num_passes += 1
        return lambda item: (*item, works_ahead())

    def prepared(self, item: Any) -> Any:
        if item == "bad":
            raise LookupError(item)
        self._next += 1
        return self._next, item


@pytest.mark.parametrize("num_threads", [0, 2])
def test_items_are_prepared_in_order(num_threads: int) -> None:
    """In the thread that iterates, once each; the function is made once for each pass."""
    pipe = _Numbered(IterableWrapper("abc"), num_threads)
    assert list(pipe) == [(1, "a", num_threads > 0), (2, "b", num_threads > 0), (3, "c", num_threads > 0)]
    list(pipe)
    assert pipe.num_passes == 2


@pytest.mark.parametrize("num_threads", [0, 2])
def test_error_of_the_preparation_is_raised_in_its_place(num_threads: int) -> None:
    items = iter(_Numbered(IterableWrapper(["a", "b", "bad"]), num_threads))
    assert [next(items)[1], next(items)[1]] == ["a", "b"]
    with pytest.raises(LookupError, match="bad"):
        next(items)


def test_loader_gives_threads_where_none_were_asked_for() -> None:
    """In the whole chain, from the next pass on, and to no pipe whose constructor was given a number."""
    taken: dict[str, list[Any]] = {"first": [], "last": []}

    def noted(name: str, item: Any) -> Any:
        taken[name].append(item)
        return item

    first = _Numbered(IterableWrapper(range(50)).map(partial(noted, "first")))
    own = first.parallel_map(lambda item: item, num_threads=0)
    last = own.map(partial(noted, "last")).parallel_map(lambda item: item)

    def num_taken() -> list[int]:
        for name in taken:
            taken[name].clear()
        items = iter(last)
        next(items)
        del items
        return [len(taken["first"]), len(taken["last"])]

    assert num_taken() == [1, 1]
    use_threads(last, 2)
    assert num_taken() == [9, 5]
    use_threads(last, 0)
    assert num_taken() == [1, 1]


def test_threads_are_shared_by_the_pipes_of_a_chain() -> None:
    """Two pipes with as many threads have them together."""
    used: set[int] = set()

    def use(item: Any) -> Any:
        used.add(threading.get_ident())
        return item

    pipe = IterableWrapper(range(40)).parallel_map(use).parallel_map(use)
    use_threads(pipe, 2)
    assert list(pipe) == list(range(40))
    assert len(used - {threading.get_ident()}) <= 2


def test_decode_sample_uses_threads() -> None:
    """The samples have their order."""
    samples = [{"__key__": str(number), "cls": b"%d" % number} for number in range(20)]
    together = threading.Barrier(2, timeout=60)

    def decode(data: bytes) -> int:
        together.wait()
        return int(data)

    pipe = DecodeSample(IterableWrapper(samples), {"cls": decode}, num_threads=2)
    assert [sample["cls"] for sample in pipe] == list(range(20))


def test_snapshot_of_a_class_whose_state_was_replaced() -> None:
    """The state of a subclass is asked for, and not the cheaper one of its base class."""

    class Reader(ShardTarReader):
        def state_dict(self) -> Any:
            return "own"

    assert snapshots_of(Reader(IterableWrapper(["a.tar"])))()() == "own"
