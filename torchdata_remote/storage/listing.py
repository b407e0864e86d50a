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
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from operator import lt
from os.path import commonprefix
from typing import Any

from ..core.background import Mailbox, ReceiverGoneError
from ..core.options import RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..core.stats import LIST
from ..core.threads import Pool, next_item
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
_Received = tuple[EntryTable, str | None] | BaseException  # a page and the token of the next one; or why there is none


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
        first, last = next(pages, None), ""
        paged: Iterable[EntryTable] = chain([first] if first else [], pages)
        if first and not (getattr(store, "lists_in_order", True) and _is_sorted(first.paths)):
            paged = [EntryTable.of(sorted(chain.from_iterable(paged)))]
        for page in paged:
            if page.paths[0] <= last or not _is_sorted(page.paths):
                raise StorageError(
                    f"{redact(url)}: the pages that the store lists after {last!r} overlap or are not in order, so "
                    "that objects may be missing or repeated. List again; if the error remains, name the objects by a "
                    "brace range.",
                    url=redact(url),
                )
            last = page.paths[-1]
            yield page


def _is_sorted(paths: list[str]) -> bool:
    return all(map(lt, paths, paths[1:]))


class _Lane:
    """The objects after one path, up to another. A thread requests its pages one after the other, some ahead.

    Args:
        after: path after which it begins; empty for the first one.
        token: of the page to be requested, if it does not begin there.
    """

    def __init__(self, after: str = "", token: str | None = None, *, is_open: bool = True) -> None:
        self.after, self.token, self.is_open = after, token, is_open  # whether there may be further pages
        self.until: str | None = None  # the last path that may belong to it, if there is a lane behind it
        self.recent: deque[list[str]] = deque(maxlen=_PAGES_BEFORE)  # paths of the pages that were received last
        self.mailbox: Mailbox[_Received] = Mailbox(PAGES_AHEAD - 1)
        self.pages: Iterator[_Received] = filter(_has_objects, self.mailbox.receive(_wait))

    @property
    def last(self) -> str:
        """The last path that was listed, or where the lane begins."""
        return self.recent[-1][-1] if self.recent else self.after


def _has_objects(received: _Received) -> bool:
    return isinstance(received, BaseException) or bool(received[0])


def _wait(items: queue.SimpleQueue[Any]) -> Any:
    with LIST.waiting():
        return next_item(items)


