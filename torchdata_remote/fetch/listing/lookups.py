"""Look up the objects that source URLs name one by one: one request for each, several at a time."""

from __future__ import annotations

import queue
import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from typing import NamedTuple, TypeGuard

from ...core.object_version import split_version
from ...core.options import RetryPolicy, StorageOptions
from ...core.retry import call_with_retries
from ...core.stats.counters import LIST
from ...core.threads.pool import Pool, PoolClosedError, next_item
from ...core.urls import HTTP, LOCAL, RemoteUrl, split_url
from ...formats.manifest import MANIFEST_NAME
from ...formats.snapshot import is_snapshot_name
from ...storage import Connection, Entry, FolderStore, KeyStore, LocalStore, Store, open_store
from .globs import glob_start
from .patterns import has_braces, literal_url

MAX_AHEAD = 16  # lookups that run or wait for the consumer
MAX_AHEAD_BY_HEAD = 64  # the same at an http server, which lists nothing for them
_KEYS_BESIDE = 8  # that a lookup lists: an object usually has few others beside it, such as its index
_HTTP_URL = re.compile("https?://", re.IGNORECASE)
_QUICK_S = 0.005  # a source that takes longer for a URL is not read ahead


class Found(NamedTuple):
    """The object at a path, and whether there may be objects below the folder of that name."""

    entry: Entry | None
    may_be_folder: bool


Lookup = Callable[[], Found]  # waits for the result, or raises


def find_named(
    url: str, options: StorageOptions, retry: RetryPolicy, sleep: Callable[[float], object] = time.sleep
) -> Found:
    """Look up a URL that names one object or one folder, by one request.

    Args:
        url: without a slash at its end; no pattern.
        options: for the store.
        retry: policy for transient faults.
        sleep: waits for a number of seconds; raises to stop waiting.
    """
    store, path = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
    started_s = time.perf_counter()
    found = call_with_retries(lambda: _find(store, path, split_url(url)[0]), retry, url=url, sleep=sleep)
    LIST.worked(started_s, 0, items=found.entry is not None, requests=1)
    return found


def _find(store: Store, path: str, scheme: str) -> Found:
    if isinstance(store, KeyStore):
        return _among_keys(store, path)
    entry = store.find(path)
    has_files = isinstance(store, LocalStore | FolderStore)  # where a file is no folder
    return Found(entry, may_be_folder=scheme not in HTTP and not (has_files and entry is not None))


def _among_keys(store: KeyStore, path: str) -> Found:
    """List the first keys that begin with the path: the object itself, those beside it, and those below it."""
    entry, page = store.find_first(path, _KEYS_BESIDE)
    keys = [one.path for one in page.entries]
    after = path + chr(ord("/") + 1)  # sorts after all keys below the folder
    is_complete = page.next_token is None or (keys == sorted(keys) and keys[-1:] >= [after])
    return Found(entry, may_be_folder=not is_complete or any(key.startswith(path + "/") for key in keys))


def with_lookups(
    urls: Iterable[str], options: StorageOptions, retry: RetryPolicy
) -> Generator[tuple[str, Lookup | None], None, None]:
    """Yield each source URL with its lookup, which was begun before, if it names one object.

    The first one is not read ahead, and then up to ``MAX_AHEAD``, for http ``MAX_AHEAD_BY_HEAD``, unless the source of
    the URLs takes long for one.

    Args:
        urls: read only in the thread that iterates.
        options: for the stores.
        retry: policy for transient faults.

    Yields:
        The URL, and its lookup; ``None`` if the caller has to look it up, or list it.

    Raises:
        Exception: an error of ``urls``, after the URLs before it.
    """
    source, waiting = iter(urls), deque[tuple[str, Lookup | None]]()
    ended: Exception | None = None
    most = 1
    limit = MAX_AHEAD
    with closing(Pool(MAX_AHEAD_BY_HEAD)) as pool:
        while True:
            while ended is None and len(waiting) < most:
                began_s = time.perf_counter()
                try:
                    url = next(source)
                except Exception as error:  # noqa: BLE001  # earlier URLs are listed first
                    ended = error
                    break
                if time.perf_counter() - began_s > _QUICK_S:
                    most = 1
                limit = MAX_AHEAD_BY_HEAD if _HTTP_URL.match(url) else MAX_AHEAD
                is_ahead = most > 1 and names_one_object(url)
                waiting.append((url, _begin(pool, url, options, retry) if is_ahead else None))
            if waiting:
                most = min(2 * most, limit)
                yield waiting.popleft()
            elif isinstance(ended, StopIteration):
                return
            elif ended is not None:
                raise ended


def names_one_object(url: str) -> bool:
    """Whether a source URL names one object or folder that has to be looked up in a store, by a request."""
    try:
        scheme, _, path = split_url(literal_url(url))
        if isinstance(url, RemoteUrl):
            is_listed = is_listed_object(url)
        else:
            is_listed = has_braces(url) or (scheme not in HTTP and glob_start(split_url(url)[2]) is not None)
    except ValueError:
        return False  # raised where the URL is listed
    name = split_version(path)[0].rpartition("/")[2]
    return not is_listed and scheme not in LOCAL and bool(name) and not lists_shards(name)


def is_listed_object(url: str) -> TypeGuard[RemoteUrl]:
    """Whether a URL with its size comes from a listing; an empty object may be a marker of a folder."""
    if not isinstance(url, RemoteUrl) or not url.size:
        return False
    name = split_version(url)[0].rpartition("/")[2]
    return bool(name) and not lists_shards(name)


def lists_shards(name: str) -> bool:
    """Whether an object of this name is a manifest or a snapshot, whose shards are listed instead of itself."""
    return name == MANIFEST_NAME or is_snapshot_name(name)


def _begin(pool: Pool, url: str, options: StorageOptions, retry: RetryPolicy) -> Lookup | None:
    """Look up a URL in a thread of the pool, where the result waits for the caller; ``None`` without threads."""
    results: queue.SimpleQueue[Found | BaseException] = queue.SimpleQueue()
    try:
        pool.submit(_look_up, results, partial(find_named, url, options, retry, pool.sleep), on_dropped=results.put)
    except PoolClosedError:
        return None

    def lookup() -> Found:
        with LIST.waiting():
            result = next_item(results)
        if isinstance(result, BaseException):
            raise result
        return result

    return lookup


def _look_up(results: queue.SimpleQueue[Found | BaseException], find: Callable[[], Found]) -> None:
    try:
        results.put(find())
    except BaseException as error:  # noqa: BLE001  # raised where the URL is listed
        results.put(error)
