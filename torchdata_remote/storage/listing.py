"""List a prefix page by page, while the next pages are being requested; where there are folders, several at a time.

The pages of one listing are sequential, but a listing can begin after any key. After some pages one request asks for
the names of the folders there. From then on runs of folders are listed concurrently, each as a lane: a range of keys.
The last page of a lane also has a key of the next one, which shows whether the store began that where it was asked to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import queue
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import lt
from os.path import commonprefix

from ..core.options import RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..core.stats.counters import LIST
from ..core.threads.pool import Pool, next_item
from ..core.urls import RemoteUrl, join_url, redact, remote_urls, split_url
from ..errors import StorageError
from .protocol import EntryTable, Page, Store
from .registry import Connection, open_store

MAX_LANES = 16  # requests at a time
PAGES_AHEAD = 8  # of a lane: received, and not yet taken
_PAGES_FOR_EXTRA = 6  # received, for each request that a listing in one piece would not send: at most a fifth more
_PAGES_BEFORE = 5  # taken before the names of folders are asked for
_MIN_FOLDER_KEYS = 20  # on average, or the names of the folders would cost too many requests
_LAST = "\U0010ffff"  # sorts after every name in a folder


def list_folder(url: str, *, recursive: bool, options: StorageOptions, retry: RetryPolicy) -> Iterator[RemoteUrl]:
    """List all objects whose URL begins with ``url``, sorted; there may be none."""
    scheme, bucket, path = split_url(url)
    for page in list_tables(url, path, recursive, options, retry):
        yield from remote_urls(join_url(scheme, bucket, ""), page.paths, page.sizes, page.etags)


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
    with contextlib.closing(_Listing(store, url, prefix, retry, recursive=recursive).pages()) as pages:
        first = next(pages, None)
        if first is None:
            return
        paged: Iterator[EntryTable] = chain([first], pages)
        if not getattr(store, "lists_in_order", True) or first.paths != sorted(first.paths):
            paged = iter([EntryTable.of(sorted(chain.from_iterable(paged)))])
        last = ""
        for page in paged:
            if page.paths[0] <= last or not _is_sorted(page.paths):
                above = [last, *page.paths]
                number = next(number for number, path in enumerate(page.paths) if path <= above[number])
                yield page[:number]
                raise StorageError(
                    f"{redact(url)}: the store lists {page.paths[number]!r} after {above[number]!r}: its pages overlap "
                    "or are not in order, so that objects may be missing or repeated. List again; if the error "
                    "remains, name the objects by a brace range.",
                    url=redact(url),
                )
            last = page.paths[-1]
            yield page


def _is_sorted(paths: list[str]) -> bool:
    return all(map(lt, paths, paths[1:]))


@dataclass(eq=False)
class _Lane:
    """The objects after one path, up to another. One page is requested at a time, some before they are taken.

    Args:
        after: path after which it begins; empty for the first one.
        until: the last path that may belong to it; ``None`` for the last lane.
        token: of the page to be requested.
        pages: with objects, received and not yet taken; each with the token of the next one.
        is_open: whether there may be further pages.
        recent: the paths of the pages that were received last.
        error: of the page that was requested last.
        seen: tokens.
    """

    after: str = ""
    until: str | None = None
    token: str | None = None
    pages: deque[tuple[EntryTable, str | None]] = field(default_factory=deque)
    is_open: bool = True
    is_in_flight: bool = False
    recent: deque[list[str]] = field(default_factory=lambda: deque(maxlen=_PAGES_BEFORE))
    error: BaseException | None = None
    seen: set[str | None] = field(default_factory=set)

    @property
    def last(self) -> str:
        """The last path that was listed, or where the lane begins."""
        return self.recent[-1][-1] if self.recent else self.after


class _Listing:
    """Lists a prefix by lanes. What is not under the lock is used by the consumer only.

    Args:
        store: to be listed.
        url: for errors.
        prefix: of the paths.
        retry: for each request.
        recursive: whether to list folders below the prefix. Otherwise the listing is not divided.
    """

    def __init__(self, store: Store, url: str, prefix: str, retry: RetryPolicy, *, recursive: bool) -> None:
        self._store, self._url, self._prefix, self._retry = store, url, prefix, retry
        self._recursive = recursive
        self._may_divide = recursive and getattr(store, "begins_anywhere", False)
        self._lanes = deque([_Lane()])
        self._pool, self._lock = Pool(MAX_LANES), threading.RLock()
        self._received: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._num_pages = 0  # received
        self._num_extra = 0  # lanes, and requests for names
        self._names, self._names_each = list[str](), 1  # of folders in one folder; how many of them make a lane
        self._asked = set[str]()

    def pages(self) -> Generator[EntryTable, None, None]:
        """Yield the pages that are not empty, in order, while the next ones are being requested."""
        with contextlib.closing(self._pool):
            self._request(self._lanes[0])
            while self._lanes:
                self._wait(self._lanes[0])
                if page := self._take(self._lanes[0]):
                    yield page
                while self._lanes and self._divide():
                    pass

    # Requests

    def _request(self, lane: _Lane) -> None:
        """Request the next page of a lane, unless enough are ahead of the consumer."""

        def drop(error: Exception) -> None:
            lane.error, lane.is_in_flight = error, False
            self._received.put(None)

        with self._lock:
            if lane.is_open and not lane.is_in_flight and len(lane.pages) < PAGES_AHEAD:
                lane.is_in_flight = True
                self._pool.submit(self._fetch, lane, on_dropped=drop)

    def _fetch(self, lane: _Lane) -> None:
        after = {"after": lane.after} if lane.after and lane.token is None else {}
        try:
            page = self._send(
                lambda: self._store.list_page(self._prefix, recursive=self._recursive, token=lane.token, **after),
                self._retry,
            )
            with self._lock:
                self._receive(lane, page)
        except BaseException as error:  # noqa: BLE001  # raised where the page is taken
            lane.error, lane.is_open = error, False
            lane.is_in_flight = False
        self._received.put(None)

    def _send(self, request: Callable[[], Page], retry: RetryPolicy) -> Page:
        started_s = time.perf_counter()
        page = call_with_retries(request, retry, url=self._url, sleep=self._pool.sleep)
        LIST.worked(started_s, 0, items=len(page.entries), requests=1)
        return page

    def _receive(self, lane: _Lane, page: Page) -> None:
        table, token = EntryTable.of(page.entries), page.next_token
        table = table.selected([path.startswith(self._prefix) for path in table.paths])
        if token is not None and token in lane.seen:
            shown = redact(self._url)
            raise StorageError(f"{shown}: the store repeats page {token!r} of its listing.", url=shown)
        lane.seen.add(token)
        lane.token, lane.is_in_flight = token, False
        self._num_pages += 1
        if table:
            lane.pages.append((table, token))
            lane.recent.append(table.paths)
        lane.is_open &= token is not None and (lane.until is None or lane.last <= lane.until)
        self._request(lane)

    # The consumer

    def _wait(self, lane: _Lane) -> None:
        """Wait until a lane has a page, or has ended."""
        while not lane.pages and lane.is_in_flight:
            with LIST.waiting():
                next_item(self._received)

    def _take(self, lane: _Lane) -> EntryTable | None:
        """Return the next page of the first lane; ``None`` if it has ended.

        Raises:
            BaseException: if its request failed.
        """
        with self._lock:
            table, token = lane.pages.popleft() if lane.pages else (EntryTable.of([]), None)
            self._request(lane)
        if not table and lane.error is not None:
            raise lane.error
        kept = len(table) if lane.until is None else bisect_right(table.paths, lane.until)
        if not table or kept < len(table):
            self._lanes.popleft()
            if self._lanes and not (_is_sorted(table.paths) and self._begins_with(self._lanes[0], table.paths[kept:])):
                self._list_in_one_piece(lane.until or "", table[kept:], token)
        return table[:kept]

    def _begins_with(self, lane: _Lane, paths: list[str]) -> bool:
        """Whether the first path of a lane is the one that the lane before it has seen there."""
        self._wait(lane)
        if not lane.pages:
            return lane.error is None and not paths
        return lane.pages[0][0].paths[:1] == paths[:1]

    def _list_in_one_piece(self, after: str, table: EntryTable, token: str | None) -> None:
        """Replace the lanes: the store did not begin where it was asked to, or objects were written meanwhile."""
        with self._lock:
            for lane in self._lanes:
                lane.is_open = False
            self._may_divide = False
            instead = _Lane(after, token=token, is_open=token is not None)
            if table:
                instead.pages.append((table, token))
            self._lanes = deque([instead])
            self._request(instead)

    # Dividing

    def _divide(self) -> bool:
        """Begin a lane ahead of the last one, if it is worth its cost."""
        with self._lock:
            tail, is_first = self._lanes[-1], len(self._lanes) == 1
            recent, is_allowed = list(tail.recent), self._num_extra < self._num_pages // _PAGES_FOR_EXTRA
            if not (self._may_divide and tail.is_open and is_allowed) or len(self._lanes) == MAX_LANES:
                return False
            position = bisect_right(self._names, tail.last)
            ahead = position + self._names_each - (not tail.recent)
            if ahead < len(self._names):
                return self._split(tail, f"{self._names[ahead][:-1]}.{_LAST}")  # before all that is in that folder
        if position < len(self._names) or not recent or (is_first and len(recent) < _PAGES_BEFORE):
            return False
        first, last, keys = recent[0][0], recent[-1][-1], list(chain.from_iterable(recent))
        common = commonprefix([first, last])  # noqa: RUF071  # of keys, which may have empty parts
        folder = common[: common.rfind("/") + 1]
        if "/" not in last[len(folder) :]:
            folder = folder[: folder.rfind("/", 0, -1) + 1]
        inside = {key[: key.find("/", len(folder))] for key in keys}
        is_known = folder in self._asked or not folder.startswith(self._prefix[: self._prefix.rfind("/") + 1])
        if is_known or len(keys) < _MIN_FOLDER_KEYS * len(inside):
            return False
        if len(inside) == 1 and is_first:  # others may be tiny
            return self._split(tail, f"{inside.pop()}/{_LAST}")
        return self._ask(folder, math.ceil(PAGES_AHEAD * len(inside) / len(recent)))

    def _split(self, tail: _Lane, ahead: str) -> bool:
        """End the last lane at a path, which it has not reached, and begin another one there."""
        with self._lock:
            if ahead <= tail.last or not tail.is_open:
                return False
            self._num_extra += 1
            tail.until = ahead
            self._lanes.append(_Lane(ahead))
            self._request(self._lanes[-1])
            return True

    def _ask(self, folder: str, names_each: int) -> bool:
        """Ask for the names of the folders in a folder; whether there are any."""
        self._asked.add(folder)
        self._num_extra += 1
        once = dataclasses.replace(self._retry, max_attempts=1)
        try:
            found = self._send(lambda: self._store.list_page(folder, recursive=False, token=None), once)
        except StorageError:
            self._may_divide = False  # the store may refuse delimiters
            return False
        self._names, self._names_each = sorted(found.folders), names_each
        return bool(self._names)
