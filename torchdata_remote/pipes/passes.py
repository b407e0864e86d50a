"""A pass: one reading of a chain of pipes, with a position that can be saved after each item.

A pipe says what is read, and reading does not change it. ``env.open(pipe)`` makes a pass over it, any number of them
at once. What a pass depends on beside the pipe is in its :class:`Env`: the share of the data, the epoch, and what the
streams of a process have in common.
"""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ..core.iter_datapipe import Batcher, Filter, IterableWrapper, IterDataPipe, Mapper
from ..core.options import FetchOptions, StorageOptions
from ..core.partition import EqualizeMode
from ..core.world import World
from ..errors import StateError
from ..fetch.session import FetchSession
from ..formats.error_policy import Skipped
from .chain import all_pipes

if TYPE_CHECKING:
    from ..core.frameworks.batch_rows import BatchRows

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

END: Any = object()
Path = tuple[int, ...]
"""The epoch, and within it the number of the pass of each pipe that reads its source several times."""


class Pass(Generic[T_co]):
    """One reading of a pipe: an iterator with a position.

    A subclass has ``items``. One that does not hand out one item for each of its source has ``position`` and ``seek``.

    Args:
        *sources: passes over the pipes above this one, which are started and closed with it.
    """

    def __init__(self, *sources: Pass[Any]) -> None:
        self.sources = sources
        self._items: Iterator[T_co] | None = None

    def items(self) -> Iterator[T_co]:
        """Yield the items from the position on: a generator, which is made once."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[T_co]:
        if self._items is None:
            self._items = self.items()
        return self._items

    def __next__(self) -> T_co:
        return next(iter(self))

    @property
    def position(self) -> Any:
        """The place after the item that was handed out last: plain JSON that does not change; ``None`` for the start.

        Reading it takes the same short time wherever the pass is, because pipes that look ahead do so for each item.
        """
        return self.sources[0].position

    def seek(self, position: Any) -> None:
        """Continue from a position. Called once at most, before the first item, and not with ``None``."""
        self.sources[0].seek(position)

    def resume(self, position: Any) -> None:
        """Continue from a position, or start at the beginning for ``None``."""
        if position is not None:
            self.seek(position)

    def start(self) -> None:
        """Send the first requests, without waiting: called for all streams of a process before the first item."""
        for source in self.sources:
            source.start()

    @property
    def mark(self) -> Any:
        """What pipes that divide a number of items have taken of it, and others need to read their items again."""
        return None

    def close(self) -> None:
        """End the pass: its requests and threads."""
        if (items := self._items) is not None and hasattr(items, "close"):
            with suppress(ValueError):  # another thread is inside of it, and will see that the sources are closed
                items.close()
        for source in self.sources:
            source.close()


class NumberedPass(Pass[T_co]):
    """Base of passes whose position is the number of the next item."""

    _next = 0

    @property
    def position(self) -> Any:
        return self._next

    def seek(self, position: Any) -> None:
        self._next = position


class ListPass(NumberedPass[T_co]):
    """A pass over a sequence, from which items are taken by number.

    Args:
        items_of_pass: all of them.
    """

    def __init__(self, items_of_pass: Sequence[T_co]) -> None:
        super().__init__()
        self._sequence = items_of_pass

    def items(self) -> Iterator[T_co]:
        for number in range(self._next, len(self._sequence)):
            self._next = number + 1
            yield self._sequence[number]


class Cut(NamedTuple):
    """A stream was divided: part 0 keeps what was taken until then, and all parts share the rest.

    Args:
        marks: number of a pipe -> pass in which it was, and what it had taken.
        part: which of the parts.
        parts: how many there are.
    """

    marks: Mapping[int, tuple[Path, Any]]
    part: int
    parts: int

    def taken(self, number: int, path: Path, whole: int) -> int:
        """How many of ``whole`` items of a pass were taken when the stream was divided."""
        at, mark = self.marks.get(number, ((), 0))
        if at != path:
            return whole if path < at else 0
        return int(mark["passed"] if isinstance(mark, Mapping) else mark)


@dataclass(frozen=True)
class Share:
    """The part of the data that a stream reads: ``number`` of ``count``, of which others may have got some since.

    Args:
        number: of the share, from 0.
        count: of all shares of an epoch.
        cuts: the divisions since the epoch began.
    """

    number: int = 0
    count: int = 1
    cuts: tuple[Cut, ...] = ()

    @classmethod
    def of(cls, world: World) -> Share:
        """The share of a slot."""
        return cls(world.slot, world.num_slots)

    @property
    def key(self) -> tuple[int, ...]:
        """What random draws of a stream depend on: it stays that of the stream where others got a part of it."""
        return (self.number, *(number for cut in self.cuts if cut.part for number in (cut.part, cut.parts)))

    def amount(self, total: int, number: int, path: Path) -> int:
        """How many of ``total`` items this share has; all shares have the total together, and differ by one at most.

        >>> [Share(number, 4).amount(10, 0, (0,)) for number in range(4)]
        [2, 3, 2, 3]
        """
        own = _part(total, self.number, self.count)
        for cut in self.cuts:
            taken = cut.taken(number, path, own)
            own = _part(own - taken, cut.part, cut.parts) + (0 if cut.part else taken)
        return own

    def divided(self, marks: Mapping[int, tuple[Path, Any]], parts: int) -> list[Share]:
        """Divide the rest of this share."""
        return [replace(self, cuts=(*self.cuts, Cut(marks, part, parts))) for part in range(parts)]

    def to_json(self) -> list[Any]:
        """Encode for a state."""
        return [self.number, self.count, *([marks_to_json(cut.marks), cut.part, cut.parts] for cut in self.cuts)]

    @classmethod
    def from_json(cls, saved: Sequence[Any]) -> Share:
        """Decode what ``to_json`` returned."""
        number, count, *cuts = saved
        return cls(number, count, tuple(Cut(marks_from_json(marks), part, parts) for marks, part, parts in cuts))


def _part(total: int, number: int, count: int) -> int:
    return total * (number + 1) // count - total * number // count


def marks_to_json(marks: Mapping[int, tuple[Path, Any]]) -> list[Any]:
    """Encode the marks of the pipes of a stream for a state."""
    return [[number, list(path), mark] for number, (path, mark) in marks.items()]


def marks_from_json(saved: Sequence[Any]) -> dict[int, tuple[Path, Any]]:
    """Decode what :func:`marks_to_json` returned."""
    return {number: (tuple(path), mark) for number, path, mark in saved}


def seeds_of(path: Path) -> Path:
    """Return a path without zeros at its end, but for the epoch: what orders depend on.

    >>> seeds_of((3, 0)), seeds_of((0, 2, 0))
    ((3,), (0, 2))
    """
    while len(path) > 1 and not path[-1]:
        path = path[:-1]
    return path


latest_skipped: weakref.WeakKeyDictionary[Any, Skipped] = weakref.WeakKeyDictionary()
"""What each pipe has left out in its latest pass in this process."""


class Shared:
    """What the passes of a process over one chain have in common: one for each epoch of a loader, or direct pass.

    Args:
        pipes: of the chain, sources first.
        listed: those whose items are made once for all streams -> whether they depend on the epoch.
        num_streams: that this process reads at the same time.
        num_threads: for pipes that were given no number; 0 for none.
        rows: where tensors of batches are written; ``None`` for memory of their own.
        is_saved: whether positions may be asked for.
    """

    def __init__(
        self,
        pipes: Sequence[IterDataPipe[Any]],
        listed: Sequence[tuple[IterDataPipe[Any], bool]] = (),
        *,
        num_streams: int = 1,
        num_threads: int = 0,
        rows: BatchRows | None = None,
        is_saved: bool = False,
    ) -> None:
        self.pipes = pipes  # whose ids are used here
        self.numbers = {id(pipe): number for number, pipe in enumerate(pipes)}
        self.listed = {id(pipe): by_epoch for pipe, by_epoch in listed}
        self.num_streams, self.num_threads, self.rows, self.is_saved = num_streams, num_threads, rows, is_saved
        self.left_out: dict[int, Skipped] = {}
        self._sessions: dict[int, FetchSession] = {}
        self._made: dict[Any, dict[Path, Any]] = {}

    def session(self, pipe: Any, options: FetchOptions, storage_options: StorageOptions) -> FetchSession:
        """The session of a pipe: its streams share connections, threads and the memory budget."""
        found = self._sessions.get(id(pipe))
        if found is None:
            found = self._sessions[id(pipe)] = FetchSession(options, storage_options, self.num_streams)
        return found

    def skipped(self, pipe: Any) -> Skipped:
        """What the streams of this process leave out in a pipe."""
        if id(pipe) not in self.left_out:
            latest_skipped[pipe] = self.left_out[id(pipe)] = Skipped()
        return self.left_out[id(pipe)]

    def once(self, what: object, path: Path, make: Callable[[], T]) -> T:
        """Make something once for all streams; those of the two latest passes are kept, where streams usually are."""
        made = self._made.setdefault(what, {})
        if path not in made:
            made[path] = make()
            for other in list(made)[:-2]:
                del made[other]
        found: T = made[path]
        return found


class Marks:
    """What the pipes of a stream have taken when its latest item was handed out.

    Args:
        resumed: number of a pipe -> pass and mark of the state from which the stream resumes.
    """

    def __init__(self, resumed: Mapping[int, tuple[Path, Any]] | None = None) -> None:
        self.resumed = dict(resumed or {})
        self.passes: dict[int, tuple[Path, Pass[Any]]] = {}
        """Number of a pipe -> its latest pass and where that is."""
        self.of_items: dict[int, dict[int, tuple[Path, Any]]] = {}
        """Number of a pipe that takes items ahead -> the marks of pipes above it, for the item that it handed out."""

    def now(self, ahead: Ahead | None = None) -> dict[int, tuple[Path, Any]]:
        """Number of a pipe -> pass and mark; of all pipes, or of those above one that takes an item."""
        above, last = (None, None) if ahead is None else (ahead.above, ahead.number)
        # A source of a mixture that was not drawn since is where it was
        found = {number: mark for number, mark in self.resumed.items() if above is None or number in above}
        stages = [self.of_items[n] for n in sorted(self.of_items, reverse=True) if last is None or n < last]
        for number, (path, pass_) in self.passes.items():
            if above is not None and number not in above:
                continue
            for known in stages:
                if number in known:
                    found[number] = known[number]
                    break
            else:
                found[number] = path, pass_.mark
        return found


class Ahead:
    """Keeps the marks of a pipe that takes items ahead.

    Args:
        pipe: with one source.
        env: of the pass.
    """

    def __init__(self, pipe: Any, env: Env) -> None:
        self._marks, self._is_saved, self.number = env.marks, env.shared.is_saved, env.number_of(pipe)
        self.above = frozenset(map(env.number_of, all_pipes(pipe.source_datapipe))) if self._is_saved else frozenset()

    def taken(self) -> Any:
        """Return the marks above the pipe, after it has taken an item."""
        return self._marks.now(self) if self._is_saved else None

    def handed_out(self, taken: Any) -> None:
        """Note the marks of an item that the pipe hands out."""
        if taken is not None:
            self._marks.of_items[self.number] = taken


@dataclass(frozen=True, eq=False)
class Env:
    """What a pass depends on beside its pipe.

    Args:
        shared: with the other streams of this process.
        share: of the data; ``None`` for that of this process, which the pipe that splits detects.
        epoch: from 0, and the number of the pass of each pipe around this one that reads its source several times.
        says_pass: whether samples say in which of these passes they are read, for pipes behind that draw.
        by_jumps: whether a reader passes over most of each object.
        equalize: how shares get equal numbers of samples; ``None`` if they need not.
        marks: of the stream.
    """

    shared: Shared
    share: Share | None = None
    epoch: Path = (0,)
    says_pass: bool = False
    by_jumps: bool = False
    equalize: EqualizeMode | None = None
    marks: Marks = field(default_factory=Marks)

    def open(self, pipe: IterDataPipe[T]) -> Pass[T]:
        """Make a pass over a pipe, of this package or of another one."""
        return ListPass(self.whole(pipe)) if id(pipe) in self.shared.listed else _opened(pipe, self)

    def within(self, number: int) -> Env:
        """The environment of a source that is read several times in this pass."""
        return replace(self, epoch=(*self.epoch, number))

    @property
    def may_be_empty(self) -> bool:
        """Whether this pass had begun when the stream was divided, so that other parts may have all that it reads."""
        cuts = () if self.share is None else self.share.cuts
        return any(path >= self.epoch for cut in cuts for path, _ in cut.marks.values())

    @property
    def seeds(self) -> Path:
        """What the order of this pass depends on: the first pass within an epoch has the order of the epoch."""
        return seeds_of(self.epoch)

    def number_of(self, pipe: object) -> int:
        """The number of a pipe in its chain; -1 for one that the chain does not show."""
        return self.shared.numbers.get(id(pipe), -1)

    def mark(self, pipe: object, pass_: Pass[Any]) -> None:
        """Let the marks of the stream contain that of a pass."""
        self.marks.passes[self.number_of(pipe)] = self.epoch, pass_

    def whole(self, pipe: IterDataPipe[T]) -> Sequence[T]:
        """All items of a pipe: of a listing once for all streams, and once an epoch if they depend on it."""
        by_epoch = self.shared.listed.get(id(pipe))
        if by_epoch is None:
            return list(self.open(pipe))
        return self.shared.once(id(pipe), self.epoch if by_epoch else (), lambda: list(_opened(pipe, self)))


class Window:
    """The items of a source from the oldest one on that is in use, with the position of the source before each.

    Args:
        source: that is read; it is at the position before the oldest item.
        start: that position; ``None`` for the beginning.
    """

    def __init__(self, source: Pass[Any], start: Any = None) -> None:
        self._source, self._items = source, iter(source)
        self._before: deque[Any] = deque([start])  # of the items oldest to num_read
        self.oldest = 0  # number of the oldest item in use
        self.num_read = 0

    def read(self) -> Any:
        """Return the next item, or ``END``."""
        item = next(self._items, END)
        if item is not END:
            self.num_read += 1
            self._before.append(self._source.position)
        return item

    def read_again(self, num_items: int, name: str) -> Iterator[Any]:
        """Yield the items that were read before the state was saved.

        Raises:
            StateError: if there are fewer now.
        """
        for number in range(num_items):
            item = self.read()
            if item is END:
                raise StateError(
                    f"{name} had {num_items:,} items to hold when the state was saved, and gets {number:,} now: what "
                    "the chain reads, or a function of it, has changed."
                )
            yield item

    def release(self, oldest: int) -> None:
        """Forget the positions before an item: those before it are not in use."""
        while self.oldest < oldest:
            self._before.popleft()
            self.oldest += 1

    @property
    def position(self) -> Any:
        """The position of the source before the oldest item in use."""
        return self._before[0]


class Described(Generic[T_co]):
    """Base of what can be opened as a pass."""

    def open(self, env: Env) -> Pass[T_co]:
        """Make a pass: one reading. ``env.open(self.source_datapipe)`` makes that of the source."""
        raise NotImplementedError


def _opened(pipe: Any, env: Env) -> Pass[Any]:
    """Make a pass over a pipe of this package, of torch or of a user."""
    if isinstance(pipe, Described):
        return pipe.open(env)
    if not isinstance(pipe, IterDataPipe):  # a list, say
        return _IterablePass(pipe)
    if isinstance(pipe, IterableWrapper):
        is_plain = _is_read_as(pipe, IterableWrapper)
        return _IterablePass(pipe.iterable, copies=pipe.deepcopy) if is_plain else _IterablePass(copy.copy(pipe))
    # A subclass of a user may be iterated otherwise
    if _is_read_as(pipe, Mapper):  # Collator is one
        return MapPass(pipe, env.open(pipe.datapipe))
    if _is_read_as(pipe, Filter):
        return FilterPass(pipe, env.open(pipe.datapipe))
    if _is_read_as(pipe, Batcher):
        return BatchPass(pipe, env.open(pipe.datapipe))
    return _ForeignPass(pipe, env)


def _is_read_as(pipe: Any, kind: type[IterDataPipe[Any]]) -> bool:
    return isinstance(pipe, kind) and type(pipe).__iter__ is kind.__iter__


_NEVER_CHANGED = str, bytes, int, float, complex, type(None)


class _IterablePass(NumberedPass[Any]):
    """Of an iterable in torch's ``IterableWrapper``, or in its place.

    torch copies the whole iterable when a pass starts. Here each item is copied when it is handed out, and not if it
    cannot be changed, as URLs: a list of a million of them costs nothing.
    """

    def __init__(self, iterable: Any, *, copies: bool = False) -> None:
        super().__init__()
        self._iterable, self._copies = iterable, copies

    def items(self) -> Iterator[Any]:
        items = self._counted()
        return map(_copied, items) if self._copies else items

    def _counted(self) -> Iterator[Any]:
        start = self._next
        from_start = self._iterable if not start else islice(self._iterable, start, None)
        for self._next, item in enumerate(from_start, start + 1):  # counted where it is kept
            yield item


def _copied(item: Any) -> Any:
    if isinstance(item, _NEVER_CHANGED):
        return item
    try:
        return copy.deepcopy(item)
    except TypeError:  # torch does without a copy, too
        return item


class MapPass(Pass[Any]):
    """Of torch's ``map`` and ``collate``."""

    def __init__(self, pipe: Any, source: Pass[Any]) -> None:
        super().__init__(source)
        self._pipe = pipe

    def items(self) -> Iterator[Any]:
        pipe = self._pipe
        function = pipe.fn if pipe.input_col is None and pipe.output_col is None else pipe._apply_fn
        for item in self.sources[0]:
            yield function(item)


