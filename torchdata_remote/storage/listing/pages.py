"""A prefix to its entries, page by page, the next pages on their way."""

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
    """Entries that begin with a prefix, sorted, handed on while later pages are still coming.

    Stores list in the order of paths. One whose first page is not sorted (S3's directory buckets) is listed to its end
    and sorted here.

    Raises:
        StorageError: if a page comes twice, or out of order.
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
                        "in order, so that objects may be missing or come twice. List again; if it stays so, name the "
                        "objects by a brace range.",
                        url=redact(url),
                    )
                last = entry.path
                yield entry


def _path(entry: Entry) -> str:
    return entry.path


def _dropped(
    request: PageRequest, answers: queue.SimpleQueue[tuple[PageRequest, Page | BaseException]], error: BaseException
) -> None:
    answers.put((request, error))


def _pages(
    url: str, prefix: str, recursive: bool, options: StorageOptions, retry: RetryPolicy
) -> Generator[list[Entry], None, None]:
    """The pages of a listing that are not empty, in order; the next ones are on their way meanwhile."""
    store, _ = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
    pool = Pool(MAX_IN_FLIGHT)
    answers: queue.SimpleQueue[tuple[PageRequest, Page | BaseException]] = queue.SimpleQueue()

    def fetch(request: PageRequest) -> None:
        began_s = time.perf_counter()
        try:
            page = call_with_retries(
                lambda: store.list_page(request.prefix, recursive=request.recursive, token=request.token),
                retry,
                sleep=pool.sleep,
            )
        except BaseException as error:  # noqa: BLE001  # it belongs to whoever lists, whatever it is
            answers.put((request, error))
        else:
            LIST.worked(began_s, 0, items=len(page.entries), requests=1)
            answers.put((request, page))

    frontier = Frontier(url, prefix, recursive=recursive)
    try:
        while frontier:
            for request in frontier.next_requests():
                pool.submit(fetch, request, on_dropped=partial(_dropped, request, answers))
            if frontier.is_waiting or not answers.empty():
                with LIST.waiting():
                    answer = next_item(answers)
                frontier.receive(*answer)
            else:
                yield frontier.take()
    finally:
        pool.close()