class _Listing:
    """Lists a prefix by lanes. Their threads fetch pages; all else is done by the consumer.

    Args:
        store: to be listed.
        url: for errors.
        prefix: of the paths.
        retry: for each request.
        recursive: whether to list folders below the prefix. Otherwise the listing is not divided.
    """

    def __init__(self, store: Store, url: str, prefix: str, retry: RetryPolicy, *, recursive: bool) -> None:
        self._store, self._url, self._prefix, self._retry = store, url, prefix, retry
        self._recursive = self._may_divide = recursive
        self._lanes: deque[_Lane] = deque()
        self._pool = Pool(MAX_LANES)
        self._num_pages = 0  # received; threads add to it without a lock, since about is enough
        self._num_extra = 0  # lanes, and requests for names
        self._names, self._names_each = list[str](), 1  # of folders in one folder; how many of them make a lane
        self._asked = set[str]()

    def pages(self) -> Generator[EntryTable, None, None]:
        """Yield the pages that are not empty, in order, while the next ones are being requested."""
        try:
            self._begin(_Lane())
            while self._lanes:
                if page := self._take(self._lanes[0]):
                    yield page
                while self._lanes and self._divide():
                    pass
        finally:
            self._stop()
            self._pool.close()

    def _begin(self, lane: _Lane) -> None:
        self._lanes.append(lane)
        self._pool.submit(self._list, lane, on_dropped=None)

    def _stop(self) -> None:
        for lane in self._lanes:
            lane.mailbox.refuse()
        self._lanes.clear()

    # Threads

    def _list(self, lane: _Lane, dropped: BaseException | None = None) -> None:
        with contextlib.suppress(ReceiverGoneError):
            try:
                if dropped is not None:
                    raise dropped
                while lane.is_open:
                    lane.mailbox.put((self._page(lane), lane.token))  # or notice that its reader has ended
                lane.mailbox.end()
            except ReceiverGoneError:
                raise
            except BaseException as error:  # noqa: BLE001  # raised where the page is taken
                lane.is_open = False
                lane.mailbox.put(error, 0)

    def _page(self, lane: _Lane) -> EntryTable:
        after = {"after": lane.after} if lane.after and lane.token is None else {}
        page = self._send(
            lambda: self._store.list_page(self._prefix, recursive=self._recursive, token=lane.token, **after),
            self._retry,
        )
        if lane.token is not None and lane.token == page.next_token:
            url = redact(self._url)
            raise StorageError(f"{url}: the store repeats page {lane.token!r} of its listing.", url=url)
        table = EntryTable.of(page.entries)
        table = table.selected([path.startswith(self._prefix) for path in table.paths])
        if table:
            lane.recent.append(table.paths)
        lane.token = page.next_token
        lane.is_open = lane.token is not None and (lane.until is None or lane.last <= lane.until)
        return table

    def _send(self, request: Callable[[], Page], retry: RetryPolicy) -> Page:
        started_s = time.perf_counter()
        page = call_with_retries(request, retry, url=self._url, sleep=self._pool.sleep)
        self._num_pages += 1
        LIST.worked(started_s, 0, items=len(page.entries), requests=1)
        return page

    # The consumer

    def _take(self, lane: _Lane) -> EntryTable:
        """Return the next page of the first lane, which is empty where it has ended.

        Raises:
            BaseException: if its request failed.
        """
        received = next(lane.pages, None)
        if isinstance(received, BaseException):
            raise received
        table, token = received or (EntryTable.of([]), None)
        kept = len(table) if lane.until is None else bisect_right(table.paths, lane.until)
        if received is None or kept < len(table):
            self._lanes.popleft().mailbox.refuse()
            if self._lanes and not (_is_sorted(table.paths) and self._next_begins_with(table.paths[kept:])):
                self._stop()
                self._may_divide = False
                self._begin(_Lane(token=token, is_open=token is not None))
                self._lanes[0].pages = chain([(table[kept:], token)], self._lanes[0].pages)
        return table[:kept]

    def _next_begins_with(self, paths: list[str]) -> bool:
        """Whether the first path of the first lane is the one that the lane before it has seen there.

        If not, the store did not begin where it was asked to, or objects were written meanwhile.
        """
        received = next(self._lanes[0].pages, None)
        if not isinstance(received, tuple):
            return not (received or paths)
        self._lanes[0].pages = chain([received], self._lanes[0].pages)
        return received[0].paths[:1] == paths[:1]

    def _divide(self) -> bool:
        """Begin a lane ahead of the last one, if it is worth its cost."""
        tail, is_first = self._lanes[-1], len(self._lanes) == 1
        may_divide = self._may_divide and tail.is_open and getattr(self._store, "begins_anywhere", False)
        if not may_divide or self._num_extra >= self._num_pages // _PAGES_FOR_EXTRA or len(self._lanes) == MAX_LANES:
            return False
        recent, position = list(tail.recent), bisect_right(self._names, tail.last)
        ahead = position + self._names_each - (not recent)
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
        self._asked.add(folder)
        self._num_extra += 1
        once = dataclasses.replace(self._retry, max_attempts=1)  # the listing goes on without an answer
        try:
            found = self._send(lambda: self._store.list_page(folder, recursive=False, token=None), once)
        except StorageError:
            self._may_divide = False  # the store may refuse delimiters
            return False
        self._names, self._names_each = sorted(found.folders), math.ceil(PAGES_AHEAD * len(inside) / len(recent))
        return bool(self._names)

    def _split(self, tail: _Lane, ahead: str) -> bool:
        """End the last lane at a path that it has not reached, and begin another one there."""
        if ahead <= tail.last:
            return False
        self._num_extra += 1
        tail.until = ahead
        self._begin(_Lane(ahead))
        return True