class FilterPass(Pass[Any]):
    """Of torch's ``filter``."""

    def __init__(self, pipe: Any, source: Pass[Any]) -> None:
        super().__init__(source)
        self._pipe = pipe

    def items(self) -> Iterator[Any]:
        for item in self.sources[0]:
            is_kept, kept = self._pipe._returnIfTrue(item)
            if is_kept:
                yield kept


class BatchPass(Pass[Any]):
    """Of torch's ``batch``."""

    def __init__(self, pipe: Any, source: Pass[Any]) -> None:
        super().__init__(source)
        self._pipe = pipe

    def items(self) -> Iterator[Any]:
        size, wrapper, source = self._pipe.batch_size, self._pipe.wrapper_class, iter(self.sources[0])
        while batch := list(islice(source, size)):
            if len(batch) < size and self._pipe.drop_last:
                return
            yield wrapper(batch)


_EPOCH_BITS = 32  # of the epoch that a user's pipe gets as one number, below those of passes within it


class _ForeignPass(Pass[Any]):
    """Of a pipe of another package: a copy of it reads sources that belong to this pass.

    Where it has ``state_dict`` and ``load_state_dict``, its state is the position. A copy of it must not share what
    changes while it is read; torch's ``fork`` and ``demux`` do, and the queues of DataLoader2, and stay as they are.
    """

    def __init__(self, pipe: Any, env: Env) -> None:
        super().__init__()
        self._pipe, self._is_saved = pipe, env.shared.is_saved and hasattr(type(pipe), "state_dict")
        self._bound_sources: list[_Source] = []
        is_shared = "main_datapipe" in vars(pipe) or type(pipe).__module__.startswith("torchdata.dataloader2.")
        if not is_shared:
            self._pipe = copy.copy(pipe)
            if hasattr(type(pipe), "set_epoch"):
                self._pipe.set_epoch(sum(number << _EPOCH_BITS * at for at, number in enumerate(env.seeds)))
            for name, value in list(vars(self._pipe).items()):
                vars(self._pipe)[name] = self._bound(value, env)

    def items(self) -> Iterator[Any]:
        yield from self._pipe

    @property
    def position(self) -> Any:
        if not self._is_saved:
            return None  # refused where a state is wanted
        return copy.deepcopy(self._pipe.state_dict())  # it may change it later

    def seek(self, position: Any) -> None:
        self._pipe.load_state_dict(position)

    def close(self) -> None:
        super().close()
        for source in self._bound_sources:
            source.close()

    def _bound(self, value: Any, env: Env) -> Any:
        """Replace the pipes in an attribute by sources of this pass."""
        if isinstance(value, IterDataPipe):
            source = _Source(value, env)  # type: ignore[abstract]  # below
            self._bound_sources.append(source)
            return source
        # The first item decides, because a list may be one of a million URLs
        if type(value) in (list, tuple) and value and isinstance(value[0], IterDataPipe):
            return type(value)(self._bound(part, env) for part in value)
        if isinstance(value, dict) and any(isinstance(part, IterDataPipe) for part in value.values()):
            return {key: self._bound(part, env) for key, part in value.items()}
        return value


