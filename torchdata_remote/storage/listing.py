"""List a prefix page by page, while the next pages are being requested; where there are folders, several at a time.

The pages of one listing are sequential, but a listing can begin after any key. After some pages one request asks for
the names of the folders there. From then on runs of folders are listed concurrently, each as a range of keys. The last
page of a range also has keys of the next one, which show whether the store began it where it was asked to.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import lt
from os.path import commonprefix

from ..core.options import RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..core.stats.counters import LIST
from ..core.threads.pool import Pool, PoolClosedError, next_item
from ..core.urls import RemoteUrl, join_url, redact, remote_urls, split_url
from ..errors import StorageError
from .entry_table import EntryTable
from .protocol import Entry, Page, Store
from .registry import open_store
from .transports import Connection

MAX_IN_FLIGHT = 16
MAX_PAGES_AHEAD = 128  # received or requested before the consumer needs them
MIN_PAGES_AHEAD = 4  # of a consumer that has taken none
PAGES_AHEAD_FOR_A_PAGE = 4  # further ones for each page that was taken
MAX_OBJECTS_AHEAD = 128_000  # the same, where pages are larger than S3's
_PAGES_FOR_A_RANGE = 5  # each range, and each request for names, costs a request more than a listing in one piece
_RANGE_PAGES = 8  # of a range of folders
_MIN_FOLDER_KEYS = 20  # on average, or the names of the folders would cost too many requests
_LAST = "\U0010ffff"  # sorts after every name in a folder


def list_folder(url: str, *, recursive: bool, options: StorageOptions, retry: RetryPolicy) -> Iterator[RemoteUrl]:
    """List all objects whose URL begins with ``url``, sorted; there may be none."""
    scheme, bucket, path = split_url(url)
    for page in list_tables(url, path, recursive, options, retry):
        yield from remote_urls(join_url(scheme, bucket, ""), page.paths, page.sizes, page.etags)


def list_prefix(url: str, prefix: str, recursive: bool, options: StorageOptions, retry: RetryPolicy) -> Iterator[Entry]:
    """Yield the entries that begin with a prefix, as :func:`list_tables` does."""
    return chain.from_iterable(list_tables(url, prefix, recursive, options, retry))


def list_tables(
    url: str, prefix: str, recursive: bool, options: StorageOptions, retry: RetryPolicy, *, by_obstore: bool = True
) -> Generator[EntryTable, None, None]:
    """Yield the entries that begin with a prefix page by page, sorted, while later pages are being requested.

    Stores list in the order of paths, and nothing is sorted again. If the first page is not sorted, or the store says
    that it lists in another order, all pages are requested and then sorted.

    Args:
        url: of the store.
        prefix: of the paths.
        recursive: whether folders below it are entered.
        options: for the store.
        retry: applied to each page.
        by_obstore: whether obstore may be used, after which children that are forked cannot use it.

    Raises:
        StorageError: if pages repeat, or are not in order.
    """
    store, _ = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
    store = store if by_obstore else getattr(store, "without_obstore", store)
    lists_in_order = getattr(store, "lists_in_order", True)
    pages = _pages(store, url, _Listing(redact(url), prefix, store, recursive=recursive), retry)
    with contextlib.closing(pages):
        first = next(pages, None)
        if first is None:
            return
        paged: Iterator[EntryTable] = chain([first], pages)
        if not lists_in_order or first.paths != sorted(first.paths):
            paged = iter([EntryTable.of(sorted(chain.from_iterable(paged), key=_path))])
        last = ""
        for page in paged:
            paths = page.paths
            if paths[0] <= last or not all(map(lt, paths, paths[1:])):
                above = [last, *paths]
                number = next(number for number, path in enumerate(paths) if path <= above[number])
                yield page[:number]
                raise StorageError(
                    f"{redact(url)}: the store lists {paths[number]!r} after {above[number]!r}: its pages overlap or "
                    "are not in order, so that objects may be missing or repeated. List again; if the error remains, "
                    "name the objects by a brace range.",
                    url=redact(url),
                )
            last = paths[-1]
            yield page


def _path(entry: Entry) -> str:
    return entry.path


def _pages(store: Store, url: str, listing: _Listing, retry: RetryPolicy) -> Generator[EntryTable, None, None]:
    """Yield the pages of a listing that are not empty, in order, while the next ones are being requested."""
    with contextlib.closing(_Requests(store, url, listing, retry)) as requests:
        requests.submit()
        while True:
            is_left, page = requests.take()
            if page is not None:
                yield page
            elif is_left:
                requests.wait()
            else:
                return


class _Requests:
    """Sends the requests of a listing in threads.

    The thread that receives a page sends the request for the next one. So pages are requested one after the other at
    the pace of the store, whatever the consumer does with those before them.

    Args:
        store: to be listed.
        url: for errors.
        listing: that makes the requests.
        retry: for each of them.
    """

    def __init__(self, store: Store, url: str, listing: _Listing, retry: RetryPolicy) -> None:
        self._store, self._url, self._listing, self._retry = store, url, listing, retry
        self._pool, self._lock = Pool(MAX_IN_FLIGHT), threading.RLock()
        self._received: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def close(self) -> None:
        self._pool.close()

    def submit(self) -> None:
        """Send the requests that are to be sent now."""
        with self._lock:
            for request in self._listing.next_requests():
                try:
                    self._pool.submit(self._fetch, request, on_dropped=partial(self._receive, request))
                except PoolClosedError as error:  # noqa: PERF203  # once for each page
                    request.receive(error)

    def take(self) -> tuple[bool, EntryTable | None]:
        """Return whether pages are left, and the next one if it was received."""
        with self._lock:
            page = self._listing.take() if self._listing else None
            if page is not None:
                self.submit()
            return bool(self._listing), page

    def wait(self) -> None:
        """Wait until a request was received."""
        with LIST.waiting():
            fault = next_item(self._received)
        if fault is not None:
            raise fault

    def _fetch(self, request: _Request) -> None:
        started_s = time.perf_counter()
        try:
            page = call_with_retries(
                lambda: request.send(self._store), self._retry, url=self._url, sleep=self._pool.sleep
            )
            LIST.worked(started_s, 0, items=len(page.entries), requests=1)
            page_or_error: Page | BaseException = page
        except BaseException as error:  # noqa: BLE001  # raised where the page is taken
            page_or_error = error
        self._receive(request, page_or_error)

    def _receive(self, request: _Request, page: Page | BaseException) -> None:
        fault: BaseException | None = None
        try:
            with self._lock:
                request.receive(page)
                self.submit()
        except BaseException as error:  # noqa: BLE001  # raised by the consumer, which would wait forever
            fault = error
        self._received.put(fault)


@dataclass
class _Request:
    """A request of a listing, and what to do with its page or error."""

    send: Callable[[Store], Page]
    receive: Callable[[Page | BaseException], None]


@dataclass(eq=False)
class _Range:
    """A part of a listing: the objects after one path, up to another. One page is requested at a time.

    Args:
        after: path after which it begins; empty for the first one.
        until: the last path that may belong to it; ``None`` for the last range.
        token: of the page to be requested.
        first: the first key that was listed after ``after``; ``None`` if there was none. Valid if ``has_begun``.
        expected: what ``first`` has to be, and what to list instead if it is not: the objects and the token that the
            range before received. ``None`` until that range has ended.
        latest: the keys of the latest pages.
        num_pages: received.
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
    latest: deque[list[str]] = field(default_factory=lambda: deque(maxlen=_PAGES_FOR_A_RANGE))
    num_pages: int = 0

    @property
    def last(self) -> str:
        """The last key that was listed, or where the range begins."""
        return self.latest[-1][-1] if self.latest else self.after


