"""A pass: one reading of a chain of pipes, with a position that can be saved after each item."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from typing import Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)

END: Any = object()


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


class PipePass(Pass[T_co]):
    """Base of passes that need the options of their pipe, which has one source.

    Args:
        pipe: with the options.
        source: pass over its source.
    """

    def __init__(self, pipe: Any, source: Pass[Any]) -> None:
        super().__init__(source)
        self._pipe = pipe


class CountedPass(Pass[T_co]):
    """Base of passes whose position is a number of items, and the position of the source."""

    num_passed = 0

    @property
    def position(self) -> Any:
        return [self.num_passed, self.sources[0].position]

    def seek(self, position: Any) -> None:
        self.num_passed, at = position
        self.sources[0].resume(at)

    @property
    def mark(self) -> Any:
        return self.num_passed


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


class ListedPass(NumberedPass[T_co]):
    """URLs as a function yields them.

    Args:
        listed: called when the first one is asked for.
        *sources: that it reads.
    """

    def __init__(self, listed: Callable[[], Iterator[T_co]], *sources: Pass[Any]) -> None:
        super().__init__(*sources)
        self._listed = listed

    def items(self) -> Iterator[T_co]:
        start = self._next
        with closing(self._listed()) as urls:  # type: ignore[type-var]  # a generator
            for self._next, url in enumerate(islice(urls, start, None), start + 1):
                yield url
