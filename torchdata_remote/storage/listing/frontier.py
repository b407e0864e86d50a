"""Divide the listing of a prefix into ranges of keys, which are listed concurrently.

Only the end of a page contains the token of the next one, so the pages of one listing are sequential. But a listing can
begin after any path. So one whose pages are waited for is divided: a second one begins some pages ahead, and the first
one ends where the second one began (``divider``). The last page of a range also has keys of the next one, which show
whether the store began it where it was asked to.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice

from ...core.urls import redact
from ...errors import StorageError
from ..entry_table import EntryTable
from ..protocol import Page
from .divider import Divider
from .folder_names import FolderRequest
from .key_range import RANGE_PAGES, KeyRange

MAX_IN_FLIGHT = 16
MAX_PAGES_AHEAD = 128  # received or requested before the consumer needs them
MIN_PAGES_AHEAD = 4  # of a consumer that has taken none
PAGES_AHEAD_FOR_A_PAGE = 4  # further ones for each page that was taken
MAX_OBJECTS_AHEAD = 128_000  # the same, where pages are larger than S3's
_NUM_SAMPLES = 16  # keys of a page for a guess


class Frontier:
    """The pages of a listing that were received and not yet taken, and the requests for others. Used under a lock.

    Args:
        url: for errors.
        prefix: of the paths.
        recursive: whether to list folders below it. Otherwise the listing is not divided.
        may_divide: whether the store lists in the order of paths, and can begin after any path.
    """

    def __init__(self, url: str, prefix: str, *, recursive: bool, may_divide: bool = True) -> None:
        self._url, self._prefix = redact(url), prefix
        self._ranges = [KeyRange(is_recursive=recursive)]
        self._may_divide = recursive and may_divide
        self._divider = Divider(self._ranges, prefix)
        self._num_taken = 0  # pages
        self._page_keys = 0  # in the largest page

    def __bool__(self) -> bool:
        """Whether pages are left."""
        self._drop_ended()
        return bool(self._ranges)

    @property
    def is_waiting(self) -> bool:
        """Whether the next page has not been received."""
        return not self._ranges[0].pages and self._ranges[0].error is None

    def take(self) -> EntryTable:
        """Remove and return the next page.

        Raises:
            BaseException: if its request failed.
        """
        first = self._ranges[0]
        if first.pages:
            self._num_taken += 1
            return first.pages.popleft()
        assert first.error is not None
        self._ranges.clear()
        raise first.error

    def next_requests(self) -> Iterator[KeyRange | FolderRequest]:
        """Yield the ranges whose next page is to be requested now. The next page is always requested."""
        self._drop_ended()
        pages = [page for one in self._ranges for page in one.pages]
        in_flight = sum(one.is_in_flight for one in self._ranges) + (self._divider.asking is not None)
        most = min(MAX_PAGES_AHEAD, MIN_PAGES_AHEAD + PAGES_AHEAD_FOR_A_PAGE * self._num_taken)
        room = min(MAX_IN_FLIGHT - in_flight, most - len(pages) - in_flight)
        if pages:
            per_page = max(map(len, pages))
            room = min(room, (MAX_OBJECTS_AHEAD - sum(map(len, pages))) // max(1, per_page) - in_flight)
        number = 0
        while number < len(self._ranges):
            one = self._ranges[number]
            if one.error is not None:
                return  # the listing ends with this error
            if one.is_open and not one.is_in_flight and (room > 0 or (number == 0 and not one.pages)):
                one.is_in_flight = True
                room -= 1
                yield one
            if room > 0 and one.is_open and self._may_divide and len(self._ranges[0].pages) <= 1:
                wanted = self._divider.divide(number, room)
                if wanted is not None:
                    self._divider.asking = wanted
                    room -= 1
                    yield wanted
            number += 1

    def receive(self, request: KeyRange | FolderRequest, page: Page | BaseException) -> None:
        """Store the page, or the error, of a request."""
        self._divider.num_requests += 1
        if isinstance(request, FolderRequest):
            self._divider.asking = None
            self._receive_names(request, page)
            return
        request.is_in_flight = False
        if request not in self._ranges:
            return  # listed by the range before it, too
        if isinstance(page, BaseException):
            self._receive_error(request, page)
            return
        try:
            self._receive_page(request, page)
        except Exception as error:  # noqa: BLE001  # of a page of wrong types; raised where it is taken
            self._end(request, error)

    def _receive_names(self, request: FolderRequest, page: Page | BaseException) -> None:
        self._divider.names.may_ask = False
        if isinstance(page, Page):
            with contextlib.suppress(Exception):  # names of wrong types
                self._divider.names.receive(request, page)
                self._divider.names.may_ask = True

    def _receive_page(self, request: KeyRange, page: Page) -> None:
        table = EntryTable.of(page.entries)
        is_sorted, keys = table.is_sorted(), table.keys
        if not request.has_begun and request.after and keys and not (is_sorted and keys[0] > request.after):
            self._ignores_after(request)
            return
        if not is_sorted or (keys and request.last and keys[0] <= request.last):
            self._list_alone(request)
        if keys and not (is_sorted and keys[0].startswith(self._prefix) and keys[-1].startswith(self._prefix)):
            table = table.selected([path.startswith(self._prefix) for path in table.paths])
        if page.next_token is not None and page.next_token in request.seen:
            self._end(
                request,
                StorageError(f"{self._url}: the store repeats page {page.next_token!r} of its listing.", url=self._url),
            )
            return
        if not request.has_begun and (keys or page.next_token is None):
            request.has_begun, request.first = True, keys[0] if keys else None
            if not self._begins_as_expected(request):
                self._list_instead(request)
                return
            is_empty = request.first is None or (request.until is not None and request.first > request.until)
            self._divider.num_guesses = 1.0 if is_empty else min(self._divider.num_guesses + 0.5, MAX_IN_FLIGHT)
        self._add(request, table, page.next_token)

    def _add(self, request: KeyRange, table: EntryTable, token: str | None, part: float = 1.0) -> None:
        """Add a page, or a part of one, to its range, and end the range where the next one begins."""
        keys, until = table.keys, request.until
        self._page_keys = max(self._page_keys, len(keys))
        if token is None:
            part *= len(keys) / max(1, self._page_keys)
        behind = self._range_behind(request)
        if behind is not None and until is not None and (token is None or (keys and keys[-1] > until)):
            first = bisect_right(keys, until)
            kept, rest = bisect_right(table.paths, until), keys[first] if first < len(keys) else None
            of_next = part * (len(keys) - first) / max(1, len(keys))
            part -= of_next
            behind.expected = rest, table[kept:], token
            behind.latest.extendleft(islice(reversed(request.latest), RANGE_PAGES - len(behind.latest)))
            table = table[:kept]
            request.is_open = False
            is_near = request.num_pages <= RANGE_PAGES // 4
            near, far = 2 * self._divider.min_pages, self._divider.min_pages - 1
            self._divider.min_pages = min(near, RANGE_PAGES) if is_near else max(1, far)
            if not behind.has_begun and not behind.is_in_flight and behind.token is None:
                self._list_instead(behind, of_next)  # nothing was requested
            elif not self._begins_as_expected(behind):
                self._list_instead(behind, of_next)
        elif token is None:
            request.is_open = False
        else:
            request.seen.add(token)
            request.token = token
        self._divider.num_pages += part
        if keys:
            self._divider.names.add_page(request, keys[0], keys[-1])
            request.latest.append(keys[0])
            request.last = keys[-1]
            request.num_pages += 1
            request.samples = keys[:: max(1, len(keys) // _NUM_SAMPLES)]
        if table:
            request.pages.append(table)

    def _begins_as_expected(self, request: KeyRange) -> bool:
        """Whether a range begins with the key that the range before it has seen, as far as both are known."""
        if request.expected is None or not request.has_begun or request.expected[0] == request.first:
            return True
        self._may_divide = False  # the store did not begin where it was asked to, or objects were written meanwhile
        return False

    def _list_instead(self, request: KeyRange, part: float = 1.0) -> None:
        """Replace a range by the pages that follow those of the range before it."""
        assert request.expected is not None
        _, table, token = request.expected
        number = self._ranges.index(request)
        instead = KeyRange(request.after, request.until, has_begun=True, first=request.expected[0])
        self._ranges[number] = instead
        self._add(instead, table, token, part)

    def _list_alone(self, request: KeyRange) -> None:
        """Stop to divide: pages are not in order, so that a path does not tell where a range ends."""
        self._may_divide = False
        request.until = None
        del self._ranges[self._ranges.index(request) + 1 :]

    def _ignores_after(self, request: KeyRange) -> None:
        """Stop to divide: the range before a range lists it, too."""
        self._may_divide = False
        number = self._ranges.index(request)
        if request.expected is not None:
            self._list_instead(request)
            return
        before = self._ranges[number - 1]
        before.until = request.until
        self._ranges.pop(number)

    def _receive_error(self, request: KeyRange, error: BaseException) -> None:
        if isinstance(error, StorageError) and request.after and not request.has_begun:
            self._ignores_after(request)  # a policy or a server may allow one kind of listing only, or fail at others
        else:
            self._end(request, error)

    def _end(self, request: KeyRange, error: BaseException) -> None:
        request.error, request.is_open = error, False

    def _range_behind(self, request: KeyRange) -> KeyRange | None:
        number = self._ranges.index(request) + 1
        return self._ranges[number] if number < len(self._ranges) else None

    def _drop_ended(self) -> None:
        """Remove the ranges at the front whose pages were taken."""
        while self._ranges and not (self._ranges[0].is_open or self._ranges[0].pages or self._ranges[0].error):
            self._ranges.pop(0)
