"""Passes over pipes of torch, of other packages and of users."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ..core.iter_datapipe import Batcher, Filter, IterableWrapper, IterDataPipe, Mapper
from .passes import NumberedPass, Pass, PipePass


def opened(pipe: Any, env: Any) -> Pass[Any]:
    """Make a pass over a pipe of torch or of a user, in an ``Env``."""
    if not isinstance(pipe, IterDataPipe):  # a list, say
        return _IterablePass(pipe)
    if isinstance(pipe, IterableWrapper):
        is_plain = _is_read_as(pipe, IterableWrapper)
        return _IterablePass(pipe.iterable, copies=pipe.deepcopy) if is_plain else _IterablePass(copy.copy(pipe))
    if any(_is_read_as(pipe, kind) for kind in _PASSES):
        return pass_of_torch(pipe, env)
    return _ForeignPass(pipe, env)


def pass_of_torch(pipe: Any, env: Any) -> Pass[Any]:
    """Make a pass over torch's ``map``, ``collate``, ``filter`` or ``batch``."""
    pass_of = next(_PASSES[kind] for kind in _PASSES if isinstance(pipe, kind))
    return pass_of(pipe, env.open(pipe.datapipe))


def _is_read_as(pipe: Any, kind: type[IterDataPipe[Any]]) -> bool:
    # A subclass of a user may be iterated otherwise
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


class MapPass(PipePass[Any]):
    """Of torch's ``map`` and ``collate``."""

    def items(self) -> Iterator[Any]:
        pipe = self._pipe
        function = pipe.fn if pipe.input_col is None and pipe.output_col is None else pipe._apply_fn
        for item in self.sources[0]:
            yield function(item)


class FilterPass(PipePass[Any]):
    """Of torch's ``filter``."""

    def items(self) -> Iterator[Any]:
        for item in self.sources[0]:
            is_kept, kept = self._pipe._returnIfTrue(item)
            if is_kept:
                yield kept


class BatchPass(PipePass[Any]):
    """Of torch's ``batch``."""

    def items(self) -> Iterator[Any]:
        size, wrapper, source = self._pipe.batch_size, self._pipe.wrapper_class, iter(self.sources[0])
        while batch := list(islice(source, size)):
            if len(batch) < size and self._pipe.drop_last:
                return
            yield wrapper(batch)


_PASSES: dict[type[IterDataPipe[Any]], type[PipePass[Any]]] = {
    Mapper: MapPass,  # Collator is one
    Filter: FilterPass,
    Batcher: BatchPass,
}
_EPOCH_BITS = 32  # of the epoch that a user's pipe gets as one number, below those of passes within it


class _ForeignPass(Pass[Any]):
    """Of a pipe of another package: a copy of it reads sources that belong to this pass.

    Where it has ``state_dict`` and ``load_state_dict``, its state is the position. A copy of it must not share what
    changes while it is read; torch's ``fork`` and ``demux`` do, and the queues of DataLoader2, and stay as they are.
    """

    def __init__(self, pipe: Any, env: Any) -> None:
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

    def _bound(self, value: Any, env: Any) -> Any:
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

    def __init__(self, pipe: Any, env: Any) -> None:
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
