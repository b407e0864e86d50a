"""A part of a listing: the objects between two paths."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from ..entry_table import EntryTable
from ..protocol import Page

RANGE_PAGES = 8  # the length of a range, if guesses are right


class Lister(Protocol):
    """The part of a store that lists."""

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        """As :meth:`Store.list_page`."""


@dataclass(eq=False)
class KeyRange:
    """A part of a listing: the objects after one path, up to another. One page is requested at a time.

    Args:
        after: path after which it begins; empty for the first one.
        until: the last path that belongs to it; ``None`` for the last range.
        token: of the page to be requested.
        pages: received, and not yet taken.
        is_open: whether a page is to be requested.
        is_in_flight: whether a page is being requested.
        has_begun: whether a page was received.
        error: that ended it.
        seen: tokens of the pages so far.
        first: the first key that was listed after ``after``; ``None`` if there was none. Valid if ``has_begun``.
        expected: what ``first`` has to be, and what to list instead if it is not: the objects and the token that the
            range before received. ``None`` until that range has ended.
        latest: the first keys of the latest pages.
        last: the last key that was listed.
        samples: some keys of the latest page.
        num_pages: received since ``until`` was set.
        listed: the first and the last key of each page.
        is_recursive: whether to list folders below the prefix.
    """

    after: str = ""
    until: str | None = None
    token: str | None = None
    pages: deque[EntryTable] = field(default_factory=deque)
    is_open: bool = True
    is_in_flight: bool = False
    has_begun: bool = False
    error: BaseException | None = None
    seen: set[str] = field(default_factory=set)
    first: str | None = None
    expected: tuple[str | None, EntryTable, str | None] | None = None
    latest: deque[str] = field(default_factory=lambda: deque(maxlen=RANGE_PAGES))
    last: str = ""
    samples: list[str] = field(default_factory=list)
    num_pages: int = 0
    listed: list[tuple[str, str]] = field(default_factory=list)
    is_recursive: bool = True

    def send(self, store: Lister, prefix: str) -> Page:
        """Request the next page."""
        after = {"after": self.after} if self.after and self.token is None else {}
        return store.list_page(prefix, recursive=self.is_recursive, token=self.token, **after)
