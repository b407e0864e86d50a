"""List a prefix page by page, while the next pages are being requested."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Generator, Iterator
from functools import partial
from itertools import chain

from ...core.options import RetryPolicy, StorageOptions
from ...core.retry import call_with_retries
from ...core.stats.counters import LIST
from ...core.threads.pool import Pool, next_item
from ...core.urls import redact
from ...errors import StorageError
from ..protocol import Entry, Page
from ..registry import Connection, open_store
from .frontier import MAX_IN_FLIGHT, Frontier, PageRequest


def list_prefix(url: str, prefix: str, recursive: bool, options: StorageOptions, retry: RetryPolicy) -> Iterator[Entry]:
    """Yield the entries that begin with a prefix, sorted, while later pages are being requested.

    Stores list in the order of paths. If the first page is not sorted (S3's directory buckets), all pages are
    requested and then sorted.

    Raises:
        StorageError: if pages repeat, or are not in order.
    """
    pages = _pages(url, prefix, recursive, options, retry)
    with contextlib.closing(pages):
        first = next(pages, [])
        paged: Iterator[list[Entry]] = chain([first], pages)
        if first != sorted(first, key=_path):
            paged = iter([sorted(chain.from_iterable(paged), key=_path)])
        last = ""
        for page in paged:
            for entry in page:
                if entry.path <= last:
                    raise StorageError(
                        f"{redact(url)}: the store lists {entry.path!r} after {last!r}: its pages overlap or are not "
                        "in order, so that objects may be missing or repeated. List again; if the error remains, name "
                        "the objects by a brace range.",
                        url=redact(url),
                    )
                last = entry.path
                yield entry


def _path(entry: Entry) -> str:
    return entry.path


def _dropped(
    request: PageRequest, responses: queue.SimpleQueue[tuple[PageRequest, Page | BaseException]], error: BaseException
) -> None:
    responses.put((request, error))


def _pages(
    url: str, prefix: str, recursive: bool, options: StorageOptions, retry: RetryPolicy
) -> Generator[list[Entry], None, None]:
    """Yield the pages of a listing that are not empty, in order, while the next ones are being requested."""
    store, _ = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
    pool = Pool(MAX_IN_FLIGHT)
    responses: queue.SimpleQueue[tuple[PageRequest, Page | BaseException]] = queue.SimpleQueue()

    def fetch(request: PageRequest) -> None:
        started_s = time.perf_counter()
        try:
            page = call_with_retries(
                lambda: store.list_page(request.prefix, recursive=request.recursive, token=request.token),
                retry,
                url=url,
                sleep=pool.sleep,
            )
        except BaseException as error:  # noqa: BLE001  # raised where the page is taken
            responses.put((request, error))
        else:
            LIST.worked(started_s, 0, items=len(page.entries), requests=1)
            responses.put((request, page))

    frontier = Frontier(url, prefix, recursive=recursive)
    try:
        while frontier:
            for request in frontier.next_requests():
                pool.submit(fetch, request, on_dropped=partial(_dropped, request, responses))
            if frontier.is_waiting or not responses.empty():
                with LIST.waiting():
                    response = next_item(responses)
                frontier.receive(*response)
            else:
                yield frontier.take()
    finally:
        pool.close()
