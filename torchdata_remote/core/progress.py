"""Show the progress of long work by tqdm, on terminals only."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Any, ParamSpec, TypeVar

from .urls import redact

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=Sized)

VARIABLE = "TORCHDATA_REMOTE_PROGRESS"
"""Environment variable: ``0`` hides all progress bars."""

_LISTING_AFTER_S = 2.0
_COUNTED_TOGETHER = 256

_is_hidden: ContextVar[bool] = ContextVar("_is_hidden", default=False)


@functools.cache
def _bar_type() -> Any:
    # Imported by what shows a bar: a command starts in half the time without it
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # it has no types
        # tqdm's monitor is a thread that no fork waits for
        monitor_interval = 0

    return Bar


def _is_shown() -> bool:
    """Return whether this process shows progress: on a terminal or in a notebook, in rank 0, in no worker."""
    return (
        not _is_hidden.get()
        and sys.stderr is not None
        and (sys.stderr.isatty() or "ipykernel" in sys.modules)
        and os.environ.get(VARIABLE, "1") != "0"
        and not os.environ.get("TQDM_DISABLE")
        and os.environ.get("RANK", "0") == "0"
        and multiprocessing.parent_process() is None
    )


@contextmanager
def hidden_unless(shown: bool) -> Iterator[None]:
    """Show no progress within the block, unless ``shown``."""
    token = _is_hidden.set(_is_hidden.get() or not shown)
    try:
        yield
    finally:
        _is_hidden.reset(token)


@contextmanager
def above_bars() -> Iterator[None]:
    """Let the block write lines to the terminal; bars are drawn again below them."""
    if "tqdm" not in sys.modules or not getattr(_bar_type(), "_instances", ()):
        yield
        return
    with _bar_type().external_write_mode(file=sys.stdout):
        yield


class Progress:
    """A bar with rate and time left, on standard error.

    Args:
        title: what is being done.
        total: in ``unit``; ``None`` if unknown.
        unit: what is counted; ``"B"`` is shown in multiples of 1,000.
        shown: ``False`` shows nothing.
        after_s: seconds after which it appears.
        leave: whether it stays when the work is done.
    """

    def __init__(
        self, title: str, total: int | None, unit: str, *, shown: bool = True, after_s: float = 0, leave: bool = True
    ) -> None:
        self._bar: Any = None
        if shown and _is_shown():
            options = {"unit_scale": True, "delay": after_s, "miniters": 1, "leave": leave, "dynamic_ncols": True}
            self._bar = _bar_type()(total=total, desc=title, unit=unit, **options)
        self._shards = self._bytes = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Draw the final state, or clear the bar."""
        if self._bar is not None:
            self._bar.close()

    def advance(self, amount: int) -> None:
        """Add an amount of finished work, in ``unit``."""
        if self._bar is not None:
            self._bar.update(amount)

    def passed(self, parts: Iterable[S]) -> Iterator[S]:
        """Yield parts of bytes, and add their lengths."""
        for part in parts:
            self.advance(len(part))
            yield part

    def set(self, done: int, total: int | None) -> None:
        """Set the amounts of finished and of all work, in ``unit``."""
        if self._bar is not None:
            self._bar.total = total
            self._bar.update(done - self._bar.n)

    def add_shards(self, num_shards: int, num_samples: int, num_bytes: int) -> None:
        """Add finished shards, where samples are counted."""
        self._shards += num_shards
        self._bytes += num_bytes
        self.note(f"{self._shards:,} shards, {self._bytes / (1 << 20):,.0f} MiB")
        self.advance(num_samples)

    def note(self, text: str) -> None:
        """Set the text behind the bar."""
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)


def counts_listing(listing: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Decorate a function that lists its first argument: objects are counted on a bar if this takes longer than 2 s."""

    @functools.wraps(listing)
    def counted_listing(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        found = listing(*args, **kwargs)
        return _counted(found, f"list {redact(str(args[0]))}") if _is_shown() else found

    return counted_listing


def _counted(items: Iterable[T], title: str) -> Iterator[T]:
    with Progress(title, None, " objects", after_s=_LISTING_AFTER_S, leave=False) as progress:
        for number, item in enumerate(items, 1):
            if number % _COUNTED_TOGETHER == 0:
                progress.advance(_COUNTED_TOGETHER)
            yield item


def first_awaited(batches: Iterator[T]) -> Iterator[T]:
    """Yield batches; shows that the first one is waited for."""
    with waiting("waiting for the first batch"):
        first = list(islice(batches, 1))
    yield from first
    yield from batches


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Show what a call waits for; cleared when the block ends.

    Args:
        title: such as ``"starting 2 workers"``.
    """
    if not _is_shown():
        yield
        return
    with _bar_type()(bar_format=title, leave=False):
        yield
