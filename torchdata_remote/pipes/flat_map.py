"""``flat_map``: several items, or none, for each item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, ClassVar, TypeVar

from ..core.arguments import check
from ..core.arguments.amounts import seed_of
from ..core.frameworks.collating import check_item
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.processes.worker_errors import keep_arguments_of
from ..errors import SampleError, StateError
from ..fetch.listing.source_argument import pipe_of
from ..formats.sample import describe_item
from .base.calls import called
from .base.chain import Snapshot
from .base.draws import Draws
from .base.epochs import EpochPipe
from .base.members import url_of_item
from .base.window import END, WindowedPipe

T = TypeVar("T")
U = TypeVar("U")

_SINGLE = (str, bytes, bytearray, memoryview, Mapping)


@functional_datapipe("flat_map")
class FlatMap(EpochPipe[U], WindowedPipe[U]):
    """Yield each item of what a function returns for an item (functional name: ``flat_map``).

    Clips of a video, crops of an image, sentences of a document; also none. A generator function hands out its items
    one by one, so only one is in memory.

    The state has the position of the source before the item that is being expanded, and how many of its items were
    handed out. A resumed pass reads that one item again, calls the function, and skips these. So the function must
    return the same for the same item: with ``seed`` it gets random numbers that do.

    Ranks get different numbers of items, even after ``equalize_ranks``: without a bound, as the data has them. For
    equal numbers chain ``repeat_epochs().flat_map(...).take(n)``. There is no ``len``.

    Args:
        source_datapipe: any items.
        function: called with an item, and with ``seed`` also with a ``numpy.random.Generator``; returns an iterable.
            With worker processes, what it refers to has to pickle.
        seed: of the random numbers, as those of ``parallel_map``.

    Yields:
        What the function returns, one by one.

    Raises:
        SampleError: if the function returns no iterable, or a single str, bytes or dict; with ``seed`` also for an item
            without a key.
        StateError: if it returns fewer items than before the state was saved.
        Exception: of the function.

    Example:
        >>> list(FlatMap(IterableWrapper(["a b", "", "c"]), str.split))
        ['a', 'b', 'c']
    """

    state_fields = ("at", "passed")
    state_counts = ("passed",)
    beginning: ClassVar[dict[str, Any]] = {"at": None, "passed": 0}

    def __init__(
        self, source_datapipe: IterDataPipe[T], function: Callable[..., Iterable[U]], *, seed: int | None = None
    ) -> None:
        EpochPipe.__init__(self)
        WindowedPipe.__init__(self, pipe_of(source_datapipe, of="flat_map", holds="items"))
        self._function = check.function("function", function, example="sentences_of")
        self.seed = None if seed is None else seed_of(seed, or_none="a function of one argument")

    def __iter__(self) -> Iterator[U]:
        function, epoch = self._function, self._epochs.next_epoch()
        if self.seed is not None:
            function = Draws(self, self.seed, epoch).given_to(function)
        state, window = self._begin()
        num_passed, place, is_first = state["passed"], self._place, True
        while (item := window.read()) is not END:
            window.release(window.num_read - 1)
            before = window.position()
            outputs = _outputs(function, item)
            _skip(outputs, num_passed, item)
            where = describe_item(item) if is_first else ""
            del item
            for output in outputs:
                num_passed += 1
                place.snapshot = partial(_state_of, before, num_passed)
                if is_first:
                    is_first = False
                    check_item(self, output, where=where)
                yield output
            num_passed = 0

    def order_options(self) -> Mapping[str, Any]:
        return {} if self.seed is None else {"seed": self.seed}


def _outputs(function: Callable[[T], Iterable[U]], item: T) -> Iterator[U]:
    outputs = called(function, item)
    # A tensor without dimensions, and a class, have __iter__, too
    is_one = isinstance(outputs, (*_SINGLE, type)) or getattr(outputs, "ndim", None) == 0
    if is_one or not hasattr(outputs, "__iter__"):
        raise SampleError(
            f"flat_map: the function must return a list or another iterable, got {check.a_kind(outputs)} for "
            f"{describe_item(item)}. Return [value] for one item, and [] for none.",
            url=url_of_item(item),
        )
    return _with_kept_arguments(outputs)


def _with_kept_arguments(outputs: Iterable[U]) -> Iterator[U]:
    """Yield them. An error of a generator function keeps its arguments on its way through torch's pipes."""
    try:
        yield from outputs
    except Exception as error:
        keep_arguments_of(error)
        raise


def _skip(outputs: Iterator[Any], num_passed: int, item: object) -> None:
    found = sum(1 for _ in islice(outputs, num_passed))
    if found < num_passed:
        raise StateError(
            f"flat_map: the function returned {num_passed:,} or more items for {describe_item(item)} before the state "
            f"was saved, and {found:,} now. It must return the same for the same item; pass seed= for random numbers."
        )


def _state_of(at: Snapshot, num_passed: int) -> Any:
    return {"at": at(), "passed": num_passed}
