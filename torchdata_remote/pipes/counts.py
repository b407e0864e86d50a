"""Pipes that yield more or fewer items than they take: ``take``, ``skip``, ``repeat_epochs``, ``flat_map``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from ..core import arguments as check
from ..core.arguments import seed_of, whole, whole_or_none
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..errors import SampleError, StateError
from ..formats.sample import describe_item
from .datapipe import SourcePipe, length_here
from .draws import Draws, of_pass
from .env import Env
from .members import url_of_item
from .passes import CountedPass, Pass
from .slots import amount_at, is_endless, length_of, require_shares, share_at

T = TypeVar("T")
U = TypeVar("U")

_MOST_COUNTED = 10_000  # passes, whose shares may differ
_SINGLE = (str, bytes, bytearray, memoryview, Mapping)


class _Counted(SourcePipe[T]):
    """Base of the pipes that count items up to a number, of which each reader has its share."""

    changes_count = True
    order_names = ("number",)

    def __init__(self, source_datapipe: IterDataPipe[T], number: int, *, at_least: int) -> None:
        super().__init__(source_datapipe, "items")
        self.number = whole("number", number, at_least=at_least, of="items")

    def counted(self, kind: Callable[[Pass[T], int], Pass[T]], env: Env) -> Pass[T]:
        """Make a pass of a kind, from its source and the share of the number."""
        pass_ = kind(env.open(self.source_datapipe), amount_at(self, self.number, env))
        env.mark(self, pass_)
        return pass_


@functional_datapipe("take")
class Take(_Counted[T]):
    """Yield the first ``number`` items of a pass, of all ranks together (functional name: ``take``).

    After ``sharding_filter_rank``, each reader hands out its share of the number: the first items of its own part of
    the data. Shares differ by one at most, and by nothing if the number is divisible by that of readers. Readers are
    ranks x workers, or the streams of a loader: with ``num_streams`` the samples are the same in any number of ranks
    and workers. Before ``sharding_filter_rank``, or without it, the items are the first ``number`` of the chain, for
    every process: ``list_remote().take(8)`` are eight shards. Nothing is read after the last item.

    ``repeat_epochs().take(n)`` gives each rank exactly its share, whatever pipes between the two do, and has a length.
    After a source that ends, it is shorter where that has fewer.

    Args:
        source_datapipe: any items.
        number: of items, of all ranks together. After ``batch``, ``pack`` or ``bucket`` batches are counted.

    Yields:
        The same items.

    Raises:
        EmptyShareError: in each reader, if there are more readers than items to take.

    Example:
        >>> list(Take(IterableWrapper("abcd"), 3))
        ['a', 'b', 'c']
    """

    def __init__(self, source_datapipe: IterDataPipe[T], number: int) -> None:
        super().__init__(source_datapipe, number, at_least=1)
        self.is_endless = False

    def open(self, env: Env) -> Pass[T]:
        require_shares(self.number, share_at(self.source_datapipe, env), of="take")
        return self.counted(_TakePass, env)

    def length(self, env: Env) -> int:
        """Count the items of a share."""
        share = amount_at(self, self.number, env)
        return share if is_endless(self.source_datapipe) else min(share, length_of(self.source_datapipe, env))

    __len__ = length_here


class _TakePass(CountedPass[T]):
    def __init__(self, source: Pass[T], number: int) -> None:
        super().__init__(source)
        self._number = number

    def items(self) -> Iterator[T]:
        for item in islice(self.sources[0], max(0, self._number - self.num_passed)):
            self.num_passed += 1
            yield item

    def start(self) -> None:
        if self.num_passed < self._number:
            super().start()


@functional_datapipe("skip")
class Skip(_Counted[T]):
    """Leave out the first ``number`` items of a pass, of all ranks together (functional name: ``skip``).

    The number is divided as that of ``take``, so ``take(n)`` and ``skip(n)`` of one chain divide its items into two
    parts: for validation and training, for example, if nothing above them is shuffled. The items that are left out are
    read, which takes their time in each epoch; URLs, before the reader, cost nothing. A resumed pass does not skip
    again. To continue a training use the state of a loader, which reads nothing again.

    Args:
        source_datapipe: any items.
        number: of items, of all ranks together.

    Yields:
        The same items.

    Example:
        >>> list(Skip(IterableWrapper("abcd"), 3))
        ['d']
    """

    def __init__(self, source_datapipe: IterDataPipe[T], number: int) -> None:
        super().__init__(source_datapipe, number, at_least=0)

    def open(self, env: Env) -> Pass[T]:
        return self.counted(_SkipPass, env)

    def length(self, env: Env) -> int:
        """Count the items of a share."""
        return max(0, length_of(self.source_datapipe, env) - amount_at(self, self.number, env))

    __len__ = length_here


class _SkipPass(CountedPass[T]):
    """The number that is counted is that of items that were left out."""

    def __init__(self, source: Pass[T], number: int) -> None:
        super().__init__(source)
        self._number = min(number, sys.maxsize)

    def items(self) -> Iterator[T]:
        source = iter(self.sources[0])
        for _ in islice(source, max(0, self._number - self.num_passed)):
            self.num_passed += 1
        yield from source


@functional_datapipe("repeat_epochs")
class RepeatEpochs(SourcePipe[T]):
    """Read a chain several times in one pass, each time in another order (functional name: ``repeat_epochs``).

    Each pass over the source is an epoch of its own for the pipes above: ``shuffle_shards``, ``shuffle_samples`` and
    ``mix`` have another order. Pipes after it see one long pass: a ``shuffle_samples`` mixes the end of a pass with the
    start of the next one, ``pack`` and ``batch`` leave no incomplete row or batch between them.

    Without a number it never ends. Then bound it by ``take``, which gives all ranks the same number of items, or by the
    steps of the training. With a number, ranks are as many items apart as in that many epochs of the source.

    It is not called ``repeat``, because torchdata has a pipe of that name, which repeats each item.

    Args:
        source_datapipe: any items, in samples or URLs.
        times: number of passes; ``None`` for no end.

    Yields:
        The same items.

    Raises:
        SampleError: if a pass over the source has no items, and there is no end.
        EmptyShareError: the same, because the streams of a state were divided among more readers than they have items.

    Example:
        >>> list(RepeatEpochs(IterableWrapper("ab"), 3))
        ['a', 'b', 'a', 'b', 'a', 'b']
    """

    changes_count = True
    uses_epoch = True

    def __init__(self, source_datapipe: IterDataPipe[T], times: int | None = None) -> None:
        super().__init__(source_datapipe, "items")
        self.times = whole_or_none("times", times)
        self.is_endless = self.times is None

    def open(self, env: Env) -> Pass[T]:
        return _RepeatPass(self, env)

    def length(self, env: Env) -> int:
        """Count the items of all passes."""
        if self.times is None:
            raise TypeError("repeat_epochs() has no end: give it a number of times, or chain take(n)")
        if self.times > _MOST_COUNTED:
            raise TypeError(f"repeat_epochs({self.times:_}) has too many passes to count their items")
        return sum(length_of(self.source_datapipe, env.within(number)) for number in range(self.times))

    __len__ = length_here


class _RepeatPass(Pass[T]):
    """The position is the number of the pass over the source, and the position in it."""

    def __init__(self, pipe: RepeatEpochs[T], env: Env) -> None:
        super().__init__()
        self._pipe, self._env, self._number, self._has_items = pipe, env, 0, False
        self._open()

    def _open(self) -> None:
        self.sources = (self._env.within(self._number).open(self._pipe.source_datapipe),)

    def items(self) -> Iterator[T]:
        times, says_pass, has_items = self._pipe.times, self._env.says_pass, self._has_items
        while times is None or self._number < times:
            number = self._number
            for item in self.sources[0]:
                has_items = True
                yield of_pass(item, number) if says_pass else item
            if times is None and not has_items:
                self._env.within(number).require_items("repeat_epochs")
            self.sources[0].close()
            self._number += 1
            if times is None or self._number < times:
                self._open()

    @property
    def position(self) -> Any:
        return [self._number, self.sources[0].position]

    def seek(self, position: Any) -> None:
        self._number, at = position
        self._has_items = True
        if self._pipe.times is None or self._number < self._pipe.times:
            self._open()
            self.sources[0].resume(at)

    def start(self) -> None:
        if self._pipe.times is None or self._number < self._pipe.times:
            super().start()


@functional_datapipe("flat_map")
class FlatMap(SourcePipe[U]):
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

    changes_count = True

    def __init__(
        self, source_datapipe: IterDataPipe[T], function: Callable[..., Iterable[U]], *, seed: int | None = None
    ) -> None:
        super().__init__(source_datapipe, "items")
        self._function = check.function("function", function, example="sentences_of")
        self.seed = None if seed is None else seed_of(seed, or_none="a function of one argument")

    def open(self, env: Env) -> Pass[U]:
        if self.seed is None:
            return _FlatMapPass(env.open(self.source_datapipe), self._function)
        source = replace(env, says_pass=True).open(self.source_datapipe)
        return _FlatMapPass(source, Draws(self, self.seed, env.epoch).given_to(self._function))

    def order_options(self) -> Mapping[str, Any]:
        return {} if self.seed is None else {"seed": self.seed}


class _FlatMapPass(Pass[U]):
    """The position is that of the source before the item that is expanded, and how many of its items left."""

    def __init__(self, source: Pass[Any], function: Callable[[Any], Iterable[U]]) -> None:
        super().__init__(source)
        self._function = function
        self._before: Any = None  # position of the source
        self._num_passed = 0

    def items(self) -> Iterator[U]:
        source, before, num_passed = self.sources[0], self._before, self._num_passed
        for item in source:
            outputs = _outputs(self._function, item)
            _skip(outputs, num_passed, item)
            del item
            for number, output in enumerate(outputs, num_passed + 1):
                self._before, self._num_passed = before, number
                yield output
            num_passed, before = 0, source.position

    @property
    def position(self) -> Any:
        return [self._before, self._num_passed]

    def seek(self, position: Any) -> None:
        self._before, self._num_passed = position
        self.sources[0].resume(self._before)


def _outputs(function: Callable[[T], Iterable[U]], item: T) -> Iterator[U]:
    outputs = function(item)
    # A tensor without dimensions, and a class, have __iter__, too
    is_one = isinstance(outputs, (*_SINGLE, type)) or getattr(outputs, "ndim", None) == 0
    if is_one or not hasattr(outputs, "__iter__"):
        raise SampleError(
            f"flat_map: the function must return a list or another iterable, got {check.a_kind(outputs)} for "
            f"{describe_item(item)}. Return [value] for one item, and [] for none.",
            url=url_of_item(item),
        )
    return iter(outputs)


def _skip(outputs: Iterator[Any], num_passed: int, item: object) -> None:
    found = sum(1 for _ in islice(outputs, num_passed))
    if found < num_passed:
        raise StateError(
            f"flat_map: the function returned {num_passed:,} or more items for {describe_item(item)} before the state "
            f"was saved, and {found:,} now. It must return the same for the same item; pass seed= for random numbers."
        )