class _Listing:
    """The pages that were received and not yet taken, and the requests for others. Used under a lock.

    Args:
        url: for errors.
        prefix: of the paths.
        store: to be listed.
        recursive: whether to list folders below the prefix. Otherwise the listing is not divided.
    """

    def __init__(self, url: str, prefix: str, store: Store, *, recursive: bool) -> None:
        self._url, self._prefix, self._recursive = url, prefix, recursive
        self._ranges = [_Range()]
        self._may_divide = recursive and getattr(store, "begins_anywhere", False)
        self._num_taken = 0  # pages
        self._num_pages = 0  # received
        self._num_extra = 0  # requests for names, and ranges
        self._names = list[str]()  # of folders in one folder
        self._num_passed, self._passed_pages = 0, 0.0  # of these folders
        self._asked = set[str]()
        self._is_asking = False

    def __bool__(self) -> bool:
        """Whether pages are left."""
        while self._ranges and not (self._ranges[0].is_open or self._ranges[0].pages or self._ranges[0].error):
            self._ranges.pop(0)
        return bool(self._ranges)

    def take(self) -> EntryTable | None:
        """Remove and return the next page; ``None`` if it was not received.

        Raises:
            BaseException: if its request failed.
        """
        first = self._ranges[0]
        if first.pages:
            self._num_taken += 1
            return first.pages.popleft()
        if first.error is not None:
            self._ranges.clear()
            raise first.error
        return None

    def next_requests(self) -> Iterator[_Request]:
        """Yield the requests to be sent now. The next page of the first range is always requested."""
        if not self:
            return
        pages = [page for one in self._ranges for page in one.pages]
        in_flight = sum(one.is_in_flight for one in self._ranges) + self._is_asking
        most = min(MAX_PAGES_AHEAD, MIN_PAGES_AHEAD + PAGES_AHEAD_FOR_A_PAGE * self._num_taken)
        room = min(MAX_IN_FLIGHT - in_flight, most - len(pages) - in_flight)
        if pages:
            room = min(room, (MAX_OBJECTS_AHEAD - sum(map(len, pages))) // max(map(len, pages)) - in_flight)
        number = 0
        while number < len(self._ranges):
            one = self._ranges[number]
            if one.error is not None:
                return  # the listing ends with this error
            if one.is_open and not one.is_in_flight and (room > 0 or (number == 0 and not one.pages)):
                one.is_in_flight = True
                room -= 1
                yield _Request(partial(self._send, one), partial(self._receive, one))
            number += 1
            if room > 0 and number == len(self._ranges) and (request := self._divide(one)) is not None:
                room -= 1
                yield request

    def _send(self, one: _Range, store: Store) -> Page:
        after = {"after": one.after} if one.after and one.token is None else {}
        return store.list_page(self._prefix, recursive=self._recursive, token=one.token, **after)

    # Dividing

    def _divide(self, tail: _Range) -> _Request | None:
        """Begin a range ahead of the last one, or return the request for names of folders that this needs."""
        allowed = self._num_extra < self._num_pages // _PAGES_FOR_A_RANGE
        if not (self._may_divide and tail.is_open and allowed) or self._is_asking:
            return None
        position = bisect_right(self._names, tail.last)
        pages_each = self._passed_pages / max(1, self._num_passed)
        ahead = position + max(1, math.ceil(_RANGE_PAGES / max(pages_each, 0.001))) - bool(tail.latest)
        if ahead < len(self._names):
            self._split(tail, _before_folder(self._names[ahead]))
            return None
        if position < len(self._names):
            return None  # the folders that are left are few pages
        return self._ask(tail)

    def _split(self, tail: _Range, ahead: str) -> None:
        if ahead > tail.last:
            self._num_extra += 1
            tail.until = ahead
            self._ranges.append(_Range(ahead))

    def _ask(self, tail: _Range) -> _Request | None:
        """Return the request for the names of folders, if the latest pages say that it is worth its cost."""
        is_probe = self._ranges[0] is not tail
        if not tail.latest or (len(tail.latest) < _PAGES_FOR_A_RANGE and not is_probe):
            return None
        first, last = tail.latest[0][0], tail.last
        common = commonprefix([first, last])  # noqa: RUF071  # of keys, which may have empty parts
        folder = common[: common.rfind("/") + 1]
        if "/" not in last[len(folder) :]:
            folder = folder[: folder.rfind("/", 0, -1) + 1]
        if folder in self._asked or not folder.startswith(self._prefix[: self._prefix.rfind("/") + 1]):
            return None
        keys = [key for page in tail.latest for key in page]
        inside = {key[: key.find("/", len(folder))] for key in keys}
        if len(keys) < _MIN_FOLDER_KEYS * len(inside):
            return None
        if len(inside) == 1 and not is_probe:  # others may be tiny
            self._split(tail, f"{inside.pop()}/{_LAST}")
            return None
        self._asked.add(folder)
        self._is_asking = True
        self._num_extra += 1
        self._num_passed, self._passed_pages = len(inside), float(len(tail.latest))
        send = partial(_ask_for_folders, folder)
        return _Request(send, self._receive_names)

    def _receive_names(self, page: Page | BaseException) -> None:
        self._is_asking = False
        if isinstance(page, Page):
            self._names = sorted(page.folders)
        else:
            self._may_divide = False  # the store may refuse delimiters

    # Pages

    def _receive(self, one: _Range, page: Page | BaseException) -> None:
        one.is_in_flight = False
        if one not in self._ranges:
            return  # listed by the range before it, too
        try:
            if isinstance(page, BaseException):
                raise page
            self._receive_page(one, page)
        except BaseException as error:  # noqa: BLE001  # raised where it is taken
            if isinstance(error, StorageError) and one.after and not one.has_begun:
                self._list_before(one)  # a policy may allow one kind of listing only
            else:
                one.error, one.is_open = error, False

    def _receive_page(self, one: _Range, page: Page) -> None:
        table = EntryTable.of(page.entries)
        self._num_pages += 1
        keys, is_sorted = table.keys, table.is_sorted()
        if not one.has_begun and one.after and keys and not (is_sorted and keys[0] > one.after):
            self._list_before(one)
            return
        if not is_sorted or (keys and one.latest and keys[0] <= one.last):
            self._may_divide, one.until = False, None  # a path does not tell where a range ends
            del self._ranges[self._ranges.index(one) + 1 :]
        if keys and not (is_sorted and keys[0].startswith(self._prefix) and keys[-1].startswith(self._prefix)):
            table = table.selected([path.startswith(self._prefix) for path in table.paths])
        if page.next_token is not None and page.next_token in one.seen:
            what = f"the store repeats page {page.next_token!r} of its listing"
            raise StorageError(f"{self._url}: {what}.", url=self._url)
        if not one.has_begun and (keys or page.next_token is None):
            one.has_begun, one.first = True, keys[0] if keys else None
            if not self._begins_as_expected(one):
                self._list_instead(one)
                return
        self._add(one, table, page.next_token)

    def _add(self, one: _Range, table: EntryTable, token: str | None) -> None:
        """Add a page, or a part of one, to its range, and end the range where the next one begins."""
        keys, until = table.keys, one.until
        one.is_open = token is not None
        if until is not None and (token is None or (keys and keys[-1] > until)):
            behind = self._ranges[self._ranges.index(one) + 1]
            first, kept = bisect_right(keys, until), bisect_right(table.paths, until)
            behind.expected = keys[first] if first < len(keys) else None, table[kept:], token
            table, keys = table[:kept], keys[:first]
            one.is_open = False
            if (not behind.has_begun and not behind.is_in_flight) or not self._begins_as_expected(behind):
                self._list_instead(behind)
        elif token is not None:
            one.seen.add(token)
            one.token = token
        if keys:
            self._num_passed += bisect_right(self._names, keys[-1]) - bisect_right(self._names, one.last)
            self._passed_pages += 1
            one.latest.append(keys)
            one.num_pages += 1
        if table:
            one.pages.append(table)

    def _begins_as_expected(self, one: _Range) -> bool:
        """Whether a range begins with the key that the range before it has seen, as far as both are known."""
        if one.expected is None or not one.has_begun or one.expected[0] == one.first:
            return True
        self._may_divide = False  # the store did not begin where it was asked to, or objects were written meanwhile
        return False

    def _list_instead(self, one: _Range) -> None:
        """Replace a range by the pages that follow those of the range before it."""
        assert one.expected is not None
        first, table, token = one.expected
        instead = _Range(one.after, one.until, has_begun=True, first=first)
        self._ranges[self._ranges.index(one)] = instead
        self._add(instead, table, token)

    def _list_before(self, one: _Range) -> None:
        """Stop to divide: the store did not begin where it was asked to, and the range before lists it, too."""
        self._may_divide = False
        number = self._ranges.index(one)
        if one.expected is not None:
            self._list_instead(one)
            return
        self._ranges[number - 1].until = one.until
        self._ranges.pop(number)


def _before_folder(name: str) -> str:
    """Return a text that sorts before all keys in a folder, and behind its neighbours; without a slash at its end."""
    return f"{name[:-1]}.{_LAST}"


def _ask_for_folders(folder: str, store: Store) -> Page:
    return store.list_page(folder, recursive=False, token=None)
