"""A prefix to its entries, page by page, the next page on its way."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Generator, Iterator
from itertools import chain

from ..errors import StorageError
from ..options import RetryPolicy, StorageOptions
from ..pool import Pool, next_item
from ..retry import call_with_retries
from ..urls import redact
from . import Connection, open_store
from ._protocol import Entry, Page


def list_prefix(url: str, prefix: str, recursive: bool, options: StorageOptions, retry: RetryPolicy) -> Iterator[Entry]:
    """Entries that begin with a prefix, sorted, handed on while later pages are still coming.

    Stores list in the order of paths. One whose first page is not sorted (S3's directory buckets) is listed to its end
    and sorted here.

    Raises:
        StorageError: if a page comes twice, or out of order.
    """
    pages = _pages(url, prefix, recursive, options, retry)
    with contextlib.closing(pages):
        first, is_last = next(pages)
        paged: Iterator[list[Entry]] = chain([first], (page for page, _ in pages))
        if is_last or first != sorted(first, key=_path):
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


def _pages(
    url: str, prefix: str, recursive: bool, options: StorageOptions, retry: RetryPolicy
) -> Generator[tuple[list[Entry], bool], None, None]:
    """The pages of a listing, and whether each is the last one; the next one is on its way meanwhile."""
    store, _ = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
    pool = Pool(1)
    answers: queue.SimpleQueue[Page | BaseException] = queue.SimpleQueue()

    def ask(token: str | None) -> None:
        try:
            answers.put(
                call_with_retries(
                    lambda: store.list_page(prefix, recursive=recursive, token=token), retry, sleep=pool.sleep
                )
            )
        except BaseException as error:  # noqa: BLE001  # it belongs to whoever lists, whatever it is
            answers.put(error)

    seen: set[str] = set()
    try:
        pool.submit(ask, None)
        while True:
            page = next_item(answers)
            if isinstance(page, BaseException):
                raise page
            token = page.next_token
            if token is not None:
                if token in seen:
                    raise StorageError(
                        f"{redact(url)}: the store repeats page {token!r} of its listing.", url=redact(url)
                    )
                seen.add(token)
                pool.submit(ask, token)
            yield [entry for entry in page.entries if entry.path.startswith(prefix)], token is None
            if token is None:
                return
    finally:
        pool.close()
