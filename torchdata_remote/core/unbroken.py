"""Iterators that do not pretend to be complete after an error or an interrupt."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import chain
from typing import Any, TypeVar

from ..errors import StateError

T = TypeVar("T")


class _Unbroken(chain[Any]):
    close: Callable[[], None]


def unbroken(items: Iterator[T]) -> Iterator[T]:
    """Yield items; after an error or an interrupt, a further request is an error.

    A generator that an exception has left ends as if it were complete, and a loop that goes on would lose the rest.
    No instruction of Python is executed between an item of a generator and the consumer, so that no signal comes there.

    Args:
        items: of a pass.

    Raises:
        StateError: if items are requested after an exception.
    """
    is_complete = False

    def followed() -> Generator[T, None, None]:
        nonlocal is_complete
        yield from items
        is_complete = True

    def require_complete() -> None:
        if not is_complete:
            raise StateError(
                "This pass was ended by an error or an interrupt, and cannot go on without a loss. Load a state, such "
                "as load_state_dict(loader.state_dict()), and begin another pass."
            )

    pass_ = followed()
    found = _Unbroken(pass_, iter(require_complete, None))
    found.close = pass_.close
    return found
