"""List a prefix page by page, while the next pages are being requested."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Generator, Iterator
from functools import partial
from itertools import chain
from operator import lt

from ...core.options import RetryPolicy, StorageOptions
from ...core.retry import call_with_retries
from ...core.stats.counters import LIST
from ...core.threads.pool import Pool, PoolClosedError, next_item
from ...core.urls import redact
from ...errors import StorageError
from ..entry_table import EntryTable
from ..protocol import Entry, Page, Store
from ..registry import open_store
from ..transports import Connection
from .folder_names import FolderRequest
from .frontier import MAX_IN_FLIGHT, Frontier
from .key_range import KeyRange


def list_prefix(url: str, prefix: str, recursive: bool, options: StorageOptions, retry: RetryPolicy) -> Iterator[Entry]:
    """Yield the entries that begin with a prefix, as :func:`list_tables` does."""
    return chain.from_iterable(list_tables(url, prefix, recursive, options, retry))


def list_tables(
    url: str, prefix: str, recursive: bool, options: StorageOptions, retry: RetryPolicy
) -> Generator[EntryTable, None, None]:
    """Yield the entries that begin with a prefix page by page, sorted, while later pages are being requested.

    Stores list in the order of paths, and nothing is sorted again. If the first page is not sorted (S3's directory
    buckets), or the store says that it lists in another order, all pages are requested and then sorted.

    Raises:
        StorageError: if pages repeat, or are not in order.
    """
    store, _ = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
    lists_in_order = getattr(store, "lists_in_order", True)
    pages = _pages(store, url, prefix, recursive, retry, may_divide=lists_in_order)
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


def _pages(
    store: Store, url: str, prefix: str, recursive: bool, retry: RetryPolicy, *, may_divide: bool
) -> Generator[EntryTable, None, None]:
    """Yield the pages of a listing that are not empty, in order, while the next ones are being requested.

    The thread that receives a page sends the request for the next one. So pages are requested one after the other at
    the pace of the store, whatever the consumer does with those before them.
    """
    pool = Pool(MAX_IN_FLIGHT)
    frontier, lock = Frontier(url, prefix, recursive=recursive, may_divide=may_divide), threading.RLock()
    received: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def receive(request: KeyRange | FolderRequest, page: Page | BaseException) -> None:
        fault: BaseException | None = None
        try:
            with lock:
                frontier.receive(request, page)
                submit()
        except BaseException as error:  # noqa: BLE001  # raised by the consumer, which would wait forever
            fault = error
        received.put(fault)

    def submit() -> None:
        for request in frontier.next_requests():
            try:
                pool.submit(fetch, request, on_dropped=partial(receive, request))
            except PoolClosedError as error:  # noqa: PERF203  # once for each page
                frontier.receive(request, error)

    def fetch(request: KeyRange | FolderRequest) -> None:
        started_s = time.perf_counter()
        try:
            page = call_with_retries(lambda: request.send(store, prefix), retry, url=url, sleep=pool.sleep)
            LIST.worked(started_s, 0, items=len(page.entries), requests=1)
            page_or_error: Page | BaseException = page
        except BaseException as error:  # noqa: BLE001  # raised where the page is taken
            page_or_error = error
        receive(request, page_or_error)

    try:
        with lock:
            submit()
        while True:
            with lock:
                if not frontier:
                    return
                page = None if frontier.is_waiting else frontier.take()
                if page is not None:
                    submit()
            if page is not None:
                yield page
                continue
            _wait(received)
    finally:
        pool.close()


def _wait(received: queue.SimpleQueue[BaseException | None]) -> None:
    """Wait for a request; raise what went wrong between it and the next ones."""
    with LIST.waiting():
        fault = next_item(received)
    if fault is not None:
        raise fault
