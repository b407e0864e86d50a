"""Open the store of a URL: which transport is used for which URL.

========================= ============================================= ==========================
URL                       reading                                       listing, stat, writing
========================= ============================================= ==========================
``s3://``                 obstore; botocore in a child that was forked  botocore
                          after obstore was used, and for keys that
                          obstore cannot express
``s3://``, with options   s3fs                                          s3fs
without a translation
``gs://``, ``gcs://``     as ``s3://``, by gcsfs where s3fs is named    as ``s3://``
``http://``, ``https://`` obstore; urllib3 for URLs with a query        HEAD only
``datasets://``           obstore; urllib3 in a forked child            urllib3
``hf://``                 urllib3                                       urllib3; never written
``file://``, local paths  mapped, or ``pread`` where small              ``scandir``, rename
all else                  fsspec                                        fsspec
========================= ============================================= ==========================

This is ``Backend.AUTOMATIC``. Another backend is used for reading, or is an error if it cannot read the URL.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import NamedTuple

from ..core.chained_urls import without_target
from ..core.options import Backend, RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..core.urls import DATASETS, GS, HTTP, HUGGING_FACE, LOCAL, S3, join_url, redact, split_url
from ..errors import UrlError
from . import request_counts
from .gcs.settings import gcs_settings
from .local.store import LocalStore
from .obstore_choice import choose_obstore
from .option_names import require_known_options
from .option_values import require_certificate_files
from .protocol import Store
from .s3.fallback_credentials import without_fallback
from .s3.settings import s3_settings
from .web_stores import http_store, hub_store

_log = logging.getLogger("torchdata_remote")


class Connection(NamedTuple):
    """How to connect to a store.

    Args:
        backend: the library that reads.
        read_timeout_s: seconds without a byte after which a request fails.
    """

    backend: Backend = Backend.AUTOMATIC
    read_timeout_s: float = RetryPolicy().progress_timeout_s


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
        UrlError: if the URL is invalid, its scheme is unknown, or the chosen backend cannot read it.
        AccessDeniedError: if the credentials are incomplete, or their profile does not exist.
    """
    scheme, bucket, path = split_url(url)
    if scheme not in S3:
        options = without_fallback(options)
    key = scheme, bucket, options.identity(), connection
    with _lock:
        if key not in _stores:
            require_known_options(url, scheme, options)
            if scheme in S3:
                require_certificate_files(redact(url), options)
            store, reason = _make_store(scheme, bucket, options, connection)
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


def read_whole(url: str, options: StorageOptions, retry: RetryPolicy, *, by_obstore: bool = True) -> bytes:
    """Read a small object.

    Args:
        url: of the object.
        options: for the store.
        retry: how transient errors are retried.
        by_obstore: whether obstore may be used. Pass ``False`` in a process that will be forked: children cannot use
            obstore after their parent did.

    Raises:
        StorageError: if it cannot be read.
    """
    store, path = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
    read = store.read if by_obstore else getattr(store, "read_without_obstore", store.read)
    return call_with_retries(lambda: read(path, 0, None, None).whole(), retry, url=url)


def _make_store(scheme: str, bucket: str, options: StorageOptions, connection: Connection) -> tuple[Store, str]:
    """Return a store, and which library reads it and why.

    The stores that need urllib3 are imported here: it takes as long as NumPy, and local files do not need it.
    """
    backend, read_timeout_s = connection
    automatic, chosen = backend is Backend.AUTOMATIC, f"backend={backend.value!r}"
    if backend is Backend.FSSPEC:
        return _fsspec_store(scheme, bucket, options, read_timeout_s), f"fsspec ({chosen})"
    if scheme in S3:
        settings = s3_settings(options, read_timeout_s)
        if settings is not None:
            from .s3.store import S3Store

            by_obstore, reason = choose_obstore(scheme, bucket, backend, instead="botocore")
            return S3Store(bucket, settings, read_by_obstore=by_obstore), reason
        if automatic:
            _log.warning("s3://%s is read by s3fs, more slowly: an option of %r has no translation", bucket, options)
            return _fsspec_store(
                scheme, bucket, options, read_timeout_s
            ), f"s3fs (an option of {options!r} has no translation)"
    elif scheme in GS and (google := _google_store(bucket, options, connection)) is not None:
        return google
    elif scheme in HTTP and (web := http_store(scheme, bucket, options, backend, read_timeout_s)) is not None:
        return web
    elif scheme == DATASETS and backend is not Backend.BOTOCORE:
        from .dataset_service.store import DatasetsStore

        by_obstore, reason = choose_obstore(scheme, bucket, backend, instead="urllib3")
        return DatasetsStore(bucket, options, read_timeout_s, read_by_obstore=by_obstore), reason
    elif automatic and scheme == HUGGING_FACE and (hub := hub_store(bucket, options, read_timeout_s)) is not None:
        return hub
    elif automatic and scheme in LOCAL and not options:
        return LocalStore(), "the operating system (local files)"
    if automatic:
        return _fsspec_store(scheme, bucket, options, read_timeout_s), "fsspec (the transport for all other URLs)"
    raise UrlError(
        f"{chosen} cannot read {scheme}://{bucket} with {options!r}. Pass backend='automatic', or backend='fsspec', "
        "which supports every option of its filesystems.",
        url=f"{scheme}://{bucket}",
    )


def _google_store(bucket: str, options: StorageOptions, connection: Connection) -> tuple[Store, str] | None:
    """Like :func:`_make_store`; ``None`` if an option has no translation."""
    settings = gcs_settings(options, connection.read_timeout_s)
    if settings is None:
        _log.warning("gs://%s is read by gcsfs, more slowly: an option of %r has no translation", bucket, options)
        return None
    from .gcs.store import GcsStore

    by_obstore, reason = choose_obstore("gs", bucket, connection.backend, instead="botocore")
    return GcsStore(bucket, settings, read_by_obstore=by_obstore), reason


def _fsspec_store(scheme: str, bucket: str, options: StorageOptions, read_timeout_s: float) -> Store:
    if mistake := without_target(scheme, options):
        raise UrlError(f"{scheme}://{bucket}: {mistake}", url=f"{scheme}://{bucket}")
    from .fsspec_store import FsspecStore  # fsspec takes 0.1 s to import, which the other stores do not need

    try:
        return FsspecStore(scheme, bucket, options, read_timeout_s)
    except (TypeError, AttributeError) as error:
        where = f"{scheme}://{bucket}"
        raise UrlError(
            f"{where}: {type(error).__name__}: {error}. Check the kinds of the values in storage_options "
            f"({', '.join(sorted(options))}).",
            url=where,
        ) from error
