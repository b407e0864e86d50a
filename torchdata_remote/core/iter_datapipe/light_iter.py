"""Iterate a pipe at a tenth of what torch's wrapper of ``__iter__`` costs for each item."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import operator
import sys
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch.utils.data.datapipes import _hook_iterator

from ...errors import NOTE_OF_PIPE

_arguments: Callable[[Any], str] = _hook_iterator._generate_input_args_string

_COUNT = "_number_of_samples_yielded"  # torch's attribute
_running: weakref.WeakKeyDictionary[Any, weakref.ref[Generator[Any, None, None]]] = weakref.WeakKeyDictionary()
"""The items of the latest iterator of each pipe."""


def light_iter(hooked: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
    """Return an ``__iter__`` that does once per iteration what torch's wrapper of a generator does for each item.

    ``reset()`` is called when an iteration starts. A later iterator of the pipe ends the earlier one, which then raises
    ``RuntimeError``: torch compares numbers at each item, and here the generator of the earlier one is closed.
    An error has a note with the pipe. What was yielded is counted, which torch's snapshots need. Under torch's
    profiler, and after its ``fast_forward``, torch's wrapper is used.

    Args:
        hooked: ``__iter__`` of a class of pipes, as torch has wrapped it. If it is not a generator, it is returned.
    """
    make = getattr(hooked, "__wrapped__", None)
    if make is None or not inspect.isgeneratorfunction(make):
        return hooked

    @functools.wraps(make)
    def items(self: Any) -> Generator[Any, None, None]:
        if torch._C._autograd._profiler_enabled() or getattr(self, "_fast_forward_iterator", None) is not None:
            yield from hooked(self)
            return
        source = make(self)
        number = _start(self, source)
        counted = itertools.repeat(True, sys.maxsize)  # one is taken with each item
        vars(self)[_COUNT] = _Count(counted)
        try:
            yield from itertools.compress(source, counted)
        except Exception as error:
            _note(error, self)
            raise
        finally:
            source.close()
        if self._valid_iterator_id != number:
            raise RuntimeError(
                f"This iterator of {type(self).__name__} has been invalidated, because another one was created from "
                "the same pipe. Build a pipe for each iterator."
            )

    return items


class _Count:
    """How many items an iterator has yielded, as torch's wrapper counts them. A copy or a pickle of it is a number.

    Args:
        left: of ``sys.maxsize`` items, those that are still to be counted.
    """

    def __init__(self, left: Iterator[bool]) -> None:
        self._left = left

    def __index__(self) -> int:
        return sys.maxsize - operator.length_hint(self._left)

    def __reduce__(self) -> Any:
        return int, (operator.index(self),)


def num_yielded(pipe: Any) -> int:
    """Return how many items the latest iterator of a pipe has yielded; of a copy, those before it was copied."""
    return operator.index(vars(pipe).get(_COUNT, 0))


def set_num_yielded(pipe: Any, number: int) -> None:
    """Take the count from torch, which sets it to 0 when a pass starts, and counts where its wrapper is used."""
    vars(pipe)[_COUNT] = number


def _start(pipe: Any, source: Generator[Any, None, None]) -> int:
    latest = pipe._valid_iterator_id
    number: int = 0 if latest is None else latest + 1
    pipe._valid_iterator_id = number
    pipe.reset()
    before = _running.get(pipe)
    earlier = None if before is None else before()
    _running[pipe] = weakref.ref(source)
    if earlier is not None:
        # ValueError: it runs right now, and ends with the error after its last item
        with contextlib.suppress(ValueError):
            earlier.close()
    return number


def _note(error: Exception, pipe: Any) -> None:
    """Add to the message of an error which pipe raised it first, as torch does."""
    note = f"{NOTE_OF_PIPE}{type(pipe).__name__}({_arguments(pipe)})"
    if not error.args or not isinstance(error.args[0], str):
        error.args = (note,)
    elif NOTE_OF_PIPE.strip() not in error.args[0]:
        error.args = (error.args[0] + note, *error.args[1:])