class _Source(IterDataPipe[Any]):
    """A source of a pipe of another package, in one pass. Each further iteration is an epoch of its own.

    Args:
        pipe: the source.
        env: of the pass.
    """

    def __init__(self, pipe: Any, env: Env) -> None:
        self.pipe, self._env, self._num_begun = pipe, env, 0
        self._pass: Pass[Any] | None = None  # the latest one
        self._opened: weakref.WeakSet[Pass[Any]] = weakref.WeakSet()
        self._loaded: Any = None

    def state_dict(self) -> Any:
        """The position of the source."""
        return self._loaded if self._pass is None else [self._num_begun, self._pass.position]

    def load_state_dict(self, state: Any) -> None:
        """Continue the source from a position."""
        self._loaded = state

    def __len__(self) -> int:
        return len(self.pipe)

    def close(self) -> None:
        """End what reads the source."""
        for pass_ in list(self._opened):
            pass_.close()


def _iterated(source: _Source) -> Iterator[Any]:
    begun, position = source._loaded or (source._num_begun + 1, None)
    source._num_begun, source._loaded = begun, None
    source._pass = source._env.open(source.pipe) if begun == 1 else source._env.within(begun - 1).open(source.pipe)
    source._opened.add(source._pass)
    source._pass.resume(position)
    return iter(source._pass)


_Source.__iter__ = _iterated  # type: ignore[method-assign, assignment]  # after the class was made, so that torch does not wrap it
