"""The pipes of torch that this package uses, for versions of torch without them: the same options and attributes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TypeVar

from torch.utils.data import default_collate

from ._base import IterDataPipe, functional_datapipe
from ._stream_wrapper import StreamWrapper

T = TypeVar("T")


class IterableWrapper(IterDataPipe[T]):
    """Yield the items of an iterable.

    Args:
        iterable: of items.
        deepcopy: whether each pass iterates over a copy, if the iterable can be copied.
    """

    def __init__(self, iterable: Iterable[T], deepcopy: bool = True) -> None:
        self.iterable = iterable
        self.deepcopy = deepcopy

    def __iter__(self) -> Iterator[T]:
        items = self.iterable
        if self.deepcopy:
            try:
                items = copy.deepcopy(items)
            except TypeError:  # such as a generator
                items = self.iterable
        yield from items

    def __len__(self) -> int:
        return _length(self, self.iterable)


@functional_datapipe("map")
class Mapper(IterDataPipe[Any]):
    """Call a function on each item (functional name: ``map``).

    Args:
        datapipe: source.
        fn: called with the item, or with its fields ``input_col``.
        input_col: index or key in each item, or several.
        output_col: field that is set to the result; -1 appends it; ``None`` replaces the (first) input.
    """

    def __init__(
        self, datapipe: IterDataPipe[Any], fn: Callable[..., Any], input_col: Any = None, output_col: Any = None
    ) -> None:
        if input_col is None and output_col is not None:
            raise ValueError("`output_col` must be None when `input_col` is None.")
        if isinstance(output_col, (list, tuple)):
            if len(output_col) > 1:
                raise ValueError("`output_col` must be a single-element list or tuple")
            output_col = output_col[0]
        self.datapipe = datapipe
        self.fn = fn
        self.input_col = input_col
        self.output_col = output_col

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            yield self._mapped(item)

    def _mapped(self, item: Any) -> Any:
        result = _applied(self.fn, self.input_col, item)
        if self.input_col is None:
            return result
        changed = list(item) if isinstance(item, tuple) else item
        if self.output_col == -1:
            changed.append(result)
        elif self.output_col is not None:
            changed[self.output_col] = result
        elif isinstance(self.input_col, (list, tuple)):
            changed[self.input_col[0]] = result
            for other in sorted(self.input_col[1:], reverse=True):
                del changed[other]
        else:
            changed[self.input_col] = result
        return tuple(changed) if isinstance(item, tuple) else changed

    def __len__(self) -> int:
        return _length(self, self.datapipe)


@functional_datapipe("collate")
class Collator(Mapper):
    """Convert batches to tensors (functional name: ``collate``).

    Args:
        datapipe: source, of batches.
        conversion: converts a batch to one item.
        collate_fn: the same; takes precedence over ``conversion``.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        conversion: Callable[..., Any] = default_collate,
        collate_fn: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(datapipe, collate_fn or conversion)


@functional_datapipe("filter")
class Filter(IterDataPipe[T]):
    """Yield the items for which a function returns ``True`` (functional name: ``filter``).

    Args:
        datapipe: source.
        filter_fn: called with the item, or with its fields ``input_col``; returns a bool.
        input_col: index or key in each item, or several.
    """

    def __init__(self, datapipe: IterDataPipe[T], filter_fn: Callable[..., bool], input_col: Any = None) -> None:
        self.datapipe = datapipe
        self.filter_fn = filter_fn
        self.input_col = input_col

    def __iter__(self) -> Iterator[T]:
        for item in self.datapipe:
            passes = _applied(self.filter_fn, self.input_col, item)
            if not isinstance(passes, bool):
                raise ValueError(f"filter_fn must return a bool, got {type(passes).__name__}.")
            if passes:
                yield item
            else:
                StreamWrapper.close_streams(item)


@functional_datapipe("batch")
class Batcher(IterDataPipe[Any]):
    """Group items into lists (functional name: ``batch``).

    Args:
        datapipe: source.
        batch_size: items in a list.
        drop_last: whether the last list is dropped if it is not full.
        wrapper_class: called with each list.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[Any],
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[Any]], Any] = list,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.datapipe = datapipe
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.wrapper_class = wrapper_class

    def __iter__(self) -> Iterator[Any]:
        batch: list[Any] = []
        for item in self.datapipe:
            batch.append(item)
            if len(batch) == self.batch_size:
                yield self.wrapper_class(batch)
                batch = []
        if batch and not self.drop_last:
            yield self.wrapper_class(batch)

    def __len__(self) -> int:
        num_items = _length(self, self.datapipe)
        return num_items // self.batch_size if self.drop_last else -(-num_items // self.batch_size)


def _applied(function: Callable[..., Any], input_col: Any, item: Any) -> Any:
    if input_col is None:
        return function(item)
    if isinstance(input_col, (list, tuple)):
        return function(*(item[column] for column in input_col))
    return function(item[input_col])


def _length(pipe: IterDataPipe[Any], source: Any) -> int:
    if isinstance(source, Sized):
        return len(source)
    raise TypeError(f"{type(pipe).__name__} instance doesn't have valid length")
