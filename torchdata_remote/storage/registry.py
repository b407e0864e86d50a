"""One store for each bucket, options and process: opened by the URL of an object, and dropped in a forked child."""

from __future__ import annotations

import logging
import os
import threading

from ..core.options import FALLBACK_NAMES, RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..core.urls import S3, join_url, redact, split_url
from . import request_counts
from .options import check_options
from .protocol import Store
from .transports import Connection, make_store

_log = logging.getLogger("torchdata_remote")


_DEFAULT = Connection()
_Key = tuple[str, str, str, Connection]
_stores: dict[_Key, Store] = {}
_lock = threading.RLock()
_stores_of_parent: list[
    dict[_Key, Store]
] = []  # never freed: their finalizers would wait for threads that do not exist here


def _drop_after_fork() -> None:
    global _lock, _stores
    _stores_of_parent.append(_stores)
    _stores = {}
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_after_fork)


def open_store(url: str, options: StorageOptions, connection: Connection = _DEFAULT) -> tuple[Store, str]:
    """Return the store of a URL, and the URL's path in it. There is one store per bucket, options and process.

    Raises:
        UrlError: if the URL is invalid, its scheme is unknown, or the chosen backend cannot read it; and for selected
            samples of shards, which no store has.
        AccessDeniedError: if the credentials are incomplete, or their profile does not exist.
    """
    scheme, bucket, path = split_url(url)
    options = options.for_url(url)
    if scheme not in S3 and any(name in options for name in FALLBACK_NAMES):
        options = StorageOptions({name: options[name] for name in options.keys() - {*FALLBACK_NAMES}})
    key = scheme, bucket, options.identity(), connection
    with _lock:
        if key not in _stores:
            check_options(url, options)
            store, reason = make_store(scheme, bucket, options, connection)
            _stores.setdefault(key, store)  # a finalizer may have opened it in this thread meanwhile
            _log.info("%s is read by %s", redact(join_url(scheme, bucket, "")), reason)
        if request_counts.counting:
            request_counts.watch(_stores[key])
        return _stores[key], path


def publish(url: str, data: bytes, options: StorageOptions, *, overwrite: bool) -> None:
    """Write a small object, which becomes visible as a whole.

    Raises:
        ObjectExistsError: if it exists and ``overwrite`` is ``False``.
    """
    store, path = open_store(url, options)
    writer = store.create(path, overwrite=overwrite)
    try:
        writer.write(data)
        writer.commit()
    except BaseException:
        writer.abort()
        raise


class WithoutObstore:
    """Reads of a store by the library after whose use a process can be forked.

    Args:
        store: which may read by obstore.
    """

    def __init__(self, store: Store) -> None:
        self.read = getattr(store, "read_without_obstore", store.read)


def read_whole(
    url: str, options: StorageOptions, retry: RetryPolicy, *, by_obstore: bool = True, etag: str | None = None
) -> bytes:
    """Read a small object.

    Args:
        url: of the object.
        options: for the store.
        retry: how transient errors are retried.
        by_obstore: whether obstore may be used. Pass ``False`` in a process that will be forked: children cannot use
            obstore after their parent did.
        etag: of the version to read; ``None`` for the current one.

    Raises:
        ObjectChangedError: if ``etag`` is that of another version.
        StorageError: if it cannot be read.
    """
    store, path = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
    read = store.read if by_obstore else WithoutObstore(store).read
    return call_with_retries(lambda: read(path, 0, None, etag).whole(), retry, url=url)
