"""Divide the listing of a prefix into ranges of keys, which are listed concurrently.

Only the end of a page contains the token of the next one, so the pages of one listing are sequential. But a listing can
begin after any path. So one whose pages are waited for is divided: a second one begins some pages ahead, at a key that
is guessed from those that were listed (``key_space``), and the first one ends where the second one began.

Each range costs one request more than a listing in one piece, because its last page contains keys of the next range, or
none. Ranges are therefore begun only as the number of full pages grows: there is one further request for five pages at
most, whatever the layout of the keys and however wrong the guesses are. Those keys of the next range also show whether
the store began it where it was asked to.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice

from ...core.urls import redact
from ...errors import StorageError, TransientStorageError
from ..entry_table import EntryTable
from ..protocol import Page
from .folder_names import FolderNames, FolderRequest
from .key_range import RANGE_PAGES, KeyRange
from .key_space import key_ahead

MAX_IN_FLIGHT = 16
MAX_PAGES_AHEAD = 128  # received or requested before the consumer needs them
MIN_PAGES_AHEAD = 4
PAGES_AHEAD_FOR_A_PAGE = 4
MAX_OBJECTS_AHEAD = 128_000  # the same, where pages are larger than S3's
PAGES_FOR_A_RANGE = 5
_MAX_RANGE = 1.5 * RANGE_PAGES  # longer ones are divided
_MIN_RANGE = 3
_SPAN = 4 * RANGE_PAGES  # of a range, while there are few
_NUM_SAMPLES = 16  # keys of a page for a guess


class Frontier:
    """The pages of a listing that were received and not yet taken, and the requests for others. Used under a lock.

    Args:
        url: for errors.
        prefix: of the paths.
        recursive: whether to list folders below it. Otherwise the listing is not divided.
    """

    def __init__(self, url: str, prefix: str, *, recursive: bool) -> None:
        self._url, self._prefix = redact(url), prefix
        self._ranges = [KeyRange(is_recursive=recursive)]
        self._may_divide = recursive
        self._num_requests = 0  # received
        self._num_pages = 0.0  # of a listing in one piece, with the same keys
        self._names = FolderNames(prefix)
        self._asking: FolderRequest | None = None
        self._num_splits = 0
        self._num_taken = 0
        self._page_keys = 0
        self._num_guesses = 1.0  # to make at once: more, the more of the latest ones were right
        self._min_pages = 1  # for a guess: more, the more of the latest ones were too near

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
        in_flight = sum(one.is_in_flight for one in self._ranges) + (self._asking is not None)
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
                wanted = self._divide(number, room)
                if wanted is not None:
                    self._asking = wanted
                    room -= 1
                    yield wanted
            number += 1

    def receive(self, request: KeyRange | FolderRequest, page: Page | BaseException) -> None:
        """Store the page, or the error, of a request."""
        self._num_requests += 1
        if isinstance(request, FolderRequest):
            self._asking = None
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
        self._names.may_ask = False
        if isinstance(page, Page):
            with contextlib.suppress(Exception):  # names of wrong types
                self._names.receive(request, page)
                self._names.may_ask = True

    def _receive_page(self, request: KeyRange, page: Page) -> None:
        table = EntryTable.of(page.entries)
        is_sorted = table.is_sorted()
        if not is_sorted:
            self._may_divide = False
        keys = table.keys
        if not request.has_begun and request.after and keys and not (is_sorted and keys[0] > request.after):
            self._ignores_after(request)
            return
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
            self._num_guesses = 1.0 if is_empty else min(self._num_guesses + 0.5, MAX_IN_FLIGHT)
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
            self._min_pages = min(2 * self._min_pages, RANGE_PAGES) if is_near else max(1, self._min_pages - 1)
            if not behind.has_begun and not behind.is_in_flight and behind.token is None:
                self._list_instead(behind, of_next)  # nothing was requested
            elif not self._begins_as_expected(behind):
                self._list_instead(behind, of_next)
        elif token is None:
            request.is_open = False
        else:
            request.seen.add(token)
            request.token = token
        self._num_pages += part
        if keys:
            self._names.add_page(request, keys[0], keys[-1])
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
        refused = isinstance(error, StorageError) and not isinstance(error, TransientStorageError)
        if refused and request.after and not request.has_begun:
            self._ignores_after(request)  # a policy or a server may allow one kind of listing only
        else:
            self._end(request, error)

    def _end(self, request: KeyRange, error: BaseException) -> None:
        request.error, request.is_open = error, False

    def _range_behind(self, request: KeyRange) -> KeyRange | None:
        number = self._ranges.index(request) + 1
        return self._ranges[number] if number < len(self._ranges) else None

    def _may_spend(self) -> bool:
        """Whether a further request is in the bound. Each range but the last one may end with a page in vain."""
        num_open = sum(one.is_open for one in self._ranges) - self._ranges[-1].is_open
        spent = self._num_requests - self._num_pages + num_open + (self._asking is not None)
        return spent + 1 <= self._num_pages // PAGES_FOR_A_RANGE + 1e-6

    def _divide(self, number: int, room: int) -> FolderRequest | None:
        """Begin ranges some pages ahead of another one; or return the request for names that this needs."""
        one = self._ranges[number]
        if not self._may_spend():
            return None
        steps, left = self._names.steps(one)
        num_open = sum(one.is_open for one in self._ranges)
        wanted = max(RANGE_PAGES, _SPAN / num_open)
        if left is not None:
            wanted = min(wanted, left / 2)
            if wanted < _MIN_RANGE:
                return None
        if steps:
            name, pages = min(steps, key=lambda step: abs(step[1] - wanted))
            if pages >= _MIN_RANGE and (left is not None or pages >= wanted / 2):
                if pages <= max(_MAX_RANGE, 2 * wanted):
                    self._split(number, name)
                    return None
        if left is not None and left <= _MAX_RANGE:
            return None
        if self._asking is None and self._num_splits:
            request = self._names.wanted_by(one, next((first.last for first in self._ranges if first.last), ""))
            if request is not None:
                return request
        if self._asking is None:
            distance = RANGE_PAGES if left is None else min(RANGE_PAGES, wanted)
            self._guess(number, min(room, int(self._num_guesses)), steps[0][0] if steps else None, distance)
        return None

    def _guess(self, number: int, num_guesses: int, name: str | None, pages: float) -> None:
        """Begin ranges at keys that are guessed, but not behind the name of a folder."""
        one = self._ranges[number]
        if len(one.latest) < self._min_pages or not one.last:
            return
        times, until = pages / len(one.latest), one.until
        for further in range(1, num_guesses + 1):
            if not self._may_spend():
                return
            ahead = key_ahead(one.latest[0], one.last, times * further, one.samples, self._prefix)
            if name is not None and (ahead is None or ahead >= name):
                ahead = name
            before = self._ranges[number]
            if ahead is None or ahead <= max(before.after, before.last) or (until is not None and ahead >= until):
                return
            self._split(number, ahead)
            if ahead == name:
                return
            number += 1

    def _split(self, number: int, ahead: str) -> None:
        before = self._ranges[number]
        self._num_splits += 1
        self._ranges.insert(number + 1, KeyRange(ahead, before.until))
        before.until, before.num_pages = ahead, 0

    def _drop_ended(self) -> None:
        """Remove the ranges at the front whose pages were taken."""
        while self._ranges and not (self._ranges[0].is_open or self._ranges[0].pages or self._ranges[0].error):
            self._ranges.pop(0)
