"""Pickle functions and classes that a new process cannot import: those of a notebook, lambdas and closures."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from operator import attrgetter
from types import FunctionType
from typing import Any

import cloudpickle

from .main_guard import is_main_imported


class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """cloudpickle's pickler, except for what is in a script that new processes import: that goes by reference.

    So a worker has the script's own classes, and its functions have the module's variables. A class of a notebook's
    cell is found in ``__main__`` of the worker too, so that its instances come back. ``pickle.loads`` restores what it
    has written to ``file``.
    """

    def __init__(self) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file)
        self.by_value: list[Any] = []
        """Functions and classes that went by value."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, _lru_cache_wrapper) and value.__module__ == "__main__" and not is_main_imported():
            return _cached, (value.__wrapped__, value.cache_parameters())
        if not isinstance(value, type | FunctionType) or (is_main_imported() and _is_in_main(value)):
            return NotImplemented
        reduced = super().reducer_override(value)
        if reduced is NotImplemented or not (isinstance(value, FunctionType) or value.__module__ == "__main__"):
            return reduced
        self.by_value.append(value)
        if isinstance(value, type) and _is_in_main(value) and "." not in value.__qualname__:
            make, arguments, *rest = reduced
            return _made_in_main, (make, *arguments), *rest
        return reduced


def _is_in_main(value: Any) -> bool:
    try:
        return value.__module__ == "__main__" and attrgetter(value.__qualname__)(sys.modules["__main__"]) is value
    except AttributeError:  # of a function, deleted, or a lambda
        return False


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return lru_cache(**parameters)(function)


def _made_in_main(make: Callable[..., type], *arguments: Any) -> type:
    made = make(*arguments)
    setattr(sys.modules["__main__"], made.__name__, made)
    return made
